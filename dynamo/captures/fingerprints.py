"""Texts by which another process tells whether it has the same function, class or module.

In: an object that a trace has met and that stays what it is for as long as the process lives. Out:
a text that is equal in another process only where the object has the same name and its code,
recursively, is the same. What can change while a process lives (globals, closures, attributes of
the program's classes) is guarded, and is not part of it; of torch's classes, to which no guard
looks, all functions are.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import marshal
import operator
import re
import sys
import types
from collections import namedtuple
from enum import Enum, EnumType
from types import CodeType
from typing import Any

import torch
from torch.torch_version import TorchVersion

from dynamo.base.decisions import is_in_graph
from dynamo.base.value_types import NAMED
from dynamo.graph_operators.kernel_calls import function_of, is_kernel, text_of_kernel
from dynamo.guards.weak import HEAP_TYPE
from dynamo.store.records import Uncacheable
from dynamo.symbolic.core.unguarded import ALIASES


class Kinds:
    """Types by identity: a metaclass may compare and hash its classes as it likes.

    >>> int in Kinds(int, str), bool in Kinds(int, str)
    (True, False)
    """

    def __init__(self, *kinds: type) -> None:
        self.kinds = kinds
        self._identities = frozenset(map(id, kinds))

    def __contains__(self, kind: type) -> bool:
        return id(kind) in self._identities


OWN = frozenset({"dynamo", "inductor"})  # the digest of this package stands in each key
PLAIN = Kinds(int, float, complex, bool, str, bytes, type(None), type(Ellipsis))
TENSORS = Kinds(torch.Tensor, torch.nn.Parameter)
C_FUNCTIONS = Kinds(
    types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType,
    types.ClassMethodDescriptorType, types.GetSetDescriptorType, types.MemberDescriptorType,
    types.MethodWrapperType,
)
# Descriptors, and the functions in them.
PARTS: dict[int, tuple[str, ...]] = {id(kind): names for kind, names in (
    (property, ("fget", "fset", "fdel")), (staticmethod, ("__func__",)),
    (classmethod, ("__func__",)), (functools.cached_property, ("func", "attrname")),
    (functools._lru_cache_wrapper, ("__wrapped__",)),
    (functools.partial, ("func", "args", "keywords")),
)}  # fmt: skip
IN_CLASSES = Kinds(types.FunctionType, property, staticmethod, classmethod,
                   functools.cached_property, *C_FUNCTIONS.kinds)  # fmt: skip
FIELD = type(namedtuple("Pair", "first second").first)  # type: ignore[attr-defined]
NO_PART_OF_CLASS = frozenset({"__dict__", "__weakref__", "__doc__", "__annotations__",
                              "__abstractmethods__", "_abc_impl", "__static_attributes__",
                              "__firstlineno__", "__annotations_cache__", "__annotate_func__",
                              "__classdictcell__"})
_module, _title = (type.__dict__[name].__get__ for name in ("__module__", "__qualname__"))
_mro, _class_dict = type.__dict__["__mro__"].__get__, type.__dict__["__dict__"].__get__
_flags, _size = (type.__dict__[name].__get__ for name in ("__flags__", "__basicsize__"))
dict_of_module = type.__getattribute__(types.ModuleType, "__dict__")["__dict__"].__get__
first = operator.itemgetter(0)
_codes: dict[int, tuple[CodeType, str]] = {}


class NoFingerprint(Uncacheable):
    """Why an object can't be told from another in the next process, as a sentence."""


def digest_of_code(code: CodeType) -> str:
    """A digest of all that is in a code object, the code inside of it included.

    >>> digest_of_code(compile("1", "f", "eval")) == digest_of_code(compile("2", "f", "eval"))
    False
    """
    known = _codes.get(id(code))
    if known is None:
        places: list[tuple[int, ...]] = []
        plain = code if sys.version_info < (3, 14) else _without_slices(code, (), places)
        try:
            # Version 2 writes no references, which tell of other objects; it knows no slices.
            content = marshal.dumps((plain, places) if places else plain, 2)
        except ValueError:
            raise NoFingerprint(f"the code of {code.co_qualname} holds an object") from None
        known = _codes[id(code)] = code, hashlib.blake2b(content, digest_size=16).hexdigest()
    return known[1]


def _without_slices(value: Any, here: tuple[int, ...], places: list[tuple[int, ...]]) -> Any:
    """A constant of a code object with tuples for its slices. places: gets where these are."""
    kind = type(value)
    if kind is slice:
        places.append(here)
        return value.start, value.stop, value.step
    inside = value.co_consts if kind is CodeType else value if kind is tuple else ()
    count = len(places)
    parts = tuple([
        _without_slices(item, (*here, at), places) for at, item in enumerate(inside)
    ])
    if count == len(places):
        return value
    return value.replace(co_consts=parts) if kind is CodeType else parts


def name_of(value: Any) -> tuple[str, str]:
    """The module and the qualified name of a function or class."""
    if issubclass(type(value), type):
        module, title = _module(value), _title(value)
        return module if type(module) is str else "", title
    module = getattr(value, "__module__", None)
    return module if type(module) is str else "", str(getattr(value, "__qualname__", ""))


def title_of(kind: type) -> str:
    """The qualified name of a class, whatever its metaclass says."""
    return str(_title(kind))


class Fingerprints:
    """Those of one moment: functions may get other code later."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[Any, str]] = {}

    def of(self, value: Any) -> str:
        """Errors: NoFingerprint."""
        known = self._known.get(id(value))
        if known is not None:
            return known[1]
        if issubclass(type(value), type):
            self._known[id(value)] = value, f"class {'.'.join(name_of(value))}"  # inside of itself
        made = self._make(value)
        self._known[id(value)] = value, made
        return made

    def _make(self, value: Any) -> str:
        kind = type(value)
        if kind in PLAIN:
            return f"{kind.__name__} {value!r}"
        if issubclass(kind, NAMED):
            return str(value)
        if kind is types.FunctionType:
            return self.of_function(value)
        if issubclass(kind, type):
            return self.of_class(value)
        if issubclass(kind, types.ModuleType):
            return f"module {dict_of_module(value).get('__name__')}"
        if kind in C_FUNCTIONS:
            return self.of_c_function(value)
        if id(kind) in PARTS:
            parts = [self.of(getattr(value, name, None)) for name in PARTS[id(kind)]]
            return f"{kind.__name__} ({', '.join(parts)})"
        if issubclass(kind, Enum):
            own = object.__getattribute__(value, "__dict__")
            inner = self.of(own.get("_value_"))
            return f"member {own.get('_name_')} {inner} of {self.of(kind)}"
        if kind is FIELD:
            return f"field {value.__reduce__()[1][0]}"
        if kind is tuple:
            return f"({', '.join(map(self.of, value))})"
        if kind is dict and all(type(key) is str for key in value):
            return repr([(key, self.of(item)) for key, item in value.items()])
        if kind is CodeType:
            return digest_of_code(value)
        if issubclass(kind, torch._ops.OpOverload | torch._ops.OpOverloadPacket):
            return f"operator {value}"
        if issubclass(kind, torch._ops._OpNamespace):
            return f"operators {value.name}"
        if kind is torch._ops._Ops:
            return "operators"
        if kind is re.Pattern:
            return f"pattern {value.pattern!r} {value.flags}"
        if issubclass(kind, logging.Logger):
            return self.of_logger(value)
        if kind is TorchVersion:
            return f"version {str(value)}"
        if issubclass(kind, ALIASES):
            inside = (getattr(value, "__origin__", None), *value.__args__)
            return f"{title_of(kind)} ({', '.join(map(self.of, inside))})"
        if is_kernel(value):
            return f"{text_of_kernel(value)} of {self.of(function_of(value))}"
        if kind in TENSORS:  # keys of an optimizer's state: what is known of one, guards tell
            return f"a {kind.__name__}"
        raise NoFingerprint(f"a {title_of(kind)} has no name")

    def of_function(self, value: types.FunctionType) -> str:
        module, name = name_of(value)
        if module.partition(".")[0] in OWN:
            return f"function {module}.{name}"
        defaults = [self._default(item) for item in value.__defaults__ or ()]
        keywords = [(key, self._default(item))
                    for key, item in (value.__kwdefaults__ or {}).items()]  # fmt: skip
        allowed = " in graph" if is_in_graph(value) else ""
        return (f"function{allowed} {module}.{name} {digest_of_code(value.__code__)} {defaults} "
                f"{keywords} {sorted(value.__dict__)} in {value.__globals__.get('__name__')}")

    def _default(self, value: Any) -> str:
        """Others than plain ones are guarded where they are used."""
        plain = type(value) in PLAIN or issubclass(type(value), NAMED)
        return self.of(value) if plain else title_of(type(value))

    def of_c_function(self, value: Any) -> str:
        owner = getattr(value, "__objclass__", None) or getattr(value, "__self__", None)
        if owner is None:
            where = ""
        elif issubclass(type(owner), types.ModuleType):
            where = str(dict_of_module(owner).get("__name__"))
        elif issubclass(type(owner), type):
            where = ".".join(name_of(owner))
        else:
            where = f"a {title_of(type(owner))}"
        return f"{type(value).__name__} {where} {value.__name__}"

    def of_logger(self, value: logging.Logger) -> str:
        """Who sees what is logged decides whether that may be done later."""
        classes, logger = [], value
        while logger is not None:
            for handler in logger.handlers:
                parts = (handler, handler.formatter, *handler.filters)
                classes += [".".join(name_of(type(part))) for part in parts]
            classes += [".".join(name_of(type(part))) for part in (logger, *logger.filters)]
            logger = logger.parent if logger.propagate else None  # type: ignore[assignment]
        return f"logger {value.name} {classes}"

    def of_class(self, cls: type) -> str:
        """Of a class that is written in Python also its bases and what its dict holds."""
        title = ".".join(name_of(cls))
        if not _flags(cls) & HEAP_TYPE or title.partition(".")[0] in OWN:
            return f"class {title}"
        lines = [f"class {title} {_flags(cls) & ~TRANSIENT} {_size(cls)}"]
        lines += [self.of(base) for base in (type(cls), *_mro(cls)[1:])]
        if issubclass(type(cls), EnumType):
            lines += [f"{name} is {self._member(value)}"
                      for name, value in _class_dict(cls)["_member_map_"].items()]  # fmt: skip
        own = [item for item in _class_dict(cls).items()
               if type(item[0]) is str and item[0] not in NO_PART_OF_CLASS]
        lines += [f"{name}: {self._attribute(value)}" for name, value in sorted(own, key=first)]
        text = "\n".join(lines)
        return f"class {title} {hashlib.blake2b(text.encode(), digest_size=16).hexdigest()}"

    def _member(self, value: Any) -> str:
        """A member of an enum, which may have several names."""
        own = object.__getattribute__(value, "__dict__")
        return f"{own.get('_name_')} {self._default(own.get('_value_'))}"

    def _attribute(self, value: Any) -> str:
        """What a class has under a name: functions and descriptors as they are; of the rest, which
        is guarded where it counts, only what it is."""
        kind = type(value)
        if kind in IN_CLASSES:
            try:
                return self.of(value)
            except NoFingerprint:
                return title_of(kind)
        return title_of(kind)


# Py_TPFLAGS that CPython sets as it goes: of caches, and of classes that are abstract now.
TRANSIENT = 1 << 19 | 1 << 20 | 1 << 12 | 1 << 13


def find_by_name(module: str, name: str) -> Any:
    """What a module holds by this name, None for nothing. Runs no code of the program."""
    value: Any = sys.modules.get(module)
    for part in name.split("."):
        if value is None:
            return None
        if issubclass(type(value), type):
            value = _class_dict(value).get(part)
        elif issubclass(type(value), types.ModuleType):
            value = dict_of_module(value).get(part)
        else:
            return None
    return value
