"""The parts of a cached trace as bytes, and back: guards, sources, code.

In: values that hold real objects of the program. Out: bytes with a row number (`anchors.py`) for
each of those. Only plain values and the records named here are written as they are; all else is
`Uncacheable`. A continuation's code is written as the place where it goes on, and made again.

The reader finds no class and no function by a name that stands in the bytes: what they may name are
rows, `RECORDS` and `MAKERS`.
"""

from __future__ import annotations

import functools
import io
import pickle
from collections.abc import Callable, Mapping, Sequence
from types import CodeType, FunctionType
from typing import Any

import torch

from dynamo import hook
from dynamo.captures.anchors import BY_ROW, Anchors, shown
from dynamo.captures.fingerprints import Kinds
from dynamo.codegen.continuation import Continuations, Layout
from dynamo.codegen.rebuild import RECIPE, Computes, number_function
from dynamo.codegen.retry import Raising
from dynamo.guards import shape_code, sources
from dynamo.guards.kinds import TensorFacts
from dynamo.guards.records import Guard, UserLine
from dynamo.guards.states import state_of, upcoming
from dynamo.guards.weak import strongly
from dynamo.store.content import Stale
from dynamo.store.records import Uncacheable

FIELDS = ("co_argcount", "co_posonlyargcount", "co_kwonlyargcount", "co_nlocals", "co_stacksize",
          "co_flags", "co_code", "co_consts", "co_names", "co_varnames", "co_filename", "co_name",
          "co_qualname", "co_firstlineno", "co_linetable", "co_exceptiontable", "co_freevars",
          "co_cellvars")  # fmt: skip
SOURCES = tuple([kind for kind in vars(sources).values()
                 if isinstance(kind, type) and issubclass(kind, sources.Source)
                 and kind not in (sources.Source, sources.ObjectSource)])  # fmt: skip
RECORDS: dict[type, str] = {
    kind: kind.__qualname__
    for kind in (Guard, UserLine, TensorFacts, Layout, shape_code.Fact, shape_code.ShapeFacts,
                 *SOURCES)}  # fmt: skip
IDS_OF_RECORDS = {id(kind): name for kind, name in RECORDS.items()}
PLAIN = Kinds(int, float, complex, bool, str, bytes, type(None), tuple, frozenset, range, slice)
PLAIN_IDENTITIES = frozenset(map(id, PLAIN.kinds))
MUTABLE = Kinds(list, dict, set, bytearray)
SINGLES = {"...": ..., "NotImplemented": NotImplemented}
NAMED_BY_TORCH = (torch.dtype, torch.layout, torch.memory_format)


def _of_torch(name: str) -> Any:
    return getattr(torch, name.removeprefix("torch."))


def _function(code: CodeType, module_globals: dict[str, Any], name: str) -> FunctionType:
    return FunctionType(code, module_globals, name)


def _same(*parts: Any) -> CodeType:
    return CodeType(*parts)


def _continuation(*place: Any) -> CodeType:
    raise AssertionError("the reader has its own")


def _object(value: Any, name: str) -> sources.ObjectSource:
    return sources.ObjectSource(value, name)


def _partial(
    function: Callable[..., Any], args: tuple[Any, ...], items: tuple[tuple[str, Any], ...]
) -> Callable[..., Any]:
    return functools.partial(function, *args, **dict(items))


def _recipe(function: FunctionType) -> Computes | None:
    """What one of our functions of numbers is made of."""
    found = function.__dict__.get(RECIPE)
    return found if type(found) is Computes else None


def _upcoming_at(index: int) -> Callable[..., Any]:
    return functools.partial(upcoming, index=index)


MAKERS: dict[str, Callable[..., Any]] = {
    "object": _object, "raising": Raising, "disabled": hook.Disabled, "size": torch.Size,
    "of torch": _of_torch, "device": torch.device, "function": _function, "code": _same,
    "continuation": _continuation, "state of": state_of, "table values": sources.table_values,
    "upcoming": _upcoming_at, "partial": _partial, "number": number_function,
    **{f"reader of {what}": reader for what, reader in shape_code.READERS.items()},
}  # fmt: skip
NAMES_OF_MAKERS = {id(maker): name for name, maker in MAKERS.items()}


class Writer(pickle.Pickler):
    """in_code: whether lists and dicts are objects of the program, not plain data."""

    def __init__(
        self, out: io.BytesIO, anchors: Anchors | None, continuations: Continuations, *,
        in_code: bool = False, new_code: CodeType | None = None, graph: Any = None,
    ) -> None:
        super().__init__(out, protocol=5)
        self.anchors, self.continuations = anchors, continuations
        self.in_code, self.new_code, self.graph = in_code, new_code, graph
        self.named: set[int] = set()

    def row(self, value: Any) -> int:
        if self.anchors is None:
            raise Uncacheable(f"a place holds {shown(value)}")
        number = self.anchors.row(value)
        self.named.add(number)
        return number

    def persistent_id(self, value: Any) -> Any:
        kind = type(value)
        if id(kind) in PLAIN_IDENTITIES:  # most are: no call for them
            return None
        maker = NAMES_OF_MAKERS.get(id(value))
        if maker is not None:
            return maker
        if kind in MUTABLE:
            return self._of_container(value)
        if kind is CodeType or kind is FunctionType:
            return None if self._is_rebuilt(value) else self.row(value)
        if value is self.graph and value is not None:
            return "graph"
        if issubclass(kind, type):
            record = IDS_OF_RECORDS.get(id(value))
            return self.row(value) if record is None else ("record", record)
        if value is ... or value is NotImplemented:
            return ("single", repr(value) if value is NotImplemented else "...")
        if kind is functools.partial and value.func is upcoming:
            return None
        if kind is functools.partial and self.in_code:  # of an effect: one that the trace has made
            return None if self.anchors is None else self.anchors.known(value)
        return self.row(value) if issubclass(kind, BY_ROW) else None

    def _of_container(self, value: Any) -> int | None:
        if not self.in_code:
            known = None if self.anchors is None else self.anchors.known(value)
            return known if known is None else self.row(value)
        if type(value) is dict:
            return self.row(value)
        raise Uncacheable(f"its code holds {shown(value)}")

    def _is_rebuilt(self, value: Any) -> bool:
        if type(value) is CodeType:
            return value is self.new_code or self.continuations.is_continuation(value)
        return _recipe(value) is not None or self.continuations.is_continuation(value.__code__)

    def reducer_override(self, value: Any) -> Any:
        kind = type(value)
        if kind is FunctionType:
            recipe = _recipe(value)
            if recipe is not None:
                return MAKERS["number"], tuple(recipe)
            return MAKERS["function"], (value.__code__, value.__globals__, value.__name__)
        if kind is CodeType:
            return self._reduce_code(value)
        if kind is sources.ObjectSource:
            held = strongly(value.held)
            if held is None and value.held is not None:
                raise Uncacheable(f"it refers to {value.name}, which is gone")
            if type(held) in MUTABLE:
                self.row(held)  # an object of the program: guards look into it
            return MAKERS["object"], (held, value.name)
        if kind is Raising:
            return MAKERS["raising"], tuple(value)
        if kind is hook.Disabled:
            return MAKERS["disabled"], (value.function,)
        if kind is functools.partial and value.func is upcoming:
            return MAKERS["upcoming"], (value.keywords["index"],)
        if kind is functools.partial:
            return MAKERS["partial"], (value.func, value.args, tuple(value.keywords.items()))
        if kind is torch.Size:
            return MAKERS["size"], (tuple(value),)
        if issubclass(kind, NAMED_BY_TORCH):
            return MAKERS["of torch"], (str(value),)
        if kind is torch.device:
            return MAKERS["device"], (str(value),)
        if id(kind) in IDS_OF_RECORDS:
            return kind, tuple([getattr(value, name) for name in value.__dataclass_fields__])
        if kind in PLAIN:
            return NotImplemented
        raise Uncacheable(f"it holds {shown(value)}")

    def _reduce_code(self, value: CodeType) -> Any:
        if value is self.new_code:
            return MAKERS["code"], tuple([getattr(value, name) for name in FIELDS])
        known = self.continuations.record(value)
        return MAKERS["continuation"], (
            known.original, known.instruction, known.layout, known.form,
            tuple(sorted(self.continuations.carried(value), key=repr)))


class Reader(pickle.Unpickler):
    """objects: of the rows. graph: what the new code calls."""

    def __init__(
        self, content: bytes, objects: Sequence[Any] | Mapping[int, Any],
        continuations: Continuations, graph: Any = None,
    ) -> None:
        super().__init__(io.BytesIO(content))
        self.objects, self.continuations, self.graph = objects, continuations, graph

    def persistent_load(self, name: Any) -> Any:
        if type(name) is int:
            return self.objects[name]
        if name == "graph":
            return self.graph
        if name == "continuation":
            return self.continuation
        if type(name) is tuple:
            kind, key = name
            return SINGLES[key] if kind == "single" else KINDS[key]
        return MAKERS[name]

    def find_class(self, module: str, name: str) -> Any:
        raise Stale(f"its bytes name {module}.{name}")

    def continuation(
        self, original: CodeType, instruction: int, layout: Layout, form: str, carried: Any
    ) -> CodeType:
        """The code of a continuation, made here."""
        code = self.continuations.get(original, instruction, layout, form).code
        self.continuations.carry(code, set(carried))
        return code


KINDS = {name: kind for kind, name in RECORDS.items()}
