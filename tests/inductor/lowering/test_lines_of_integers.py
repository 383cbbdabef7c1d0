"""Constant integers in equal steps are computed where they are read, others lie in memory."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from torch import Tensor

import dynamo
from inductor.lowering import run
from inductor.lowering.creation import steps_of


@pytest.fixture
def constants(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many constants each lowered graph holds."""
    counts: list[int] = []
    original = run.lower_graph

    def spying(*args: Any, **options: Any) -> Any:
        made = original(*args, **options)
        counts.append(len(made.graph.constants))
        return made

    for module in list(sys.modules.values()):
        if getattr(module, "lower_graph", None) is original:
            monkeypatch.setattr(module, "lower_graph", spying)
    return counts


def shifts(x: Tensor) -> Tensor:
    return (x[:, None] >> torch.tensor([0, 2, 4, 6]) & 3).flatten()


def narrow(x: Tensor) -> Tensor:
    return x.to(torch.uint8)[:, None] >> torch.tensor([4, 0], dtype=torch.uint8)


def picked(x: Tensor) -> Tensor:
    return x[torch.tensor([5, 3, 1])] * 2


def uneven(x: Tensor) -> Tensor:
    return x[torch.tensor([0, 1, 3])] * 2


def given(x: Tensor) -> tuple[Tensor, Tensor]:
    line = torch.tensor([1, 2, 3])
    return line, line + x[:3]


def written(x: Tensor) -> Tensor:
    line = torch.tensor([1, 2, 3])
    line[0] = 7
    return line + x[:3]


@pytest.mark.parametrize(("program", "held"), [
    (shifts, 0), (narrow, 0), (picked, 0), (uneven, 1), (given, None), (written, None)])
def test_values(program: Any, held: int | None, constants: list[int]) -> None:
    x = torch.randint(0, 256, (20,))
    dynamo.reset()
    compiled = dynamo.compile(program, fullgraph=True, options={"graph_cache": False})
    for _ in range(2):
        for found, wanted in zip(*map(torch.utils._pytree.tree_leaves, (compiled(x), program(x))), strict=True):
            assert found.dtype is wanted.dtype and torch.equal(found, wanted)
    assert held is None or constants == [held]


def test_out_of_range() -> None:
    def program(x: Tensor) -> Tensor:
        return x[torch.tensor([0, 4, 8])] * 2

    for function in (program, dynamo.compile(program)):
        with pytest.raises(IndexError):
            function(torch.arange(8))


def test_steps() -> None:
    assert steps_of(torch.tensor([7, 5, 3])) == (7, -2)
    assert steps_of(torch.tensor([4, 4], dtype=torch.uint8)) == (4, 0)
    assert steps_of(torch.tensor([1, 2654435761])) is None
    for other in ([True, False], [0.0, 1.0], [1], [[0, 1]], [0, 1, 3]):
        assert steps_of(torch.tensor(other)) is None
