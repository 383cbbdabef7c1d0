"""Two objects of the first call are one object in the second: a change by one name is seen by the
other, as in eager."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynamo
from dynamo.testing import CompileCounter


class Plain:
    def __init__(self) -> None:
        self.v = 3

    def __repr__(self) -> str:
        return repr(self.__dict__)


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.v = 3


def append_and_length(x: Any, a: Any, b: Any) -> Any:
    a.append(1)
    return x + len(b)


def append_both(x: Any, a: Any, b: Any) -> Any:
    a.append(1)
    b.append(2)
    return x + len(a)


def append_only(x: Any, a: Any, b: Any) -> Any:
    a.append(1)
    b.append(2)
    return x


def store_item(x: Any, a: Any, b: Any) -> Any:
    a[0] = 5
    return x + b[0]


def store_key(x: Any, a: Any, b: Any) -> Any:
    a["k"] = 1
    return x + len(b) + b.get("k", 5)


def add_item(x: Any, a: Any, b: Any) -> Any:
    a.add(2)
    return x + len(b)


def store_attribute(x: Any, a: Any, b: Any) -> Any:
    a.v = 1
    return x + b.v


def count_both(x: Any, a: Any, b: Any) -> Any:
    a.v += 1
    b.v += 1
    return x


CASES: list[tuple[Callable[..., Any], Callable[[], Any]]] = [
    (append_and_length, lambda: [1]), (append_both, lambda: [1]), (append_only, lambda: [1]),
    (store_item, lambda: [1]), (store_key, lambda: {"z": 1}), (add_item, lambda: {1}),
    (store_attribute, Plain), (count_both, Plain), (store_attribute, Net), (count_both, Net),
]


@pytest.mark.parametrize(("function", "make"), CASES)
def test_one_object_at_two_places(
    function: Callable[..., Any], make: Callable[[], Any]
) -> None:
    backend, x = CompileCounter(), torch.rand(2)
    compiled = dynamo.compile(lambda x, a, b: function(x, a, b) + 1, backend=backend)
    for aliased in (False, True, False, True):
        mine, theirs = [make(), make()], [make(), make()]
        if aliased:
            mine[1], theirs[1] = mine[0], theirs[0]
        assert torch.equal(compiled(x, *mine), function(x, *theirs) + 1)
        states = [[getattr(value, "v", value) for value in pair] for pair in (mine, theirs)]
        assert states[0] == states[1]
    assert backend.frame_count <= 2


class Mode(enum.Enum):
    FAST, SLOW = 1, 2


class Bits(enum.IntFlag):
    LOW, HIGH = 1, 2


PLAIN, OTHER = Plain(), Net()
# What stands in a dict in the first and the second call; what it is compared with.
NAMED: dict[str, tuple[Any, Any, Callable[[], Any]]] = {
    "member": (Mode.FAST, Mode.SLOW, lambda: Mode.FAST),
    "member by value": (Mode.FAST, Mode.SLOW, lambda: Mode(1)),
    "member by name": (Mode.FAST, Mode.SLOW, lambda: Mode["FAST"]),
    "first member": (Mode.FAST, Mode.SLOW, lambda: next(iter(Mode))),
    "member of flags": (Bits.LOW, Bits.HIGH, lambda: Bits.LOW),
    "class": (Plain, Net, lambda: type(PLAIN)),
    "object": (PLAIN, OTHER, lambda: PLAIN),
    "function": (append_both, append_and_length, lambda: append_both),
}


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("operation", ["is", "in", "is not"])
@pytest.mark.parametrize("name", NAMED)
def test_what_was_read_is_no_longer_the_named_object(name: str, operation: str, first: bool) -> None:
    one, other, named = NAMED[name]

    def compare(x: torch.Tensor, box: dict[str, Any]) -> Any:
        if first:
            found, wanted = box["mode"], named()
        else:
            wanted, found = named(), box["mode"]
        if operation == "in":
            return x + 1 if found in (wanted,) else x - 1
        return x + 1 if (found is wanted) == (operation == "is") else x - 1

    compiled = dynamo.compile(compare, backend="eager")
    for value in (one, other, one):
        assert torch.equal(compiled(torch.ones(1), {"mode": value}), compare(torch.ones(1), {"mode": value}))
