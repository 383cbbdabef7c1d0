"""Dates, times, `struct` and other pure C code of the standard library: constants and functions of
constants. What reads the clock or the time zone is not among them."""

from __future__ import annotations

import datetime
import os
import struct
from typing import Any

from dynamo.base.errors import Break
from dynamo.guards.sources import GlobalSource, ModuleSource, ObjectSource, Source
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.frame import Evaluation, Frame
from dynamo.symbolic.core.lookup import find_in_mro
from dynamo.symbolic.core.stack_values import OpaqueVar
from dynamo.symbolic.core.table import fold, foldable, rule
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.core.wrapping import wraps
from dynamo.symbolic.python.classes import ClassVar
from dynamo.symbolic.python.objects import ObjectVar

DATES = (datetime.date, datetime.time, datetime.datetime, datetime.timedelta, datetime.timezone)
KEPT = (GlobalSource, ModuleSource, ObjectSource)
# Methods that read the clock or the local time zone, or are no computation.
NOT_PURE = frozenset(
    """today now utcnow fromtimestamp timestamp astimezone __new__ __init__ __init_subclass__
    __subclasshook__ __getattribute__ __setattr__ __delattr__ __dir__ __reduce__ __reduce_ex__
    __class__ __hash__""".split()
)


@wraps(*DATES)
def wrap_date(trace: Evaluation, value: Any, source: Source | None) -> Var:
    """A date, a time or a difference of them; one that may be another at each call is passed on."""
    zone = getattr(value, "tzinfo", None)
    name = type(value).__qualname__
    if zone is not None and type(zone) is not datetime.timezone:  # Python is asked
        raise Break("value_unknown", name)
    if source is not None and not isinstance(source.root(), KEPT):
        return OpaqueVar(trace, value, source, Break("value_unknown", name))
    return ConstVar(value, source, trace)


def register_class_method(cls: type, name: str, raw: Any) -> None:
    """`float.fromhex` and the like, of the class itself."""

    @rule(raw)
    def handle(tx: Frame, owner: Var, /, *args: Var, **kwargs: Var) -> Var | None:
        if not isinstance(owner, ClassVar) or owner.cls is not cls:
            return None
        return fold(tx, getattr(cls, name), list(args), kwargs)


def register() -> None:
    found: list[Any] = [*DATES, struct.pack, struct.unpack, struct.calcsize, slice.indices]
    for cls in (*DATES, int, float, bytes):
        for name in dir(cls):
            raw = find_in_mro(cls, name)
            if name in NOT_PURE:
                continue
            if isinstance(raw, type(vars(float)["fromhex"])):
                register_class_method(cls, name, raw)
            elif cls in DATES and callable(raw):
                found.append(raw)
    foldable(found)


register()


@rule(os.fspath)
def fspath(tx: Frame, path: Var) -> Var | None:
    if path.is_constant() and isinstance(path.as_constant(), str | bytes):
        return path
    if isinstance(path, ObjectVar) and find_in_mro(path.python_type(), "__fspath__") is not None:
        return path.call_special(tx, "__fspath__")
    return None
