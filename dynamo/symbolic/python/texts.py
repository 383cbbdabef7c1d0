"""Texts: of containers, classes and functions, and `str.join`."""

from __future__ import annotations

import types

import torch

from dynamo.base.errors import Break
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.frame import Frame
from dynamo.symbolic.core.table import first_rule, rule
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.python.classes import ClassVar
from dynamo.symbolic.python.dicts import DictVar, SetVar
from dynamo.symbolic.python.functions import BuiltinVar
from dynamo.symbolic.python.lists import ListVar, NamedTupleVar, TupleVar
from dynamo.symbolic.python.sized import is_iterable


def is_told(var: Var) -> bool:
    """False for what holds a set, whose order is not known, or a container of a subclass,
    which may show itself as it likes."""
    if isinstance(var, SetVar):
        return len(var.entries) <= 1 and all(map(is_told, var.entries.values()))
    if isinstance(var, DictVar):
        parts = [part for pair in var.entries.values() for part in pair]
        return var.python_type() is dict and all(map(is_told, parts))
    if isinstance(var, ListVar | TupleVar):
        return var.python_type() in SHOWN and all(map(is_told, var.items))
    return True


SHOWN = (list, tuple, torch.Size)


@first_rule([repr, str, format], (ListVar, TupleVar, DictVar, SetVar))
def text_of_container(tx: Frame, var: Var, *rest: Var) -> None:
    """That of plain values is known; see `table.fold`."""
    if not isinstance(var, NamedTupleVar) and not is_told(var):
        raise Break("not_a_constant", f"the text of {var!r}")


@first_rule([repr, str, format], ClassVar)
def text_of_class(tx: Frame, var: ClassVar, *rest: Var) -> Var | None:
    """Of a class whose names may change."""
    if tx.trace.attributes.find_special(type(var.cls), "__repr__") is type.__repr__:
        for name in ("__module__", "__qualname__"):
            var.get_attr(tx, name)
    return None


@rule(repr, BuiltinVar)
def text_of_builtin(tx: Frame, var: BuiltinVar) -> Var | None:
    """Functions of modules written in C have no address in their text."""
    value = var.value
    is_function = isinstance(value, types.BuiltinFunctionType)
    if is_function and isinstance(value.__self__, types.ModuleType):
        return ConstVar(repr(value))
    return None


@rule([str.join, bytes.join], ConstVar)
def join(tx: Frame, separator: ConstVar, items: Var) -> Var | None:
    """Of what any iterable gives."""
    if items.is_constant():
        return None
    if not is_iterable(tx.trace, items):
        tx.trace.raise_exception(TypeError, "can only join an iterable")
    values = [item.as_constant() for item in items.unpack(tx)]
    return tx.trace.constant(tx.trace.run_real(lambda: separator.value.join(values)))
