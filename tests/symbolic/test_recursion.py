"""Functions that call themselves: inlined while that is a few calls, run as calls where it has no end."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynamo
from dynamo.base.counters import counters
from dynamo.symbolic.machine.frame import SymbolicFrame


def powers(x: torch.Tensor, n: int) -> torch.Tensor:
    return x.sin() if n == 0 else powers(x * 1.01, n - 1) + 1


def endless(x: torch.Tensor, n: int) -> torch.Tensor:
    return endless(x + 1, n + 1)


def even(n: int) -> bool:
    return True if n == 0 else odd(n - 1)


def odd(n: int) -> bool:
    return False if n == 0 else even(n - 1)


def caught(x: torch.Tensor) -> torch.Tensor:
    def count(n: int) -> int:
        return count(n + 1)

    try:
        count(0)
    except RecursionError:
        return x + 1
    raise AssertionError


class Endless(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self(x + 1)  # type: ignore[no-any-return]


class Chain(torch.nn.Module):
    def __init__(self, length: int) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(3))
        self.rest = Chain(length - 1) if length else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x * self.weight
        return x if self.rest is None else self.rest(x).cos()


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the functions that were traced."""
    names: list[str] = []
    run = SymbolicFrame.run

    def counted(frame: SymbolicFrame) -> Any:
        names.append(frame.code.co_name)
        return run(frame)

    monkeypatch.setattr(SymbolicFrame, "run", counted)
    return names


def outcome(call: Callable[..., Any], *args: Any) -> Any:
    try:
        return call(*args)
    except RecursionError:
        return RecursionError


def same(first: Any, second: Any) -> bool:
    if isinstance(first, tuple):
        return all(map(same, first, second))
    if isinstance(first, torch.Tensor):
        return torch.allclose(first, second)
    return bool(first == second)


def test_a_few_levels_are_one_graph() -> None:
    x = torch.randn(3)
    counters.clear()
    assert same(dynamo.compile(powers, backend="eager", fullgraph=True)(x, 40), powers(x, 40))
    assert counters["stats"]["graphs"] == 1


def test_modules_within_modules_are_one_graph() -> None:
    chain, x = Chain(20).eval(), torch.randn(3)
    assert same(dynamo.compile(chain, backend="eager", fullgraph=True)(x), chain(x))


CALLS: dict[str, Callable[[torch.Tensor], Any]] = {
    "deep": lambda x: powers(x, 500),
    "two functions": lambda x: (x + 1, even(400)),
    "no end": lambda x: endless(x, 0),
    "no end, caught": caught,
    "no end, a module": Endless(),
    "a long chain": Chain(70).eval(),
}


@pytest.mark.parametrize("name", CALLS)
def test_what_is_deeper_runs_as_calls(name: str, traced: list[str]) -> None:
    call = CALLS[name]
    compiled = dynamo.compile(call, backend="eager")
    before = sys.getrecursionlimit()
    for _ in range(2):
        x = torch.randn(3)
        assert same(outcome(compiled, x), outcome(call, x))
    assert len(traced) < 1500, "each level must not trace all those below it"
    assert sys.getrecursionlimit() == before
