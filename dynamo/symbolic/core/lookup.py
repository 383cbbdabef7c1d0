"""Reading real classes and modules while tracing, without running any user code."""

from __future__ import annotations

import builtins
import collections.abc
import sys
import types
from collections import OrderedDict
from collections.abc import Container, Iterable, Iterator, Mapping, MutableMapping
from typing import Any

from dynamo.base.instances import class_name, own_dict

_MISSING = object()
_mro, _class_dict = type.__dict__["__mro__"].__get__, type.__dict__["__dict__"].__get__
HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE
IMMUTABLE_TYPE = 1 << 8  # types of C whose attributes can't be set; no others have it


def find_in_mro(cls: type, name: str) -> Any:
    """The raw class attribute (descriptors unbound), None when no class of the MRO has it.

    >>> find_in_mro(bool, "bit_length") is int.__dict__["bit_length"]
    True
    """
    for owner in _mro(cls):
        value = _class_dict(owner).get(name, _MISSING)
        if value is not _MISSING:
            return value
    return None


def class_dict(cls: type) -> Mapping[str, Any]:
    """The dict of a class, of which no metaclass is asked."""
    return _class_dict(cls)  # type: ignore[no-any-return]


def find_owner(cls: type, name: str) -> tuple[type, Any] | None:
    """The first class of the MRO that has the attribute, and its raw value."""
    for owner in _mro(cls):
        value = _class_dict(owner).get(name, _MISSING)
        if value is not _MISSING:
            return owner, value
    return None


def all_in_mro(cls: type, name: str) -> Iterator[tuple[type, Any]]:
    """Each class of the MRO that has the attribute, and its raw value."""
    for owner in _mro(cls):
        value = _class_dict(owner).get(name, _MISSING)
        if value is not _MISSING:
            yield owner, value


C_METHODS = types.WrapperDescriptorType, types.MethodDescriptorType


def is_own_method(method: Any) -> bool:
    """True for a special method that is no part of a built-in class: a function of Python, or
    another object that answers in its place.

    >>> is_own_method(module_of), is_own_method(staticmethod(len)), is_own_method(list.__len__)
    (True, True, False)
    """
    return method is not None and not isinstance(method, C_METHODS)


def is_derived(cls: type, base: type) -> bool:
    """True for real subclasses, not for those that a metaclass takes for one.

    >>> is_derived(bool, int), is_derived(dict, collections.abc.Mapping)
    (True, False)
    """
    return any(parent is base for parent in type.__dict__["__mro__"].__get__(cls))


def is_in_making(cls: type) -> bool:
    """True while the `mro` of its metaclass runs for the first time: it has no MRO yet."""
    return type.__dict__["__mro__"].__get__(cls) is None


def is_heap_type(cls: type) -> bool:
    """True for classes written in Python, and some of C; no metaclass is asked."""
    return bool(type.__dict__["__flags__"].__get__(cls) & HEAP_TYPE)


def name_of_class(cls: type) -> str:
    """Its `__qualname__`, of which no metaclass is asked.

    >>> name_of_class(collections.deque)
    'deque'
    """
    return class_name(cls)


def is_local(kind: type) -> bool:
    """True for a class that its module does not hold by its name."""
    if not is_heap_type(kind):
        return False
    module = class_dict(kind).get("__module__")
    found: Any = sys.modules.get(module) if type(module) is str else None
    for name in name_of_class(kind).split("."):
        if issubclass(type(found), type):
            found = class_dict(found).get(name)
        elif issubclass(type(found), types.ModuleType):
            found = object.__getattribute__(found, "__dict__").get(name)
    return found is not kind


def module_of(value: Any) -> str:
    """The `__module__` of a function or class, empty where it has none or one that is no string;
    no metaclass is asked.

    >>> module_of(collections.deque), module_of(len), module_of([])
    ('collections', 'builtins', '')
    """
    try:
        if issubclass(type(value), type):
            found = type.__dict__["__module__"].__get__(value)
        else:
            found = getattr(value, "__module__", None)
    except AttributeError:  # a class whose own was deleted
        return ""
    return found if type(found) is str else ""


def full_name(value: Any) -> str:
    """The name of a function or class with its module, for messages.

    >>> full_name(len), full_name(sys.intern), full_name(collections.deque.append)
    ('len', 'sys.intern', 'deque.append')
    """
    name = getattr(value, "__qualname__", None)
    if not isinstance(name, str):
        return repr(value)
    if name.startswith("pybind11_"):  # of the object that holds the C++ function
        name = value.__name__
    module = module_of(value)
    if module in ("", "builtins", "__main__") or getattr(builtins, name, None) is value:
        return name
    return f"{module}.{name}"


def find_module(name: str | None) -> types.ModuleType | None:
    """An imported module, None when it has not been imported."""
    return sys.modules.get(name) if isinstance(name, str) else None


def builtins_of(module_globals: dict[str, Any]) -> dict[str, Any]:
    """The builtins dict that functions made with these globals now see.

    >>> builtins_of({}) is builtins_of({"__builtins__": builtins}) is vars(builtins)
    True
    """
    names = module_globals.get("__builtins__")
    if isinstance(names, types.ModuleType):
        return names.__dict__
    return names if isinstance(names, dict) else vars(sys.modules["builtins"])


def absolute_name(name: str, package: str | None, level: int) -> str:
    """The full name that a (relative) import means.

    >>> absolute_name("b", "pkg.sub", 2)
    'pkg.b'
    """
    if level == 0:
        return name
    base = (package or "").split(".")
    base = base[: len(base) - (level - 1)]
    return ".".join([*base, name] if name else base)


def instance_dict(value: Any) -> dict[str, Any] | None:
    """The instance dict, None for instances without one. Runs no user code.

    >>> instance_dict(types.SimpleNamespace(a=1))
    {'a': 1}
    """
    try:
        return own_dict(value)
    except AttributeError:
        return None


def is_whole(mapping: OrderedDict[Any, Any]) -> bool:
    """False where `dict.pop` and the like have left an OrderedDict with another order than keys."""
    try:
        listed = set(map(id, OrderedDict.__iter__(mapping)))
    except KeyError:
        return False
    return listed == set(map(id, dict.__iter__(mapping)))


def is_own_dict(value: Any) -> bool:
    """True after `self.__dict__ = self`: items are attributes, and no trace may change either."""
    return value is not None and instance_dict(value) is value


def note_written(
    written: MutableMapping[str, Any], renewed: set[str], name: str, value: Any
) -> None:
    """Keeps a write (None: a deletion) of an attribute in `written`; what is set again after it was
    deleted stands last, and in `renewed`."""
    if name in written and written[name] is None:
        del written[name]
        renewed.add(name)
    written[name] = value


def order_names(
    before: Iterable[str], written: Mapping[str, Any], renewed: Container[str]
) -> list[str]:
    """The names in an instance dict, in order, after writes that `note_written` has kept.

    >>> order_names(["a", "b"], {"a": None, "c": 1, "b": 2}, {"b"})
    ['c', 'b']
    """
    names = dict.fromkeys(before)
    for name, value in written.items():
        if value is None or name in renewed:
            names.pop(name, None)
        if value is not None:
            names[name] = None
    return list(names)


def name_with_module(cls: type) -> str:
    """The name of a type in newer messages of C code: with its module, but for built-in ones."""
    module = type.__dict__["__module__"].__get__(cls)
    name = type.__dict__["__qualname__"].__get__(cls)
    return name if module in ("builtins", "__main__") else f"{module}.{name}"


def name_in_c(cls: type) -> str:
    """The name of a type in the messages of C code.

    >>> name_in_c(collections.deque), name_in_c(dict)
    ('collections.deque', 'dict')
    """
    order = type.__dict__["__mro__"].__get__(cls)
    wanted = float if any(part is int for part in order) else int
    try:
        wanted.__new__(cls)  # its message is the only place where Python code can read the name
    except TypeError as error:
        start = f"{wanted.__name__}.__new__("
        return str(error).removeprefix(start).partition("): ")[0]
    return cls.__name__


def no_deletion(cls: type, key: type) -> str:
    """What CPython says of `del x[key]`, with a place for the type of `x`: for an index it asks the
    slots of sequences, which all classes of Python code have, and these have their own words."""
    has_slots = hasattr(key, "__index__") and (cls.__flags__ & (1 << 9) or hasattr(cls, "__len__"))
    return "'{}' object " + ("doesn't" if has_slots else "does not") + " support item deletion"


BUILT_IN_BASES = frozenset({
    list, dict, set, collections.deque, collections.OrderedDict, collections.defaultdict,
    tuple, int, float, str, frozenset, bytes,
})


def base_of(cls: type) -> type:
    """The built-in class that a class written in Python stands on (`object` for most)."""
    for base in cls.__mro__:
        if base in BUILT_IN_BASES:
            return base
        if base is not object and not base.__flags__ & (1 << 9):
            return base
    return object
