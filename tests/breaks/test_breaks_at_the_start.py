"""Continuations that break where they begin: they run as plain Python, and are not made again."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import dynamo
from dynamo.codegen.continuation import Continuations
from dynamo.symbolic.machine.finalizers import ObservedLocals
from tests.breaks.test_lifetimes import Tells


def in_a_local(x: torch.Tensor) -> Any:
    held = Tells()
    dynamo.graph_break()
    return x + 1, len(held.__class__.__name__)


def on_the_stack(x: torch.Tensor) -> Any:
    return [Tells(), dynamo.graph_break(), x + 1][1:]


def in_a_block(x: torch.Tensor) -> Any:
    for _ in range(2):
        try:
            held = Tells()
            dynamo.graph_break()
            raise ValueError(held.__class__.__name__)
        except ValueError as error:
            x = x + len(str(error))
    return x


@pytest.mark.parametrize("program", [in_a_local, on_the_stack, in_a_block])
@pytest.mark.parametrize("steps", [1, 4, 1000])
def test_is_not_made_again(program: Any, steps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """steps: how many instructions of each continuation break, those of its prefix are first."""
    made: list[Any] = []
    get = Continuations.get

    def counted(*args: Any) -> Any:
        made.append(args[2:])
        assert len(made) < 100, made
        return get(*args)

    monkeypatch.setattr(ObservedLocals, "dropped", lambda observed, trace: trace.steps <= steps)
    monkeypatch.setattr(Continuations, "get", counted)
    x = torch.ones(2)
    compiled = dynamo.compile(program, backend="eager")
    with dynamo.config.patch(suppress_errors=False):
        for _ in range(2):
            torch.testing.assert_close(compiled(x), program(x))
    assert made
