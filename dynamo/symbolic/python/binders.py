"""What a class attribute becomes when it is read through an instance or a class.

`BINDERS` says it per type of the raw attribute; a descriptor class written in Python is called as
Python would (see `attributes.py`).
"""

from __future__ import annotations

import enum
import functools
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from dynamo.base.errors import Break
from dynamo.base.instances import hides_dict
from dynamo.base.value_types import VALUES
from dynamo.guards.sources import AttrSource, DictSource, ItemSource, ObjectSource, Source
from dynamo.hook import Compiled
from dynamo.symbolic.core.frame import Evaluation, Frame
from dynamo.symbolic.core.lookup import class_dict, find_in_mro, is_derived, is_local, name_in_c
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.python.functions import BuiltinVar, MethodVar
from dynamo.symbolic.python.lists import TupleVar
from dynamo.symbolic.python.objects import HEAP_TYPE, InstanceDictVar, ObjectVar


@dataclass(frozen=True, slots=True)
class RawAttribute:
    """An attribute as it stands in a class dict.

    owner: the class that has it; instance: None when it is read through the class `cls`.
    """

    value: Any
    owner: type
    name: str
    cls: type
    instance: Var | None

    def source(self) -> Source:
        owner = ObjectSource(self.owner, self.owner.__qualname__)
        return ItemSource(DictSource(owner), self.name)

    def wrap(self, trace: Evaluation) -> Var:
        """The raw value itself. Where it is only passed on it may be gone later, or be another
        kind of descriptor."""
        written = trace.effects.of_classes.get((self.owner, self.name))
        if written is not None:
            return written
        self.guard_kind(trace)
        return trace.wrap(self.value, self.source())

    def wrap_part(self, trace: Evaluation, name: str) -> Var:
        """What the raw value holds by this name."""
        self.guard_kind(trace)
        return trace.wrap(getattr(self.value, name), AttrSource(self.source(), name))

    def guard_kind(self, trace: Evaluation) -> None:
        if not is_settled(self.owner):
            trace.guard("TYPE", self.source(), type(self.value))

    def guard_identity(self, trace: Evaluation) -> None:
        """That the class has this very object; of a number or text, an equal one, which another
        process has, too."""
        if not is_settled(self.owner):
            kind = "CONST" if type(self.value) in VALUES else "ID"
            trace.guard(kind, self.source(), self.value)


class Field(NamedTuple):
    """Has a field."""

    only: None


INSTANCE_METHOD = type(vars(torch._C.Graph)["nodes"])  # what pybind11 makes of a method


Binder = Callable[["Frame", RawAttribute], Var]
BINDERS: dict[type, Binder] = {}


def binds(*kinds: type) -> Callable[[Binder], Binder]:
    """Registers how raw class attributes of these types are bound."""

    def register(binder: Binder) -> Binder:
        BINDERS.update(dict.fromkeys(kinds, binder))
        return binder

    return register


@binds(types.FunctionType, Compiled, functools._lru_cache_wrapper)
def bind_function(tx: Frame, raw: RawAttribute) -> Var:
    """A method written in Python; one that `compile`, `disable` or lru_cache has wrapped."""
    function = raw.wrap(tx.trace)
    return function if raw.instance is None else MethodVar(function, raw.instance)


@binds(INSTANCE_METHOD)
def bind_extension_method(tx: Frame, raw: RawAttribute) -> Var:
    """A method of a class that a C++ extension defines."""
    function = raw.wrap_part(tx.trace, "__func__")
    return function if raw.instance is None else MethodVar(function, raw.instance)


@binds(types.MethodDescriptorType, types.WrapperDescriptorType)
def bind_descriptor(tx: Frame, raw: RawAttribute) -> Var:
    """A method of a built-in base class."""
    raw.guard_identity(tx.trace)
    function = tx.trace.wrap(raw.value, None)
    if raw.instance is None:
        return function
    if not any(part is raw.value.__objclass__ for part in raw.cls.__mro__):
        raise Break("descriptor_unknown", f"{raw.name} of {raw.value!r}")
    return MethodVar(function, raw.instance)


@binds(types.ClassMethodDescriptorType)
def bind_class_descriptor(tx: Frame, raw: RawAttribute) -> Var:
    """A class method of a built-in base class (`dict.fromkeys`)."""
    raw.guard_identity(tx.trace)
    return MethodVar(BuiltinVar(raw.value), tx.trace.wrap(raw.cls, None))


@binds(staticmethod)
def bind_static(tx: Frame, raw: RawAttribute) -> Var:
    """A static method."""
    return raw.wrap_part(tx.trace, "__func__")


@binds(classmethod)
def bind_classmethod(tx: Frame, raw: RawAttribute) -> Var:
    """A class method."""
    function = raw.wrap_part(tx.trace, "__func__")
    inner = type(raw.value.__func__)
    if inner not in BOUND_TO_CLASS and (
        find_in_mro(inner, "__get__") is not None or not callable(raw.value.__func__)
    ):
        raise Break("descriptor_unknown", f"{raw.name}, a class method of {raw.value.__func__!r}")
    return MethodVar(function, tx.trace.wrap(raw.cls, None))


# What `classmethod` may hold: bound to a class, they are called with it.
BOUND_TO_CLASS = (types.FunctionType, functools._lru_cache_wrapper, Compiled)


def property_value(tx: Frame, raw: RawAttribute) -> Var:
    """Runs the getter of a property."""
    if raw.instance is None:
        return raw.wrap(tx.trace)
    return part_of_property(tx, raw, "fget").call(tx, [raw.instance], {})


BINDERS[property] = property_value

# Properties without a function say so: these ask them on behalf of an int.
READS_OF_INT: dict[str, Callable[[property], Any]] = {
    "fget": lambda value: property.__get__(value, 0),
    "fset": lambda value: property.__set__(value, 0, 0),
    "fdel": lambda value: property.__delete__(value, 0),
}


def part_of_property(tx: Frame, raw: RawAttribute, part: str) -> Var:
    """The getter, setter or deleter of a property; the error of one that has none, which knows its
    name only where a class has told it."""
    if getattr(raw.value, part) is not None:
        return raw.wrap_part(tx.trace, part)
    tx.trace.guard("ID", raw.source(), raw.value)
    try:
        READS_OF_INT[part](raw.value)
    except AttributeError as error:
        before, _, behind = str(error).rpartition("'int' object")
        message = f"{before}{raw.cls.__qualname__!r} object{behind}"
    tx.trace.raise_exception(AttributeError, message)


OF_MEMBERS = ("name", "value")


@binds(enum.property, types.DynamicClassAttribute)
def enum_property(tx: Frame, raw: RawAttribute) -> Var:
    """`name`, `value` and properties of enum members."""
    if raw.instance is None:
        return tx.trace.wrap(tx.trace.run_real(lambda: getattr(raw.cls, raw.name)), None)
    if raw.owner is enum.Enum and raw.name in OF_MEMBERS and isinstance(raw.instance, ObjectVar):
        own = raw.instance.read_own(tx, f"_{raw.name}_")
        if own is not None:
            return own
    if raw.value.fget is None:  # it looks for a member of that name, or at the member's value
        raise Break("descriptor_unknown", f"{type(raw.value).__qualname__} {raw.name}")
    return property_value(tx, raw)


@binds(functools.cached_property)
def bind_cached_property(tx: Frame, raw: RawAttribute) -> Var:
    """Computes the value once and keeps it in the instance dict."""
    if raw.instance is None:
        return raw.wrap(tx.trace)
    function = raw.wrap_part(tx.trace, "func")
    value = tx.call(function, [raw.instance], {})
    assert isinstance(raw.instance, ObjectVar)
    raw.instance.write_own(tx, raw.value.attrname, value)
    return value


@binds(types.MemberDescriptorType)
def bind_slot(tx: Frame, raw: RawAttribute) -> Var:
    """A slot."""
    if raw.instance is None:
        return raw.wrap(tx.trace)
    if not isinstance(raw.instance, ObjectVar):
        raise Break("attribute_unknown", f"{raw.name} of {raw.instance!r}")
    found = raw.instance.read_slot(tx, slot_name(tx, raw.value, raw.cls), raw.value)
    if found is None:
        message = f"'{name_in_slot_errors(raw.cls)}' object has no attribute '{raw.name}'"
        tx.trace.raise_exception(AttributeError, message)
    return found


@binds(type(Field.only))
def bind_field(tx: Frame, raw: RawAttribute) -> Var:
    """A field of a named tuple."""
    if raw.instance is None:
        return raw.wrap(tx.trace)
    items = raw.instance
    if not isinstance(items, TupleVar):
        raise Break("attribute_unknown", f"{raw.name} of {raw.instance!r}")
    if not is_settled(raw.owner):
        tx.trace.guard("ID", raw.source(), raw.value)
    index = raw.value.__reduce__()[1][0]
    return items.items[index]


def slot_name(tx: Frame, slot: types.MemberDescriptorType, cls: type) -> str:
    """The name by which instances of a class keep a slot; the class may have it by another, too."""
    if not is_derived(cls, slot.__objclass__):
        tx.trace.raise_exception(TypeError, (
            f"descriptor '{slot.__name__}' for '{slot.__objclass__.__name__}' objects doesn't "
            f"apply to a '{name_in_c(cls)}' object"))
    if find_in_mro(cls, slot.__name__) is not slot:
        raise Break("attribute_unknown", f"a hidden slot {slot.__name__} of {cls.__qualname__}")
    return slot.__name__


def name_in_slot_errors(cls: type) -> str:
    """The name of a class in the error of an empty slot: from 3.13 on with its module."""
    if sys.version_info < (3, 13):
        return cls.__name__
    known = cls.__module__ in ("builtins", "__main__")
    return cls.__qualname__ if known else f"{cls.__module__}.{cls.__qualname__}"


@binds(types.GetSetDescriptorType)
def bind_getset(tx: Frame, raw: RawAttribute) -> Var:
    """An attribute that C code computes."""
    if (
        raw.name == "__dict__" and isinstance(raw.instance, ObjectVar)
        and not hides_dict(raw.instance.python_type())
    ):
        raw.instance.real_dict(tx)
        return InstanceDictVar(raw.instance)
    if raw.instance is None:
        return raw.wrap(tx.trace)
    if raw.instance.is_constant():
        return tx.trace.constant(getattr(raw.instance.as_constant(), raw.name))
    raise Break("attribute_unknown", f"{raw.name} of {raw.instance!r}")


# Packages whose classes nothing changes.
SETTLED = frozenset({"torch", "builtins", "collections", "enum", "functools", "typing", "abc",
                     "dataclasses", "contextlib", "types", "dynamo", "numbers"})


def is_settled(cls: type) -> bool:
    """True for classes that get no new attributes while a program runs."""
    if not cls.__flags__ & HEAP_TYPE:
        return True
    module = class_dict(cls).get("__module__")
    root = module.partition(".")[0] if isinstance(module, str) else ""
    return root in SETTLED and not is_local(cls)  # `exec` makes classes of "builtins"


def is_slot(value: Any) -> bool:
    """True for a class attribute that `__slots__` has made; those of C may be read-only."""
    kind = HEAP_TYPE | 1 << 8  # with the flag of types that can't be changed
    return isinstance(value, types.MemberDescriptorType) and (
        value.__objclass__.__flags__ & kind == HEAP_TYPE)


def is_read_first(value: Any) -> bool:
    """True where a class attribute is read before the instance dict: one that only sets is not."""
    return is_data_descriptor(value) and find_in_mro(type(value), "__get__") is not None


def is_data_descriptor(value: Any) -> bool:
    """True where a class attribute is written to before the instance dict."""
    cls = type(value)
    return cls is not types.FunctionType and (
        find_in_mro(cls, "__set__") is not None or find_in_mro(cls, "__delete__") is not None
    )
