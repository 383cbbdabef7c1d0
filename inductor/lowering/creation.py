"""Lowerings of operators that make tensors from numbers."""

from __future__ import annotations

from typing import Any

import torch

from inductor.ir.body import Ops, Value
from inductor.ir.extent import Extent
from inductor.ir.graph import Layout
from inductor.ir.scalar_ops import dtype_kind
from inductor.lowering.builder import Builder
from inductor.lowering.pointwise import unsupported
from inductor.lowering.registry import Call, lowering
from inductor.lowering.tensor import Indices, Tensor, compute_dtype, fits

aten = torch.ops.aten
EXACT = 1 << 24  # a float32 holds all whole numbers up to it
MOST_STEPS = 1 << 10  # numbers of a line that are looked at; chosen, not measured
LARGEST = 1 << 30  # of them: indices are of 32 bits where all that is read and written is small


def filled(call: Call, value: Any) -> Any:
    """A tensor of one number; never stored unless somebody needs its memory."""
    dtype = call.result.dtype
    if isinstance(value, complex) or dtype_kind(dtype) == "c" or dtype.itemsize == 1 and (
        dtype.is_floating_point
    ):
        return call.refuse(f"{dtype} falls back to ATen")
    if not fits(value, dtype):
        return call.refuse("a number out of range, for which ATen raises")
    held = compute_dtype(dtype)

    def compute(ops: Ops, indices: Indices) -> Value:
        number = ops.constant(value, held)
        return ops.to_dtype(ops.to_dtype(number, dtype), held)

    return call.builder.computed(call.layout, [], 0, compute)


@lowering(aten.full.default, aten.full_like.default, aten.new_full.default)
def full(call: Call, like: Any, *rest: Any, **kwargs: Any) -> Any:
    return filled(call, rest[-1])


@lowering(aten.scalar_tensor.default)
def scalar_tensor(call: Call, value: Any, **kwargs: Any) -> Any:
    return filled(call, value)


@lowering(aten.fill.Scalar)
def fill(call: Call, x: Any, value: Any) -> Any:
    return filled(call, value)


@lowering(aten.fill.Tensor)
def fill_with(call: Call, x: Any, value: Any) -> Any:
    why = unsupported([x, value])
    if why:
        return call.refuse(why)

    def compute(ops: Ops, indices: Indices) -> Value:
        number = ops.to_dtype(value.load(ops, ()), x.dtype)
        return ops.to_dtype(number, compute_dtype(x.dtype))

    return call.builder.computed(call.layout, [value], 1, compute)


def _enter(value: int, *targets: Any) -> None:
    @lowering(*targets)
    def lower(call: Call, *args: Any, **kwargs: Any) -> Any:
        return filled(call, value)


_enter(0, aten.zeros.default, aten.zeros_like.default, aten.new_zeros.default, aten.zero.default)
# nobody may rely on what is in them
_enter(0, aten.empty.memory_format, aten.empty_like.default, aten.new_empty.default)
_enter(0, aten.empty_strided.default, aten.new_empty_strided.default)
_enter(1, aten.ones.default, aten.ones_like.default, aten.new_ones.default)


@lowering(aten.arange.default, aten.arange.start, aten.arange.start_step)
def arange(call: Call, *args: Any, **kwargs: Any) -> Any:
    start, step = 0, 1
    if len(args) > 1:
        start = args[0]
    if len(args) > 2:
        step = args[2]
    dtype = call.result.dtype
    whole = all(isinstance(number, (int, Extent)) for number in (start, step))
    if whole and dtype_kind(dtype) == "i":
        return call.builder.computed(
            call.layout, [], 1, lambda ops, at: ops.index_expr(at[0] * step + start, dtype))
    first, by = _whole(start), _whole(step)
    if first is None or by is None or not _counts_exactly(call, first, by):
        return _floats(call, start, step)

    def compute(ops: Ops, indices: Indices) -> Value:
        return ops.to_dtype(ops.index_expr(indices[0] * by + first, torch.int64), dtype)

    return call.builder.computed(call.layout, [], 2, compute)


def _floats(call: Call, start: Any, step: Any) -> Any:
    """Element i is start + step * i, rounded once, as ATen's kernel on a GPU has it; on a CPU its
    threads begin anew."""
    numbers = all(isinstance(number, (int, float)) for number in (start, step))
    if call.builder.device.type != "cuda" or not numbers or not _is_wide_or_half(call):
        return call.refuse("a range of floats")
    dtype = call.result.dtype
    held = compute_dtype(dtype)

    def compute(ops: Ops, indices: Indices) -> Value:
        at = ops.to_dtype(ops.index_expr(indices[0], torch.int64), held)
        value = ops.fma(ops.constant(step, held), at, ops.constant(start, held))
        return ops.to_dtype(ops.to_dtype(value, dtype), held)

    return call.builder.computed(call.layout, [], 3, compute)


def _is_wide_or_half(call: Call) -> bool:
    dtype = call.result.dtype
    return dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16)


@lowering(aten.linspace.default)
def linspace(call: Call, start: Any, end: Any, steps: Any, **kwargs: Any) -> Any:
    """As ATen's kernel on a GPU: each half from its own end. That of a CPU has another formula."""
    dtype = call.result.dtype
    known = all(isinstance(number, (int, float)) for number in (start, end))
    if call.builder.device.type != "cuda" or not known or type(steps) is not int or steps < 1:
        return call.refuse("evenly spaced numbers of a CPU, or unknown ones")
    if dtype not in (torch.float32, torch.float64):  # half precision would round each operation
        return call.refuse(f"evenly spaced numbers of {dtype}")
    if steps == 1:
        return filled(call, start)
    first, last = (torch.tensor(number, dtype=dtype) for number in (start, end))
    step = float((last - first) / torch.tensor(steps - 1, dtype=dtype))

    def compute(ops: Ops, indices: Indices) -> Value:
        (at,) = indices
        place = ops.index_expr(at, torch.int64)
        behind = ops.to_dtype(ops.index_expr(at * -1 + (steps - 1), torch.int64), dtype)
        is_early = ops.lt(place, ops.constant(steps // 2, torch.int64))
        by, back = ops.constant(step, dtype), ops.constant(-step, dtype)
        early = ops.fma(by, ops.to_dtype(place, dtype), ops.constant(float(first), dtype))
        late = ops.fma(back, behind, ops.constant(float(last), dtype))
        return ops.where(is_early, early, late)

    return call.builder.computed(call.layout, [], 6, compute)


def _whole(number: Any) -> int | None:
    """A number as an int; None where it is none, or -0.0."""
    if isinstance(number, float) and number.is_integer() and str(number) != "-0.0":
        return int(number)
    return number if isinstance(number, int) else None


def _counts_exactly(call: Call, first: int, by: int) -> bool:
    """Whether floats hold all numbers of a range, whichever way they are computed."""
    dtype, extent = call.result.dtype, call.layout.size[0]
    if dtype not in (torch.float32, torch.float64) or not isinstance(extent, int):
        return False
    return max(abs(first), abs(first + by * extent)) <= EXACT


@lowering(aten.eye.default, aten.eye.m)
def eye(call: Call, *args: Any, **kwargs: Any) -> Any:
    dtype = call.result.dtype
    if dtype_kind(dtype) == "c" or dtype.itemsize == 1 and dtype.is_floating_point:
        return call.refuse(f"{dtype} falls back to ATen")
    held = compute_dtype(dtype)

    def compute(ops: Ops, indices: Indices) -> Value:
        same = ops.eq(ops.index_expr(indices[0]), ops.index_expr(indices[1]))
        return ops.where(same, ops.constant(1, held), ops.constant(0, held))

    return call.builder.computed(call.layout, [], 3, compute)


@lowering(aten.tril.default)
def tril(call: Call, x: Any, diagonal: int = 0) -> Any:
    return _triangle(call, x, diagonal, "le")


@lowering(aten.triu.default)
def triu(call: Call, x: Any, diagonal: int = 0) -> Any:
    return _triangle(call, x, diagonal, "ge")


def _triangle(call: Call, x: Any, diagonal: int, keep: str) -> Any:
    held = compute_dtype(x.dtype)
    if dtype_kind(held) == "c":
        return call.refuse("complex numbers fall back to ATen")

    def compute(ops: Ops, indices: Indices) -> Value:
        column = ops.index_expr(indices[-1])
        row = ops.index_expr(indices[-2] + diagonal)
        value = x.load(ops, indices)
        return ops.where(ops.call(keep, column, row), value, ops.constant(0, held))

    return call.builder.computed(call.layout, [x], 3, compute)




def steps_of(value: torch.Tensor) -> tuple[int, int] | None:
    """The first number of a line of integers, and the step to each next one; None where steps
    differ, where there are none, or for large numbers.

    >>> steps_of(torch.tensor([0, 2, 4, 6])), steps_of(torch.tensor([0, 1, 3]))
    ((0, 2), None)
    """
    whole = not (value.is_floating_point() or value.is_complex() or value.dtype is torch.bool)
    if value.dim() != 1 or not whole or not 1 < len(value) <= MOST_STEPS or value.is_meta:
        return None
    numbers = value.tolist()
    first, step = numbers[0], numbers[1] - numbers[0]
    if max(map(abs, numbers)) > LARGEST:
        return None
    return (first, step) if numbers == [first + n * step for n in range(len(numbers))] else None


def in_steps(builder: Builder, layout: Layout, first: int, step: int) -> Tensor:
    """A line of integers that is computed where it is read: shifts of numbers in a word, say."""
    def compute(ops: Ops, where: Indices) -> Value:
        return ops.to_dtype(ops.index_expr(where[0] * step + first), layout.dtype)

    return builder.computed(layout, [], 1, compute)
