"""Subclasses of list that are joined and repeated: which object, which class, which method."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import dynamo


class Plain(list):  # type: ignore[type-arg]
    pass


class Counting(list):  # type: ignore[type-arg]
    extended = 0

    def extend(self, items: Any) -> None:
        self.extended += 1
        super().extend(items)


class Joining(list):  # type: ignore[type-arg]
    def __iadd__(self, items: Any) -> Any:
        super().__iadd__(items)
        return self

    def __add__(self, items: Any) -> Any:
        return "joined"


class Reversed(list):  # type: ignore[type-arg]
    def __iter__(self) -> Any:
        return iter(self[::-1])

    def __mul__(self, times: Any) -> Any:
        return "repeated"


class Right:
    def __radd__(self, left: Any) -> str:
        return "radd"

    def __rmul__(self, left: Any) -> str:
        return "rmul"

    def __iter__(self) -> Any:
        return iter([7])

    def __index__(self) -> int:
        return 2


def add_in_place(a: Any, b: Any) -> Any:
    c = a
    c += b
    return c, c is a


def repeat_in_place(a: Any, b: Any) -> Any:
    c = a
    c *= b
    return c, c is a


def extend(a: Any, b: Any) -> Any:
    return a.extend(b), a


PROGRAMS = {
    "+=": add_in_place, "+": lambda a, b: a + b, "right +": lambda a, b: [0] + a, "extend": extend,
    "__iadd__": lambda a, b: a.__iadd__(b) is a, "list.__iadd__": lambda a, b: list.__iadd__(a, b) is a,
    "*=": repeat_in_place, "*": lambda a, b: a * b, "right *": lambda a, b: b * a,
}  # fmt: skip
CLASSES = [Plain, Counting, Joining, Reversed]


def outcome(program: Any, kind: type, right: Any) -> Any:
    made = kind([1, 2])
    try:
        found = program(torch.ones(2), made, made if right is None else right)
    except Exception as error:
        return type(error), str(error), list(made)
    return found[0].tolist(), found[1], type(found[1]), list.__repr__(made), vars(made)


@pytest.mark.parametrize("name", PROGRAMS)
def test_operands_equal_eager(name: str) -> None:
    program = PROGRAMS[name]

    def f(x: Any, a: Any, b: Any) -> Any:
        return x + 1, program(a, b)

    for kind in CLASSES:
        for right in (None, [3], (4,), Plain([5]), Reversed([5, 6]), {6: 1}, 3, True, 1.5, Right(), "ab", np.int64(2), np.array([1, 2])):
            dynamo.reset()
            compiled = dynamo.compile(f, backend="eager")
            assert repr(outcome(compiled, kind, right)) == repr(outcome(f, kind, right)), (kind, right)


@pytest.mark.parametrize("kind", CLASSES[:3])
def test_one_graph(kind: type) -> None:
    def f(x: torch.Tensor) -> Any:
        a = kind([x, x * 2])
        a += a
        a.extend(a)
        a += kind([x * 3])
        list.__imul__(a, 2)
        b = list.__add__(a, [x])
        return a[-1] + len(a), b[-1] * len(b), type(a) is kind, type(b)

    x = torch.randn(3)
    for found, wanted in zip(dynamo.compile(f, backend="eager", fullgraph=True)(x), f(x), strict=True):
        assert found is wanted or torch.equal(found, wanted)
