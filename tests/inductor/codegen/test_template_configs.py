"""Blocks of templates: what is tried fits the device."""

from __future__ import annotations

import pytest
import torch

from inductor.codegen.triton.template_configs import (
    MOST_REGISTERS,
    MOST_SHARED,
    candidate_blocks,
    neighbours,
)
from inductor.codegen.triton.template_likely import likely_blocks
from inductor.ir.graph import ExternKernel, Layout, ViewRef
from inductor.scheduler.schedule import Gemm, Part, TemplateKernel


def template(m: int, n: int, k: int, gemms: int = 1, dtype=torch.float16) -> TemplateKernel:
    left, right = ViewRef("x", (m, k), (k, 1), 0, dtype), ViewRef("w", (k, n), (1, k), 0, dtype)
    layout = Layout(torch.device("cuda"), dtype, (m, n), (n, 1))
    call = ExternKernel("y", layout, torch.ops.aten.mm.default, (left, right))
    one = Gemm(call, dtype, 1, m, n, k, left, right, None)
    return TemplateKernel("t", (Part((one,) * gemms, None, ("y",)),))


@pytest.mark.parametrize("gemms", [1, 2])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("m, n, k", [(4096, 768, 768), (8, 5000, 2048), (100, 24, 20)])
def test_blocks_fit(m, n, k, gemms, dtype) -> None:
    made = template(m, n, k, gemms, dtype)
    first = candidate_blocks(made)
    assert first and len(set(first)) == len(first)
    for start in first:
        for blocks in (start, *neighbours(start, made)):
            sides = blocks.rows + gemms * blocks.columns
            assert blocks.stages * sides * blocks.depth * dtype.itemsize <= MOST_SHARED
            accumulated = blocks.rows * blocks.columns * gemms
            assert accumulated <= MOST_REGISTERS * blocks.warps * 32


def test_only_few_rows_are_likely() -> None:
    assert likely_blocks(template(4096, 768, 768)) is None
    assert likely_blocks(template(8, 768, 768)) is None  # nothing is saved
    (part,) = template(8, 768, 768).parts
    both = likely_blocks(TemplateKernel("t", (part, part)))
    assert both is not None and both.blocks is not None and both.blocks.rows == 16
    (odd,) = template(8, 768, 771).parts  # whose rows begin anywhere
    assert likely_blocks(TemplateKernel("t", (odd, odd))) is None


def test_sums_are_split_where_tiles_are_few() -> None:
    made = candidate_blocks(template(8, 2048, 5632))
    splits = [blocks.splits for blocks in made]
    assert max(splits) > 1 and splits[0] == 1
    assert all(blocks.splits == 1 for blocks in candidate_blocks(template(4096, 3072, 768)))
    assert all(blocks.splits == 1 for blocks in candidate_blocks(template(8, 2048, 5632, 2)))
    for blocks in made:
        for other in neighbours(blocks, template(8, 2048, 5632)):
            assert (other.splits - 1) * other.depth < 5632
