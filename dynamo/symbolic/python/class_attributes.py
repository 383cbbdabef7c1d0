"""Attributes of existing classes: what each class has, and stores of flags, counters and settings
that classes hold."""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable
from typing import Any

import torch

from dynamo.base.errors import Break
from dynamo.guards.sources import AttrSource, DictSource, ObjectSource
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.frame import Evaluation, Frame
from dynamo.symbolic.core.lookup import class_dict, find_in_mro, find_owner, is_own_method
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.python.binders import is_settled

# What stands in a class for a value that the trace has stored there: no descriptor. The value is
# in `Effects.of_classes`.
WRITTEN = object()


def find_now(trace: Evaluation, cls: type, name: str, start: int = 0) -> tuple[type, Any] | None:
    """The first class of the MRO that has the attribute now, from a place on, and its raw value."""
    if start == 0 and not trace.effects.of_classes:
        return find_owner(cls, name)
    for owner in type.__dict__["__mro__"].__get__(cls)[start:]:
        if (owner, name) in trace.effects.of_classes:
            return owner, WRITTEN
        attributes = class_dict(owner)
        if name in attributes:
            return owner, attributes[name]
    return None


def check_unwritten(trace: Evaluation, classes: Iterable[type]) -> None:
    """Breaks where a dict of these classes is to be read whose entries the trace has changed."""
    written = {cls for cls, _ in trace.effects.of_classes}
    for cls in classes:
        if cls in written:
            raise Break("attribute_unknown", f"__dict__ of {cls.__qualname__}, which is changed")


def store(tx: Frame, cls: type, name: str, value: Var) -> None:
    """`cls.name = value` of plain data in place of plain data, or of nothing.

    All that is looked up by other ways than `find_now`, such as methods and what torch, enums and
    dataclasses look at, is written by plain Python, behind a graph break.
    """
    attributes = tx.trace.attributes
    before = find_owner(cls, name)
    if (
        name.startswith("__") or is_settled(cls)
        or issubclass(cls, enum.Enum | torch.Tensor | tuple)
        or not is_data(value.python_type())
        or (before is not None and not is_data(type(before[1])))
        or find_in_mro(type(cls), name) is not None
        or is_own_method(find_in_mro(type(cls), "__setattr__"))
        or cls in attributes.opened
    ):
        raise Break("class_attribute_store", f"{cls.__qualname__}.{name}")
    attributes.find_special(type(cls), "__setattr__")
    attributes.guard_search(type(cls), name, None)
    tx.trace.effects.store_class_attr(cls, name, value)


def is_data(kind: type) -> bool:
    """True for types of values that are no methods or descriptors and can't be called."""
    return all(
        find_in_mro(kind, name) is None for name in ("__get__", "__set__", "__delete__", "__call__")
    )


def class_text(name: str) -> Callable[[Frame, type], Var]:
    """Reads a text that a class has, which is guarded."""

    def read(tx: Frame, cls: type) -> Var:
        value = getattr(cls, name)
        if not is_settled(cls):
            place = AttrSource(ObjectSource(cls, cls.__qualname__), name)
            if value is not None and type(value) is not str:
                raise Break("attribute_unknown", f"{name} of {cls.__qualname__}")
            tx.trace.guard("CONST", place, value)
        return ConstVar(value)

    return read


def class_tuple(name: str) -> Callable[[Frame, type], Var]:
    """Reads a tuple that a class keeps: one object, each time that it is read."""

    def read(tx: Frame, cls: type) -> Var:
        place = AttrSource(ObjectSource(cls, cls.__qualname__), name)
        return tx.trace.wrap(getattr(cls, name), place)

    return read


def class_dict_of(tx: Frame, cls: type) -> Var:
    """`cls.__dict__`."""
    check_unwritten(tx.trace, (cls,))
    tx.trace.attributes.opened.add(cls)
    return tx.trace.wrap(cls.__dict__, DictSource(ObjectSource(cls, cls.__qualname__)))


CLASS_PARTS: dict[str, Callable[[Frame, type], Var]] = {
    **{name: class_text(name) for name in ("__name__", "__qualname__", "__module__", "__doc__")},
    "__mro__": class_tuple("__mro__"),
    "__bases__": class_tuple("__bases__"),
    "__base__": lambda tx, cls: tx.trace.constant(cls.__base__),
    "__class__": lambda tx, cls: tx.trace.wrap(type(cls), None),
    "__dict__": class_dict_of,
}
