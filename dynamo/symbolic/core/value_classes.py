"""Subclasses of int, float, complex, str, bytes and tuple: what they change of the plain value."""

from __future__ import annotations

import types

from dynamo.symbolic.core.lookup import HEAP_TYPE, find_in_mro, find_owner, is_heap_type

VALUES = (int, float, complex, str, bytes, tuple)
# Special methods that say nothing of the value.
HARMLESS = frozenset("__new__ __init__ __getattr__ __setattr__ __delattr__ __reduce__ __copy__ "
                     "__deepcopy__ __getnewargs__ __getstate__ __setstate__".split())
# What the interpreter asks of numbers and texts, also where it is no method: None, or a partial.
ASKED = frozenset(
    name for kind in (*VALUES, bytearray) for name, value in vars(kind).items()
    if isinstance(value, types.WrapperDescriptorType | types.MethodDescriptorType)
) | {"__bytes__"}
METHODS = (types.FunctionType, types.WrapperDescriptorType, types.MethodDescriptorType)


def value_base(cls: type) -> type | None:
    """The type of the plain value in instances of a class written in Python."""
    if not cls.__flags__ & HEAP_TYPE:
        return None
    return next((base for base in VALUES if issubclass(cls, base)), None)


def overrides(cls: type, *names: str) -> bool:
    """True where the class has one of the methods of its own."""
    base = value_base(cls) or object
    return any(
        isinstance(found, types.FunctionType)
        or (is_heap_type(owner) and found is not find_in_mro(base, name))
        for name in names for owner, found in [find_owner(cls, name) or (object, None)]
    )


def is_plain(cls: type) -> bool:
    """True where no special method of the value is overridden."""
    base = value_base(cls) or object
    return not any(
        name.startswith("__") and name not in HARMLESS and value is not find_in_mro(base, name)
        and (isinstance(value, METHODS) or name in ASKED)
        for part in cls.__mro__ if part.__flags__ & HEAP_TYPE for name, value in vars(part).items()
    )
