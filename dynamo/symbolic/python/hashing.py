"""Hashes of keys of dicts and of elements of sets, whose errors name their place from 3.14 on."""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Hashable
from typing import Any

from dynamo.base.errors import Break
from dynamo.symbolic.core.frame import Frame
from dynamo.symbolic.core.var import ObservedException, Var

NAMES_PLACE = sys.version_info >= (3, 14)


def hash_of_key(tx: Frame, key: Var, kind: type = dict) -> Hashable:
    """The hash of a key of a dict. kind: the class that stores or deletes it: an OrderedDict asks
    for the hash itself."""
    named = NAMES_PLACE and kind is not OrderedDict
    return _hash_in(tx, key, "dict key") if named else key.hash_key(tx)


def hash_of_element(tx: Frame, item: Var) -> Hashable:
    """The hash of an element of a set."""
    return _hash_in(tx, item, "set element") if NAMES_PLACE else item.hash_key(tx)


def _hash_in(tx: Frame, value: Var, place: str) -> Hashable:
    try:
        return value.hash_key(tx)
    except ObservedException as error:
        raised: Any = error.value
        if raised.python_type() is not TypeError:
            raise
        args = getattr(raised, "args", [])
        text = args[0].as_constant() if len(args) == 1 and args[0].is_constant() else None
        if not isinstance(text, str):  # of a `__hash__` of the program
            raise Break("not_a_constant", f"the text of {raised!r}") from None
    tx.trace.raise_exception(
        TypeError, f"cannot use '{full_name(value.python_type())}' as a {place} ({text})")


def full_name(cls: type) -> str:
    """The name of a class as `%T` writes it.

    >>> full_name(int), full_name(ObservedException)
    ('int', 'dynamo.symbolic.core.var.ObservedException')
    """
    module = cls.__module__
    plain = not isinstance(module, str) or module in ("builtins", "__main__")
    return cls.__qualname__ if plain else f"{module}.{cls.__qualname__}"
