"""GEMMs of half precision on a CPU that has no instructions for them: computed in float32.

In: a functional ATen graph with fakes in `meta["val"]`. Out: the same graph (changed in place),
where a GEMM, a convolution or attention of float16 or bfloat16 reads operands that are cast to
float32, and its result is cast back. ATen adds up such GEMMs in float32, too, and rounds once,
but term by term: on a processor with AVX2 alone this is 5 to 20 times as fast. Casts become parts
of neighbouring kernels; those of weights of inference are made once (`constant_parts.py`).

What stays: GEMMs of few rows with the transpose of a dense weight, for which ATen reads the
halves at the speed of memory; tiny ones; attention of bfloat16 without gradients, which has a
kernel (`cpu_attention_ops.py`); all on processors for which oneDNN has GEMMs of the dtype. Where
no library is wanted, these don't stay: a package has kernels for float32 wherever it has none for
half precision, on each processor.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

from dynamo.store.processor import HALF_SUPPORT
from inductor.autotune.attention_choice import FLASH
from inductor.autotune.library_convolutions import is_native
from inductor.config import OWN, config
from inductor.fx_passes.calls_with_fakes import Calls
from inductor.fx_passes.fakes import fake_runner

aten = torch.ops.aten
CONVOLUTION = aten.convolution.default
FLASH_BACKWARD = aten._scaled_dot_product_flash_attention_for_cpu_backward.default
# Fewer are not worth a conversion (chosen, not measured); dense weights of few rows are read where
# they lie (`kernels/cpu/few_rows.py`), which was as fast as memory for up to eight.
FEWEST_OPERATIONS = 1 << 14
FEW_ROWS = 8


def compute_in_float32(module: fx.GraphModule) -> fx.GraphModule:
    """See the top of the file."""
    found = [node for node in module.graph.nodes if node.op == "call_function" and _is_slow(node)]
    casts: dict[fx.Node, fx.Node] = {}
    changed = [node for node in found if _widen(node, casts)]
    if changed:
        module.recompile()
    return module


def _is_slow(node: fx.Node) -> bool:
    judge = RULES.get(node.target)
    values = [one.meta.get("val") for one in node.all_input_nodes]
    halves = [v for v in values if isinstance(v, Tensor) and v.dtype in HALF_SUPPORT]
    if judge is None or not halves or any(v.device.type != "cpu" for v in halves):
        return False
    if any(v.dtype is not halves[0].dtype for v in halves):
        return False
    if config.library_kernels == OWN:
        return node.target is CONVOLUTION or judge is _is_slow_attention and judge(node)
    return not is_native(halves[0].dtype) and judge(node)


def _is_slow_gemm(node: fx.Node) -> bool:
    left, right = (_value(one) for one in node.args[-2:])
    rows, terms = left.shape[-2:]
    sizes = (*left.shape, right.shape[-1])
    if any(type(size) is not int for size in sizes):
        return True
    dense = left.dim() == 2 and right.stride() == (1, terms)
    return not (dense and rows <= FEW_ROWS) and math.prod(sizes) >= FEWEST_OPERATIONS


def _is_slow_convolution(node: fx.Node) -> bool:
    result, weight = node.meta["val"], _value(node.args[1])
    if node.target is not CONVOLUTION:  # backward: the gradient of the result
        result = _value(node.args[0])
    sizes = (*result.shape, *weight.shape[1:])
    if any(type(size) is not int for size in sizes):
        return True
    return math.prod(sizes) >= FEWEST_OPERATIONS


def _is_slow_attention(node: fx.Node) -> bool:
    return _value(node.args[0]).dtype is torch.float16


RULES: dict[Any, Callable[[fx.Node], bool]] = {
    **dict.fromkeys(
        (aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default),
        _is_slow_gemm,
    ),
    CONVOLUTION: _is_slow_convolution,
    aten.convolution_backward.default: _is_slow_convolution,
    FLASH: _is_slow_attention,
    FLASH_BACKWARD: lambda node: True,
}


def _widen(node: fx.Node, casts: dict[fx.Node, fx.Node]) -> bool:
    """Compute it in float32; not where its results would have other strides."""
    run = fake_runner(_value(node.all_input_nodes[0]))
    given = fx.map_arg((node.args, node.kwargs), lambda one: _wide_fake(run, one))
    wide = run(node.target, *given[0], **given[1])
    if not _have_same_strides(node.meta["val"], wide):
        return False

    def operand(one: fx.Node) -> fx.Node:
        if _value(one).dtype not in HALF_SUPPORT:
            return one
        if one not in casts:
            casts[one] = _cast(one, torch.float32)
        return casts[one]

    users = dict.fromkeys(node.users)
    before = node.meta["val"]
    node.args, node.kwargs = fx.map_arg((node.args, node.kwargs), operand)
    node.meta = {**node.meta, "val": wide}
    if isinstance(before, Tensor):
        _narrow(node, before.dtype)
        return True
    for user in users:
        assert user.target is operator.getitem
        half = user.meta.get("val")
        if isinstance(half, Tensor) and half.dtype in HALF_SUPPORT:
            user.meta = {**user.meta, "val": wide[user.args[1]]}  # type: ignore[index]
            _narrow(user, half.dtype)
    return True


def _narrow(node: fx.Node, dtype: torch.dtype) -> None:
    """What reads a result in float32 reads it in half precision."""
    half = _cast(node, dtype)
    node.replace_all_uses_with(half, delete_user_cb=lambda user: user is not half)


def _cast(node: fx.Node, dtype: torch.dtype) -> fx.Node:
    return Calls(node, node.next)(aten._to_copy.default, node, dtype=dtype)


def _wide_fake(run: Callable[..., Any], node: fx.Node) -> Any:
    value = node.meta["val"]
    if isinstance(value, Tensor) and value.dtype in HALF_SUPPORT:
        return run(aten._to_copy.default, value, dtype=torch.float32)
    return value


def _have_same_strides(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.stride() == other.stride()
    if isinstance(one, (list, tuple)):
        return all(map(_have_same_strides, one, other))
    return one is None and other is None


def _value(node: Any) -> Tensor:
    value: Tensor = node.meta["val"]
    return value
