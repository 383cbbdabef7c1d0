"""Guards for people: logs and `explain`."""

from __future__ import annotations

import builtins
import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynamo
from dynamo.base import logs
from dynamo.guards.build import build_program
from dynamo.guards.kinds import GUARD_KINDS
from dynamo.guards.listing import ROWS, RUN_BY, python_lines
from dynamo.guards.records import Guard
from dynamo.guards.sources import AttrSource, LocalSource

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
    assert "  len(items) == 2\n" in explanation.all_guards


def test_explain_shows_the_guards_of_modules() -> None:
    explanation = dynamo.explain(Layer())(torch.ones(1, 2))
    text = explanation.all_guards
    assert "guards of Layer.forward [" in text and "self.inner" in text
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


@dataclasses.dataclass
class Pair:
    left: Any
    right: float


def sums(items: Any, named: Any, pair: Any) -> Any:
    return items[0] + items[1][0] + named["a"] * named["b"] + pair.left * pair.right


class Asked(type):
    def __getattr__(cls, name: str) -> Any:
        raise AttributeError(name)


class Base(metaclass=Asked):
    pass


class Scale(Base):
    def __init__(self, by: float) -> None:
        self.by = by


def scales(x: Any, scale: Scale) -> Any:
    return x * scale.by


def convolutions() -> torch.nn.Module:
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2), torch.nn.ReLU(), torch.nn.Flatten(),
        torch.nn.Dropout(), torch.nn.Linear(8, 2),
    )


def bert() -> Any:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        num_hidden_layers=2, hidden_size=8, num_attention_heads=2, intermediate_size=8,
        vocab_size=16, max_position_embeddings=8)
    return transformers.BertModel(config).eval()


X = torch.ones(2)
ORDINARY: dict[str, tuple[Callable[[], Any], tuple[Any, ...]]] = {
    "MLP": (lambda: torch.nn.Sequential(Layer(), torch.nn.Tanh(), Layer()), (X,)),
    "convolutions": (convolutions, (torch.ones(1, 1, 4, 4),)),
    "BERT": (bert, (torch.ones(1, 4, dtype=torch.long),)),
    "metaclass": (lambda: scales, (X, Scale(0.5))),
    "containers": (lambda: sums, ([X, (X,)], {"a": X, "b": 2}, Pair(X, 0.5))),
}


@pytest.mark.parametrize("name", ORDINARY)
def test_ordinary_guards_run_no_python(name: str) -> None:
    make, args = ORDINARY[name]
    explanation = dynamo.explain(make())(*args)
    assert explanation.guards and explanation.python_guards == {}
    assert "run Python code" not in str(explanation)


def add_all(x: Any, numbers: Any) -> Any:
    for number in numbers:
        x = x * 2 + number
    return x


def test_guards_that_run_python_are_named(capsys: Any) -> None:
    explanation = dynamo.explain(add_all)(X, {1.0, 2.0})
    (name, (line,)), = explanation.python_guards.items()
    assert name.startswith("add_all [") and line.startswith("<state of numbers>  # ")
    assert f"guards of {name} that run Python code (the others run in C):\n    {line}\n" in str(
        explanation)
    logs.set_logs("guards")
    try:
        dynamo.compile(add_all, backend="eager")(X, {1.0, 2.0})
    finally:
        logs.set_logs("-guards")
    assert f"runs Python code: {line}" in capsys.readouterr().err


class Watched(torch.Tensor):
    """A tensor whose attributes its class is asked for."""


class Value:
    @property
    def shown(self) -> int:
        return 3

    def __getattr__(self, name: str) -> int:
        raise AttributeError(name)

    def __bool__(self) -> bool:
        return True


RUN_BY_PYTHON = {
    "ATTR": (Guard("CONST", AttrSource(LocalSource("v"), "shown"), 3), Value(), "v.shown"),
    "LACKS_ATTR": (Guard("LACKS_ATTR", LocalSource("v"), "other"), Value(),
                   "not hasattr(v, 'other')"),
    "HAS_ATTR": (Guard("HAS_ATTR", LocalSource("v"), "shown"), Value(), "hasattr(v, 'shown')"),
    "TRUTH": (Guard("BOOL_TRUTH", LocalSource("v"), True), Value(), "bool(v) == True"),
    "ATTR of a tensor": (Guard("ID", AttrSource(LocalSource("v"), "grad"), None),
                         X.as_subclass(Watched), "v.grad"),
}


@pytest.mark.parametrize("name", RUN_BY_PYTHON)
def test_each_instruction_that_runs_python_is_shown(name: str) -> None:
    guard, value, text = RUN_BY_PYTHON[name]
    guards = [guard, Guard("TYPE", LocalSource("v"), type(value))]
    checks = build_program(guards)
    assert python_lines(guards, checks) == []
    assert checks.run({"v": value}, {}, builtins.__dict__)[2]
    assert checks.runs_python
    assert python_lines(guards, checks) == [f"{text}  # {RUN_BY[name.split()[0]]}"]


def test_a_tensors_own_attributes_are_read_in_c() -> None:
    guard = Guard("ID", AttrSource(LocalSource("v"), "grad"), None)
    for value in (X, torch.nn.Parameter(X)):
        checks = build_program([guard])
        assert checks.run({"v": value}, {}, builtins.__dict__)[2] and not checks.runs_python
