"""Rows that do not fit on the chip: blocks of their loops, and what is to stay in the cache."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch
from triton_kernels import Index_zero, softmax, stage, unaligned_rows_alone
from triton_reference import layout_of

from inductor.codegen.triton.configs import (
    EXPONENTIALS,
    EXPONENTIALS_IN_HALF,
    EXPONENTIALS_OF_MANY,
    EXPONENTIALS_STORED,
    EXPONENTIALS_STORED_LONGEST,
    EXPONENTIALS_UNALIGNED,
    UNALIGNED_BLOCK,
)
from inductor.codegen.triton.eviction import EVICT_FIRST, EVICT_LAST
from inductor.codegen.triton.print_kernel import TritonKernel, print_kernel
from inductor.ir.body import LoopBody

HALF = torch.float16


def printed(rows: int, columns: int, dtype: torch.dtype = torch.float32) -> TritonKernel:
    """A softmax whose memory has this dtype."""
    kernel, buffers = softmax(rows, columns)
    stages = tuple(
        LoopBody(each.ranges, each.reduction_ranges, tuple(
            replace(op, dtype=dtype) if op.buffer in ("a", "c") else op for op in each.ops))
        for each in kernel.stages)
    layouts = {name: replace(layout_of(tensor), dtype=dtype) for name, tensor in buffers.items()}
    return print_kernel(replace(kernel, stages=stages), layouts)


def first_config(kernel: TritonKernel) -> tuple[int, int, int]:
    (source,) = kernel.sources
    config = source.choices.all()[0]
    return config.rows, config.columns, config.warps


@pytest.mark.parametrize("columns, dtype, expected", [
    (20001, torch.float32, EXPONENTIALS_STORED), (20000, HALF, EXPONENTIALS_IN_HALF),
    (20001, HALF, EXPONENTIALS_UNALIGNED), (128256, HALF, EXPONENTIALS_STORED_LONGEST),
])  # fmt: skip
def test_blocks_of_rows_that_are_stored(columns, dtype, expected) -> None:
    assert first_config(printed(1200, columns, dtype)) == expected


@pytest.mark.parametrize("columns, in_last", [(20000, 2), (20001, 4)])
def test_last_pass_leaves_the_cache_to_others(columns, in_last) -> None:
    text = printed(1200, columns).sources[0].text
    first, last = text.split("tl.reduce", 1)
    assert EVICT_FIRST not in first and EVICT_LAST in first and EVICT_LAST not in last
    # a load and a store, and those of the ends of rows
    assert last.count(EVICT_FIRST) == in_last
    text = printed(2400, columns, HALF).sources[0].text
    assert EVICT_LAST not in text and EVICT_FIRST in text


def test_values_of_unaligned_rows_are_read_once() -> None:
    kernel, buffers = unaligned_rows_alone(600, 2049)
    (source,) = print_kernel(kernel, {n: layout_of(t) for n, t in buffers.items()}).sources
    head, loop = re.split(r"(?m)^    for base in ", source.text)
    assert "tl.load(in1 + (x))" in head and "in1" not in loop
    config = source.choices.all()[0]
    assert (config.rows, config.columns, config.warps) == UNALIGNED_BLOCK
    kernel, buffers = unaligned_rows_alone(100, 2049)
    (source,) = print_kernel(kernel, {n: layout_of(t) for n, t in buffers.items()}).sources
    assert "for base" not in source.text


def test_small_tensors_stay_in_the_cache() -> None:
    for rows, columns in ((12, 20001), (20000, 1000)):  # few rows; rows that are held on the chip
        text = printed(rows, columns).sources[0].text
        assert EVICT_FIRST not in text and EVICT_LAST not in text


@pytest.mark.parametrize("rows, expected", [(600, EXPONENTIALS), (6000, EXPONENTIALS_OF_MANY)])
def test_sums_alone_take_small_tiles(rows, expected) -> None:
    columns = 20001

    def total(ops, o, i, r):
        values = ops.load("a", o[0] * columns + r[0], torch.float32)
        shifted = ops.sub(values, ops.load("m", Index_zero(), torch.float32))
        ops.store("c", o[0] * columns, ops.reduction("sum", ops.exp(shifted)))

    kernel, buffers = softmax(rows, columns)
    stages = kernel.stages[0], stage((rows,), (), (columns,), total)
    layouts = {name: layout_of(tensor) for name, tensor in buffers.items()}
    made = print_kernel(replace(kernel, stages=stages, locals=kernel.locals[:1]), layouts)
    assert first_config(made) == expected
