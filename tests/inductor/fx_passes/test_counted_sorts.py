"""Sorts of places among few columns, by counting; here on a CPU, which the pass leaves alone otherwise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import dynamo
from inductor.fx_passes import counted_sorts

aten = torch.ops.aten
Sorted = tuple[Tensor, Tensor]


@pytest.fixture(autouse=True)
def replaced(as_on_gpu: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many sorts of a graph were replaced."""
    seen: list[int] = []
    replace = counted_sorts._replace

    def noting(node: torch.fx.Node) -> bool:
        seen.append(replace(node))
        return bool(seen[-1])

    monkeypatch.setattr(counted_sorts, "_replace", noting)
    as_on_gpu(counted_sorts)
    return seen


def experts(z: Tensor) -> Sorted:
    return torch.sort(torch.topk(z, 2, -1)[1].reshape(-1))


def stable(z: Tensor) -> Sorted:
    return torch.sort(z.softmax(-1).argmax(-1).to(torch.int32), stable=True)


def places(z: Tensor) -> Any:
    return z.max(1)[1].repeat(2)[:-3].argsort(stable=True)


def run(program: Callable[..., Any], z: Tensor) -> None:
    dynamo.reset()
    found, wanted = dynamo.compile(program, fullgraph=True, options={"graph_cache": False})(z), program(z)
    if program is experts:  # whose order of equal elements is anyone's
        wanted = torch.sort(torch.topk(z, 2, -1)[1].reshape(-1), stable=True)
    torch.testing.assert_close(tuple(found) if isinstance(found, tuple) else found, tuple(wanted) if isinstance(wanted, tuple) else wanted)


def columns_first(z: Tensor) -> Any:
    """Places among 1300 rows, though a row has 4 elements: no small range."""
    return torch.topk(z.view(-1, 4), k=400, dim=0, sorted=True)[1].reshape(-1).sort(stable=True)


@pytest.mark.parametrize("program", [experts, stable, places])
@pytest.mark.parametrize("rows, columns", [(2048, 8), (2051, 64), (5000, 5), (1100, 512)])
def test_order_and_places(replaced: list[int], program: Callable[..., Any], rows: int, columns: int) -> None:
    run(program, torch.randn(rows, columns))
    assert replaced == [1]
    run(program, torch.zeros(rows, columns))  # all are equal


def descending(z: Tensor) -> Any:
    return z.argmax(-1).sort(descending=True, stable=True)


def unknown(z: Tensor) -> Any:
    return (z[:, 0] * 3).long().sort(stable=True)


def numbers(z: Tensor) -> Any:
    return z[:, 0].sort(stable=True)


def narrow(z: Tensor) -> Any:
    return z.argmax(-1).to(torch.int8).sort(stable=True)


def rows_of(z: Tensor) -> Any:
    return z.argmax(-1).view(4, -1).sort(stable=True)


def short(z: Tensor) -> Any:
    return z[:512].argmax(-1).sort(stable=True)


def added(z: Tensor) -> Any:
    return (z.argmax(-1) + z.argmin(-1)).sort(stable=True)


@pytest.mark.parametrize("program", [descending, unknown, numbers, narrow, rows_of, short, added, columns_first])
def test_what_stays(replaced: list[int], program: Callable[..., Any]) -> None:
    run(program, torch.randn(2048, 16))
    assert replaced == [0]


def test_many_columns_stay(replaced: list[int]) -> None:
    run(stable, torch.randn(2048, 600))
    assert replaced == [0]


def test_deterministic_programs_keep_theirs(replaced: list[int]) -> None:
    torch.use_deterministic_algorithms(True)
    try:
        run(stable, torch.randn(2048, 16))
    finally:
        torch.use_deterministic_algorithms(False)
    assert replaced == []
