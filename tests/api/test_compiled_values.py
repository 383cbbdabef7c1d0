"""What `compile` made of a function is a value of its own inside of compiled functions: it is given
back, stored, compared and asked as in eager, and may be made there."""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import dynamo

X = torch.ones(2)


@dynamo.compile(backend="eager")
def double(x: torch.Tensor) -> torch.Tensor:
    """Doc."""
    return x * 2


SAME = double
KNOWN = {double: 7}


class Methods:
    """Compiled methods."""

    @dynamo.compile(backend="eager")
    def plain(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1

    @classmethod
    @dynamo.compile(backend="eager")
    def of_class(cls, x: torch.Tensor) -> torch.Tensor:
        return x + 2

    @staticmethod
    @dynamo.compile(backend="eager")
    def static(x: torch.Tensor) -> torch.Tensor:
        return x + 3


METHODS = Methods()
WITH_FORWARD = nn.Linear(2, 2)
WITH_FORWARD.forward = dynamo.compile(WITH_FORWARD.forward, backend="eager")
IN_PLACE = dynamo.compile_in_place(nn.Linear(2, 2), backend="eager")
PARTIAL = dynamo.compile(functools.partial(lambda x, by: x * by, by=2), backend="eager")


class Holder:
    """Has attributes."""


def stored(x: torch.Tensor) -> Any:
    holder = Holder()
    holder.step = double
    return holder.step, holder.step(x)


def stored_in_class(x: torch.Tensor) -> Any:
    Holder.step = staticmethod(double)
    return Holder.__dict__["step"].__func__, x + 1


def registered(x: torch.Tensor) -> Any:
    handle = IN_PLACE.register_forward_pre_hook(double)
    hooks = list(IN_PLACE._forward_pre_hooks.values())
    handle.remove()
    return hooks, x + 1


def behind_a_break(x: torch.Tensor) -> Any:
    f = double
    dynamo.graph_break()
    return f, f(x)


def marked(x: torch.Tensor) -> Any:
    double.mark = 5
    found = double.mark, hasattr(double.__wrapped__, "mark")
    del double.mark
    return found, hasattr(double, "mark"), x + 1


ROWS: dict[str, Callable[[torch.Tensor], Any]] = {
    "given back": lambda x: (double, double(x)),
    "in containers": lambda x: ([double], {double: 1}, {"f": double}, x + 1),
    "known by identity": lambda x: (
        double is SAME, double == SAME, KNOWN[double], [SAME].index(double), x + 1),
    "in a closure": lambda x: (lambda: double)().__wrapped__ is double.__wrapped__,
    "as a default": lambda x: ((lambda f=double: f)(), x + 1),
    "in a partial": lambda x: (functools.partial(double).func, functools.partial(double)(x)),
    "behind wraps": lambda x: (functools.wraps(double)(lambda y: y).__wrapped__, x + 1),
    "bound to an object": lambda x: (
        types.MethodType(double, x).__func__, types.MethodType(double, x)()),
    "what it wraps": lambda x: (double.__wrapped__ is double, double.__wrapped__, x + 1),
    "its class": lambda x: (
        type(double), double.__class__, isinstance(double, types.FunctionType), x + 1),
    "what inspect says": lambda x: (
        inspect.isfunction(double), inspect.ismethod(METHODS.plain), callable(double), x + 1),
    "its names": lambda x: (double.__name__, double.__doc__, double.__module__, x + 1),
    "of the function": lambda x: (double.__code__.co_name, double.__defaults__, x + 1),
    "its dict": lambda x: (sorted(vars(double)), hasattr(double, "_policy"), x + 1),
    "its text": lambda x: (str(double), f"{double}", x + 1),
    "no number": lambda x: double + 1,
    "no container": lambda x: len(double),
    "is true": lambda x: x + 1 if double else x,
    "method": lambda x: (METHODS.plain, METHODS.plain.__func__, METHODS.plain(x)),
    "of a class": lambda x: (METHODS.of_class, Methods.of_class(x)),
    "static": lambda x: (METHODS.static, Methods.static is METHODS.static, x + 1),
    "forward of a module": lambda x: (WITH_FORWARD.forward, WITH_FORWARD(x)),
    "call of a module": lambda x: (IN_PLACE._compiled_call_impl, IN_PLACE(x)),
    "partial": lambda x: (PARTIAL, PARTIAL.keywords, PARTIAL(x)),
    **{f.__name__: f for f in (stored, stored_in_class, registered, behind_a_break, marked)},
}


def outcome(f: Callable[[torch.Tensor], Any]) -> Any:
    try:
        return f(X)
    except TypeError as error:
        return str(error)


@pytest.mark.parametrize("name", ROWS)
def test_a_compiled_function_stays_itself(name: str) -> None:
    dynamo.reset()
    row = ROWS[name]
    compiled = dynamo.compile(row, backend="eager")
    for _ in range(2):
        _same(outcome(compiled), outcome(row))


def _same(got: Any, wanted: Any) -> None:
    assert type(got) is type(wanted)
    if isinstance(wanted, torch.Tensor):
        assert torch.equal(got, wanted)
    elif isinstance(wanted, tuple | list):
        assert len(got) == len(wanted)
        for one, other in zip(got, wanted, strict=True):
            _same(one, other)
    else:
        assert got == wanted


def test_passing_it_on_breaks_no_graph() -> None:
    dynamo.reset()
    for row in ("given back", "in containers", "known by identity", "as a default", "method",
                "bound to an object", "of a class", "static", "stored"):
        dynamo.compile(ROWS[row], backend="eager", fullgraph=True)(X)


def decorated(x: torch.Tensor) -> Any:
    @dynamo.compile(backend="eager")
    def inner(y: torch.Tensor) -> torch.Tensor:
        return y * x

    return inner(x + 1) + 1


def made_and_given_back(x: torch.Tensor) -> Any:
    inner = dynamo.compile(lambda y: y * 2, backend="eager")
    return inner(x), type(inner), inner(inner(x))


def made_of_a_known_one(x: torch.Tensor) -> Any:
    again = dynamo.compile(double, backend="eager")
    return again(x) + 1, again.__wrapped__ is double.__wrapped__, again is double


def made_in_a_loop(x: torch.Tensor) -> Any:
    made = []
    for k in range(3):
        made.append(dynamo.compile(lambda y, k=k: y + k, backend="eager"))
        x = made[-1](x)
    return x, [type(f) for f in made]


@pytest.mark.parametrize("program", [
    decorated, made_and_given_back, made_of_a_known_one, made_in_a_loop])
def test_functions_are_compiled_inside_of_a_compiled_function(program: Callable[..., Any]) -> None:
    dynamo.reset()
    compiled = dynamo.compile(program, backend="eager")
    for _ in range(2):
        _same(compiled(X), program(X))


def test_letting_go_of_a_compiled_function_breaks_no_graph() -> None:
    dynamo.reset()
    dynamo.counters.clear()

    def program(x: torch.Tensor) -> torch.Tensor:
        f = dynamo.compile(lambda y: y * 2, backend="eager")
        x = f(x)
        del f
        return x + 1

    assert torch.equal(dynamo.compile(program, backend="eager")(X), X * 2 + 1)
    codes = {text.partition(":")[0] for text in dynamo.counters["graph_break"]}
    assert codes == {"call_disabled"}
