"""Sizes, strides and dtypes of elementwise results, as ATen's TensorIterator gives them.

In: facts of the operands. Out: sizes and strides of a new output; dtype by running the real kernel
on operands of one element (the kernel is the only complete record of the promotion rules).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from dynamo.shapes.facts import Facts, contiguous_stride


def broadcast_sizes(sizes: Sequence[tuple[int, ...]]) -> tuple[int, ...] | None:
    """The common size, or None where there is none."""
    rank = max(map(len, sizes))
    result = [1] * rank
    for size in sizes:
        shift = rank - len(size)
        for axis, extent in enumerate(size):
            known = result[shift + axis]
            if extent == known or extent == 1:
                continue
            if known != 1:
                return None
            result[shift + axis] = extent
    return tuple(result)


def is_dense(size: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    """True where the elements fill a block of memory without overlap, in whatever order."""
    expected = 1
    for step, extent in sorted(
        (step, extent) for step, extent in zip(stride, size, strict=True) if extent != 1
    ):
        if extent == 0:
            return True
        if step != expected:
            return False
        expected *= extent
    return True


def is_contiguous(size: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    """Row-major, where strides along extents of 1 don't matter."""
    if 0 in size:
        return True
    expected = 1
    for extent, step in zip(reversed(size), reversed(stride), strict=True):
        if extent != 1:
            if step != expected:
                return False
            expected *= extent
    return True


def channels_last_stride(size: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of NHWC or NDHWC memory for sizes N, C, spatial..."""
    batch, channels, *spatial = size
    strides = [1] * len(size)
    step = max(channels, 1)
    for axis in range(len(size) - 1, 1, -1):
        strides[axis] = step
        step *= max(size[axis], 1)
    strides[1], strides[0] = 1, step
    return tuple(strides)


def is_channels_last(size: tuple[int, ...], stride: tuple[int, ...]) -> bool:
    """As ATen's memory-format test: the strides say so and do not also say row-major."""
    if len(size) not in (4, 5):
        return False
    order = (1, *range(len(size) - 1, 1, -1), 0)
    least = 0
    if stride[1] == 0:
        return False
    for axis in order:
        extent, step = size[axis], stride[axis]
        if extent == 0 or step < least:
            return False
        if axis == 0 and least == stride[1]:
            return False
        least = step * extent if extent > 1 else step
    return True


def elementwise_stride(operands: Sequence[Facts], size: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of the output that TensorIterator allocates for these operands."""
    same = all(operand.size == size for operand in operands)
    if same:
        if all(is_contiguous(operand.size, operand.stride) for operand in operands):
            return contiguous_stride(size)
        if all(
            len(size) == 4 and _fills_channels_last(operand) for operand in operands
        ):
            return channels_last_stride(size)
        first = operands[0].stride
        if all(operand.stride == first for operand in operands) and is_dense(size, first):
            return first
    order = _memory_order(operands, size)
    rank = len(size)
    if order == list(range(rank - 1, -1, -1)):
        return contiguous_stride(size)
    stride = [0] * rank
    step = 1
    for axis in order:
        stride[axis] = step
        step *= size[axis]
    return tuple(stride)


def _fills_channels_last(facts: Facts) -> bool:
    expected = 1
    for axis in (1, 3, 2, 0):
        extent = facts.size[axis]
        if extent != 1:
            if facts.stride[axis] != expected:
                return False
            expected *= extent
    return True


def _memory_order(operands: Sequence[Facts], size: tuple[int, ...]) -> list[int]:
    """Axes from the fastest to the slowest, by a stable insertion sort over ambiguous pairs."""
    rank = len(size)
    steps: list[list[int]] = []
    for operand in operands:
        shift = rank - len(operand.size)
        item = operand.dtype.itemsize
        row = [0] * shift
        for axis, (extent, step) in enumerate(zip(operand.size, operand.stride, strict=True)):
            spread = extent == 1 and size[shift + axis] != 1
            row.append(0 if spread else step * item)
        steps.append(row)

    def compare(one: int, two: int) -> int:
        for row in steps:
            a, b = row[one], row[two]
            if a == 0 or b == 0:
                continue
            if a != b:
                return -1 if a < b else 1
            if size[one] > size[two]:
                return 1
        return 0

    order = list(range(rank - 1, -1, -1))
    for start in range(1, rank):
        moving = start
        for other in range(start - 1, -1, -1):
            verdict = compare(order[other], order[moving])
            if verdict > 0:
                order[other], order[moving] = order[moving], order[other]
                moving = other
            elif verdict < 0:
                break
    return order


def probe(
    func: Any, args: Any, kwargs: Any, extent: int, is_fake: Callable[[Any], bool]
) -> Any:
    """Runs the real kernel on CPU tensors of ones, every axis `extent` long.

    The result tells dtypes; exceptions are eager's own.
    """

    def shrink(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            rank = value.dim()
            return torch.ones((extent,) * rank, dtype=value.dtype)
        if isinstance(value, (list, tuple)):
            return type(value)([shrink(item) for item in value])
        return value

    small_kwargs = {name: shrink(value) for name, value in kwargs.items()}
    if small_kwargs.get("device") is not None:
        small_kwargs["device"] = torch.device("cpu")
    return func(*[shrink(value) for value in args], **small_kwargs)
