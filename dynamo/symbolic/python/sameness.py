"""`a is b`, with what has to be guarded for the answer."""

from __future__ import annotations

import types

from dynamo.guards.sources import DictSource
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.frame import Frame
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.python.functions import MethodVar


def is_made_by_reading(var: Var) -> bool:
    """True for the `__dict__` of a class: each read gives another proxy."""
    return isinstance(var.source, DictSource) and var.python_type() is types.MappingProxyType


def same(tx: Frame, a: Var, b: Var) -> bool:
    """`a is b`; that two values from outside are not is guarded."""
    if b.hides_identity:
        a, b = b, a
    if a.is_same(tx, b):
        return True
    if is_made_by_reading(a) or is_made_by_reading(b):
        return False
    if all(var.source is not None or isinstance(var, ConstVar) for var in (a, b)):
        kinds = [guarded_type(tx, var) for var in (a, b)]
        if kinds[0] is kinds[1] and a.source is not None and b.source is not None:
            tx.trace.guard("NOT_SAME", a.source, b.source)
    return False


def guarded_type(tx: Frame, var: Var) -> type:
    """`type(var)`, guarded where nothing of the value has been looked at yet."""
    kind = var.python_type()
    if var.source is not None and not isinstance(var, MethodVar):
        tx.trace.guard("TYPE", var.source, kind)
    return kind
