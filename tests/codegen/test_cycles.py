"""Objects that hold themselves and are complete only with their parts: each is made once."""

from __future__ import annotations

import collections
import types
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynamo


class Plain:
    held: Any


class Keys(dict):  # type: ignore[type-arg]
    pass


Pair = collections.namedtuple("Pair", "a b")


def tuple_in_list() -> Any:
    holder: list[Any] = []
    made = (holder,)
    holder.append(made)
    return made, holder


def tuples_in_list() -> Any:
    holder: list[Any] = []
    made = (holder, (holder,))
    holder += [made, made[1]]
    return made, holder


def tuple_in_own_dict() -> Any:
    holder = Keys()
    made = (holder, [1])
    holder[1] = made
    return made, holder


def tuple_in_deque() -> Any:
    holder: collections.deque[Any] = collections.deque()
    made = (1, holder)
    holder.append(made)
    return made, holder


def named_tuple() -> Any:
    holder = Plain()
    made = holder.held = Pair(holder, 1)
    return made, holder


def set_in_object() -> Any:
    holder = Plain()
    made = holder.held = {holder}
    return made, holder


def default() -> Any:
    holder: list[Any] = []

    def made(a: Any = holder) -> Any:
        return a

    holder.append(made)
    return made, holder


def iterator() -> Any:
    holder: list[Any] = []
    made = iter([holder])
    holder.append(made)
    return made, holder


def zipped() -> Any:
    holder: list[Any] = []
    made = zip([holder], [1], strict=False)
    holder.append(made)
    return made, holder


def advanced(of: Callable[[Any], Any], holder: Any, store: Callable[[Any, Any], None]) -> Any:
    made = of(holder)
    store(holder, made)
    return made, holder, next(made)


HALFWAY: dict[str, Callable[[], Any]] = {
    "list": lambda: advanced(iter, [1, 2], lambda holder, it: holder.__setitem__(0, it)),
    "reversed list": lambda: advanced(
        reversed, [1, 2, 3], lambda holder, it: holder.__setitem__(0, it)),
    "deque": lambda: advanced(
        iter, collections.deque([1, 2]), lambda holder, it: holder.__setitem__(0, it)),
    "dict": lambda: advanced(
        iter, {0: 1, 1: 2}, lambda holder, it: holder.__setitem__(0, it)),
}


@pytest.mark.parametrize("make", HALFWAY.values(), ids=HALFWAY)
def test_an_iterator_that_its_container_holds_goes_on(make: Callable[[], Any]) -> None:
    def f(x: torch.Tensor) -> Any:
        made, holder, first = make()
        return holder, made, first, x + 1

    dynamo.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        holder, made, first, y = dynamo.compile(f, backend="eager")(torch.ones(2))
    wanted_made, wanted_holder, wanted_first = make()
    assert holder[0] is made and torch.equal(y, torch.full((2,), 2.0))
    assert len(list(made)) == len(list(wanted_made)) and len(holder) == len(wanted_holder)
    assert type(first) is type(wanted_first)


MAKERS: list[Callable[[], Any]] = [
    tuple_in_list, tuples_in_list, tuple_in_own_dict, tuple_in_deque, named_tuple, set_in_object,
    default, iterator, zipped,
]


def held(holder: Any) -> Any:
    if isinstance(holder, Plain):
        return holder.held
    return holder[1] if isinstance(holder, Keys) else holder[0]


@pytest.mark.parametrize("backwards", [False, True])
@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
def test_what_holds_itself_is_made_once(make: Callable[[], Any], backwards: bool) -> None:
    def f(x: torch.Tensor) -> Any:
        made, holder = make()
        return (holder, made, x + 1) if backwards else (made, holder, x + 1)

    dynamo.reset()
    first, second, y = dynamo.compile(f, backend="eager", fullgraph=True)(torch.ones(2))
    made, holder = (second, first) if backwards else (first, second)
    assert held(holder) is made and torch.equal(y, torch.full((2,), 2.0))
    if isinstance(made, tuple):
        assert any(part is holder for part in made)
    elif isinstance(made, types.FunctionType):
        assert made() is holder
    else:
        part = next(iter(made))
        assert (part[0] if isinstance(part, tuple) else part) is holder
