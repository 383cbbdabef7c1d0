"""Frozen sets from outside, and `id()` of modules: in the graph where a guard can tell, else a break."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import dynamo

X = torch.ones(3)


@pytest.fixture(autouse=True)
def clean() -> None:
    dynamo.reset()


def agrees(f: Callable[..., Any], *calls: tuple[Any, ...], breaks: bool = False) -> None:
    compiled = dynamo.compile(f, backend="eager")
    for args in calls:
        found, wanted = compiled(*args), f(*args)
        torch.testing.assert_close(found, wanted)
    assert bool(dynamo.counters["graph_break"]) == breaks, dict(dynamo.counters["graph_break"])


def double(x: Any) -> Any:
    return x * 2


class Equal:
    """Equal to all of the same number."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Equal) and self.number == other.number

    def __hash__(self) -> int:
        return self.number


SETS: list[tuple[frozenset[Any], tuple[Any, ...]]] = [
    (frozenset({double, len}), (double, math.sqrt)),
    (frozenset({torch.relu, torch.sigmoid}), (torch.relu, torch.tanh)),
    (frozenset({operator.add, math.sqrt}), (operator.add, operator.sub)),
    (frozenset({torch.nn.functional.gelu}), (torch.nn.functional.gelu, torch.nn.functional.relu)),
    (frozenset({nn.Linear, nn.Conv2d}), (nn.Linear, nn.ReLU)),
    (frozenset({torch.float32}), (torch.float32, torch.float64)),
    (frozenset({1.0, "a", (1, 2), None}), (1, True, "a", (1, 2), None, 2)),
]


@pytest.mark.parametrize("number", range(len(SETS)))
def test_membership(number: int) -> None:
    items, keys = SETS[number]

    def f(x: torch.Tensor, key: Any) -> torch.Tensor:
        return x * 2 if key in items else x

    agrees(f, *((X, key) for key in keys))


@pytest.mark.parametrize("items, keys", [
    (frozenset({Equal(1)}), (Equal(1), Equal(2))),
    (frozenset({functools.partial(double)}), (double,)),
    (frozenset({[].append}), (double,)),
    (frozenset({nn.ReLU()}), (double,)),
])  # fmt: skip
def test_what_a_guard_cannot_tell_breaks(items: frozenset[Any], keys: tuple[Any, ...]) -> None:
    def f(x: torch.Tensor, key: Any) -> torch.Tensor:
        return x * 2 if key in items else x

    agrees(f, *((X, key) for key in keys), breaks=True)


def test_a_set_that_is_exchanged() -> None:
    class Model(nn.Module):
        allowed = frozenset({torch.relu})

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2 if torch.relu in self.allowed else x

    model = Model()
    compiled = dynamo.compile(model, backend="eager")
    for functions in ({torch.relu}, {torch.tanh}, {torch.tanh, torch.relu}, set()):
        Model.allowed = frozenset(functions)
        assert torch.equal(compiled(X), model(X))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = self.b = nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.a(x) * 2 if id(self.a) == id(self.b) else self.b(self.a(x))


def test_ids_of_modules_are_compared() -> None:
    model = Tied()
    compiled = dynamo.compile(model, backend="eager")
    assert torch.equal(compiled(X), model(X))
    model.b = nn.Linear(3, 3)
    assert torch.equal(compiled(X), model(X))
    model.a = model.b
    assert torch.equal(compiled(X), model(X))
    assert not dynamo.counters["graph_break"]


def test_ids_in_sets_of_the_function() -> None:
    def f(x: torch.Tensor, modules: list[nn.Module]) -> torch.Tensor:
        return x * len({id(module) for module in modules})

    one, two = nn.ReLU(), nn.ReLU()
    agrees(f, (X, [one, one, two]), (X, [one, one, one]), (X, [two, one, one]))


@pytest.mark.parametrize("f", [
    lambda x, a: x * {id(ONE): 2.0}.get(id(a), 1.0),
    lambda x, a: x * (id(a) % 7),
    lambda x, a: (x, str(id(a))),
])  # fmt: skip
def test_ids_as_numbers_break(f: Callable[..., Any]) -> None:
    compiled = dynamo.compile(f, backend="eager")
    for module in (ONE, OTHER, ONE):
        found, wanted = compiled(X, module), f(X, module)
        assert torch.equal(found[0], wanted[0]) and str(found) == str(wanted)


ONE, OTHER = nn.ReLU(), nn.ReLU()


def test_constant_results_of_inputs_are_asked_once() -> None:
    asked = []

    @dynamo.assume_constant_result
    def total(t: torch.Tensor, others: tuple[torch.Tensor, ...] = ()) -> float:
        asked.append(1)
        return float(t.sum() + sum(other.sum() for other in others))

    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x * total(y) + total(x, (y, y)) * y.sum()

    compiled = dynamo.compile(f, backend="eager", fullgraph=True)
    a, b = torch.rand(3), torch.rand(4)
    for _ in range(3):
        torch.testing.assert_close(compiled(a, b), f(a, b))
    first = f(a, b)
    a2, b2 = a.clone(), torch.zeros(4)
    del asked[:]
    torch.testing.assert_close(compiled(a2, b), first)
    assert not asked
    torch.testing.assert_close(compiled(a2, b2), a2 * float(b.sum()))
    torch.testing.assert_close(compiled(a, torch.rand(5)).shape, a.shape)  # compiled anew
    assert len(asked) == 2


def test_constant_results_of_what_the_program_computes_are_asked_each_time() -> None:
    asked = []

    @dynamo.assume_constant_result
    def total(t: torch.Tensor) -> float:
        asked.append(1)
        return float(t.sum())

    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        y.add_(1)
        return x * total(y) + total(x * 2)

    compiled = dynamo.compile(f, backend="eager")
    for x in (X, X * 3, X):
        assert torch.equal(compiled(x, torch.ones(2)), f(x, torch.ones(2)))
    assert len(asked) == 12
    for g in (lambda x: total(x * 2), lambda x: total(x.add_(0))):
        with pytest.raises(dynamo.exc.Unsupported, match="a call made while tracing"):
            dynamo.compile(g, backend="eager", fullgraph=True)(X)


def test_constant_results_without_tensors_are_constants() -> None:
    table = torch.arange(3.0)

    @dynamo.assume_constant_result
    def twice() -> torch.Tensor:
        return table * 2

    agrees(lambda x: x + twice(), (X,), (X * 2,))


def plus_one(x: torch.Tensor) -> torch.Tensor:
    return x + 1


FUNCTIONS = frozenset({plus_one, torch.sin, torch.nn.functional.relu})


def test_frozen_sets_of_functions_have_an_order(monkeypatch: pytest.MonkeyPatch) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        for function in FUNCTIONS:
            x = function(x) * 2
        for function in sorted(FUNCTIONS, key=lambda one: one.__name__):
            x = function(x) * 3
        return x + sum(one is plus_one for one in FUNCTIONS)

    compiled = dynamo.compile(f, backend="eager", fullgraph=True)
    for functions in (FUNCTIONS, frozenset({torch.cos, plus_one}), frozenset({torch.exp, torch.sin})):
        monkeypatch.setattr(f"{__name__}.FUNCTIONS", functions)
        x = torch.rand(3)
        for _ in range(2):
            assert torch.equal(compiled(x), f(x))


def test_ids_of_modules_beside_numbers() -> None:
    class Chosen(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList(torch.nn.Linear(3, 3) for _ in range(4))
            self.left_out = {id(self.layers[1])}
            self.doubled = id(self.layers[2])
            self.scales = {id(layer): float(n) for n, layer in enumerate(self.layers)}

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            seen = set()
            for layer in self.layers:
                if id(layer) in self.left_out or id(layer) in seen:
                    continue
                seen.add(id(layer))
                x = layer(x) * self.scales.get(id(layer), 9.0)
                if id(layer) == self.doubled:
                    x = x * 2
                if self.doubled != id(layer):
                    x = x - 1
            return x

    model = Chosen()
    compiled = dynamo.compile(model, backend="eager", fullgraph=True)

    def same() -> None:
        x = torch.rand(2, 3)
        for _ in range(2):
            assert torch.equal(compiled(x), model(x))

    same()
    model.left_out.add(id(model.layers[0]))
    same()
    model.doubled = id(model.layers[3])
    same()
    model.scales[id(model.layers[3])] = 5.0
    same()
    model.layers[2] = torch.nn.Linear(3, 3)
    same()
    model.layers[3] = model.layers[2]
    same()
