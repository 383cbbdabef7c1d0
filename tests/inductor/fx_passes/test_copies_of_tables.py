"""Sums into tables of few rows: into copies, with eager's sums, errors and dtypes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from inductor.fx_passes import copies_of_tables
from inductor.fx_passes.copies_of_tables import add_into_copies

N = 6000


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(copies_of_tables, "on_gpu", lambda device: True)
    monkeypatch.setattr(copies_of_tables, "FEWEST_ADDED", 1 << 10)


def put(table: Tensor, at: tuple[Tensor, ...], values: Tensor) -> Tensor:
    return torch.zeros_like(table).index_put(at, values, accumulate=True)


def numbers(at: Tensor, v: Tensor) -> Tensor:
    return put(v.new_zeros(7), (at,), v[:, 0])


def rows(at: Tensor, v: Tensor) -> Tensor:
    return put(v.new_zeros(7, 5), (at,), v)


def of_two_axes(at: Tensor, v: Tensor) -> Tensor:
    return put(v.new_zeros(7, 2, 5), (at, at % 2), v)


def by_columns(at: Tensor, v: Tensor) -> Tensor:
    return put(v.new_zeros(7, 2), (at.view(-1, 1), torch.arange(2)), v[:, :2])


def one_for_all(at: Tensor, v: Tensor) -> Tensor:
    return put(v.new_zeros(7, 5), (at.view(60, 100),), v[0])


def narrow(at: Tensor, v: Tensor) -> Tensor:
    return put(v.new_zeros(7, 5).bfloat16(), (at.int(),), v.bfloat16())


def to_what_is_there(at: Tensor, v: Tensor) -> Tensor:
    return v[:7].index_put((at,), v, accumulate=True)


def overwritten(at: Tensor, v: Tensor) -> Tensor:
    return v.new_zeros(7, 5).index_put((at,), v[0])


def second_axis(at: Tensor, v: Tensor) -> Tensor:
    return torch.ops.aten.index_put(v.new_zeros(5, 7), [None, at], v.t(), True)


def of_integers(at: Tensor, v: Tensor) -> Tensor:
    return put(at.new_zeros(7), (at,), at)


def many_rows(at: Tensor, v: Tensor) -> Tensor:
    return put(v.new_zeros(100, 5), (at,), v)


CHANGED = [numbers, rows, of_two_axes, by_columns, one_for_all, narrow]
LEFT = [to_what_is_there, overwritten, second_axis, of_integers, many_rows]


def inputs() -> tuple[Tensor, Tensor]:
    return torch.randint(-7, 7, (N,)), torch.randn(N, 5)


def rewritten(program: Any, *given: Tensor) -> Any:
    return add_into_copies(make_fx(program, tracing_mode="fake")(*given))


def ranks(module: Any) -> list[int]:
    puts = module.graph.find_nodes(op="call_function", target=torch.ops.aten.index_put.default)
    return [node.meta["val"].dim() for node in puts]


@pytest.mark.parametrize("program", CHANGED + LEFT, ids=lambda each: each.__name__)
def test_graphs(program: Any) -> None:
    given = inputs()
    module, wanted = rewritten(program, *given), program(*given)
    assert ranks(module) == [wanted.dim() + (program in CHANGED)]
    found, exact = module(*given), program(given[0], given[1].double())
    assert found.dtype is wanted.dtype and found.stride() == wanted.stride()
    if program is narrow:  # eager rounds each addition
        exact = program.__globals__["rows"](given[0], given[1].bfloat16().double())
        torch.testing.assert_close(found.double(), exact, rtol=4e-3, atol=1e-3)
    else:
        torch.testing.assert_close(found, exact.to(found.dtype), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("place", [7, -8])
@pytest.mark.parametrize("program", [numbers, rows, of_two_axes])
def test_out_of_range(program: Any, place: int) -> None:
    given = inputs()
    module = rewritten(program, *given)
    given[0][-1] = place
    with pytest.raises(IndexError, match="out of bounds"):
        module(*given)


def test_deterministic_mode() -> None:
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        assert ranks(rewritten(rows, *inputs())) == [2]
    finally:
        torch.use_deterministic_algorithms(before)


def test_copies() -> None:
    assert copies_of_tables._copies(128, 1 << 21, 1) == 512
    assert copies_of_tables._copies(399, 40000, 1) == 0
    assert copies_of_tables._copies(4096, 1 << 22, 1) == 32
    assert copies_of_tables._copies(1 << 18, 1 << 24, 64) == 0
