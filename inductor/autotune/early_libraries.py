"""Builds the libraries that a graph will ask for while the graph is still being compiled.

In: a functional ATen graph with fakes in `meta["val"]`. What happens: for each GEMM, attention
or convolution of a size that is worth a kernel of ours, a thread builds its library, where that is
not there yet (`runtime/own_libraries.py`). Once per machine; several at once.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import fx

from dynamo.store.content import cache_store
from dynamo.store.toolchain import find_toolchain
from inductor.autotune import gemm_choice, library_convolutions
from inductor.autotune.attention_choice import FLASH
from inductor.autotune.trials import spending
from inductor.config import config, is_enabled
from inductor.kernels.cpu.attention.source import attention_unit
from inductor.kernels.cpu.convolution import CONVOLUTION_UNITS
from inductor.kernels.cpu.gemm import GEMM_UNIT
from inductor.kernels.cpu.half_gemm import HALF_UNIT
from inductor.operators import cpu_attention_ops
from inductor.runtime.own_libraries import Units, begin

aten = torch.ops.aten
ATTENTION = (FLASH, cpu_attention_ops.OPERATOR)
Function = TypeVar("Function", bound=Callable[..., Any])


def with_libraries(function: Function) -> Function:
    """Around what compiles a graph, its first argument: the libraries are begun, and the time for
    measuring is limited."""

    @functools.wraps(function)
    def compile_it(module: fx.GraphModule, *rest: Any) -> Any:
        if config.kernels:
            begin_libraries(module)
        with spending(config.measure_seconds):
            return function(module, *rest)

    return compile_it  # type: ignore[return-value]


def begin_libraries(module: fx.GraphModule) -> None:
    """See the top of the file."""
    frozen = bool(module.meta.get("frozen"))
    calls = (node for node in module.graph.nodes if node.op == "call_function")
    libraries = dict.fromkeys(_library_for(node, frozen) for node in calls)
    _begin([units for units in libraries if units is not None])


def begin_gemm_library() -> None:
    """The library of GEMMs alone."""
    if config.library_kernels == "measure":
        _begin([(GEMM_UNIT,)])


def _begin(libraries: Sequence[Units]) -> None:
    store = cache_store()
    toolchain = find_toolchain(store) if libraries else ""
    if not isinstance(toolchain, str):
        for units in libraries:
            begin(units, store, toolchain)


def _library_for(node: fx.Node, frozen: bool) -> Units | None:
    """The library that this call may want."""
    if node.target in ATTENTION:
        return _library_for_attention(node)
    if config.library_kernels != "measure" or not is_enabled("templates"):
        return None
    if node.target in (aten.mm.default, aten.addmm.default):
        left, right = map(_value, node.args[-2:])
        if left is None or right is None:
            return None
        operations = math.prod(left.shape) * right.shape[-1]
        if operations < gemm_choice.FEWEST_OPERATIONS:
            return None
        if left.dtype is torch.float32:
            return (GEMM_UNIT,)
        return (HALF_UNIT,) if library_convolutions.is_native(left.dtype) else None
    if node.target is aten.convolution.default and frozen:
        result, weight = _value(node), _value(node.args[1])
        if result is None or weight is None or result.dim() != 4:
            return None
        operations = result.numel() * math.prod(weight.shape[1:])
        return CONVOLUTION_UNITS if operations >= library_convolutions.FEWEST_OPERATIONS else None
    return None


def _library_for_attention(node: fx.Node) -> Units | None:
    q, k, v = map(_value, node.args[:3])
    if q is None or k is None or v is None or not cpu_attention_ops.fits(q, k, v, None, None):
        return None
    if node.target is FLASH and any(user.args[1] != 0 for user in node.users):
        return None  # gradients want more than the result
    worth = cpu_attention_ops.operations(q, k, v) >= cpu_attention_ops.FEWEST_OPERATIONS
    return (attention_unit(q.dtype is torch.bfloat16),) if worth else None


def _value(node: Any) -> torch.Tensor | None:
    """What the node computes, where that is a tensor on the CPU whose sizes are known."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.device.type != "cpu":
        return None
    if value.dtype not in cpu_attention_ops.DTYPES or any(type(n) is not int for n in value.shape):
        return None
    return value
