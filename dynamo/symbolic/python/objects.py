"""Instances of classes written in Python, with Python's whole attribute protocol.

An object from a source reads its real instance dict and slots at trace time and guards what it
read; writes stay in `written` (and become effects). A new object has only `written`. Instances of
subclasses of built-in containers keep their container part in `content`.
"""

from __future__ import annotations

import dataclasses
import enum
import sys
import types
from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING, Any

import torch

from dynamo.base.errors import Break
from dynamo.base.instances import hides_dict
from dynamo.guards.sources import AttrSource, DictSource, ItemSource, Source, order_of
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.frame import Evaluation, Frame
from dynamo.symbolic.core.identities import identity_key
from dynamo.symbolic.core.lookup import (
    HEAP_TYPE,
    find_in_mro,
    find_owner,
    instance_dict,
    is_own_dict,
    is_own_method,
    name_in_c,
    no_deletion,
    note_written,
    order_names,
)
from dynamo.symbolic.core.var import ObservedException, Var
from dynamo.symbolic.core.wrapping import wrap_named, wraps_if
from dynamo.symbolic.python.demands import as_demanded
from dynamo.symbolic.python.dicts import DictVar
from dynamo.symbolic.python.equality import is_among
from dynamo.symbolic.python.sameness import same

if TYPE_CHECKING:
    from dynamo.symbolic.python.functions import FunctionVar

# What the right side of `in` must be, in the words of the interpreter.
CONTAINER = "a container or iterable" if sys.version_info >= (3, 14) else "iterable"


class ObjectVar(Var):
    """An instance of a user's class.

    cls: its exact type; real: the existing instance, None for one made in the trace.
    written: attributes set in the trace (None: deleted), renewed: those that were deleted before;
    content: the built-in part, if any.
    """

    def __init__(
        self,
        cls: type,
        source: Source | None = None,
        *,
        real: Any = None,
        trace: Evaluation | None = None,
        content: Var | None = None,
    ) -> None:
        super().__init__(source)
        self.cls = cls
        self.real = real
        self._trace = trace
        self.content = content
        self.written: dict[str, Var | None] = {}
        self.renewed: set[str] = set()

    def describe(self) -> str:
        return f"an object of class {self.cls.__qualname__}"

    def python_type(self) -> type:
        if self._trace is not None:
            trace, self._trace = self._trace, None
            trace.guard("TYPE", self.source, self.cls)
        return self.cls

    def children(self) -> Iterable[Var]:
        yield from (value for value in self.written.values() if value is not None)
        if self.content is not None:
            yield self.content

    def as_proxy(self) -> Any:
        self.python_type()
        return super().as_proxy()

    def as_fake(self) -> Any:
        self.python_type()
        return super().as_fake()

    # -- storage of this instance -------------------------------------------------------------

    def real_dict(self, tx: Frame) -> dict[str, Any] | None:
        """The dict of a real instance."""
        found = None if self.real is None else instance_dict(self.real)
        if found is None and self.real is not None and self.cls.__dictoffset__:  # C code keeps it
            raise Break("attribute_unknown", f"the dict of {self!r}")
        if found is not None:
            if type(found) is not dict and found is not self.real:
                kind = type(found).__qualname__
                raise Break("attribute_unknown", f"the dict of {self!r}: it is a {kind}")
            if id(found) not in tx.trace.objects.owners and any(
                map(runs_program, map(type, dict.__iter__(found)))
            ):
                raise Break("attribute_unknown", f"the dict of {self!r}: a key in it has __eq__")
            note_owner(tx.trace, found, self)
        return found

    def dict_place(self) -> Source:
        """Where the dict of a real instance is."""
        assert self.source is not None
        return DictSource(self.source, hides_dict(self.cls))

    def dict_from(self, trace: Evaluation, source: Source | None) -> Var:
        """The dict of a real instance, that the program has at `source`."""
        place = self.dict_place()
        if source is not None:
            trace.guard("SAME", source, place)
        return InstanceDictVar(self, place)

    def own_names(self, tx: Frame) -> list[str]:
        """Names in the instance dict, in order."""
        before: tuple[str, ...] = ()
        real_dict = self.real_dict(tx)
        if real_dict is not None:
            before = tuple(order_of(real_dict).__iter__(real_dict))
            tx.trace.guard("DICT_KEYS", self.dict_place(), before)
        own = {name: value for name, value in self.written.items()
               if find_in_mro(self.cls, name).__class__ is not types.MemberDescriptorType}
        return order_names(before, own, self.renewed)

    def read_own(self, tx: Frame, name: str) -> Var | None:
        """An entry of the instance dict, None when absent (which is guarded)."""
        if name in self.written:
            return self.written[name]
        real_dict = self.real_dict(tx)
        if real_dict is None:
            return None
        self.python_type()
        source = self.dict_place()
        if dict.__contains__(real_dict, name):
            value = dict.__getitem__(real_dict, name)
            return wrap_named(tx.trace, value, ItemSource(source, name))
        tx.trace.guard("DICT_LACKS", source, name)
        return None

    def read_slot(self, tx: Frame, name: str, descriptor: Any) -> Var | None:
        """The value of a slot, None when empty."""
        if name in self.written:
            return self.written[name]
        if self.real is None:
            return None
        self.python_type()
        assert self.source is not None
        if is_own_method(find_in_mro(self.cls, "__getattribute__")):
            raise Break("attribute_unknown", f"the slot {name} of {self!r}")  # it sees who reads
        try:
            value = descriptor.__get__(self.real, self.cls)
        except AttributeError:
            tx.trace.guard("LACKS_ATTR", self.source, name)
            return None
        return wrap_named(tx.trace, value, AttrSource(self.source, name))

    def write_own(self, tx: Frame, name: str, value: Var | None) -> None:
        """Sets (None: deletes) an entry of the instance dict or a slot, running no user code."""
        self.python_type()
        self.real_dict(tx)
        if is_own_dict(self.real):
            raise Break("attribute_store_unknown", f"{name} of {self!r}, its own __dict__")
        tx.trace.effects.store_attr(self, name, value)
        note_written(self.written, self.renewed, name, value)

    # -- protocol ---------------------------------------------------------------------------

    def get_attr(self, tx: Frame, name: str) -> Var:
        return tx.trace.attributes.get(tx, self, name)

    def set_attr(self, tx: Frame, name: str, value: Var) -> None:
        tx.trace.attributes.set(tx, self, name, value)

    def del_attr(self, tx: Frame, name: str) -> None:
        tx.trace.attributes.delete(tx, self, name)

    def has_attr(self, tx: Frame, name: str) -> bool:
        if self.real is not None and name not in self.written:
            real_dict = self.real_dict(tx)
            if real_dict is not None and dict.__contains__(real_dict, name):
                self.python_type()
                tx.trace.guard("DICT_HAS", self.dict_place(), name)
        has = super().has_attr(tx, name)
        if has:
            tx.trace.attributes.guard_presence(self.cls, name)
        return has

    def has_special(self, tx: Frame, name: str) -> bool:
        """True where the class has the method, None (which forbids it) included."""
        return tx.trace.attributes.has_special(self.python_type(), name)

    def special(self, tx: Frame, name: str) -> Var | None:
        """The special method as the interpreter looks it up: on the type only."""
        if not self.has_special(tx, name):
            return None
        if find_in_mro(self.cls, name) is None:
            tx.trace.raise_exception(TypeError, "'NoneType' object is not callable")
        return tx.trace.attributes.bind(tx, self, self.cls, name)

    def call(self, tx: Frame, args: list[Var], kwargs: dict[str, Var]) -> Var:
        method = self.special(tx, "__call__")
        if method is None:
            tx.trace.raise_exception(TypeError, f"'{name_in_c(self.cls)}' object is not callable")
        return method.call(tx, args, kwargs)

    def call_method(
        self, tx: Frame, name: str, args: list[Var], kwargs: dict[str, Var]
    ) -> Var:
        if name.startswith("__") and name.endswith("__"):
            method = self.special(tx, name)
            if method is not None:
                return method.call(tx, args, kwargs)
        return tx.call_attribute(self, name, args, kwargs)

    def truth(self, tx: Frame) -> bool:
        for name in ("__bool__", "__len__"):
            if self.has_special(tx, name):
                return self.call_special(tx, name).truth(tx)
        return True

    def call_special(self, tx: Frame, name: str, *args: Var) -> Var:
        """Calls a special method that is known to exist."""
        method = self.special(tx, name)
        assert method is not None
        return as_demanded(tx, name, self.cls, tx.call(method, list(args), {}))

    def _item_method(self, tx: Frame, name: str, why: str, *args: Var) -> Var:
        method = self.special(tx, name)
        if method is None:
            tx.trace.raise_exception(TypeError, f"'{name_in_c(self.cls)}' object {why}")
        return method.call(tx, list(args), {})

    def get_item(self, tx: Frame, key: Var) -> Var:
        return self._item_method(tx, "__getitem__", "is not subscriptable", key)

    def set_item(self, tx: Frame, key: Var, value: Var) -> None:
        self._item_method(tx, "__setitem__", "does not support item assignment", key, value)

    def del_item(self, tx: Frame, key: Var) -> None:
        if self.special(tx, "__delitem__") is None:
            message = no_deletion(self.cls, key.python_type()).format(name_in_c(self.cls))
            tx.trace.raise_exception(TypeError, message)
        self._item_method(tx, "__delitem__", "", key)

    def length(self, tx: Frame) -> Var:
        if not self.has_special(tx, "__len__"):
            tx.trace.raise_exception(
                TypeError, f"object of type '{name_in_c(self.cls)}' has no len()"
            )
        return self.call_special(tx, "__len__")

    def contains(self, tx: Frame, item: Var) -> Var:
        method = self.has_special(tx, "__contains__")
        if method and find_in_mro(self.cls, "__contains__") is None:
            message = f"'{name_in_c(self.cls)}' object is not a container"
            tx.trace.raise_exception(TypeError, message)
        if method:
            return ConstVar(self.call_special(tx, "__contains__", item).truth(tx))
        try:
            iterator = self.iterate(tx)
        except ObservedException as error:
            if not issubclass(error.value.python_type(), TypeError):
                raise
            message = f"argument of type '{name_in_c(self.cls)}' is not {CONTAINER}"
            tx.trace.raise_exception(TypeError, message)
        return ConstVar(is_among(tx, iterator, item))

    def iterate(self, tx: Frame) -> Var:
        found = self.has_special(tx, "__iter__")
        method = find_in_mro(self.cls, "__iter__")
        if method is not None:
            return as_iterator(tx, self.call_special(tx, "__iter__"))
        if not found and self.has_special(tx, "__getitem__"):
            owner = find_owner(self.cls, "__getitem__")
            if self.real is not None and owner is not None and not owner[0].__flags__ & HEAP_TYPE:
                tx.trace.run_real(lambda: iter(self.real))  # of C code: it may be no sequence
            return tx.trace.make.index_iterator(self)
        tx.trace.raise_exception(TypeError, f"'{name_in_c(self.cls)}' object is not iterable")

    def next_item(self, tx: Frame) -> Var:
        if not self.has_special(tx, "__next__"):
            message = f"'{name_in_c(self.cls)}' object is not an iterator"
            tx.trace.raise_exception(TypeError, message)
        return self.call_special(tx, "__next__")

    def hash_key(self, tx: Frame) -> Hashable:
        cls = self.python_type()
        find_special = tx.trace.attributes.find_special
        hasher = find_special(cls, "__hash__")
        if hasher is object.__hash__ and find_special(cls, "__eq__") is object.__eq__:
            return identity_key(tx.trace, self)
        if hasher is None:
            tx.trace.raise_exception(TypeError, f"unhashable type: '{name_in_c(cls)}'")
        if is_frozen_dataclass(cls):
            for name in ("__hash__", "__eq__"):
                tx.trace.attributes.guard_own(cls, name)
            fields = dataclasses.fields(cls)  # type: ignore[arg-type]
            parts = [self.get_attr(tx, f.name).hash_key(tx) for f in fields if f.compare]
            return ("dataclass", cls, *parts)
        if hasher is tuple.__hash__ and find_special(cls, "__eq__") is tuple.__eq__:
            assert self.content is not None
            return self.content.hash_key(tx)
        raise Break("hash_unknown", repr(self))


def as_iterator(tx: Frame, result: Var) -> Var:
    """The result of `__iter__`, checked."""
    kind = result.python_type()
    if tx.trace.attributes.find_special(kind, "__next__") is None:
        message = f"iter() returned non-iterator of type '{name_in_c(kind)}'"
        tx.trace.raise_exception(TypeError, message)
    return result


def is_frozen_dataclass(cls: type) -> bool:
    """True where a dataclass has the generated `__hash__` and `__eq__`."""
    parameters = vars(cls).get("__dataclass_params__")
    if parameters is None or not (parameters.eq and parameters.frozen):
        return False
    fields = dataclasses.fields(cls)  # type: ignore[arg-type]
    if any(f.hash and not f.compare for f in fields):
        return False
    made = dataclasses.make_dataclass("made", [
        (f.name, object, dataclasses.field(compare=f.compare, hash=f.hash)) for f in fields
    ], frozen=True)
    return all(same_code(vars(cls).get(name), vars(made)[name]) for name in ("__hash__", "__eq__"))


def same_code(a: Any, b: types.FunctionType) -> bool:
    """True for two functions that do the same with their arguments alone."""
    return isinstance(a, types.FunctionType) and all(
        getattr(a.__code__, part) == getattr(b.__code__, part)
        for part in ("co_code", "co_names", "co_consts", "co_freevars")
    )


class EnumVar(ObjectVar):
    """An enum member: a constant, compared by identity, with attributes."""

    tells_place = False

    def describe(self) -> str:
        return str(self.real)

    def is_constant(self) -> bool:
        return True

    def as_constant(self) -> Any:
        self._guard()
        return self.real

    def _guard(self) -> None:
        if self._trace is not None:
            trace, self._trace = self._trace, None
            trace.guard("ID", self.source, self.real)

    def python_type(self) -> type:
        self._guard()
        return self.cls

    def hash_key(self, tx: Frame) -> Hashable:
        return ("constant", self.as_constant())

    def truth(self, tx: Frame) -> bool:
        return bool(self.as_constant())

    def read_own(self, tx: Frame, name: str) -> Var | None:
        self._guard()
        if name in self.written:
            return self.written[name]
        if name in ("_value_", "_name_") or self.source is None:
            value = self.real.__dict__.get(name, self)
            return None if value is self else tx.trace.constant(value)
        return super().read_own(tx, name)


def runs_program(kind: type) -> bool:
    """True for keys that code of the program compares."""
    return kind is not str and is_own_method(find_in_mro(kind, "__eq__"))


class InstanceDictVar(Var):
    """`obj.__dict__`: reads and writes go to the object."""

    methods_by_name = True

    def get_attr(self, tx: Frame, name: str) -> Var:
        return tx.trace.attributes.get_builtin_attr(tx, self, name)

    def __init__(self, owner: ObjectVar | FunctionVar, source: Source | None = None) -> None:
        super().__init__(source)
        self.owner = owner

    def python_type(self) -> type:
        return dict

    def is_same(self, tx: Frame, other: Var) -> bool:
        if not isinstance(other, InstanceDictVar):
            return False
        reals = [getattr(each.owner, "real", None) for each in (self, other)]
        if other.owner is not self.owner and all(real is not None for real in reals) and (
            instance_dict(reals[0]) is instance_dict(reals[1])
        ):
            raise Break("value_unknown", f"one __dict__ of {self.owner!r} and {other.owner!r}")
        return same(tx, self.owner, other.owner)

    def children(self) -> Iterable[Var]:
        return (self.owner,)

    def snapshot(self, tx: Frame) -> DictVar:
        """A new dict with the same entries."""
        found: dict[str, Var] = {}
        for name in self.owner.own_names(tx):
            value = self.owner.read_own(tx, name)
            assert value is not None
            found[name] = value
        return DictVar.from_names(found)

    def truth(self, tx: Frame) -> bool:
        return bool(self.owner.own_names(tx))

    def length(self, tx: Frame) -> Var:
        return ConstVar(len(self.owner.own_names(tx)))

    def contains(self, tx: Frame, item: Var) -> Var:
        return ConstVar(self._find(tx, item) is not None)

    def _find(self, tx: Frame, key: Var) -> Var | None:
        name = key.as_constant()
        owner = self.owner
        if isinstance(name, str):
            return owner.read_own(tx, name)
        return None

    def get_item(self, tx: Frame, key: Var) -> Var:
        found = self._find(tx, key)
        if found is None:
            tx.trace.raise_exception(KeyError, key)
        return found

    def set_item(self, tx: Frame, key: Var, value: Var) -> None:
        if not isinstance(key.as_constant(), str):
            raise Break("attribute_unknown", f"the key {key!r} in the __dict__ of {self.owner!r}")
        self.owner.write_own(tx, key.as_constant(), value)

    def del_item(self, tx: Frame, key: Var) -> None:
        self.get_item(tx, key)
        self.owner.write_own(tx, key.as_constant(), None)

    def iterate(self, tx: Frame) -> Var:
        return InstanceEntriesVar(self.owner, tx).iterate(tx)

    def call_method(
        self, tx: Frame, name: str, args: list[Var], kwargs: dict[str, Var]
    ) -> Var:
        if name in ("get", "pop", "setdefault") and 1 <= len(args) <= 2 and not kwargs:
            found = self._find(tx, args[0])
            if found is None:
                if name == "pop" and len(args) == 1:
                    tx.trace.raise_exception(KeyError, args[0])
                default = args[1] if len(args) == 2 else ConstVar(None)
                if name == "setdefault":
                    self.set_item(tx, args[0], default)
                return default
            if name == "pop":
                self.del_item(tx, args[0])
            return found
        if name == "update":
            merged = DictVar()
            tx.trace.call(tx, dict.update, merged, *args, **kwargs)
            for key, value in merged.entries.values():
                self.set_item(tx, key, value)
            return ConstVar(None)
        if name == "clear":
            for own in self.owner.own_names(tx):
                self.owner.write_own(tx, own, None)
            return ConstVar(None)
        if name in ("keys", "values", "items", "__iter__", "__reversed__"):
            return InstanceEntriesVar(self.owner, tx).call_method(tx, name, args, kwargs)
        if name in ("copy", "__len__", "__contains__"):
            return self.snapshot(tx).call_method(tx, name, args, kwargs)
        return super().call_method(tx, name, args, kwargs)


class InstanceEntriesVar(DictVar):
    """The entries of `owner.__dict__` as they are at each moment: what its views show."""

    def __init__(self, owner: ObjectVar | FunctionVar, tx: Frame) -> None:
        super().__init__()
        self.owner, self._tx = owner, tx

    def children(self) -> Iterable[Var]:
        return (self.owner,)

    @property
    def entries(self) -> dict[Hashable, tuple[Var, Var]]:
        return InstanceDictVar(self.owner).snapshot(self._tx).entries


def note_owner(trace: Evaluation, own: dict[str, Any], var: ObjectVar) -> None:
    """The instance dict of a real object is looked at, or written."""
    known = trace.objects
    other = known.owners.get(id(own), var)
    if other is not var or isinstance(known.var_of(own), DictVar):
        # neither would see the other's changes
        raise Break("attribute_unknown", f"a name in the dict of {var!r}, also met by itself")
    known.owners[id(own)] = var


TORCH_PARTS = (torch.nn.Module, torch.Tensor, torch.Generator, torch.Stream, torch.Event)
CONTENT = (list, dict, set, frozenset, tuple, int, float, str, bytes, BaseException, type,
           types.GenericAlias)


# Classes whose instances have a tracker of their own, one that is no other class's base.
TRACKERS: dict[type, type[ObjectVar]] = {}


def instance_of(cls: type) -> ObjectVar:
    """A new instance, without attributes."""
    made = next((TRACKERS[base] for base in TRACKERS if issubclass(cls, base)), ObjectVar)
    return made(cls)


@wraps_if(4, lambda value: issubclass(type(value), enum.Enum))
def wrap_enum(trace: Evaluation, value: Any, source: Source | None) -> Var:
    """A member of an enumeration."""
    return EnumVar(type(value), source, real=value, trace=trace)


def answers_for_itself(value: Any) -> bool:
    """True for plain objects whose `__class__` is asked of a function of the program: the other
    rows' `isinstance` would run it."""
    cls = type(value)
    if not cls.__flags__ & HEAP_TYPE or issubclass(cls, (*CONTENT, enum.Enum, *TORCH_PARTS)):
        return False
    return is_own_method(find_in_mro(cls, "__getattribute__")) or (
        find_in_mro(cls, "__class__") is not object.__dict__["__class__"])


@wraps_if(-1, answers_for_itself)
@wraps_if(99, lambda value: bool(type(value).__flags__ & HEAP_TYPE)
          and not issubclass(type(value), CONTENT))


def wrap_object(trace: Evaluation, value: Any, source: Source | None) -> Var:
    """An instance of a class written in Python."""
    return ObjectVar(type(value), source, real=value, trace=trace)
