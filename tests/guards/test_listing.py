"""Guards for people: logs and `explain`."""

from __future__ import annotations

from typing import Any

import torch

import dynamo
from dynamo.base import logs
from dynamo.guards.kinds import GUARD_KINDS
from dynamo.guards.listing import ROWS

HERE = __file__
FACTOR = 3


def scaled(x: Any, items: Any) -> Any:
    y = x * FACTOR
    return y + len(items)


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(2, 2)

    def forward(self, x: Any) -> Any:
        return self.inner(x)


def test_every_kind_has_a_row() -> None:
    assert set(ROWS) >= set(GUARD_KINDS)


def test_explain_shows_guards_with_their_reasons() -> None:
    explanation = dynamo.explain(scaled)(torch.ones(2), [1, 2])
    (name, guards), = explanation.guards.items()
    first = scaled.__code__.co_firstlineno
    assert name.startswith("scaled [")
    assert "FACTOR == 3" in guards
    assert "len(items) == 2" in guards
    at = guards.index("metadata(x) == Tensor([2], torch.float32, cpu, (1,))")
    assert guards[at + 1 : at + 3] == (
        "    why: the graph is made for this metadata",
        f"    needed at {HERE}:{first + 1} in scaled: y = x * FACTOR")
    assert "    len(items) == 2\n" in str(explanation)


def test_explain_shows_the_guards_of_modules() -> None:
    explanation = dynamo.explain(Layer())(torch.ones(1, 2))
    text = str(explanation)
    assert "guards of " in text and "self.inner" in text
    assert "metadata(self.inner.weight) == Parameter([2, 2]" in text


def test_symbolic_sizes_are_shown_by_what_they_stand_for() -> None:
    def f(x: Any) -> Any:
        return x.reshape(-1, 2) * 2

    text = str(dynamo.explain(f, dynamic=True)(torch.ones(6)))
    assert "x.size(0)" in text and "a size or number decides a branch or a shape" in text


def test_the_logs(capsys: Any) -> None:
    logs.set_logs("guards,verbose_guards")
    try:
        dynamo.compile(scaled, backend="eager")(torch.ones(2), [1])
    finally:
        logs.set_logs("-guards,-verbose_guards")
    shown = capsys.readouterr().err
    assert "FACTOR == 3  # the value is a constant of the graph or of a branch" in shown
    assert "    why: the number of items decides how often a loop runs" in shown
    assert "in scaled: return y + len(items)" in shown
