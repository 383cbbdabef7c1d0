"""GEMMs with packed weights whose activations are infinite, no numbers, or very large, in Triton's interpreter."""

from __future__ import annotations

import math

import interpreted_columns
import interpreted_few_rows
import pytest
import torch
from for_all_sizes import capture
from interpreted_columns import auto_gptq, gptq
from interpreted_few_rows import gated_zeros, int4_packed, minus_zeros, plus_zeros
from interpreted_programs import interpreted, texts

import dynamo
from inductor.codegen.triton import plan, split
from inductor.driver import cuda
from inductor.ir.interpret import interpret_graph
from inductor.lowering import readings
from inductor.lowering.run import lower_graph
from inductor.scheduler.run import schedule_graph

as_on_a_gpu = interpreted_few_rows.as_on_a_gpu
BF16, N = torch.bfloat16, 48
# What is written into a row: places and values.
NOT_FINITE = {
    "infinity": {7: math.inf}, "negative": {40: -math.inf}, "nan": {11: math.nan}, "alike": {3: math.inf, 200: math.inf},
    "both": {5: math.inf, 6: -math.inf}, "with_nan": {5: math.inf, 300: math.nan}, "none": {},
}


def inputs(program, rows, k, group, dtype):
    torch.manual_seed(1)
    if program in (gptq, auto_gptq):
        return interpreted_columns.gptq_inputs(rows, k, N, group, dtype)
    stored = [torch.randint(-(2**31), 2**31, (N, k // 8)).int(), *(torch.randn(N, k // group).to(dtype) for _ in range(2))]
    return torch.randn(rows, k).to(dtype) * 0.1, *stored


def is_as_in_eager(found, eager) -> None:
    torch.testing.assert_close(found.isfinite(), eager.isfinite())
    there = eager.isfinite()
    torch.testing.assert_close(found[~there], eager[~there], equal_nan=True, rtol=0, atol=0)
    if there.any():
        most = eager[there].abs().max().item()
        torch.testing.assert_close(found[there].double(), eager[there].double(), rtol=3e-2, atol=3e-2 * most)


@pytest.mark.parametrize("dtype", [BF16, torch.float16, torch.float32])
@pytest.mark.parametrize("program", [minus_zeros, plus_zeros, gated_zeros, gptq, auto_gptq])
@pytest.mark.parametrize("written", NOT_FINITE)
@pytest.mark.parametrize(("rows", "by_units"), [(1, True), (3, True), (11, True), (1, False), (3, False)])
def test_infinities(monkeypatch, program, written, dtype, rows, by_units) -> None:
    """One row of several has them. Splits of a sum, too, and loops over a row in steps."""
    monkeypatch.setattr(readings, "has_matrix_units", lambda call: by_units)
    monkeypatch.setattr(plan, "PERSISTENT_COLUMNS", 8)
    x, *rest = inputs(program, rows, 512, 128, dtype)
    for place, value in NOT_FINITE[written].items():
        x[rows // 2, place] = value
    with_units = by_units and dtype is not torch.float32
    if with_units or rows <= 4:
        found = dynamo.compile(program, backend=interpreted)(x, *rest)
        assert ("tl.dot(k_nibbles_" in texts[-1]) == with_units and "EXACT" in texts[-1]
        is_as_in_eager(found, program(x, *rest))


@pytest.mark.parametrize("persistent", [True, False])
@pytest.mark.parametrize("written", ["both", "none"])
def test_tiles_and_splits(monkeypatch, persistent, written) -> None:
    """A row as one tile, and one of which several programs sum parts."""
    monkeypatch.setattr(plan, "PERSISTENT_WORDS", 1024 if persistent else 0)
    monkeypatch.setattr(plan, "PERSISTENT_ALONG_ROWS", 1024 if persistent else 0)
    monkeypatch.setattr(split, "FEWEST_COLUMNS", (1 << 20, 1 << 20) if persistent else (16, 16))
    monkeypatch.setattr(plan, "LARGE_KERNEL", 0)
    monkeypatch.setattr(plan, "SMALL_STAGE", 0)
    monkeypatch.setattr(split, "ENOUGH_PROGRAMS", 4)
    monkeypatch.setattr(split, "COLUMNS_OF_A_PROGRAM", (16, 16))
    monkeypatch.setattr(split, "CHUNK_STEP", (32, 32))
    for program in (plus_zeros, gptq):
        x, *rest = inputs(program, 1, 592, 148 if program is plus_zeros else 296, BF16)
        for place, value in NOT_FINITE[written].items():
            x[0, place] = value
        is_as_in_eager(dynamo.compile(program, backend=interpreted)(x, *rest), program(x, *rest))
        assert ("_part" in texts[-1]) == (not persistent)


@pytest.mark.parametrize("by_units", [True, False])
@pytest.mark.parametrize("dtype", [BF16, torch.float16])
@pytest.mark.parametrize("program", [plus_zeros, gptq])
def test_the_largest_numbers(monkeypatch, program, dtype, by_units) -> None:
    """What is added to a number of four bits overflows where the sum itself does not; and sums that half precision has
    no number for are infinite, as they are in eager."""
    monkeypatch.setattr(readings, "has_matrix_units", lambda call: by_units)
    x, *rest = inputs(program, 2, 512, 128, dtype)
    x = torch.zeros_like(x)
    x[0, :3] = torch.finfo(dtype).max * 0.9
    x[1] = torch.finfo(dtype).max * 0.9
    rest = [each * 2.0**-8 if each.dtype is dtype else each for each in rest]
    found, eager = dynamo.compile(program, backend=interpreted)(x, *rest), program(x, *rest)
    exact = program(x.double(), *(each.double() if each.dtype is dtype else each for each in rest))
    sure = (exact.abs() < 0.9 * torch.finfo(dtype).max) & eager.isfinite()  # else terms overflow, which cancel
    torch.testing.assert_close(found[sure].double(), exact[sure], rtol=2e-2, atol=2e-2 * exact[sure].abs().max().item())
    beyond = exact.abs() > 1.1 * torch.finfo(dtype).max
    assert sure[0].any() and beyond[1].any()
    assert not found[beyond].isfinite().any()
    if dtype is torch.float16:  # parts of sums of bfloat16 overflow, which has no less range than float32
        assert torch.equal(found[beyond], exact[beyond].sign().to(dtype) * math.inf)
        assert not found.isnan().any() or eager.isnan().any()


@pytest.mark.parametrize("by_units", [True, False])
@pytest.mark.parametrize("written", ["infinity", "negative", "both", "with_nan"])
def test_packed_for_tensor_cores(monkeypatch, by_units, written) -> None:
    monkeypatch.setattr(readings, "has_matrix_units", lambda call: by_units)
    w, x = torch.randint(0, 16, (N, 512)), torch.randn(1, 512).to(BF16)
    scales = torch.randn(4, N, 2).to(BF16)
    for place, value in NOT_FINITE[written].items():
        x[0, place] = value
    given = x, int4_packed(w, 8), scales
    graph = lower_graph(capture(lambda x, w, s: torch._weight_int4pack_mm(x, w, 128, s), given, mode="fake")).graph
    text = cuda.generate(graph, schedule_graph(graph, 8)).text
    s, z = scales.double().repeat_interleave(128, 0).unbind(-1)
    expected = (x.double() @ ((w.t() - 8) * s + z)).to(BF16)
    for (found,) in (interpret_graph(graph, given), cuda.load(text, graph, False)()(*given)):
        is_as_in_eager(found, expected)
