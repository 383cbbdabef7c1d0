"""Packed weights that a template unpacks a word at a time, in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from interpreted_columns import awq, awq_inputs, eights, gptq_inputs, order_of, shifts, words
from interpreted_templates import BLOCKS, run
from interpreter_repairs import repair

import dynamo
from inductor.codegen.triton import template
from inductor.fx_passes.filled_parts import join_filled_parts
from inductor.lowering import indexing
from inductor.scheduler.schedule import Blocks, TemplateKernel

F16 = torch.float16


@pytest.fixture(autouse=True)
def repaired(monkeypatch) -> None:
    repair(monkeypatch)
    dynamo.reset()


def in_any_order(x, w, z, s, places):
    """Groups of terms in any order (GPTQ's `g_idx`)."""
    w = ((w[:, None] >> shifts()[None, :, None]) & 15).flatten(0, 1)
    z = ((z[:, :, None] >> shifts()) & 15).flatten(1) + 1
    return x @ (s[places] * (w - z[places]).to(x.dtype))


def auto_gptq(x, w, z, s, places):
    """The same with distances that are a buffer."""
    by = shifts()[None]
    z = torch.bitwise_right_shift(z[:, :, None].expand(-1, -1, 8), by[None]).to(torch.int8)
    w = torch.bitwise_right_shift(w[:, None].expand(-1, 8, -1), by[..., None]).to(torch.int8) & 15
    return F.relu(x @ (s[places] * (w.reshape(-1, s.shape[1]) - ((z & 15) + 1).reshape(s.shape)[places])))


def in_bytes(x, w, z, s, places):
    """Two numbers of neighbouring terms in each byte."""
    w = torch.stack([w & 15, w >> 4], 1).flatten(0, 1)
    return x @ (w.to(x.dtype) * s[places])


def by_halves(x, w, z, s):
    """HQQ: numbers of the first half of the rows in the high bits, of the others in the low ones."""
    half = w.shape[0]
    q = torch.empty(2 * half, w.shape[1], dtype=torch.uint8)
    q[:half] = (w & 240) >> 4
    q[half:] = w & 15
    return x @ ((q.to(s.dtype) - z) * s).reshape(-1, x.shape[1]).to(x.dtype).t()


def by_quarters(x, w, s):
    """BitNet's: four numbers of two bits in a byte, each of another quarter of the rows."""
    parts = [(w >> shift & 3).to(torch.int8) - 1 for shift in (0, 2, 4, 6)]
    return x @ torch.cat(parts).to(x.dtype).t() * s


def is_near(program, *given, blocks, templates=1, before=lambda module: module) -> TemplateKernel:
    found, (schedule,) = run(program, *given, blocks=blocks, prologues=True, before=before)
    made = list(schedule.templates())
    assert len(made) == templates and all(each.weights() for each in made)
    eager = program(*given)
    exact = program(*(v.double() if v.is_floating_point() else v for v in given))
    far = (eager.double() - exact).abs().max()
    assert (found.double() - exact).abs().max() <= 1.5 * far + 1e-5 * exact.abs().max()
    return made[0]


@pytest.mark.parametrize("rows", [2, 9, 16])
@pytest.mark.parametrize("dtype", [F16, torch.bfloat16])
@pytest.mark.parametrize("program", [in_any_order, auto_gptq])
@pytest.mark.parametrize(("k", "n", "group"), [(64, 32, 16), (128, 72, 32), (96, 64, 8)])
def test_words_of_terms(program, k, n, group, dtype, rows) -> None:
    """Also where the last tile is not full."""
    places = (torch.randperm(k) // group).int()
    x, w, z, s = gptq_inputs(rows, k, n, group, dtype)
    for blocks in (BLOCKS, Blocks(16, 16, 32, 4, 2)):
        is_near(program, x, w, z, s, places, blocks=blocks)


@pytest.mark.parametrize("rows", [2, 9])
@pytest.mark.parametrize("dtype", [F16, torch.bfloat16])
@pytest.mark.parametrize(("k", "n", "group"), [(64, 32, 16), (128, 48, 64), (96, 64, 8), (192, 32, 96)])
def test_halves_of_rows(k, n, group, dtype, rows, as_on_gpu) -> None:
    """Scales of groups that are shorter than a tile's terms, or longer, and tiles that are not full;
    each byte is read without a condition."""
    as_on_gpu(indexing)
    count = n * k // group
    w = torch.randint(0, 256, (count // 2, group), dtype=torch.uint8)
    z, s = torch.full((count, 1), 7.5), torch.rand(count, 1)
    x = torch.randn(rows, k).to(dtype)
    for blocks in (BLOCKS, Blocks(16, 16, 64, 4, 2), Blocks(16, 16, 32, 4, 2)):
        made = is_near(by_halves, x, w, z, s, blocks=blocks, before=join_filled_parts)
        ((weight,),) = (one.stages for one in made.weights())
        loads = [op for op in weight.ops if op.name == "load"]
        assert len(loads) == 3 and not any(op.args for op in loads)


@pytest.mark.parametrize("dtype", [F16, torch.bfloat16])
def test_quarters_of_rows(dtype, as_on_gpu) -> None:
    as_on_gpu(indexing)
    w = torch.randint(0, 256, (16, 64), dtype=torch.uint8)
    made = is_near(by_quarters, torch.randn(5, 64).to(dtype), w, torch.tensor(0.5), blocks=BLOCKS)
    ((weight,),) = (one.stages for one in made.weights())
    assert sum(op.name == "load" for op in weight.ops) == 1


@pytest.mark.parametrize("dtype", [F16, torch.bfloat16])
def test_bytes_of_terms(dtype) -> None:
    x, s = torch.randn(5, 64).to(dtype), torch.rand(4, 32).to(dtype)
    w = torch.randint(0, 256, (32, 32), dtype=torch.uint8)
    is_near(in_bytes, x, w, w, s, torch.randint(-4, 4, (64,)), blocks=BLOCKS)


@pytest.mark.parametrize("dtype", [F16, torch.bfloat16])
@pytest.mark.parametrize(("k", "n"), [(64, 32), (128, 96), (40, 64)])
def test_words_of_columns(dtype, k, n) -> None:
    def program(x, w, z, s):
        order = order_of(n, [0, 2, 4, 6, 1, 3, 5, 7])
        return (x @ ((eights(w)[:, order].to(x.dtype) - 8) * s.repeat_interleave(8, 0))) + x[:, :1]

    given = awq_inputs(7, k, n, 8, dtype)
    is_near(program, *given, blocks=BLOCKS)


def test_two_packed_weights_in_one_template() -> None:
    def program(x, w, s, v, t):
        gate = x @ (((w[:, None] >> shifts()[None, :, None]) & 15).flatten(0, 1).to(x.dtype) * s)
        return F.silu(gate) * (x @ (((v[:, None] >> shifts()[None, :, None]) & 15).flatten(0, 1).to(x.dtype) * t))

    given = torch.randn(4, 64).to(F16) / 8, words(8, 32), torch.rand(32).to(F16), words(8, 32), torch.rand(32).to(F16)
    assert len(is_near(program, *given, blocks=BLOCKS).weights()) == 2


def test_an_index_that_is_out_of_range_is_an_error() -> None:
    x, w, z, s = gptq_inputs(3, 64, 32, 16, F16)
    places = torch.arange(64) // 16
    is_near(in_any_order, x, w, z, s, places, blocks=BLOCKS)
    places[13] = 4
    with pytest.raises(Exception, match="index out of range|out of bounds"):
        run(in_any_order, x, w, z, s, places, blocks=BLOCKS, prologues=True)


def test_awq_of_odd_columns() -> None:
    is_near(awq, *awq_inputs(3, 64, 48, 16, torch.bfloat16), blocks=BLOCKS)


def grouped(x, w, s):
    """Two numbers of neighbouring terms in each byte; the last group is filled up."""
    w = torch.stack([w & 15, w >> 4], -1).view(w.shape[0], s.shape[1], -1).to(x.dtype)
    return F.linear(x, ((w - 8) * s[..., None]).flatten(1)[:, : x.shape[1]])


@pytest.mark.parametrize("rows", [2, 9])
@pytest.mark.parametrize("blocks", [BLOCKS, Blocks(16, 16, 64, 4, 2)])
@pytest.mark.parametrize(("k", "n", "group"), [(104, 36, 8), (90, 35, 32), (57, 24, 16), (64, 32, 16)])
def test_groups_that_the_terms_do_not_fill(k, n, group, blocks, rows) -> None:
    """Nor do they fill the tiles of a program."""
    groups = -(-k // group)
    x, w = torch.randn(rows, k).to(F16), torch.randint(0, 256, (n, groups * group // 2), dtype=torch.uint8)
    found = is_near(grouped, x, w, torch.rand(n, groups).to(F16), blocks=blocks)
    assert len(found.reads()) == 3


def eights_in_order(x, w, z, s):
    return x @ ((eights(w).to(x.dtype) - 8) * s.repeat_interleave(x.shape[1] // s.shape[0], 0))


@pytest.mark.parametrize("rows", [2, 9])
@pytest.mark.parametrize(("k", "n", "group"), [(72, 40, 24), (56, 104, 14), (40, 24, 40)])
def test_words_of_columns_that_fill_no_tile(monkeypatch, k, n, group, rows) -> None:
    """Words are loaded once, behind masks of their own."""
    seen = []
    print_weight = template.print_weight
    monkeypatch.setattr(template, "print_weight", lambda *given: seen.append(print_weight(*given)) or seen[-1])
    is_near(eights_in_order, *awq_inputs(rows, k, n, group, F16), blocks=Blocks(16, 16, 32, 4, 2))
    assert "right_words_mask_of_8" in seen[-1].lines and "tl.join(" in seen[-1].tile
    x, w, z, s = gptq_inputs(rows, k, n, 8, F16)
    is_near(in_any_order, x, w, z, s, (torch.arange(k) // 8).int(), blocks=Blocks(16, 16, 32, 4, 2))
    assert "right_word_mask_of_8" in seen[-1].tile and "tl.join(" in seen[-1].tile
