"""Reference interpreter: what a `LoopGraph` means, computed slowly on real tensors.

In: a graph and its input tensors. Out: the output tensors. Every operation of a body is evaluated
for all iterations at once with the Python reference of its row in SCALAR_OPS, so that a test can
compare a lowering with eager without any code generator in between.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from inductor.ir.body import IndexFault, IndirectVar, LoopBody, Op
from inductor.ir.graph import (
    ComputedBuffer,
    ExternKernel,
    Layout,
    LoopGraph,
    MultiOutput,
    ViewRef,
)
from inductor.ir.index import Index
from inductor.ir.philox import Draw, keeps
from inductor.ir.scalar_ops import SCALAR_OPS

Storages = dict[str, torch.Tensor]


def interpret_graph(graph: LoopGraph, inputs: Sequence[Any]) -> list[Any]:
    """Outputs of the graph for real inputs (tensors with the strides of the layouts)."""
    storages: Storages = {}
    for buffer in graph.inputs:
        if buffer is not None:
            storages[buffer.name] = _whole_storage(inputs[buffer.position])
    for constant in graph.constants:
        storages[constant.name] = _whole_storage(constant.value)
    results: dict[str, Any] = {}
    for node in graph.nodes:
        if isinstance(node, ComputedBuffer):
            if not node.mutates:
                storages[node.name] = _allocate(node.layout)
            interpret_body(node.body, storages)
        elif isinstance(node, ExternKernel):
            result = _call(node, storages)
            if node.layout is None:
                results[node.name] = result
            else:
                _keep(node.name, node.layout, result, storages)
        else:
            assert isinstance(node, MultiOutput)
            _keep(node.name, node.layout, results[node.extern][node.index], storages)
    return [
        _view(output, storages) if isinstance(output, ViewRef) else output
        for output in graph.outputs
    ]


def interpret_nodes(nodes: Sequence[ComputedBuffer], buffers: dict[str, torch.Tensor]) -> None:
    """Run nodes in order, on what `buffers` holds; results that are not in it are thrown away."""
    storages = {name: _whole_storage(tensor) for name, tensor in buffers.items()}
    for node in nodes:
        if not node.mutates and node.name not in storages:
            storages[node.name] = _allocate(node.layout)
        with node.layout.device:
            interpret_body(node.body, storages)


def interpret_body(body: LoopBody, storages: Storages) -> None:
    """Run one loop nest on torch's default device; stores go into `storages`."""
    extents = body.ranges + body.reduction_ranges
    values: dict[str, object] = {}
    for axis, extent in enumerate(extents):
        shape = [1] * len(extents)
        shape[axis] = extent
        inner = axis - len(body.ranges)
        name = f"i{axis}" if inner < 0 else f"r{inner}"
        values[name] = torch.arange(extent).reshape(shape)
    state = _BodyState(body, storages, values, extents)
    for op in body.ops:
        state.results.append(_EVALUATORS.get(op.name, _evaluate_plain)(state, op))


class _BodyState:
    def __init__(
        self,
        body: LoopBody,
        storages: Storages,
        variables: dict[str, object],
        extents: tuple[int, ...],
    ) -> None:
        self.body = body
        self.storages = storages
        self.variables = variables
        self.extents = extents
        self.results: list[Any] = []

    def position(self, index: Index) -> torch.Tensor:
        return torch.as_tensor(index.evaluate(self.variables))

    def args(self, op: Op) -> list[Any]:
        return [self.results[arg] for arg in op.args]


def _evaluate_plain(state: _BodyState, op: Op) -> torch.Tensor:
    reference = SCALAR_OPS[op.name].reference
    assert reference is not None, op.name
    result: torch.Tensor = reference(*state.args(op))
    if result.dtype is not op.dtype:
        raise TypeError(f"{op} gave {result.dtype}")
    return result


def _evaluate_constant(state: _BodyState, op: Op) -> torch.Tensor:
    return torch.tensor(op.imm, dtype=op.dtype)


def _evaluate_index(state: _BodyState, op: Op) -> torch.Tensor:
    assert op.index is not None
    return state.position(op.index).to(op.dtype)


def _evaluate_load(state: _BodyState, op: Op) -> torch.Tensor:
    assert op.index is not None
    storage = state.storages[op.buffer]
    if storage.dtype is not op.dtype:
        raise TypeError(f"{op} loads from {storage.dtype}")
    position = state.position(op.index)
    if not op.args:
        if position.numel() and 0 in state.extents:
            return torch.zeros((), dtype=op.dtype)
        return storage[position]
    mask, position = torch.broadcast_tensors(state.args(op)[0], position)
    result = torch.zeros(mask.shape, dtype=op.dtype)
    result[mask] = storage[position[mask]]
    return result


def _evaluate_store(state: _BodyState, op: Op) -> None:
    assert op.index is not None
    ranges = (*state.body.ranges, *(1 for _ in state.body.reduction_ranges))
    value = state.args(op)[0].broadcast_to(ranges).reshape(-1)
    position = state.position(op.index).broadcast_to(ranges).reshape(-1)
    storage = state.storages[op.buffer]
    if storage.dtype is not op.dtype:
        raise TypeError(f"{op} stores into {storage.dtype}")
    if op.imm == "add":
        storage.index_put_((position,), value, accumulate=True)
    else:
        storage[position] = value


def _evaluate_indirect(state: _BodyState, op: Op) -> torch.Tensor:
    imm = op.imm
    assert isinstance(imm, IndirectVar)
    value, *mask = state.args(op)
    size = imm.var.size
    value = value.to(torch.int64)
    if imm.wrap:
        value = torch.where(value < 0, value + size, value)
    bad = (value < 0) | (value >= size)
    if mask:
        bad = bad & mask[0]
        value = torch.where(mask[0], value, 0)
    if imm.check and 0 not in state.extents and bool(bad.any()):
        kind = RuntimeError if imm.error >= IndexFault.ELEMENT else IndexError
        raise kind("index out of range in self")
    state.variables[imm.var.name] = value
    return value


def _evaluate_to_dtype(state: _BodyState, op: Op) -> torch.Tensor:
    return state.args(op)[0].to(op.dtype)


def _evaluate_bitcast(state: _BodyState, op: Op) -> torch.Tensor:
    return state.args(op)[0].view(op.dtype)


def _evaluate_above_one(state: _BodyState, op: Op) -> torch.Tensor:
    word, mask = state.args(op)
    return 1 + (word & mask).to(op.dtype) / (1 << 23)


def _evaluate_nibble(state: _BodyState, op: Op) -> torch.Tensor:
    word, distance = state.args(op)
    return ((word >> distance) & 15).to(op.dtype)


def _evaluate_nibbles_dot(state: _BodyState, op: Op) -> torch.Tensor:
    word, *numbers = state.args(op)
    parts = [x * ((word >> 4 * at) & 15).to(op.dtype) for at, x in enumerate(numbers)]
    return torch.stack(torch.broadcast_tensors(*parts)).sum(0)


def _evaluate_keep(state: _BodyState, op: Op) -> torch.Tensor:
    assert isinstance(op.imm, Draw)
    seed, offset, position = state.args(op)
    return keeps(seed, offset, position, op.imm)


def _evaluate_reduction(state: _BodyState, op: Op) -> torch.Tensor:
    outer = len(state.body.ranges)
    parts = []
    for value in state.args(op):
        full = value.broadcast_to(state.extents)
        parts.append(full.reshape(*state.extents[:outer], -1))
    result = _REDUCERS[str(op.imm)](*parts)
    if result.dtype is not op.dtype:
        result = result.to(op.dtype)
    return result.reshape(*state.body.ranges, *(1 for _ in state.body.reduction_ranges))


def _evaluate_scan(state: _BodyState, op: Op) -> torch.Tensor:
    outer = len(state.body.ranges)
    full = state.args(op)[0].broadcast_to(state.extents)
    flat = full.reshape(*state.extents[:outer], -1)
    return _SCANS[str(op.imm)](flat).to(op.dtype).reshape(state.extents)


def _evaluate_sort(state: _BodyState, op: Op) -> torch.Tensor:
    outer = len(state.body.ranges)
    flat = state.args(op)[0].broadcast_to(state.extents).reshape(*state.extents[:outer], -1)
    return flat.sort(-1, stable=True).indices.to(op.dtype).reshape(state.extents)


def _pick(find: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def reduce(value: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        return position.gather(-1, find(value, -1, keepdim=True)).squeeze(-1)

    return reduce


_REDUCERS: dict[str, Callable[..., torch.Tensor]] = {
    "sum": lambda value: value.sum(-1, dtype=value.dtype),
    "prod": lambda value: value.prod(-1, dtype=value.dtype),
    "max": lambda value: value.amax(-1),
    "min": lambda value: value.amin(-1),
    "any": lambda value: value.any(-1),
    "argmax": _pick(torch.argmax),
    "argmin": _pick(torch.argmin),
}

_SCANS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "sum": lambda value: value.cumsum(-1), "prod": lambda value: value.cumprod(-1),
    "logaddexp": lambda value: value.logcumsumexp(-1),
}

_EVALUATORS: dict[str, Callable[[_BodyState, Op], Any]] = {
    "constant": _evaluate_constant,
    "index_expr": _evaluate_index,
    "load": _evaluate_load,
    "store": _evaluate_store,
    "indirect": _evaluate_indirect,
    "reduction": _evaluate_reduction,
    "scan": _evaluate_scan,
    "sort": _evaluate_sort,
    "keep": _evaluate_keep,
    "to_dtype": _evaluate_to_dtype,
    "bitcast": _evaluate_bitcast,
    "above_one": _evaluate_above_one,
    "nibble": _evaluate_nibble,
    "nibbles_dot": _evaluate_nibbles_dot,
}


def _whole_storage(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's storage from its first element on, as one dimension."""
    detached = tensor.detach()
    count = detached.untyped_storage().nbytes() // detached.element_size()
    return detached.as_strided((count - detached.storage_offset(),), (1,))


def _allocate(layout: Layout) -> torch.Tensor:
    return torch.empty(layout.storage_elements(), dtype=layout.dtype, device=layout.device)


def _view(ref: ViewRef, storages: Storages) -> torch.Tensor:
    storage = storages[ref.buffer]
    return storage.as_strided(ref.size, ref.stride, storage.storage_offset() + ref.offset)


def _keep(name: str, layout: Layout, result: torch.Tensor, storages: Storages) -> None:
    wrong = [
        axis for axis, extent in enumerate(layout.size)
        if extent > 1 and layout.numel() and result.stride(axis) != layout.stride[axis]
    ]
    if tuple(result.shape) != layout.size or result.dtype is not layout.dtype or wrong:
        raise TypeError(f"{name}: expected {layout}, got {result.dtype}{result.stride()}")
    storages[name] = _whole_storage(result)


def _call(node: ExternKernel, storages: Storages) -> Any:
    def real(value: Any) -> Any:
        if isinstance(value, ViewRef):
            return _view(value, storages)
        if isinstance(value, tuple):
            return [real(item) for item in value]
        return value

    return node.target(
        *(real(arg) for arg in node.args), **{key: real(value) for key, value in node.kwargs}
    )
