"""The order of names in `__dict__`, in a module's globals and in a class, after a compiled part has written them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynamo


class Holder:
    kind: Any


def kept_place(o, x):
    o.p = 1
    o.q = x + 1
    o.p = 3


def deleted_and_set(o, x):
    del o.a
    o.a = x * 2


def deleted_set_and_set(o, x):
    del o.a
    o.a = x * 2
    o.n = 1
    o.a = 5


def deleted_twice(o, x):
    del o.a
    o.a = x * 2
    o.n = 1
    del o.a
    o.a = 7


def same_value(o, x):
    value = o.a
    del o.a
    setattr(o, *("a", value))
    x.add_(1)


def around_output(o, x):
    value = o.a
    del o.a
    o.a = value
    del o.b
    print(end="")
    o.b = 4
    o.k = x


def seen_inside(o, x):
    del o.a
    between = list(o.__dict__)
    o.a = x
    o.n = 1
    o.a = 2
    return between, list(vars(o))


def through_the_dict(o, x):
    own = o.__dict__
    own["a"] = own.pop("a")
    own.update(m=1, b=x)
    own["m"] = 3


def made_here(o, x):
    o.made = Holder()
    o.made.u = 1
    o.made.v = 2
    o.made.u = x
    o.other = Holder()
    o.other.u = 1
    o.other.v = 2
    del o.other.u
    o.other.u = 3


def missing_first(o, x):
    try:
        del o.nothing
    except AttributeError:
        o.nothing = x
    del o.nothing


def of_a_function(o, x):
    o.function.p = 1
    o.function.q = 2
    o.function.p = 3
    del o.function.a
    o.function.a = x
    o.function.new = 1
    del o.function.new
    o.function.new = 2
    return list(o.function.__dict__)


def of_a_dict(o, x):
    del o.items["a"]
    o.items["a"] = x
    o.items["n"] = 3
    o.items["a"] = 1


def of_an_exception(o, x):
    error = o.error
    error.p = 1
    error.q = x
    error.p = 2
    raise error


def of_the_globals(o, x):
    global first, second  # noqa: F841
    del first
    first = x
    second = 3
    first = 4  # noqa: F841


first = second = 0


def places(call: Callable[..., Any]) -> list[Any]:
    global first, second  # noqa: F841
    for name in ("first", "second"):
        globals().pop(name, None)
    first, second = 1, 2
    o = Holder()
    o.a, o.b, o.items, o.function, o.error = 1, 2, {"a": 1, "b": 2}, lambda: None, ValueError()
    o.function.a = o.function.b = 1
    try:
        result = call(o, torch.ones(2))
    except ValueError as error:
        result = repr(error)
    made = [list(vars(part)) for part in vars(o).values() if hasattr(part, "__dict__")]
    names = [name for name in globals() if name in ("first", "second")]
    return [list(vars(o)), made, list(o.items), names, result]


@pytest.mark.parametrize("program", [
    kept_place, deleted_and_set, deleted_set_and_set, deleted_twice, same_value, around_output, seen_inside, through_the_dict,
    made_here, missing_first, of_a_function, of_a_dict, of_an_exception, of_the_globals,
])  # fmt: skip
def test_order_of_names(program: Callable[..., Any]) -> None:
    compiled = dynamo.compile(program, backend="eager")
    for _ in range(2):
        assert places(program) == places(compiled)
