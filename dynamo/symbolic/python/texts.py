"""Text of containers: `repr`, `str`, `format`, `%` and `str.join` over Vars."""

from __future__ import annotations

import collections
import types
from typing import Any

from dynamo.base.errors import Break
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.frame import Frame
from dynamo.symbolic.core.lookup import told_name
from dynamo.symbolic.core.table import first_rule, plain_value, rule
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.python.classes import ClassVar
from dynamo.symbolic.python.dicts import DictVar, FrozensetVar, SetVar
from dynamo.symbolic.python.functions import BuiltinVar
from dynamo.symbolic.python.lists import DequeVar, ListVar, TupleVar
from dynamo.symbolic.python.ranges import SliceVar
from dynamo.symbolic.python.sized import is_iterable

CONTAINERS = (ListVar, TupleVar, DictVar, SetVar)
EXACT = (list, tuple, dict, collections.deque, collections.OrderedDict)


class Shown:
    """Stands for an item whose text is known, in a real container that is shown."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return self.text


class ShownMapping(Shown):
    """Of a container that `text % value` takes for a mapping: it may be left unused."""

    def __getitem__(self, key: Any) -> Any:
        raise Break("not_a_constant", f"an item of {self.text} in a text")


def show(tx: Frame, var: Var, around: tuple[Var, ...] = ()) -> str:
    """`repr(var)`."""
    if var in around:
        raise Break("not_a_constant", f"the text of {type(var).__name__} that contains itself")
    if not isinstance(var, CONTAINERS):
        text = tx.trace.call(tx, repr, var)
        return str(text.as_constant())
    inside = (*around, var)
    if isinstance(var, SetVar):
        parts = ", ".join(show(tx, item, inside) for item in var.unpack(tx))
        if isinstance(var, FrozensetVar):
            return f"frozenset({{{parts}}})" if parts else "frozenset()"
        return f"{{{parts}}}" if parts else "set()"
    kind: Any = var.python_type()
    if kind not in EXACT:
        raise Break("not_a_constant", f"the text of {var!r}")
    if isinstance(var, DictVar):
        pairs = list(var.entries.values())
        shown = [
            (Shown(show(tx, key, inside)), Shown(show(tx, value, inside))) for key, value in pairs
        ]
        return repr(kind(shown))
    items = [Shown(show(tx, item, inside)) for item in var.items]
    return repr(collections.deque(items, var.limit) if isinstance(var, DequeVar) else kind(items))


def is_plain(var: Var) -> bool:
    """True for a built-in container whose text is made of its items' texts."""
    return isinstance(var, SetVar) or (isinstance(var, CONTAINERS) and var.python_type() in EXACT)


@rule([repr, str], CONTAINERS)
def text_of_container(tx: Frame, var: Var, *rest: Var) -> Var | None:
    if rest or not is_plain(var):
        return None
    return ConstVar(show(tx, var))


@rule(format, CONTAINERS)
def format_container(tx: Frame, var: Var, spec: Var = ConstVar("")) -> Var | None:  # noqa: B008
    if not is_plain(var):
        return None
    if spec.as_constant():
        name = told_name(var.python_type())
        message = f"unsupported format string passed to {name}.__format__"
        tx.trace.raise_exception(TypeError, message)
    return ConstVar(show(tx, var))


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


@rule(repr, SliceVar)
def text_of_slice(tx: Frame, var: SliceVar) -> Var:
    return ConstVar(repr(slice(*(Shown(show(tx, part)) for part in var.children()))))


@rule([str.join, bytes.join], ConstVar)
def join(tx: Frame, separator: ConstVar, items: Var) -> Var | None:
    """Of what any iterable gives."""
    if items.is_constant():
        return None
    if not is_iterable(tx.trace, items):
        tx.trace.raise_exception(TypeError, "can only join an iterable")
    values = [item.as_constant() for item in items.unpack(tx)]
    return tx.trace.constant(tx.trace.run_real(lambda: separator.value.join(values)))


def plain_operand(tx: Frame, var: Var) -> Any:
    """A value for `text % value`: constants, and containers by their text."""
    if type(var) is TupleVar:
        return tuple(plain_operand(tx, item) for item in var.items)
    if type(var) is DictVar and var.python_type() is dict:
        pairs = var.entries.values()
        return {key.as_constant(): plain_operand(tx, value) for key, value in pairs}
    if is_plain(var):
        kind = ShownMapping if isinstance(var, DictVar) or type(var) is ListVar else Shown
        return type(told_name(var.python_type()), (kind,), {})(show(tx, var))  # errors name it
    return plain_value(var)
