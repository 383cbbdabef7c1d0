"""What a trace takes as fixed without a guard, which another process has to look at again.

Nothing rebinds `torch.relu` while a program runs, so no call looks. But the next process may have
another one there, and a trace that is kept for it (`dynamo/captures/`) must know what was read.

In: what the evaluator reads without a guard. Out: the reads, the code that was traced, the answers
of functions that were called, or why the trace can't be cached for another process.
"""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

import torch

from dynamo.guards.records import Guard
from dynamo.guards.sources import (
    AttrSource,
    DictSource,
    ItemSource,
    ModuleSource,
    ObjectSource,
    Source,
)


class Unguarded:
    """One per trace.

    reads: values by their places. codes: traced code objects, by identity. answers: (function,
    arguments, keywords, result) of calls that were made. signatures: with their functions, and
    whether these are bound. constructed: wrapper tensors that constructors have made of fakes (see
    `symbolic/tensors/constructed.py`). given: functions that keep what they have given, and the
    dicts that these are. about_gpus: a function whose answer about GPUs is a constant of the
    trace. reason: why another process can't use the trace, empty where it can.
    """

    def __init__(self, trace: Any = None) -> None:
        self.reads: dict[Source, Any] = {}
        self.codes: dict[int, CodeType] = {}
        self.answers: list[tuple[Any, list[Any], dict[str, Any], Any]] = []
        self.signatures: list[tuple[inspect.Signature, Any, bool]] = []
        self.constructed: list[Any] = []
        self.given: list[tuple[Any, dict[str, Any]]] = []
        self.about_gpus = ""
        self.reason = ""
        self._guarded: set[tuple[int, int]] = set()

    def read(self, place: Source, value: Any) -> None:
        """The value was taken as the one that always stands there."""
        self.reads.setdefault(place, value)

    def read_name(self, module: ModuleType, name: str, value: Any) -> None:
        """The same of a module's attribute."""
        title = module.__name__
        if isinstance(module, torch._ops._OpNamespace):
            self.reads.setdefault(AttrSource(ObjectSource(module, title), name), value)
            return
        if sys.modules.get(title) is not module:
            self.refuse(f"it reads {title}.{name}, of a module that is not in sys.modules")
        self.reads.setdefault(ItemSource(DictSource(ModuleSource(title)), name), value)

    def answer(
        self, function: Any, args: list[Any], kwargs: dict[str, Any], result: Any
    ) -> None:
        """A function of the program was called, and its result is a constant of the trace."""
        self.answers.append((function, args, kwargs, result))

    def keep(self, function: Any, result: dict[str, Any]) -> None:
        """A function of no arguments, which runs once in a process, has given this."""
        self.given.append((function, result))

    def construct(self, made: Any) -> None:
        """A constructor of the program has run on fakes."""
        if made not in self.constructed:
            self.constructed.append(made)

    def is_subclass(self, cls: type, abstract: type, answer: bool) -> None:
        """`issubclass` was asked about an abstract class, with which others may be registered."""
        if (id(cls), id(abstract)) not in self._guarded:
            self._guarded.add((id(cls), id(abstract)))
            self.answer(issubclass, [cls, abstract], {}, answer)

    def ordered(self, values: Any) -> None:
        """The order of a set was asked for, which depends on hashes: those of texts are random."""
        if not all(map(has_same_hash, values)):
            self.refuse("it depends on the order of a set")

    def refuse(self, reason: str) -> None:
        self.reason = self.reason or reason

    def met(self, values: list[tuple[Any, Source | None]], searched: Iterable[type]) -> Met:
        """The record of the trace, which is about to forget all. values: the real objects that it
        has met, with their places; searched: classes in which attributes were looked up."""
        named: dict[int, tuple[Any, Source | None]] = {}
        classes = {id(cls): cls for cls in searched}
        for value, source in values:
            kind = type(value)
            classes[id(kind)] = kind
            if issubclass(kind, type):
                classes[id(value)] = value
            elif issubclass(kind, NAMED):
                named[id(value)] = value, source
            elif isinstance(value, ALIASES) and all(isinstance(each, type) for each in _of(value)):
                classes.update((id(each), each) for each in _of(value))
            elif source is not None and is_nowhere(source):
                self.refuse(f"it holds a {kind.__qualname__} that has no place")
        return Met(tuple(named.values()), tuple(classes.values()), dict(self.reads),
                   tuple(self.codes.values()), tuple(self.answers), tuple(self.signatures),
                   tuple(self.constructed), tuple(self.given), self.about_gpus, self.reason)


ALIASES = (types.GenericAlias, types.UnionType)


def _of(alias: Any) -> Iterator[Any]:
    """What `list[int]`, `Callable[[int], bool]` or `list[int] | None` is made of.

    >>> list(_of(dict[str, int | None]))
    [<class 'dict'>, <class 'str'>, <class 'int'>, <class 'NoneType'>]
    """
    if isinstance(alias, types.GenericAlias):
        yield alias.__origin__
    for part in alias.__args__:
        yield from _of(part) if isinstance(part, ALIASES) else (part,)


def has_same_hash(value: Any) -> bool:
    """True for numbers: hashes of texts are random, and those of None and of a NaN are addresses.

    >>> has_same_hash(1.5), has_same_hash(None), has_same_hash(float("nan"))
    (True, False, False)
    """
    kind = type(value)
    number = kind is int or kind is bool or kind is float or kind is complex
    return number and value == value


@dataclass(frozen=True, slots=True)
class Met:
    """What a trace has met. named: functions, modules and descriptors with their places, classes:
    classes; the rest: see `Unguarded`."""

    named: tuple[tuple[Any, Source | None], ...]
    classes: tuple[type, ...]
    reads: dict[Source, Any]
    codes: tuple[CodeType, ...]
    answers: tuple[tuple[Any, list[Any], dict[str, Any], Any], ...]
    signatures: tuple[tuple[inspect.Signature, Any, bool], ...]
    constructed: tuple[Any, ...]
    given: tuple[tuple[Any, dict[str, Any]], ...]
    about_gpus: str
    reason: str


# What has a name by which another process finds it, or parts that have.
NAMED = (
    FunctionType, BuiltinFunctionType, ModuleType, types.MethodDescriptorType, Enum,
    types.WrapperDescriptorType, types.ClassMethodDescriptorType, types.GetSetDescriptorType,
    types.MemberDescriptorType, types.MethodWrapperType, property, staticmethod, classmethod,
    inspect.Signature, functools.cached_property, functools.partial, functools._lru_cache_wrapper,
    torch._ops.OpOverload, torch._ops.OpOverloadPacket, torch._ops._OpNamespace, torch._ops._Ops,
)  # fmt: skip
# Constants of the trace, and what belongs to a function or class that has a name.
PLAIN = (int, float, complex, str, bytes, tuple, frozenset, type(None), torch.dtype, torch.device,
         torch.layout, torch.memory_format, types.CellType, types.MappingProxyType, range, slice)


# What dict_views.py calls its copy of what a signature, an enum or a settled class shows.
COPY_OF_PROXY = "items"


def is_nowhere(source: Source) -> bool:
    """True for an object that another process does not find by a name."""
    if not isinstance(source, ObjectSource) or source.name == "constant":
        return False
    return not is_copy(source) and not issubclass(type(source.value), (type, *NAMED, *PLAIN))


def without_copies(guards: Iterable[Guard]) -> Iterator[Guard]:
    """The guards without what they say of copies that belong to the trace: it holds always."""
    for guard in guards:
        if guard.source is not None and is_copy(guard.source):
            continue
        if guard.kind == "DIFFERENT" and any(map(is_copy, guard.payload)):
            places = tuple([place for place in guard.payload if not is_copy(place)])
            if len(places) > 1:
                yield Guard(guard.kind, guard.source, places, guard.line)
            continue
        yield guard


def is_copy(source: Source) -> bool:
    """True for a dict that the trace has made, which no program sees."""
    return (isinstance(source, ObjectSource) and source.name == COPY_OF_PROXY
            and type(source.value) is dict)
