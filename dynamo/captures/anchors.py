"""How another process finds the objects that a trace has met, and sees that they are the same.

In: the objects of one trace, and the places where its guards say they stand. Out: rows of plain
values, one for each object: how it is found (a name, a place of the frame, a part of an object of
an earlier row) and its fingerprint. `Finder` makes objects of the rows again.

    ("name", module, qualified name)    what a module holds by this name
    ("place", source)                   what stands at a place that begins in the frame
    ("type", row)                       its class
    ("part", row, attribute)            an attribute that no code of the program computes
    ("member", row, name)               what a class has in its own dict
    ("item", row, key)                  of a list, tuple or dict
    ("item by", row, row of the key)    of a dict, whose key is a class or function
    ("key" | "value", row, number)      of a dict, in its order
    ("nested", row, number)             a constant of a code object
    ("given", row)                      what a function of no arguments keeps
    ("signature", row, bound)           that of a function, or of a bound method
    ("wrapper", row, name)              a method in C that is bound to it, as `str.join.__get__`
    ("interpreter's", name)             one of its types
    ("frame", "code" | "original" | "globals" | "builtins")
"""

from __future__ import annotations

import functools
import logging
import re
import sys
import types
from collections import OrderedDict
from collections.abc import Callable, Iterable
from enum import Enum
from inspect import Signature, signature
from itertools import islice
from types import CodeType
from typing import Any

import torch
from torch.torch_version import TorchVersion

from dynamo import hook
from dynamo.captures.fingerprints import (
    C_FUNCTIONS,
    FIELD,
    TENSORS,
    Fingerprints,
    Kinds,
    NoFingerprint,
    dict_of_module,
    find_by_name,
    name_of,
    title_of,
)
from dynamo.guards import sources as s
from dynamo.guards.records import Guard
from dynamo.guards.sources import Scope, Source
from dynamo.guards.weak import strongly
from dynamo.store.content import Stale
from dynamo.store.records import Uncacheable

Row = tuple[tuple[Any, ...], str]
_class_dict, _mro = (type.__dict__[name].__get__ for name in ("__dict__", "__mro__"))
# Objects that are rows wherever they stand; all others are plain values, or can't be cached.
BY_ROW = (
    types.FunctionType, types.BuiltinFunctionType, types.ModuleType, types.MethodDescriptorType,
    types.WrapperDescriptorType, types.ClassMethodDescriptorType, types.GetSetDescriptorType,
    types.MemberDescriptorType, property, staticmethod, classmethod, Enum,
    torch._ops.OpOverload, torch._ops.OpOverloadPacket, torch._ops._OpNamespace, torch._ops._Ops,
    Signature, functools._lru_cache_wrapper, logging.Logger, FIELD, functools.partial,
    functools.cached_property, re.Pattern, types.MethodWrapperType, torch.Tensor,
    TorchVersion,
)  # fmt: skip
PARTS = frozenset({"__code__", "__func__", "__globals__", "__wrapped__", "__closure__", "__mro__",
                   "__bases__", "__defaults__", "__kwdefaults__", "fget", "fset", "fdel", "func",
                   "cell_contents", "__dict__"})  # fmt: skip
# Types of the interpreter whose own names are no names of theirs.
UNNAMED = {id(value): (module, name) for module in ("_collections_abc", "types", "torch._C")
           for name, value in vars(sys.modules[module]).items()
           if isinstance(value, type)}  # fmt: skip
INTERPRETERS = {kind.__qualname__: kind for kind in (
    *[type(getattr(OrderedDict(), name)()) for name in ("items", "keys", "values")],
    type(iter(OrderedDict())), type(reversed([])), type(iter(())), type(re.finditer("", "")),
    FIELD, functools._lru_cache_wrapper,
)}  # fmt: skip
FUNCTIONS = Kinds(types.FunctionType, functools._lru_cache_wrapper)
UNCHECKED = Kinds(dict, list, tuple, types.CellType, types.MappingProxyType, Signature)


def step_of(source: Source) -> tuple[str, Any] | None:
    """The row kind and argument of one step of a source; None for steps that are not followed."""
    if isinstance(source, s.ItemSource):
        return "item", source.key
    if isinstance(source, s.AttrSource) and source.name in PARTS:
        return "part", source.name
    if isinstance(source, s.CellContentsSource):
        return "part", "cell_contents"
    if isinstance(source, s.TypeSource):
        return "type", None
    if isinstance(source, s.DictKeySource | s.DictValueSource):
        return "key" if isinstance(source, s.DictKeySource) else "value", source.index
    return None


PLAIN_KEYS = Kinds(str, int, bool, type(None))
PLAIN_STEPS = (s.LocalSource, s.CellSource, s.GlobalsSource, s.GlobalSource, s.BuiltinSource,
               s.ModuleSource, s.AttrSource, s.DictSource, s.DictKeySource, s.DictValueSource,
               s.CellContentsSource, s.TypeSource)  # fmt: skip


def is_plain_step(source: Source) -> bool:
    """True for a step that holds no object of the program."""
    if isinstance(source, s.ItemSource):
        return type(source.key) in PLAIN_KEYS
    return isinstance(source, PLAIN_STEPS)


class Anchors:
    """Rows for the objects of one trace, made as they are asked for."""

    def __init__(self, frame: hook.FrameState, original: CodeType) -> None:
        """original: the program's own code of the frame, of which it may be a continuation."""
        self.rows: list[Row] = []
        self.prints = Fingerprints()
        self._scope = Scope(frame.locals, frame.globals, frame.builtins, frame.cells)
        self._numbers: dict[int, tuple[int, Any]] = {}
        self._wanted: set[int] = set()  # values whose way is being looked for
        self._places: dict[int, tuple[Any, Source]] = {}
        self._nested: dict[int, tuple[CodeType, CodeType, int]] = {}
        self.given: dict[int, tuple[Any, Any]] = {}  # what functions keep, and these, by identity
        self.signatures: dict[int, Any] = {}  # the functions of signatures, by identity
        self._functions: dict[int, types.FunctionType] = {}  # by their code
        self._globals: dict[int, types.FunctionType] = {}  # by their globals
        self._add(frame.globals, ("frame", "globals"), "")
        self._add(frame.builtins, ("frame", "builtins"), "")
        self._add(frame.code, ("frame", "code"), "")  # its digest is part of the key
        if original is not frame.code:  # the digest of the other one says as much
            self._add(original, ("frame", "original"), "")
        self.note_code(original)

    def _add(self, value: Any, how: tuple[Any, ...], text: str) -> int:
        number = len(self.rows)
        self.rows.append((how, text))
        self._numbers[id(value)] = number, value
        return number

    # -- what is known of objects --------------------------------------------------------------

    def note_place(self, value: Any, source: Source) -> None:
        """The value stands there, as a guard or the trace says."""
        if value is not None and type(value) is not bool:
            self._places.setdefault(id(value), (value, source))

    def note_guard(self, guard: Guard) -> None:
        payload, source = strongly(guard.payload), guard.source
        if guard.kind == "SAME":
            self._note_key(source, payload)
            self._note_key(payload, source)
            return
        if source is None or payload is None:
            return
        if guard.kind == "ID":
            self.note_place(payload, source)
        elif guard.kind == "TYPE":
            self.note_place(payload, s.TypeSource(source))
        elif guard.kind == "CODE":
            self.note_place(payload, s.AttrSource(source, "__code__"))

    def _note_key(self, key: Source | None, place: Any) -> None:
        """What stands at a place is a key of a dict, as a parameter is of an optimizer's state:
        guards on the keys name the object."""
        if isinstance(key, s.DictKeySource) and not isinstance(place, s.DictKeySource):
            value = place.fetch(self._scope)
            if type(value) in TENSORS:
                self.note_place(value, place)

    def note_code(self, code: CodeType) -> None:
        """The code objects inside of one that is known."""
        for number, part in enumerate(code.co_consts):
            if type(part) is CodeType and id(part) not in self._nested:
                self._nested[id(part)] = part, code, number
                self.note_code(part)

    def knows_code(self, code: CodeType) -> bool:
        return any(id(code) in table for table in (
            self._numbers, self._functions, self._nested, self._places))

    # -- rows -----------------------------------------------------------------------------------

    def known(self, value: Any) -> int | None:
        """The row of a value that has one."""
        known = self._numbers.get(id(value))
        return None if known is None else known[0]

    def row(self, value: Any) -> int:
        """The row of an object. Errors: Uncacheable."""
        known = self.known(value)
        if known is not None:
            return known
        if id(value) in self._wanted:  # by a part of itself
            raise Uncacheable(f"it refers to {shown(value)}, which has no name and no place")
        self._wanted.add(id(value))
        try:
            how = self._path_to(value)
        finally:
            self._wanted.discard(id(value))
        if how is None:
            raise Uncacheable(f"it refers to {shown(value)}, which has no name and no place")
        number = self._add(value, how, self._text_of(value))
        if type(value) is types.FunctionType:
            self._functions.setdefault(id(value.__code__), value)
            self._globals.setdefault(id(value.__globals__), value)
            self.note_code(value.__code__)
        return number

    def _path_to(self, value: Any) -> tuple[Any, ...] | None:
        named = self._by_name(value)
        if named is not None:
            return named
        function = self._functions.get(id(value))
        if function is not None and function.__code__ is value:
            return "part", self.row(function), "__code__"
        function = self._globals.get(id(value))
        if function is not None and function.__globals__ is value:  # of no module
            return "part", self.row(function), "__globals__"
        if id(value) in self.given:
            return "given", self.row(self.given[id(value)][1])
        nested = self._nested.get(id(value))
        if nested is not None:
            return "nested", self.row(nested[1]), nested[2]
        place = self._places.get(id(value))
        return None if place is None else self.path_by(place[1])

    def _by_name(self, value: Any) -> tuple[Any, ...] | None:
        if issubclass(type(value), types.ModuleType):
            name = dict_of_module(value).get("__name__")
            is_named = type(name) is str and sys.modules.get(name) is value
            return ("name", name, "") if is_named else None
        if type(value) is TorchVersion:
            return ("name", "torch", "__version__") if value is torch.__version__ else None
        if issubclass(type(value), Enum):
            owner, name = type(value), object.__getattribute__(value, "__dict__").get("_name_")
            named = type(name) is str and _class_dict(owner)["_member_map_"].get(name) is value
            return ("member of", self.row(owner), name) if named else None
        if issubclass(type(value), torch._ops.OpOverload | torch._ops.OpOverloadPacket):
            return "operator", *str(value).split(".")
        if type(value) is dict:
            name = value.get("__name__")
            module = sys.modules.get(name) if type(name) is str else None
            if issubclass(type(module), types.ModuleType) and dict_of_module(module) is value:
                return "part", self.row(module), "__dict__"
            return None
        if issubclass(type(value), torch._ops._OpNamespace):
            return "operators", value.name
        if type(value) is torch._ops._Ops:
            return ("operators",)
        if type(value) is Signature:
            known = self.signatures.get(id(value))
            return None if known is None else ("signature", self.row(known[0]), known[1])
        if issubclass(type(value), logging.Logger):
            name = object.__getattribute__(value, "__dict__").get("name")
            return ("logger", name) if known_logger(name) is value else None
        if type(value) is types.MethodWrapperType:
            return "wrapper", self.row(value.__self__), value.__name__
        if type(value) in C_FUNCTIONS or type(value) in FUNCTIONS:
            return self._by_qualified_name(value)
        return self._by_qualified_name(value) if issubclass(type(value), type) else None

    def _by_qualified_name(self, value: Any) -> tuple[Any, ...] | None:
        owner = getattr(value, "__objclass__", None) if type(value) in C_FUNCTIONS else None
        if issubclass(type(owner), type) and _class_dict(owner).get(value.__name__) is value:
            return "member", self.row(owner), value.__name__
        module, name = name_of(value)
        named = find_by_name(module, name) if module and name else None
        if named is value:
            return "name", module, name
        if type(named) is types.FunctionType and named.__dict__.get("__wrapped__") is value:
            return "part", self.row(named), "__wrapped__"
        if INTERPRETERS.get(name) is value:
            return "interpreter's", name
        if id(value) in UNNAMED:
            return "name", *UNNAMED[id(value)]
        if type(value) is types.BuiltinFunctionType:
            short, bound = value.__name__, value.__self__
            if module and find_by_name(module, short) is value:  # of a C++ extension
                return "name", module, short
            of_module = issubclass(type(bound), types.ModuleType)
            if of_module and dict_of_module(bound).get(short) is value:
                return "part of module", self.row(bound), short
            variables = torch._C._VariableFunctions
            if getattr(variables, short, None) is value:
                return "variable function", short
            if type(bound) is type and getattr(bound, short, None) == value:
                return "bound", self.row(bound), short
        return None

    def path_by(self, source: Source) -> tuple[Any, ...] | None:
        """A row for what stands at a source: place by place, where it begins at an object."""
        root = source.root()
        if not isinstance(root, s.ObjectSource):
            return ("place", source) if all(map(is_plain_step, source.chain())) else None
        if source is root:
            return None
        base, step = source.parent(), step_of(source)
        assert base is not None
        if isinstance(source, s.ItemSource) and isinstance(base, s.DictSource):
            owner = base.base.fetch(EMPTY) if isinstance(base.base, s.ObjectSource) else None
            if issubclass(type(owner), type):
                return "member", self.row(owner), source.key
        if step is None:
            return None
        inner_row = self.row_at(base)
        if inner_row is None:
            return None
        if step[0] == "item" and type(step[1]) not in PLAIN_KEYS:
            return "item by", inner_row, self.row(step[1])
        return step[0], inner_row, step[1]

    def row_at(self, source: Source) -> int | None:
        """The row of what stands at a source that begins at an object."""
        if isinstance(source, s.AttrSource) and source.name not in PARTS:
            return None  # it may be computed
        try:
            value = source.fetch(EMPTY)
        except Exception:  # of the program's own, or gone
            return None
        known = self.known(value)
        if known is not None:
            return known
        if isinstance(source, s.ObjectSource):
            return self.row(value)
        how = self.path_by(source)
        if how is None:
            return None
        return self._add(value, how, self._text_of(value))

    def _text_of(self, value: Any) -> str:
        """The fingerprint; empty for what is only a step to others. Errors: Uncacheable."""
        try:
            if id(value) in self.given:
                return str(self.prints.of(dict(value)))
            return "" if type(value) in UNCHECKED else self.prints.of(value)
        except NoFingerprint as why:
            raise Uncacheable(f"it refers to {shown(value)}: {why}") from None

    def check(self, values: Iterable[Any]) -> None:
        """Rows for objects that are only to be looked at. Errors: Uncacheable."""
        for value in values:
            self.row(value)


EMPTY = Scope({}, {}, {}, {})


def known_logger(name: Any) -> logging.Logger | None:
    """The logger that `logging` knows by this name; None for none, which is not made."""
    logger = logging.root if name == "root" else logging.root.manager.loggerDict.get(name)
    return logger if isinstance(logger, logging.Logger) else None


def shown(value: Any) -> str:
    kind = type(value)
    if issubclass(kind, type) or kind is types.FunctionType:
        return ".".join(name_of(value))
    return f"a {title_of(kind)}"


class Finder:
    """Objects of this process for rows of another."""

    def __init__(
        self, scope: Scope, code: CodeType, original: CodeType, prints: Fingerprints
    ) -> None:
        self.scope, self.prints = scope, prints
        self.objects: list[Any] = []
        self.of_frame = {"code": code, "original": original, "globals": scope.globals,
                         "builtins": scope.builtins}

    def find_all(self, rows: Iterable[Row]) -> list[Any]:
        """Errors: Stale, with the first object that is not as it was."""
        for how, text in rows:
            try:
                value = self.find(*how)
            except Exception as why:  # what it is found by is another thing here
                raise Stale(f"{how[0]} {how[1:]} is gone ({type(why).__name__})") from None
            if text:
                try:
                    now = self.prints.of(dict(value) if how[0] == "given" else value)
                except NoFingerprint as why:
                    raise Stale(f"{shown(value)}: {why}") from None
                if now != text:
                    raise Stale(change_of(value, text, now))
            self.objects.append(value)
        return self.objects

    def find(self, kind: str, *args: Any) -> Any:
        return FINDERS[kind](self, *args)


def _named(finder: Finder, module: str, name: str) -> Any:
    value = find_by_name(module, name) if name else sys.modules.get(module)
    if value is None:
        raise LookupError(name)
    return value


def change_of(value: Any, there: str, here: str) -> str:
    """What of an object is not as it was. there, here: its fingerprints."""
    name, place = shown(value), ""
    if type(value) is types.FunctionType:
        place = f" ({value.__code__.co_filename}:{value.__code__.co_firstlineno})"
        digests = [text.split()[2:3] for text in (there, here)]
        what = "the code" if digests[0] != digests[1] else "a default or attribute"
        return f"{what} of {name}{place} has changed"
    if issubclass(type(value), type) and there.split()[:2] == here.split()[:2]:
        return f"the class {name} has changed: its bases, functions or attributes"
    return f"{there[:120]} is now {here[:120]}"


WITH_ITEMS = Kinds(tuple, dict, list, types.MappingProxyType)
WITH_KEYS = Kinds(dict, types.MappingProxyType)


def _item(finder: Finder, row: int, key: Any) -> Any:
    container = finder.objects[row]
    if type(container) not in WITH_ITEMS:
        raise TypeError("it is no list, tuple or dict")
    return container[key]


def _item_by(finder: Finder, row: int, key: int) -> Any:
    return _item(finder, row, finder.objects[key])


def _nth(items: Callable[[Any], Iterable[Any]], finder: Finder, row: int, number: int) -> Any:
    container = finder.objects[row]
    if type(container) not in WITH_KEYS:
        raise TypeError("it is no dict")
    return next(islice(items(container), number, None))


def _operator(finder: Finder, *names: str) -> Any:
    return functools.reduce(getattr, names, torch.ops)


def _signature(finder: Finder, row: int, bound: bool) -> Signature:
    function = finder.objects[row]
    return signature(types.MethodType(function, object()) if bound else function)


def _wrapper(finder: Finder, row: int, name: str) -> types.MethodWrapperType:
    """Found in the class of the object, as the interpreter does: no code of the program runs."""
    value = finder.objects[row]
    for cls in _mro(type(value)):
        if name in _class_dict(cls):
            descriptor = _class_dict(cls)[name]
            if type(descriptor) is types.WrapperDescriptorType:
                return descriptor.__get__(value, type(value))
            break
    raise LookupError(name)


FINDERS: dict[str, Any] = {
    "name": _named,
    "place": lambda finder, source: source.fetch(finder.scope),
    "type": lambda finder, row, _=None: type(finder.objects[row]),
    "part": lambda finder, row, name: getattr(finder.objects[row], name),
    "part of module": lambda finder, row, name: dict_of_module(finder.objects[row])[name],
    "member": lambda finder, row, name: _class_dict(finder.objects[row])[name],
    "member of": lambda finder, row, name: _class_dict(finder.objects[row])["_member_map_"][name],
    "item": _item,
    "item by": _item_by,
    "key": functools.partial(_nth, iter),
    "value": functools.partial(_nth, lambda container: container.values()),
    "nested": lambda finder, row, number: finder.objects[row].co_consts[number],
    "frame": lambda finder, name: finder.of_frame[name],
    "variable function": lambda finder, name: getattr(torch._C._VariableFunctions, name),
    "bound": lambda finder, row, name: getattr(finder.objects[row], name),
    "operator": _operator,
    "operators": _operator,
    "interpreter's": lambda finder, name: INTERPRETERS[name],
    "signature": _signature,
    "given": lambda finder, row: finder.objects[row](),
    "logger": lambda finder, name: known_logger(name),
    "wrapper": _wrapper,
}
