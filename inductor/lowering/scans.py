"""Lowerings of cumulative operators on a GPU: sums over what stands at or before an element.

Rows that a program holds are scanned there, with what makes their elements. In the shortest ones
an element's sum is a reduction over its row, so that it fuses with what makes the row (one-hot
rows of experts, say) and what becomes of it. Long rows are cut into blocks: sums within a block,
and over the blocks before it. A library has one thread for each row where rows do not lie densely;
it is asked where they do, or where there are enough threads.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from inductor.ir.body import LONGEST_SCAN, Ops, Value
from inductor.ir.graph import Layout, contiguous
from inductor.ir.index import floordiv, mod
from inductor.ir.scalar_ops import dtype_kind
from inductor.lowering.indexing import replaced
from inductor.lowering.pointwise import unsupported
from inductor.lowering.reductions import as_dtype
from inductor.lowering.registry import Call, lowering
from inductor.lowering.tensor import Indices, Tensor, compute_dtype
from inductor.runtime.gpu_properties import properties_of

aten = torch.ops.aten
DIRECT = 256  # elements of a row, each of which goes over the row
# On an H200 a library takes 13 us for 8192 dense rows of 64, this 22, and 300 for rows of 256.
SHORT, FEW_ROWS = 16, 32
# Of the shortest rows, elements in all up to which a kernel takes no longer than its launch; of
# four million each of sixteen took 41 us there, where memory takes 8. Where it turns is chosen.
FEW_ELEMENTS = 1 << 17
# Chosen, not measured: elements of a block, whose sums are summed; elements of a row, for which a
# library has one thread.
BLOCK = 64
LONGEST = 1 << 16
THREADS = 256  # of a multiprocessor, with a row each, that keep a library busy
CHEAP = 4  # the cost of elements that are recomputed for each that reads them
NEUTRAL = {"sum": 0, "prod": 1, "max": -math.inf}


def on_gpu(call: Call) -> bool:
    """Whether a graph is for a GPU."""
    return call.builder.device.type != "cpu"


@lowering(aten.cumsum.default)
def cumsum(call: Call, x: Tensor, dim: int, *, dtype: Any = None) -> Any:
    return _scan(call, x, dim, "sum")


@lowering(aten.cumprod.default)
def cumprod(call: Call, x: Tensor, dim: int, *, dtype: Any = None) -> Any:
    return _scan(call, x, dim, "prod")


@lowering(aten.logcumsumexp.default)
def logcumsumexp(call: Call, x: Tensor, dim: int) -> Any:
    """Of the shortest rows the greatest element so far is taken out of each sum."""
    why = _refusal(call, x, dim)
    axis = dim % max(len(x.size), 1)
    if why or dtype_kind(x.dtype) != "f" or not _is_small(x, axis) and x.size[axis] > LONGEST_SCAN:
        return call.refuse(why or "long rows")
    if not _is_small(x, axis):
        return _one_tile(call, x, axis, "logaddexp")
    x.realize()
    held = compute_dtype(x.dtype)
    wide = contiguous(x.size, held, x.layout.device)
    most = _direct(call, x, axis, "max", wide)
    base = call.builder.computed(wide, [most], 4, lambda ops, i: _finite(ops, most.load(ops, i)))
    base.realize()
    size = x.size[axis]

    def compute(ops: Ops, i: Indices) -> Value:
        value = x.load(ops, replaced(i[:-1], axis, i[-1]))
        part = ops.call("exp", ops.sub(value, base.load(ops, i[:-1])))
        seen = ops.le(ops.index_expr(i[-1]), ops.index_expr(i[axis]))
        return ops.where(seen, part, ops.constant(0.0, held))

    source = _widened(call, x, axis, size, held, compute, base)
    total = call.builder.reduce(wide, source, [len(x.size)], "sum")

    def finish(ops: Ops, i: Indices) -> Value:
        return ops.add(ops.call("log", total.load(ops, i)), base.load(ops, i))

    return call.builder.computed(call.layout, [total, base], 4, finish)


def _finite(ops: Ops, value: Value) -> Value:
    """0 in the place of an infinity, from which nothing can be taken."""
    return ops.where(ops.call("isinf", value), ops.constant(0.0, value.dtype), value)


def _refusal(call: Call, x: Tensor, dim: int) -> str:
    if not on_gpu(call):
        return "a library's is faster"
    if x.dtype.is_complex or unsupported([x]):
        return f"a cumulative operator of {x.dtype}"
    if not x.size or 0 in x.size:
        return "a number, or an empty tensor"
    size = x.size[dim % len(x.size)]
    if type(size) is not int or any(type(each) is not int for each in x.size):
        return "sizes that are known at a call"
    return ""


def _scan(call: Call, x: Tensor, dim: int, kind: str) -> Any:
    why = _refusal(call, x, dim)
    if why:
        return call.refuse(why)
    source, axis = as_dtype(call, x, call.result.dtype), dim % len(x.size)
    if not _is_small(x, axis) and x.size[axis] <= LONGEST_SCAN:
        return _one_tile(call, source, axis, kind)
    if not _is_small(x, axis) and not _library_is_slow(call, x, axis):
        return call.refuse("a library's is faster")
    if source.cost > CHEAP:
        source.realize()
    return _scanned(call, source, axis, kind, call.layout)


def _one_tile(call: Call, x: Tensor, axis: int, kind: str) -> Tensor:
    return call.builder.by_rows(
        call.layout, x, axis, lambda ops, value: ops.scan(kind, value))


def _is_small(x: Tensor, axis: int) -> bool:
    """Whether rows are short, or few, as the counts of a router's experts are."""
    size, elements = x.size[axis], math.prod(x.size)
    is_short = size <= SHORT and elements <= FEW_ELEMENTS
    return is_short or size <= DIRECT and elements <= FEW_ROWS * size


def _library_is_slow(call: Call, x: Tensor, axis: int) -> bool:
    """Whether it would have a thread for each row, and too few of them."""
    rows = math.prod(x.size) // x.size[axis]
    beside = math.prod(x.size[axis + 1 :])
    few = properties_of(call.builder.device).multiprocessors * THREADS
    return beside > 1 and rows < few and x.size[axis] <= LONGEST


def _scanned(call: Call, x: Tensor, axis: int, kind: str, layout: Layout) -> Tensor:
    size = x.size[axis]
    if size <= DIRECT:
        return _direct(call, x, axis, kind, layout)
    held = compute_dtype(layout.dtype)
    count = -(-size // BLOCK)
    shape = (*x.size[:axis], count, *x.size[axis + 1 :])
    blocks = contiguous(shape, held, layout.device)
    totals = call.builder.reduce(
        blocks, _by_blocks(call, x, axis, shape, kind), [len(shape)], kind)
    until = _scanned(call, totals, axis, kind, blocks)
    until.realize()
    inside = call.builder.reduce(
        contiguous(x.size, held, layout.device), _within(call, x, axis, kind), [len(shape)], kind)

    def compute(ops: Ops, i: Indices) -> Value:
        block = floordiv(i[axis], BLOCK)
        is_first = ops.lt(ops.index_expr(i[axis]), ops.index_expr(BLOCK))
        neutral = ops.constant(NEUTRAL[kind], held)
        first = ops.logical_not(is_first)
        before = ops.masked(
            first, lambda: until.load(ops, replaced(i, axis, block - 1)), NEUTRAL[kind])
        before = ops.where(is_first, neutral, before)
        return ops.call("add" if kind == "sum" else "mul", before, inside.load(ops, i))

    return call.builder.computed(layout, [until, inside], 6, compute)


def _by_blocks(call: Call, x: Tensor, axis: int, shape: tuple[int, ...], kind: str) -> Tensor:
    """The elements of each block in a last axis."""
    held, size = compute_dtype(x.dtype), x.size[axis]

    def compute(ops: Ops, i: Indices) -> Value:
        at = i[axis] * BLOCK + i[-1]
        load = lambda: x.load(ops, replaced(i[:-1], axis, at))  # noqa: E731
        if size % BLOCK == 0:
            return load()
        inside = ops.lt(ops.index_expr(at), ops.index_expr(size))
        return ops.masked(inside, load, NEUTRAL[kind])

    step = x.layout.stride[axis]
    stride = (*x.layout.stride[:axis], BLOCK * step, *x.layout.stride[axis + 1 :], step)
    layout = Layout(x.layout.device, held, (*shape, BLOCK), stride)
    return Tensor(layout, x.owner, compute=compute, cost=x.cost + 2, reads=x.reads)


def _within(call: Call, x: Tensor, axis: int, kind: str) -> Tensor:
    """For each element, in a last axis, those of its block: up to itself, then neutral ones."""
    held = compute_dtype(x.dtype)

    def compute(ops: Ops, i: Indices) -> Value:
        at = i[axis] - mod(i[axis], BLOCK) + i[-1]
        seen = ops.le(ops.index_expr(at), ops.index_expr(i[axis]))
        return ops.masked(
            seen, lambda: x.load(ops, replaced(i[:-1], axis, at)), NEUTRAL[kind])

    return _widened(call, x, axis, BLOCK, held, compute)


def _direct(call: Call, x: Tensor, axis: int, kind: str, layout: Layout) -> Tensor:
    held, size = compute_dtype(x.dtype), x.size[axis]

    def compute(ops: Ops, i: Indices) -> Value:
        seen = ops.le(ops.index_expr(i[-1]), ops.index_expr(i[axis]))
        return ops.where(
            seen, x.load(ops, replaced(i[:-1], axis, i[-1])), ops.constant(NEUTRAL[kind], held))

    source = _widened(call, x, axis, size, held, compute)
    return call.builder.reduce(layout, source, [len(x.size)], kind)


def _widened(
    call: Call, x: Tensor, axis: int, size: int, dtype: torch.dtype, compute: Any,
    *others: Tensor,
) -> Tensor:
    """A tensor of x's sizes with one more axis, along which it goes over x's `axis`."""
    steps = x.layout.stride
    stride = (*steps[:axis], 0, *steps[axis + 1 :], steps[axis])
    layout = Layout(x.layout.device, dtype, (*x.size, size), stride)
    reads = x.reads.union(*(other.reads for other in others))
    return Tensor(layout, x.owner, compute=compute, cost=x.cost + 3, reads=reads)
