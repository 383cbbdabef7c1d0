"""Elements that alternate in memory, two by two: kernels in Triton's interpreter beside eager."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from interpreted_programs import interpreted, texts
from interpreter_repairs import repair

import dynamo
from inductor.codegen.triton import plan
from inductor.lowering import indexing

SWAPPED, DOUBLED, JOINED = "k_swapped(", "k_side(", "k_joined("


@pytest.fixture(autouse=True)
def in_the_interpreter(monkeypatch) -> None:
    repair(monkeypatch)
    dynamo.reset()
    texts.clear()


def rotated(x, cos, sin):
    first, second = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    turned = torch.stack([-second, first], -1).flatten(-2)
    return (x.float() * cos + turned * sin).type_as(x)


def rotated_in_pairs(x, cos, sin):
    x = x.float().unflatten(-1, (-1, 2))
    cos, sin = cos[..., ::2], sin[..., 1::2]
    pair = x[..., 0] * cos - x[..., 1] * sin, x[..., 1] * cos + x[..., 0] * sin
    return torch.stack(pair, -1).flatten(-2)


def rotated_after_norm(x, cos, sin):
    return rotated(F.rms_norm(x, x.shape[-1:]), cos, sin)


def rotated_in_part(x, cos, sin):
    """Conditions beside those that tell two neighbours apart."""
    kept, rest = x[:, :3], rotated(x[:, 3:], cos[:, 3:], sin[:, 3:])
    return torch.cat([kept, rest], 1)


def rotated_tables(x, cos, sin):
    """Tables side by side, of which each has its columns."""
    cos = torch.cat([cos[..., :4], sin[..., 4:10], cos[..., 10:]], -1)
    return rotated_in_pairs(x, cos, sin)


def of_one(x, cos, sin):
    return x[..., ::2] * 2 + cos[..., 1::2], sin[..., ::2].repeat_interleave(2, -1) * x


def gated(x, cos, sin):
    return F.silu(x[..., ::2]) * (x[..., 1::2] + 1)


def gated_rows(x, cos, sin):
    gates, values = x[..., ::2], x[..., 1::2]
    return (gates.float() * values).softmax(-1), values.float().sum(-1)


def gated_with_bias(x, cos, sin):
    return (x + cos)[..., ::2] * x[..., 1::2] + sin[..., 0, ::2]


def masked(x, cos, sin):
    wide = F.pad(x[..., ::2], (1, 2)) + 1
    return wide, torch.cat([x[..., 1::2], x[..., ::2], cos[..., 1::2] + x[..., ::2]], -1)


def in_turns(x, cos, sin):
    both = torch.stack([x[..., ::2] * 2, x[..., 1::2].float().exp().type_as(x)], -1)
    return both, torch.stack([x, x + cos.type_as(x)], -1), torch.stack([(x > 0).int(), x.int()], -1).flatten(1)


def unpacked(x, cos, sin):
    """Bytes, of which each holds two numbers."""
    data = (x * 100).int().to(torch.uint8)
    return torch.stack([data & 15, data >> 4], -1).flatten(-2).to(x.dtype) - 8


def one_of_two_alone(x, cos, sin):
    """As a gradient of real parts. A condition without an axis, in a kernel without rows."""
    result = x.new_zeros(*x.shape[:-1], x.shape[-1] // 2, 2)
    return torch.select_scatter(result, x[..., ::2] * 2, -1, 0)


CASES = [
    (rotated, SWAPPED), (rotated_in_pairs, JOINED), (rotated_in_pairs, DOUBLED), (rotated_after_norm, SWAPPED),
    (rotated_in_part, SWAPPED), (rotated_tables, JOINED), (of_one, SWAPPED), (of_one, DOUBLED), (gated, DOUBLED),
    (gated_rows, DOUBLED), (gated_with_bias, DOUBLED), (masked, DOUBLED), (one_of_two_alone, DOUBLED), (in_turns, JOINED), (unpacked, ""),
]


@pytest.mark.parametrize("columns", [16, 10])
@pytest.mark.parametrize(("program", "spelled"), CASES)
def test_pairs(program, spelled, columns) -> None:
    dtype = torch.bfloat16 if columns == 16 else torch.float32
    x, cos, sin = torch.randn(3, 6, columns).to(dtype), torch.randn(1, 6, columns), torch.randn(1, 6, columns)
    _compare(program, (x, cos, sin))
    assert any(spelled in text for text in texts)


@pytest.mark.parametrize(("program", "spelled"), [(gated_rows, DOUBLED), (rotated_after_norm, SWAPPED)])
def test_pairs_in_loops(program, spelled, monkeypatch) -> None:
    monkeypatch.setattr(plan, "PERSISTENT_COLUMNS", 4)
    monkeypatch.setattr(plan, "PERSISTENT_WITH_LOCALS", 4)
    given = torch.randn(3, 6, 5000).bfloat16(), torch.randn(1, 6, 5000), torch.randn(1, 6, 5000)
    _compare(program, given)
    assert "for base in range" in texts[0] and spelled in texts[0]


@pytest.mark.parametrize("program", [rotated, gated, gated_rows, of_one])
def test_pairs_that_begin_anywhere(program) -> None:
    memory = torch.randn(3, 6, 19).bfloat16()
    _compare(program, (memory[..., 1:17], torch.randn(1, 6, 16), torch.randn(1, 6, 16)))
    assert any(SWAPPED in text or DOUBLED in text for text in texts)


def looked_up(x, rows):
    """Which row an element is of depends on the element: its neighbour may be of another one."""
    first = x.gather(0, rows)
    return first, x[rows[0], 2 * (torch.arange(8) // 2)], x[rows[1], 2 * torch.arange(8) % 8]


def test_what_lies_anywhere_has_no_neighbour() -> None:
    given = torch.randn(5, 8), torch.randint(0, 5, (2, 8))
    for found, wanted in zip(dynamo.compile(looked_up, backend=interpreted)(*given), looked_up(*given), strict=True):
        assert torch.equal(found, wanted)


def _compare(program, given) -> None:
    wanted, found = program(*given), dynamo.compile(program, backend=interpreted)(*given)
    if isinstance(wanted, torch.Tensor):
        wanted, found = (wanted,), (found,)
    for one, other in zip(wanted, found, strict=True):
        torch.testing.assert_close(other, one, rtol=1.6e-2 if one.dtype is torch.bfloat16 else 1e-5, atol=1e-5)


def costly_parts(x, cos, sin):
    """As a gradient of gates that alternate with their values."""
    gates, values, grads = x[..., ::2].float(), x[..., 1::2].float(), cos[..., ::2]
    gates = torch.tanh(gates) * values.sigmoid() + grads * torch.exp(-gates.abs()).cos()
    values = values.sin() * 2 - grads.abs().sqrt()
    return torch.cat([gates.unsqueeze(-1), values.unsqueeze(-1)], -1).flatten(-2)


def test_costly_parts_that_alternate_are_one_kernel(monkeypatch) -> None:
    monkeypatch.setattr(indexing, "MOST_INLINE_COST", 1000)  # as on a GPU
    _compare(costly_parts, (torch.randn(3, 6, 16), torch.randn(1, 6, 16), torch.randn(1, 6, 16)))
    (text,) = texts
    assert JOINED in text and DOUBLED in text and text.count("tl.store(") == 1
