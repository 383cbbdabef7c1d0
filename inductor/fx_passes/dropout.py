"""Dropout on a GPU in kernels of our own, with the random numbers of eager's.

In: a functional ATen graph with fakes, forward alone or joint. Out: the same graph (changed in
place), in which a `native_dropout` is a draw of the generator's state, and a mask that kernels
compute of it for each element, with what stands around it (`inductor.operators.dropout_ops`). So
forward writes no mask, and backward, which needs it again, keeps seed and offset. Dropouts between
which nothing else draws share one draw.

Left to ATen are dropouts of tensors that are not dense, or that may begin anywhere in memory
(inputs and views of them), or of an odd number of elements that don't lie in the order of their
indices: there ATen takes the numbers in another order; those in backward, and those that a
checkpoint recomputes.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import fx

from dynamo.aot.fakes import is_fake, storage_key
from dynamo.aot.joint import TANGENT, viewed
from dynamo.aot.records import RECOMPUTED
from dynamo.base import logs
from dynamo.graph_operators.operator_effects import freedom_of
from inductor.fx_passes.fakes import fake_runner
from inductor.ir.philox import BYTES
from inductor.operators.dropout_ops import MASK, STATE
from inductor.runtime.dropout_state import why_not

aten = torch.ops.aten
DROPOUT = aten.native_dropout.default
DEVICE = "cuda"
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
OWN = ("aten", "prims", "dynamo_jit")  # operators whose results lie in memory of their own


def draw_in_kernels(module: fx.GraphModule) -> fx.GraphModule:
    """See the top of the file."""
    if not module.graph.find_nodes(op="call_function", target=DROPOUT):
        return module
    groups = list(_groups(module.graph))
    for group in groups:
        why = why_not(_device(group[0]))
        if why:
            logs.log("inductor").emit(f"dropout falls back to ATen: {why}")
            return module
    for group in groups:
        _replace(module.graph, group)
    if groups:
        module.recompile()
    return module


def _groups(graph: fx.Graph) -> Iterator[list[fx.Node]]:
    """Dropouts that may share a draw, in order."""
    inputs = {
        storage_key(node.meta["val"]) for node in graph.nodes
        if node.op == "placeholder" and is_fake(node.meta.get("val"))
    }
    late: set[fx.Node] = set()  # in backward
    group: list[fx.Node] = []
    for node in graph.nodes:
        if node.op == "placeholder" and node.name.startswith(TANGENT):
            late.add(node)
        elif not late.isdisjoint(node.all_input_nodes):
            late.add(node)
        if node.op != "call_function" or not _may_draw(node):
            continue
        fits = node.target is DROPOUT and node not in late and _fits(node, inputs)
        if group and not (fits and _device(node) == _device(group[0])):
            yield group
            group = []
        if fits:
            group.append(node)
    if group:
        yield group


def _may_draw(node: fx.Node) -> bool:
    """Whether an operation may move a generator on."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return False
    return not freedom_of(target).move


def _device(node: fx.Node) -> torch.device:
    device: torch.device = node.meta["val"][0].device
    return device


def _fits(node: fx.Node, inputs: set[Any]) -> bool:
    x, rate, trains = node.args
    if trains is not True or not isinstance(rate, float) or not 0.0 < rate < 1.0:
        return False
    if not isinstance(x, fx.Node) or node.kwargs or RECOMPUTED in node.meta:
        return False
    value = x.meta["val"]
    if value.device.type != DEVICE or value.dtype not in DTYPES:
        return False
    if any(user.target is not operator.getitem for user in node.users):
        return False
    if any(type(n) is not int for n in (*value.shape, *value.stride(), value.storage_offset())):
        return False
    aligned = value.storage_offset() * value.dtype.itemsize % BYTES == 0
    return aligned and _is_in_order(value.shape, value.stride()) and _is_made_here(x, inputs)


def _is_in_order(size: Sequence[int], stride: Sequence[int]) -> bool:
    """Whether ATen takes the numbers in the order of memory: the elements, of which there are some,
    fill it from the first to the last, and in the order of indices where their number is odd."""
    axes = [axis for axis in zip(stride, size, strict=True) if axis[1] != 1]
    by_index = axes[::-1]
    expected = 1
    for step, count in by_index if math.prod(size) % 2 else sorted(by_index):
        if step != expected:
            return False
        expected *= count
    return 0 not in size


def _is_made_here(x: fx.Node, inputs: set[Any]) -> bool:
    """Whether it lies in memory that eager allocates for it, which begins at a multiple of 16."""
    base: fx.Node | None = x
    while base is not None:
        if base.op != "call_function" or storage_key(base.meta["val"]) in inputs:
            return False
        x, base = base, viewed(base)
    maker: Any = x.args[0] if x.target is operator.getitem else x
    return getattr(maker.target, "namespace", "") in OWN


def _replace(graph: fx.Graph, group: list[fx.Node]) -> None:
    """One draw, and of each dropout the mask and what it is multiplied with."""
    run = fake_runner(group[0].meta["val"][0])
    sizes = [math.prod(node.meta["val"][0].shape) for node in group]
    with graph.inserting_before(group[0]):
        state = graph.call_function(STATE, (sizes, _device(group[0])))
        state.meta = dict(group[0].meta)
        state.meta["val"] = run(
            aten.empty.memory_format, [2], dtype=torch.int64, device=_device(group[0]))
    for at, node in enumerate(group):
        _replace_one(graph, node, state, sizes[:at], run)


def _replace_one(
    graph: fx.Graph, node: fx.Node, state: fx.Node, before: list[int], run: Any
) -> None:
    x: Any = node.args[0]
    rate: Any = node.args[1]
    value = x.meta["val"]
    size, stride = list(value.shape), list(value.stride())
    # as ATen computes it: the share that is kept, in float32
    share = torch.tensor(1.0 - rate, dtype=torch.float32).item()
    scale = torch.tensor(1.0 / share, dtype=torch.float32).item()
    with graph.inserting_before(node):
        mask = graph.call_function(MASK, (state, before, size, stride, value.dtype, rate))
        chosen = graph.call_function(aten.mul.Tensor, (x, mask))
        scaled = graph.call_function(aten.mul.Tensor, (chosen, scale))
    mask.meta = dict(node.meta)
    mask.meta["val"] = run(
        aten.empty_strided.default, size, stride, dtype=torch.bool, device=value.device)
    for made in (chosen, scaled):
        made.meta = dict(node.meta)
        made.meta["val"] = run(
            aten.empty_strided.default, size, stride, dtype=value.dtype, device=value.device)
    for user in list(node.users):
        user.replace_all_uses_with(mask if user.args[1] else scaled)
        graph.erase_node(user)
    graph.erase_node(node)
