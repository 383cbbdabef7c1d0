"""`functools.singledispatch`: its Python code is traced, but for the cache of found functions."""

from __future__ import annotations

import functools
import weakref
from typing import Any

from dynamo.base.errors import Break
from dynamo.symbolic.core.frame import Frame
from dynamo.symbolic.core.table import NONE, rule
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.python.classes import ClassVar
from dynamo.symbolic.python.dicts import DictVar
from dynamo.symbolic.python.functions import inline_polyfill

DISPATCH = functools.singledispatch(lambda value: value).dispatch.__code__


def cache_rule(name: str) -> Any:
    """A method of WeakKeyDictionary that means another thing in `dispatch`."""
    function = getattr(weakref.WeakKeyDictionary, name)

    def register(handler: Any) -> Any:
        @rule(function)
        def handle(tx: Frame, /, *args: Var, **kwargs: Var) -> Var:
            if tx.code is DISPATCH:
                return handler(tx, *args)  # type: ignore[no-any-return]
            return inline_polyfill(tx, function, list(args), kwargs)

        return handler

    return register


@cache_rule("__getitem__")
def nothing_cached(tx: Frame, cache: Var, cls: Var) -> Var:
    tx.trace.raise_exception(KeyError, cls)


@cache_rule("__setitem__")
def cache_nothing(tx: Frame, cache: Var, cls: Var, function: Var) -> Var:
    return NONE


@rule(functools._find_impl)  # type: ignore[attr-defined]
def find_function(tx: Frame, cls: Var, registry: Var) -> Var:
    """The function of the nearest registered class, asked of the real classes."""
    if not isinstance(cls, ClassVar) or not isinstance(registry, DictVar):
        raise Break("call_of_unknown_function", f"dispatch on {cls!r}")
    pairs = registry.entries.values()
    known = {key.cls: value for key, value in pairs if isinstance(key, ClassVar)}
    found = tx.trace.run_real(lambda: functools._find_impl(cls.cls, known))  # type: ignore[attr-defined]
    return NONE if found is None else found  # type: ignore[no-any-return]
