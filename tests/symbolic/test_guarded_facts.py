"""Facts that a trace reads from the outside are guarded: another fact gives the other answer."""

from __future__ import annotations

import collections
import copy
from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch

import dynamo


def leafness(x: torch.Tensor) -> Any:
    return x * 2 if x.is_leaf else x * 3


def output_number(x: torch.Tensor) -> Any:
    return x + 1, x.output_nr


def history(x: torch.Tensor) -> Any:
    return x * (5 if x.grad_fn is None else 7)


def caught_in_place(x: torch.Tensor) -> Any:
    try:
        x.mul_(2)
    except RuntimeError:
        return x + 100
    return x + 1


def order_of_set(x: Any) -> Any:
    total = 0
    for item in x[0]:
        total = total * 10 + item
    return x[1] + total, total


def attribute_of_dict(x: Any) -> Any:
    return x[1] * x[0]._scale


def shared_in_copy(x: Any) -> Any:
    made = copy.deepcopy(x[0])
    made["a"].append(2)
    return x[1] + 1, made


def pair_of_lists(shared: bool) -> Any:
    first = [1]
    return {"a": first, "b": first if shared else [1]}


def numpy_number(x: Any) -> Any:
    return x[1] * x[0], type(x[0]).__name__


def scaled_dict(scale: int | None) -> Any:
    made: Any = collections.OrderedDict(a=1)
    if scale is not None:
        made._scale = scale
    return made


def leaf() -> torch.Tensor:
    return torch.rand(3, requires_grad=True)


CASES: list[tuple[Callable[[Any], Any], list[Callable[[], Any]]]] = [
    (leafness, [leaf, lambda: leaf() * 1, lambda: torch.rand(3)]),
    (output_number, [leaf, lambda: torch.unbind(torch.stack([leaf(), leaf()]))[1]]),
    (history, [leaf, lambda: leaf() * 1, lambda: torch.rand(3)]),
    (caught_in_place, [leaf, lambda: leaf() * 1, lambda: torch.rand(3)]),
    (order_of_set, [lambda: ({0, 8}, torch.rand(3)), lambda: ({8, 0}, torch.rand(3)),
                    lambda: ({8, 1}, torch.rand(3))]),
    (attribute_of_dict, [lambda k=k: (scaled_dict(k), torch.rand(3)) for k in (2, 3, None)]),
    (numpy_number, [lambda k=k: (numpy.float64(k), torch.rand(3)) for k in (0.5, 0.5, -0.0, 0.0)]),
    (numpy_number, [lambda: (numpy.float64(2), torch.rand(3)), lambda: (2.0, torch.rand(3)),
                    lambda: (numpy.float32(2), torch.rand(3))]),
    (shared_in_copy, [lambda k=k: (pair_of_lists(k), torch.rand(3)) for k in (True, False)]),
]


def outcome(function: Callable[[Any], Any], argument: Any) -> Any:
    try:
        return function(argument)
    except Exception as error:
        return type(error), str(error)


def same(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b) and torch.equal(torch.signbit(a), torch.signbit(b))
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)


@pytest.mark.parametrize("function,makers", CASES, ids=[f.__name__ for f, _ in CASES])
@pytest.mark.parametrize("backwards", [False, True])
def test_fact(
    function: Callable[[Any], Any], makers: list[Callable[[], Any]], backwards: bool
) -> None:
    compiled = dynamo.compile(function, backend="eager")
    for make in makers[::-1] if backwards else makers:
        for call in range(2):
            torch.manual_seed(call)
            want = outcome(function, make())
            torch.manual_seed(call)
            assert same(want, outcome(compiled, make())), (function, want)


class Root:
    tag = 1

    def scaled(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.tag

    @staticmethod
    def shift() -> int:
        return 1


class Middle(Root):
    pass


class Leaf(Middle):
    def scaled(self, x: torch.Tensor) -> torch.Tensor:
        return super().scaled(x) + self.shift() + hasattr(self, "extra") + getattr(Leaf, "more", 0)


GAINED: list[tuple[type, str, Any]] = [
    (Middle, "tag", 5),
    (Leaf, "tag", 7),
    (Middle, "scaled", lambda self, x: x * 100),
    (Leaf, "shift", staticmethod(lambda: 9)),
    (Middle, "extra", None),
    (Root, "more", 3),
]


@pytest.mark.parametrize("cls,name,value", GAINED, ids=[f"{c.__name__}.{n}" for c, n, _ in GAINED])
def test_classes_that_gain_attributes(cls: type, name: str, value: Any) -> None:
    leaf, x = Leaf(), torch.rand(3)
    compiled = dynamo.compile(lambda x: leaf.scaled(x), backend="eager", fullgraph=True)
    before = leaf.scaled(x)
    assert torch.equal(compiled(x), before)
    had = name in vars(cls)
    setattr(cls, name, value)
    try:
        after = leaf.scaled(x)
        assert not torch.equal(before, after) and torch.equal(compiled(x), after)
    finally:
        if not had:
            delattr(cls, name)
    assert torch.equal(compiled(x), before)
