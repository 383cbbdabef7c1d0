"""Operators that a wrapper computes by itself where no library is wanted: GEMMs of stacks of
matrices, sums of all elements before each.

In: a call, and the texts of pointers to its operands. Out: lines of C++ in the wrapper.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from inductor.codegen.cpp.types import memory_type
from inductor.ir.graph import ExternKernel, Layout, ViewRef
from inductor.kernels.cpu.gemm import GEMM_NAME

aten = torch.ops.aten
STACKS = aten.bmm.default
SUMS = aten.cumsum.default
INTEGERS = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
REALS = (torch.float32, torch.float64)


def is_own_stack(node: ExternKernel) -> bool:
    """Whether our own GEMM computes each matrix of this GEMM of stacks of known sizes."""
    layout = node.layout
    if node.target is not STACKS or layout is None or node.kwargs:
        return False
    x, weight = node.args
    if not isinstance(x, ViewRef) or not isinstance(weight, ViewRef):
        return False
    batch, m, k = x.size
    n = weight.size[2]
    sizes = (batch, m, n, k)
    if layout.dtype is not torch.float32 or any(type(i) is not int or i < 1 for i in sizes):
        return False
    dense = layout.stride == (m * n, n, 1) and layout.offset == 0
    return dense and 1 in (*x.stride[1:], m, k) and weight.stride[1] != 0


def print_stack(
    x: ViewRef, weight: ViewRef, pointers: Sequence[str], threads: int, instead: str
) -> list[str]:
    """A GEMM for each matrix: side by side, where there are as many as threads. pointers: to
    both sides and the result; instead: what is called where there is no memory."""
    (batch, m, k), n = x.size, weight.size[2]
    outer = threads if batch >= threads > 1 else 1
    step_x, *strides_x = x.stride
    if 1 not in strides_x:  # of a size of 1
        strides_x = [k, 1] if m == 1 else [1, m]
    step_w, *strides_w = weight.stride
    left, right = f"{pointers[0]} + b * {step_x}", f"{pointers[1]} + b * {step_w}"
    result = f"{pointers[2]} + b * {m * n}"
    numbers = (m, n, k, left, *strides_x, right, *strides_w, 0, result)
    arguments = ", ".join(map(str, (*numbers, 1 if outer > 1 else threads)))
    lines = ["  { int failed = 0;"]
    if outer > 1:
        lines.append(f"#pragma omp parallel for num_threads({outer}) reduction(|:failed)")
    lines.append(f"    for (i64 b = 0; b < {batch}; ++b)")
    lines.append(f"      failed |= {GEMM_NAME}({arguments}, 0, 0);")
    return [*lines, f"    if (failed && {instead}) return 1; }}"]


def is_own_sum(node: ExternKernel) -> bool:
    """Whether `print_sums` knows this call."""
    layout = node.layout
    if node.target is not SUMS or layout is None:
        return False
    x, dim, *_ = node.args
    if not isinstance(x, ViewRef) or not isinstance(dim, int) or not x.size:
        return False
    if any(type(size) is not int for size in (*x.size, *x.stride, x.offset, *layout.stride)):
        return False
    kinds = INTEGERS if layout.dtype is torch.int64 else REALS
    return layout.dtype in (torch.int64, *REALS) and x.dtype in kinds


def print_sums(x: ViewRef, layout: Layout, dim: int, pointers: Sequence[str]) -> list[str]:
    """Running sums along a dimension, in eager's order and precision: float64 for reals. pointers:
    to the operand and the result."""
    dim %= len(x.size)
    total = "u64" if layout.dtype is torch.int64 else "f64"  # ints may overflow
    others = [axis for axis in range(len(x.size)) if axis != dim]
    loops = " ".join(f"for (i64 i{axis} = 0; i{axis} < {x.size[axis]}; ++i{axis})"
                     for axis in others)  # fmt: skip

    def place(strides: Sequence[int]) -> str:
        return " + ".join(f"i{axis} * {step}" for axis, step in enumerate(strides))

    value = f"x[{place(x.stride)}]"
    value = f"({value} != 0)" if x.dtype is torch.bool else value
    result = memory_type(layout.dtype)
    if math.prod(x.size) == 0:
        return []
    return [
        f"  {{ const {memory_type(x.dtype)}* x = {pointers[0]}; {result}* y = {pointers[1]};",
        f"    {loops} {{ {total} sum = 0;",
        f"      for (i64 i{dim} = 0; i{dim} < {x.size[dim]}; ++i{dim}) {{",
        f"        sum += ({total}){value}; y[{place(layout.stride)}] = ({result})sum; }} }} }}",
    ]
