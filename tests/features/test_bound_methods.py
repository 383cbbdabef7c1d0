"""What a bound method tells of itself, whatever it binds: a function, a cached one, an object, a method of C."""

from __future__ import annotations

import functools
import inspect
import operator
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynamo


class Adds:
    def __call__(self, one: Any, other: Any) -> Any:
        return other


class Holder:
    plain = lambda self, a: a  # noqa: E731
    built_in = types.MethodType(max, 3)
    of_operator = types.MethodType(operator.add, 3)
    of_object = types.MethodType(Adds(), 3)
    of_partial = types.MethodType(functools.partial(lambda self, a: a), 3)
    partial_method = functools.partialmethod(lambda self, a: a)

    @functools.lru_cache  # noqa: B019
    def cached(self, a: Any) -> Any:
        return a

    @classmethod
    @functools.cache
    def of_class(cls, a: Any) -> Any:
        return a


METHODS: dict[str, Callable[[], Any]] = {
    **{name: functools.partial(getattr, Holder(), name) for name in vars(Holder) if name[0] != "_"},
    "append": lambda: [].append, "get": lambda: {}.get, "upper": lambda: "a".upper,  # type: ignore[dict-item]
    "wrapper": lambda: (1).__add__,
}
USES: dict[str, Callable[[Any], Any]] = {
    "function": lambda method: (type(method.__func__).__name__, method.__func__ is method.__func__),
    "bound again": lambda method: types.MethodType(method.__func__, method.__self__)(5),
    "called apart": lambda method: method.__func__(method.__self__, 4),
    "signature": lambda method: str(inspect.signature(method)),
    "names": lambda method: (method.__name__, method.__qualname__),
    "module": lambda method: method.__module__,
    "owner": lambda method: hasattr(method, "__objclass__"),
    "wrapped": lambda method: hasattr(method, "__wrapped__"),
    "no such": lambda method: method.no_such,
}


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("name", METHODS)
def test_attributes_of_bound_methods(name: str, use: str) -> None:
    def function(x: torch.Tensor) -> Any:
        y = x + 1
        try:
            found = USES[use](METHODS[name]())
        except (AttributeError, TypeError, ValueError) as error:
            found = type(error), str(error)
        return y * 2, found

    assert dynamo.compile(function, backend="eager")(torch.ones(1)) == function(torch.ones(1))
