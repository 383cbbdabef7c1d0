"""Texts: of containers, classes and functions, and `str.join`."""

from __future__ import annotations

import types
from typing import Any

import torch

from dynamo.base.errors import Break
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.frame import Frame
from dynamo.symbolic.core.table import first_rule, rule
from dynamo.symbolic.core.unguarded import Unguarded
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.python.classes import ClassVar
from dynamo.symbolic.python.dicts import DictVar
from dynamo.symbolic.python.functions import BuiltinVar, FunctionVar, MethodVar
from dynamo.symbolic.python.lists import ListVar, NamedTupleVar, TupleVar
from dynamo.symbolic.python.objects import ObjectVar
from dynamo.symbolic.python.python_modules import PythonModuleVar
from dynamo.symbolic.python.sets import SetVar
from dynamo.symbolic.python.sized import is_iterable


def has_known_text(var: Var) -> bool:
    """False for what holds a container of a subclass, which may show itself as it likes."""
    if isinstance(var, SetVar):
        return all(map(has_known_text, var.entries.values()))
    if isinstance(var, DictVar):
        parts = [part for pair in var.entries.values() for part in pair]
        return var.python_type() is dict and all(map(has_known_text, parts))
    if isinstance(var, ListVar | TupleVar):
        return var.python_type() in SHOWN and all(map(has_known_text, var.items))
    return True


SHOWN = (list, tuple, torch.Size)


@first_rule([repr, str, format], (ListVar, TupleVar, DictVar, SetVar))
def text_of_container(tx: Frame, var: Var, *rest: Var) -> None:
    """That of plain values is known; see `table.fold`."""
    if not isinstance(var, NamedTupleVar) and not has_known_text(var):
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


@rule([repr, str, format], (FunctionVar, MethodVar, ObjectVar, PythonModuleVar, BuiltinVar))
def text_with_address(tx: Frame, var: Var, *rest: Var) -> Var | None:
    """Of what shows where it lies, or a file, and was there before: the same for this process."""
    if any(spec.as_constant() != "" for spec in rest):
        return None
    real = shown_object(tx, var)
    if real is None:
        return None
    tx.trace.state(Unguarded).refuse("it keeps a text with an address")
    return ConstVar(repr(real))


def shown_object(tx: Frame, var: Var) -> Any:
    """The real object, guarded to be the same, where its text is no affair of the program's."""
    if isinstance(var, PythonModuleVar):
        is_plain = has_default_text(tx, var, types.ModuleType.__repr__)
        return var.module if is_plain and not var.written else None
    if isinstance(var, BuiltinVar):
        return var.value if isinstance(var.value, types.BuiltinFunctionType) else None
    if isinstance(var, MethodVar):
        parts = [shown_object(tx, part) for part in (var.function, var.receiver)]
        is_plain = isinstance(var.function, FunctionVar) and None not in parts
        return types.MethodType(*parts) if is_plain else None
    if isinstance(var, ObjectVar) and not has_default_text(tx, var, object.__repr__):
        return None
    real = getattr(var, "real", None)
    if real is None or var.source is None or getattr(var, "written", None):
        return None
    tx.trace.guard("ID", var.source, real)
    return real


def has_default_text(tx: Frame, var: Var, shown_by: Any) -> bool:
    """True where the class of the object has no text of its own."""
    names = {"__repr__": shown_by, "__str__": object.__str__, "__format__": object.__format__}
    finder = tx.trace.attributes.find_special
    return all(finder(var.python_type(), name) is kind for name, kind in names.items())


@rule([str.join, bytes.join], ConstVar)
def join(tx: Frame, separator: ConstVar, items: Var) -> Var | None:
    """Of what any iterable gives."""
    if items.is_constant() and not issubclass(items.python_type(), (set, frozenset)):
        return None  # a constant set made of the same items may have them in another order
    if not is_iterable(tx.trace, items):
        tx.trace.raise_exception(TypeError, "can only join an iterable")
    values = [item.as_constant() for item in items.unpack(tx)]
    return tx.trace.constant(tx.trace.run_real(lambda: separator.value.join(values)))
