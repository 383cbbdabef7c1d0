"""How the new bytecode makes the real object of a Var: one row per class of Var.

Sourced values are fetched, graph results lie in locals, constants are loaded, the rest is built.
An object that is needed twice is built once and kept in a local; containers and objects are kept
before they are filled, so that cycles close. Rows for what is no number, text or cell are in the
modules `rebuild_*`.
"""

from __future__ import annotations

import types
from collections import Counter
from collections.abc import Callable, Iterable
from types import CodeType
from typing import Any, NamedTuple

from dynamo import hook
from dynamo.base.errors import Break
from dynamo.bytecode.emit import Emitter
from dynamo.codegen.fetch import Fetcher
from dynamo.guards.shape_code import READERS
from dynamo.hook import Disabled
from dynamo.symbolic.core import stack_values
from dynamo.symbolic.core.constant import ConstVar, NullVar
from dynamo.symbolic.core.trace_result import ContentsEffect, Effect
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.python.cells import CellVar
from dynamo.symbolic.shapes.numbers import SymbolicNumber, is_symbolic
from dynamo.symbolic.shapes.symbolic_text import SymbolicText, is_symbolic_text
from dynamo.symbolic.shapes.symbols import FUNCTIONS
from dynamo.symbolic.tensors.tensor import TensorVar

Row = Callable[["Rebuilder", Any], None]
PlaceOf = Callable[[CodeType, int, dict[str, Any] | None], hook.Place]
ROWS: dict[type[Var], Row] = {}


def rebuilds(*kinds: type[Var]) -> Callable[[Row], Row]:
    """Registers how Vars of these classes are made."""

    def register(row: Row) -> Row:
        for kind in kinds:
            ROWS[kind] = row
        return row

    return register


def is_fetched(var: Var) -> bool:
    """True for values that the new bytecode takes from where they are."""
    if isinstance(var, ConstVar):
        return var.source is not None and var._trace is not None
    return var.source is not None


def needed(roots: Iterable[Var], effects: Iterable[Effect]) -> Counter[Var]:
    """The Vars that must exist as real objects, with the number of places that need them."""
    changed = {effect.target for effect in effects if isinstance(effect, ContentsEffect)}
    counts: Counter[Var] = Counter()
    work = [*roots, *_effect_values(effects)]
    while work:
        var = work.pop()
        counts[var] += 1
        if counts[var] == 1 and (not is_fetched(var) or var in changed):
            work.extend(var.children())
    return counts


def _effect_values(effects: Iterable[Effect]) -> list[Var]:
    values: list[Var] = []
    for effect in effects:
        values += getattr(effect, "items", ())
        values += [arg for arg in getattr(effect, "args", ()) if isinstance(arg, Var)]
        for name in ("target", "cell", "iterator", "value"):
            value = getattr(effect, name, None)
            if isinstance(value, Var):
                values.append(value)
    return values


class Rebuilder:
    """Pushes real values in one frame.

    place_of: the place of an instruction, for a traceback; places: locals that hold values already
    (graph results, shared objects); building: what is being made, and whether a part of it has made
    it already; replayed: sets whose steps the new code has done.
    """

    def __init__(
        self, emitter: Emitter, fetcher: Fetcher, counts: Counter[Var], place_of: PlaceOf
    ) -> None:
        self.emitter = emitter
        self.fetcher = fetcher
        self.counts = counts
        self.place_of = place_of
        self.places: dict[Var, str] = {}
        self.building: dict[Var, bool] = {}
        self.replayed: set[Var] = set()

    def load(self, var: Var) -> None:
        """Pushes the real object of the Var."""
        place = self.places.get(var)
        if place is not None:
            self.emitter.load_fast(place)
        elif is_fetched(var):
            assert var.source is not None
            self.fetcher.load(var.source)
        elif isinstance(var, ConstVar) and not (
            is_symbolic(var) or is_symbolic_text(var) or var.holds_symbolic()
        ):
            self.emitter.load_const(var.value)
        else:
            row = find_row(type(var))
            if row is None:
                raise Break("rebuild_unknown", repr(var))
            outermost = var not in self.building
            self.building[var] = not outermost
            row(self, var)
            made_by_parts = outermost and self.building.pop(var)
            is_shared = self.counts[var] > 1 and not isinstance(var, NullVar)
            if is_shared and (made_by_parts or var not in self.places):
                self.keep(var)

    def keep(self, var: Var) -> None:
        """Keeps the value on the top of the stack in a local; it stays on the stack, unless its
        parts refer to it and have made it meanwhile: that one takes its place."""
        place = self.places.get(var)
        if place is None:
            self.emitter.emit("COPY", 1)
            self.places[var] = self.emitter.store_fresh("kept")
        else:
            self.emitter.emit("POP_TOP")
            self.emitter.load_fast(place)

    def expect_filled(self, part: Var) -> None:
        """Breaks where what is being made reads a part that holds it, and is not filled yet."""
        if part in self.building:
            raise Break("rebuild_unknown", f"what {part!r} holds reads it")

    def load_all(self, values: Iterable[Var]) -> int:
        count = 0
        for count, value in enumerate(values, 1):  # noqa: B007
            self.load(value)
        return count

    def build(self, op: str, values: Iterable[Var]) -> None:
        """A display: BUILD_LIST and the like."""
        self.emitter.emit(op, self.load_all(values))

    def call_const(self, function: Any, *args: Any) -> None:
        """Calls a real callable with Vars and constants."""
        self.emitter.start_call_const(function)
        for arg in args:
            if isinstance(arg, Var):
                self.load(arg)
            else:
                self.emitter.load_const(arg)
        self.emitter.call(len(args))

    def call_keywords(
        self, function: Any, args: Iterable[Var], kwargs: dict[str, Var]
    ) -> None:
        """`function(*args, **kwargs)`, for a real function or a Var."""
        if isinstance(function, Var):
            self.emitter.start_call(lambda: self.load(function))
        else:
            self.emitter.start_call_const(function)
        self.build("BUILD_TUPLE", args)
        self.emitter.emit("BUILD_MAP", 0)
        for name, value in kwargs.items():
            self.emitter.load_const(name)
            self.load(value)
            self.emitter.emit("MAP_ADD", 1)
        self.emitter.call_spread(keywords=True)

    def fill(self, var: Var, function: Any, items: list[Var]) -> None:
        """`function(object, [items])` for the object on the top of the stack, kept."""
        self.keep(var)
        self.emitter.start_call_const(function)
        self.load(var)
        self.build("BUILD_LIST", items)
        self.emitter.call(2)
        self.emitter.emit("POP_TOP")


def find_row(kind: type[Var]) -> Row | None:
    """The row of the nearest base class."""
    for base in kind.__mro__:
        row = ROWS.get(base)
        if row is not None:
            return row
    return None


# -- stack and cells ---------------------------------------------------------------------------


@rebuilds(NullVar)
def null(rebuilder: Rebuilder, var: NullVar) -> None:
    rebuilder.emitter.emit("PUSH_NULL")


@rebuilds(TensorVar)
def tensor(rebuilder: Rebuilder, var: TensorVar) -> None:
    raise Break("rebuild_unknown", f"{var!r} is no graph output")


class Computes(NamedTuple):
    """What a function of numbers is made of: `RECIPE` in its dict says so."""

    names: tuple[str, ...]
    expression: str


RECIPE = "dynamo's recipe"


def number_function(names: tuple[str, ...], expression: str) -> Callable[..., Any]:
    """A function that computes an expression of the names.

    >>> number_function(("a", "b"), "max(a, b) + 1")(2, 3)
    4
    """
    function: Callable[..., Any] = eval(f"lambda {', '.join(names)}: {expression}", dict(FUNCTIONS))
    function.__dict__[RECIPE] = Computes(names, expression)
    return function


@rebuilds(SymbolicNumber)
def number(rebuilder: Rebuilder, var: SymbolicNumber) -> None:
    """The expression is recomputed from the facts that it is made of."""
    payload = var.symbols.payload(var.text)
    function = number_function(tuple(payload.facts), payload.expression)
    rebuilder.emitter.start_call_const(Disabled(function))
    for fact in payload.facts.values():
        if fact.what == "value":
            rebuilder.fetcher.load(fact.source)
            continue
        rebuilder.emitter.start_call_const(Disabled(READERS[fact.what]))
        rebuilder.fetcher.load(fact.source)
        rebuilder.emitter.load_const(fact.index)
        rebuilder.emitter.call(2)
    rebuilder.emitter.call(len(payload.facts))


@rebuilds(SymbolicText)
def text(rebuilder: Rebuilder, var: SymbolicText) -> None:
    rebuilder.call_const(Disabled(var.maker()), *var.children())


@rebuilds(stack_values.SavedExceptionVar)
def saved_exception(rebuilder: Rebuilder, var: stack_values.SavedExceptionVar) -> None:
    rebuilder.load(var.current if var.active else ConstVar(None))


@rebuilds(CellVar)
def cell(rebuilder: Rebuilder, var: CellVar) -> None:
    rebuilder.call_const(types.CellType)
    rebuilder.keep(var)
    for contents in var.children():
        rebuilder.load(contents)
        rebuilder.load(var)
        rebuilder.emitter.store_attr("cell_contents")
