"""Attribute access as `object.__getattribute__`, `type.__getattribute__` and `super` do it.

What a class attribute becomes when it is read (bound methods, properties, slots) is in
`binders.py`.
"""

from __future__ import annotations

import enum
import threading
import types
from collections.abc import Callable
from typing import Any

import torch

from dynamo.base.errors import Break
from dynamo.base.instances import hides_dict, is_class
from dynamo.guards.sources import AttrSource, DictSource, ItemSource, ObjectSource
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.frame import Evaluation, Frame
from dynamo.symbolic.core.lookup import (
    class_dict,
    find_in_mro,
    find_owner,
    is_own_method,
    name_in_c,
)
from dynamo.symbolic.core.var import ObservedException, Var
from dynamo.symbolic.python import function_attributes
from dynamo.symbolic.python.binders import (
    BINDERS,
    RawAttribute,
    is_data_descriptor,
    is_read_first,
    is_settled,
    is_slot,
    part_of_property,
    property_value,
    slot_name,
)
from dynamo.symbolic.python.class_attributes import (
    CLASS_PARTS,
    WRITTEN,
    check_unwritten,
    find_now,
    store,
)
from dynamo.symbolic.python.classes import ClassVar
from dynamo.symbolic.python.functions import FunctionVar
from dynamo.symbolic.python.objects import InstanceDictVar, ObjectVar
from dynamo.symbolic.python.supers import SuperVar
from dynamo.symbolic.python.thread_locals import ThreadLocalVar

# What an autograd function sets on its context, which torch reads when `forward` has returned.
CONTEXT_FIELDS = frozenset(torch._C._FunctionBase.__dict__[name] for name in (
    "to_save", "dirty_tensors", "non_differentiable", "saved_for_forward"))


def is_context_field(raw: Any) -> bool:
    """Whether a class attribute is one of these."""
    return isinstance(raw, types.GetSetDescriptorType) and raw in CONTEXT_FIELDS


class Attributes:
    """The attribute protocol for one trace."""

    def __init__(self, trace: Evaluation) -> None:
        self.trace = trace
        self._searched: set[tuple[type, str, int]] = set()
        self.opened: set[type] = set()  # classes whose dict is a value of the trace

    def find(self, cls: type, name: str) -> tuple[type, Any] | None:
        """The class of the MRO that has an attribute, with what the trace has stored, and its raw
        value."""
        return find_now(self.trace, cls, name)

    def set_on_class(self, tx: Frame, cls: type, name: str, value: Var) -> None:
        """`cls.name = value`."""
        store(tx, cls, name, value)

    def searched_classes(self) -> set[type]:
        """Classes in which attributes were looked up."""
        return {cls for cls, _, _ in self._searched}

    # -- places -----------------------------------------------------------------------------

    def guard_search(self, cls: type, name: str, owner: type | None, start: int = 0) -> None:
        """Guards that no class of the MRO before the owner (None: no class) has the attribute."""
        if (cls, name, start) in self._searched:
            return
        self._searched.add((cls, name, start))
        for part in type.__dict__["__mro__"].__get__(cls)[start:]:
            if part is owner:
                break
            if not is_settled(part):
                place = DictSource(ObjectSource(part, part.__qualname__))
                self.trace.guard("DICT_LACKS", place, name)

    def guard_presence(self, cls: type, name: str) -> None:
        """Guards that the class of the MRO that has an attribute keeps it."""
        found = self.find(cls, name)
        if found is None or found[1] is WRITTEN:
            return
        if not is_settled(found[0]):
            owner = ObjectSource(found[0], found[0].__qualname__)
            self.trace.guard("DICT_HAS", DictSource(owner), name)

    def find_special(self, cls: type, name: str) -> Any:
        """A special method as the class has it, None where it has none; guards that no class of
        the MRO gets one that is found first."""
        found = find_owner(cls, name)
        self.guard_search(cls, name, None if found is None else found[0])
        if found is None:
            return None
        owner, value = found
        if not (isinstance(value, types.FunctionType) or is_settled(owner)):
            RawAttribute(value, owner, name, cls, None).guard_identity(self.trace)
        return value

    def has_special(self, cls: type, name: str) -> bool:
        """True where the class has the method, None (which forbids it) included."""
        self.find_special(cls, name)
        return find_owner(cls, name) is not None

    def guard_own(self, cls: type, name: str) -> None:
        """Guards that the class itself keeps what it has by this name."""
        RawAttribute(class_dict(cls)[name], cls, name, cls, None).guard_identity(self.trace)

    def guard_names(self, cls: type) -> None:
        """Guards that no class of the MRO gets or loses an attribute."""
        parts = type.__dict__["__mro__"].__get__(cls)
        check_unwritten(self.trace, parts)
        for part in parts:
            if not is_settled(part):
                place = DictSource(ObjectSource(part, part.__qualname__))
                self.trace.guard("DICT_KEYS", place, tuple(class_dict(part)))

    def guard_abstract(self, cls: type) -> None:
        """Guards the names of the class's abstract methods, by which instances are refused."""
        name, own = "__abstractmethods__", class_dict(cls)
        methods = own.get(name, frozenset())
        if type(methods) is not frozenset:
            raise Break("call_of_unknown_function", f"{cls.__qualname__}, whose {name} is changed")
        if not is_settled(cls):
            place = DictSource(ObjectSource(cls, cls.__qualname__))
            if name in own:
                self.trace.guard("CONST", ItemSource(place, name), methods)
            else:
                self.trace.guard("DICT_LACKS", place, name)

    def guard_reader(self, cls: type) -> None:
        """Guards that attributes are read as they are now: by C or by a function."""
        if not isinstance(self.find_special(cls, "__getattribute__"), CALLED):
            raise Break("attribute_unknown", f"{cls.__qualname__}.__getattribute__ is no function")

    def guard_unhidden(self, cls: type, name: str, entry: tuple[type, Any] | None) -> None:
        """Guards that the class gets nothing that is read before what its instances hold.

        entry: the class attribute of this name, which stays behind what an instance holds.
        """
        self.guard_search(cls, name, None if entry is None else entry[0])
        if entry is not None and entry[1] is not WRITTEN and not is_settled(entry[0]):
            place = RawAttribute(entry[1], entry[0], name, cls, None).source()
            self.trace.guard("TYPE", place, type(entry[1]))
            for method in ("__get__", "__set__", "__delete__"):
                self.find_special(type(entry[1]), method)

    # -- reading ----------------------------------------------------------------------------

    def get(self, tx: Frame, var: ObjectVar, name: str) -> Var:
        """`var.name`."""
        cls = var.python_type()
        custom = self.find_special(cls, "__getattribute__")
        if custom is None:
            raise Break("attribute_unknown", f"{cls.__qualname__} forbids reading attributes")
        local = issubclass(cls, threading.local) and not isinstance(var, ThreadLocalVar)
        if local and not is_own_method(custom):
            raise Break(
                "attribute_unknown", f"{name} of {var!r}, which every thread has its own of"
            )
        if find_in_mro(cls, "__getattr__") is None:
            found = self._get(tx, var, name)
        else:
            found = self.unless_missing(tx, lambda: self._get(tx, var, name))
        return self.missing(tx, var, name) if found is None else found

    def _get(self, tx: Frame, var: ObjectVar, name: str) -> Var | None:
        """`type(var).__getattribute__(var, name)`; None where object's own finds nothing."""
        cls = var.cls
        if is_own_method(find_in_mro(cls, "__getattribute__")):
            getter = self.bind(tx, var, cls, "__getattribute__")
            return getter.call(tx, [ConstVar(name)], {})
        return self.get_plain(tx, var, name)

    def unless_missing(self, tx: Frame, read: Callable[[], Var | None]) -> Var | None:
        """The value of an attribute, None where reading it (a property, say) gives AttributeError:
        `__getattr__` is asked then."""
        try:
            with tx.using_results():
                return read()
        except ObservedException as error:
            if not issubclass(error.value.python_type(), AttributeError):
                raise
            return None

    def missing(self, tx: Frame, var: Var, name: str) -> Var:
        """What happens when the plain lookup finds nothing."""
        cls = var.python_type()
        if self.find(cls, name) is None:  # else it is there, and reading it has failed
            self.guard_search(cls, name, None)
        if self.has_special(cls, "__getattr__"):
            getter = self.bind(tx, var, cls, "__getattr__")
            return getter.call(tx, [ConstVar(name)], {})
        self.trace.raise_exception(
            AttributeError, f"'{name_in_c(cls)}' object has no attribute '{name}'"
        )

    def get_plain(self, tx: Frame, var: ObjectVar, name: str) -> Var | None:
        """`object.__getattribute__(var, name)`, None where it finds nothing."""
        cls = var.python_type()
        self.guard_reader(cls)
        if name == "__dict__" and has_instance_dict(cls) and not hides_dict(cls):
            shared = var.real_dict(tx) is var.real is not None
            return var if shared else InstanceDictVar(var)
        found = self.find(cls, name)
        if found == CLASS_OF_OBJECT:
            self.guard_search(cls, name, object)
            return self.trace.wrap(cls, None)
        if found is not None and is_read_first(found[1]):
            self.guard_search(cls, name, found[0])
            if is_context_field(found[1]) and name in var.written:
                return var.written[name]
            return self.bind_raw(tx, RawAttribute(found[1], found[0], name, cls, var))
        own = var.read_own(tx, name)
        if own is not None:
            if var.real is not None:
                self.guard_unhidden(cls, name, found)
            return own
        if found is None:
            return None
        self.guard_search(cls, name, found[0])
        return self.bind_raw(tx, RawAttribute(found[1], found[0], name, cls, var))

    def bind(self, tx: Frame, var: Var | None, cls: type, name: str) -> Var:
        """A class attribute that is known to exist, bound to the instance; it will be called."""
        found = find_owner(cls, name)
        assert found is not None, name
        self.guard_search(cls, name, found[0])
        with tx.using_results():
            return self.bind_raw(tx, RawAttribute(found[1], found[0], name, cls, var))

    def bind_raw(self, tx: Frame, raw: RawAttribute) -> Var:
        binder = BINDERS.get(type(raw.value))
        if binder is not None:
            return binder(tx, raw)
        getter = self.find_special(type(raw.value), "__get__")
        if getter is property.__get__:
            return property_value(tx, raw)
        if is_class(raw.value) or find_owner(type(raw.value), "__get__") is None:
            return raw.wrap(self.trace)
        if not isinstance(getter, types.FunctionType):
            raise Break("descriptor_unknown", f"{type(raw.value).__qualname__} {raw.name}")
        instance = raw.instance if raw.instance is not None else ConstVar(None)
        descriptor = self.trace.wrap(raw.value, raw.source())
        owner = self.trace.wrap(raw.cls, None)
        return descriptor.call_method(tx, "__get__", [instance, owner], {})

    def get_class_attr(self, tx: Frame, var: Var, name: str) -> Var:
        """`var.name` for instances that hold no attributes of their own here."""
        cls = var.python_type()
        if name == "__class__":
            return self.trace.wrap(cls, None)
        self.guard_reader(cls)
        found = self.find(cls, name)
        if found is None:
            return self.missing(tx, var, name)
        self.guard_search(cls, name, found[0])
        return self.bind_raw(tx, RawAttribute(found[1], found[0], name, cls, var))

    def get_builtin_attr(self, tx: Frame, var: Var, name: str) -> Var:
        """`var.name` where the type is built in."""
        cls = var.python_type()
        if name == "__class__":
            return self.trace.wrap(cls, None)
        found = find_owner(cls, name)
        if found is None:
            self.trace.raise_exception(
                AttributeError, f"'{name_in_c(cls)}' object has no attribute '{name}'"
            )
        raw = found[1]
        if not callable(raw) and var.is_constant() and not isinstance(raw, classmethod):
            return self.trace.constant(getattr(var.as_constant(), name))
        return self.bind_raw(tx, RawAttribute(raw, found[0], name, cls, var))

    def get_function_attr(self, tx: Frame, var: FunctionVar, name: str) -> Var:
        """`function.name`."""
        return function_attributes.get_attr(tx, var, name)

    def get_from_class(self, tx: Frame, var: ClassVar, name: str) -> Var:
        """`cls.name`."""
        cls = var.cls
        self.guard_reader(type(cls))
        special = CLASS_PARTS.get(name)
        if special is not None:
            return special(tx, cls)
        meta_found = find_owner(type(cls), name)
        if meta_found is not None and is_read_first(meta_found[1]):
            return self._from_metaclass(tx, var, meta_found, name)
        self.guard_unhidden(type(cls), name, meta_found)
        found = self.find(cls, name)
        if found is not None:
            members = cls._member_map_ if issubclass(cls, enum.Enum) else {}
            if not isinstance(members, dict):
                raise Break("attribute_unknown", f"{name} of {var!r}, which has other members now")
            if name in members:
                return self.trace.wrap(members[name], None)
            self.guard_search(cls, name, found[0])
            return self.bind_raw(tx, RawAttribute(found[1], found[0], name, cls, None))
        self.guard_search(cls, name, None)
        if meta_found is not None:
            return self._from_metaclass(tx, var, meta_found, name)
        if self.has_special(type(cls), "__getattr__"):
            return self.bind(tx, var, type(cls), "__getattr__").call(tx, [ConstVar(name)], {})
        self.trace.raise_exception(
            AttributeError, f"type object '{name_in_c(cls)}' has no attribute '{name}'"
        )

    def _from_metaclass(
        self, tx: Frame, var: ClassVar, entry: tuple[type, Any], name: str
    ) -> Var:
        self.guard_search(type(var.cls), name, entry[0])
        raw = RawAttribute(entry[1], entry[0], name, type(var.cls), var)
        if isinstance(entry[1], types.GetSetDescriptorType | types.MemberDescriptorType):
            # From Python 3.14 on, what was read once is kept under another name.
            own_names = {"__annotations__", "__annotations_cache__"} & class_dict(var.cls).keys()
            if name == "__annotations__" and not own_names and not is_settled(var.cls):
                raise Break("attribute_unknown", f"{name} of {var!r}: reading makes a dict")
            value = self.trace.run_real(lambda: getattr(var.cls, name))
            if is_settled(var.cls):
                return self.trace.constant(value)
            place = ObjectSource(var.cls, var.cls.__qualname__)
            return self.trace.wrap(value, AttrSource(place, name))
        return self.bind_raw(tx, raw)

    def get_super(self, tx: Frame, var: SuperVar, name: str) -> Var:
        """`super().name`."""
        if name == "__class__":
            return self.trace.wrap(super, None)
        mro = list(type.__dict__["__mro__"].__get__(var.cls))
        receiver = var.receiver
        # In a metaclass the receiver is a class and the instance at once.
        through_class = isinstance(receiver, ClassVar) and receiver.cls is var.cls
        instance = None if through_class else receiver
        start = mro.index(var.start) + 1
        found = find_now(self.trace, var.cls, name, start)
        if found is not None:
            self.guard_search(var.cls, name, found[0], start=start)
            raw = RawAttribute(found[1], found[0], name, var.cls, instance)
            if name == "__new__" and not isinstance(raw.value, staticmethod):
                return self.trace.wrap(getattr(found[0], "__new__"), None)  # noqa: B009
            return self.bind_raw(tx, raw)
        if find_in_mro(super, name) is not None:
            raise Break("attribute_unknown", f"{name} of super()")
        self.trace.raise_exception(
            AttributeError, f"'super' object has no attribute '{name}'"
        )

    # -- writing ----------------------------------------------------------------------------

    def set(self, tx: Frame, var: ObjectVar, name: str, value: Var) -> None:
        """`var.name = value`."""
        cls = var.python_type()
        custom = self.find_special(cls, "__setattr__")
        if is_own_method(custom):
            setter = self.bind(tx, var, cls, "__setattr__")
            tx.call(setter, [ConstVar(name), value], {})
            return
        if custom not in PLAIN_STORES:
            raise Break("attribute_store_unknown", f"{name} of {var!r}")
        self.set_plain(tx, var, name, value)

    def set_plain(self, tx: Frame, var: ObjectVar, name: str, value: Var) -> None:
        """`object.__setattr__(var, name, value)`."""
        cls = var.python_type()
        if name in ("__class__", "__dict__"):
            raise Break("attribute_store_unknown", f"{name} of {var!r}")
        found = find_owner(cls, name)
        self.guard_search(cls, name, None if found is None else found[0])
        raw = None if found is None else found[1]
        if isinstance(raw, property) and find_in_mro(type(raw), "__set__") is property.__set__:
            assert found is not None
            place = RawAttribute(raw, found[0], name, cls, var)
            tx.call(part_of_property(tx, place, "fset"), [var, value], {})
        elif isinstance(raw, types.MemberDescriptorType) and is_slot(raw):
            var.write_own(tx, slot_name(tx, raw, cls), value)
        elif raw is None or not is_data_descriptor(raw):
            self.guard_unhidden(cls, name, found)
            self._check_dict(cls, name, found)
            var.write_own(tx, name, value)
        elif isinstance(find_in_mro(type(raw), "__set__"), types.FunctionType):
            assert found is not None
            source = RawAttribute(raw, found[0], name, cls, var).source()
            descriptor = self.trace.wrap(raw, source)
            descriptor.call_method(tx, "__set__", [var, value], {})
        elif is_context_field(raw):
            var.write_own(tx, name, value)
        else:
            raise Break("attribute_store_unknown", f"{name} of {var!r}")

    def _check_dict(self, cls: type, name: str, entry: tuple[type, Any] | None) -> None:
        """The error of a write where instances have no dict."""
        if has_instance_dict(cls):
            return
        text = f"'{name_in_c(cls)}' object "
        text += f"has no attribute '{name}'{WITHOUT_DICT}" if entry is None else (
            f"attribute '{name}' is read-only")
        self.trace.raise_exception(AttributeError, text)

    def delete(self, tx: Frame, var: ObjectVar, name: str) -> None:
        """`del var.name`."""
        cls = var.python_type()
        custom = self.find_special(cls, "__delattr__")
        if is_own_method(custom):
            tx.call(self.bind(tx, var, cls, "__delattr__"), [ConstVar(name)], {})
            return
        if not isinstance(custom, CALLED):
            raise Break("attribute_store_unknown", f"del {name} of {var!r}")
        self.delete_plain(tx, var, name)

    def delete_plain(self, tx: Frame, var: ObjectVar, name: str) -> None:
        """`object.__delattr__(var, name)`."""
        cls = var.python_type()
        raw = self.find_special(cls, name)
        if is_slot(raw):
            name = slot_name(tx, raw, cls)
            present = var.read_slot(tx, name, raw)
        elif raw is not None and is_data_descriptor(raw):
            owner = find_owner(cls, name)
            assert owner is not None
            place = RawAttribute(raw, owner[0], name, cls, var)
            deleter = find_in_mro(type(raw), "__delete__")
            if deleter is property.__delete__:
                tx.call(part_of_property(tx, place, "fdel"), [var], {})
                return
            if isinstance(deleter, types.FunctionType):
                self.trace.wrap(raw, place.source()).call_method(tx, "__delete__", [var], {})
                return
            raise Break("attribute_store_unknown", f"del {name} of {var!r}")
        else:
            self.guard_unhidden(cls, name, self.find(cls, name))
            self._check_dict(cls, name, find_owner(cls, name))
            present = var.read_own(tx, name)
        if present is None:  # CPython says no more of a slot than its name
            missing = f"'{name_in_c(cls)}' object has no attribute '{name}'"
            message = name if is_slot(raw) else missing
            self.trace.raise_exception(AttributeError, message)
        var.write_own(tx, name, None)


def text_without_dict() -> str:
    """What this Python adds to the message of a store into an object with slots only."""
    try:
        setattr(object(), "name", None)  # noqa: B010
    except AttributeError as error:
        return str(error).partition("'name'")[2]
    return ""


CALLED = (types.FunctionType, types.WrapperDescriptorType, types.MethodDescriptorType)
CLASS_OF_OBJECT = find_owner(object, "__class__")
WITHOUT_DICT = text_without_dict()


PLAIN_STORES = tuple(
    kind.__setattr__ for kind in (object, types.SimpleNamespace, threading.local))


def has_instance_dict(cls: type) -> bool:
    """True where instances can take any attribute."""
    return bool(cls.__dictoffset__) or issubclass(cls, threading.local)
