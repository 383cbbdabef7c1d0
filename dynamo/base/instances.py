"""The dict of an instance, whatever its class calls `__dict__`, and what is a class.

In: an object or a class. Out: the dict. Exists because a class may have a property of that name,
by which proxies show the dict of another object, or the descriptor of another class (a copy of
that one's namespace). Runs no code of the program.
"""

from __future__ import annotations

import ctypes
import threading
import types
from typing import Any, TypeGuard

_generic = ctypes.pythonapi.PyObject_GenericGetDict
_generic.argtypes, _generic.restype = [ctypes.py_object, ctypes.c_void_p], ctypes.py_object
_mro, _class_dict = type.__dict__["__mro__"].__get__, type.__dict__["__dict__"].__get__
BUILTIN = (types.GetSetDescriptorType, types.MemberDescriptorType)


def hides_dict(cls: type) -> bool:
    """True where `__dict__` of the instances is not the interpreter's own.

    >>> hides_dict(types.SimpleNamespace)
    False
    >>> hides_dict(type("Proxy", (), {"__dict__": property(vars)}))
    True
    >>> hides_dict(type("Copy", (), dict(vars(type("Other", (), {})))))
    True
    """
    for owner in _mro(cls):
        found = _class_dict(owner).get("__dict__")
        if found is not None:
            return not isinstance(found, BUILTIN) or found.__objclass__ is not owner
    return False


def is_class(value: Any) -> TypeGuard[type]:
    """True for a class, and not for an object that says it is one (`__class__` of a proxy).

    >>> is_class(int), is_class(type("Proxy", (), {"__class__": type})())
    (True, False)
    """
    return issubclass(type(value), type)


def thread_dict(value: Any) -> dict[str, Any]:
    """The dict that a `threading.local` has in this thread; the first look at it runs `__init__`.

    >>> thread_dict(threading.local())
    {}
    """
    return threading.local.__getattribute__(value, "__dict__")  # type: ignore[no-any-return]


def own_dict(value: Any) -> dict[str, Any]:
    """The instance dict. Errors: AttributeError where there is none."""
    if hides_dict(type(value)):
        held = ctypes.py_object(value)  # of which ctypes does not ask its `__class__`
        return _generic(held, None)  # type: ignore[no-any-return]
    return object.__getattribute__(value, "__dict__")  # type: ignore[no-any-return]


_name, _weak = (type.__dict__[name].__get__ for name in ("__qualname__", "__weakrefoffset__"))


def class_name(cls: type) -> str:
    """Its `__qualname__`, of which no metaclass is asked."""
    return str(_name(cls))


def is_referable(value: Any) -> bool:
    """Whether a weak reference can be made; no metaclass is asked."""
    return bool(_weak(type(value)))


def is_watched(cls: type) -> bool:
    """True where code of the program sees what is looked up on the class."""
    return any("__getattribute__" in _class_dict(part)
               for part in _mro(type(cls)) if part not in (type, object))
