"""How the new bytecode makes the real object of a Var: one row per class of Var.

Sourced values are fetched, graph results lie in locals, constants are loaded, the rest is built.
An object that is needed twice is built once and kept in a local; containers and objects are kept
before they are filled, so that cycles close.
"""

from __future__ import annotations

import collections
import sys
import types
import weakref
from collections import Counter
from collections.abc import Callable, Iterable
from types import CodeType
from typing import Any, TypeVar, cast

from dynamo import hook
from dynamo.base.errors import Break
from dynamo.base.instances import hides_dict, own_dict
from dynamo.bytecode.emit import Emitter
from dynamo.codegen.fetch import Fetcher
from dynamo.guards.shape_code import READERS
from dynamo.hook import Disabled
from dynamo.symbolic import stack_values
from dynamo.symbolic.rules import contexts
from dynamo.symbolic.symbols import FUNCTIONS
from dynamo.symbolic.trace_result import ContentsEffect, Effect
from dynamo.symbolic.variables import (
    classes,
    exceptions,
    functions,
    lists,
    weakrefs,
)
from dynamo.symbolic.variables import objects as object_vars
from dynamo.symbolic.variables.base import Var
from dynamo.symbolic.variables.cells import CellVar
from dynamo.symbolic.variables.constant import ConstVar, NullVar
from dynamo.symbolic.variables.dict_views import DictViewVar
from dynamo.symbolic.variables.dicts import DictVar, SetVar
from dynamo.symbolic.variables.modules import ModuleSliceVar
from dynamo.symbolic.variables.numbers import SymbolicNumber, is_open
from dynamo.symbolic.variables.open_text import OpenText, is_open_text
from dynamo.symbolic.variables.supers import SuperVar
from dynamo.symbolic.variables.tensor import TensorVar

V = TypeVar("V", bound=Var)
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
    (graph results, shared objects); unfinished: classes that are being made, and the classes that
    can be finished only after them; building: what is being made, and whether a part of it has
    made it already.
    """

    def __init__(
        self, emitter: Emitter, fetcher: Fetcher, counts: Counter[Var], place_of: PlaceOf
    ) -> None:
        self.emitter = emitter
        self.fetcher = fetcher
        self.counts = counts
        self.place_of = place_of
        self.places: dict[Var, str] = {}
        self.unfinished: dict[Var, list[Var]] = {}
        self.building: dict[Var, bool] = {}

    def load(self, var: Var) -> None:
        """Pushes the real object of the Var."""
        place = self.places.get(var)
        if place is not None:
            self.emitter.load_fast(place)
        elif is_fetched(var):
            assert var.source is not None
            self.fetcher.load(var.source)
        elif isinstance(var, ConstVar) and not (is_open(var) or is_open_text(var)):
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
        self.emitter.emit("CALL_FUNCTION_EX", 1)

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


@rebuilds(SymbolicNumber)
def number(rebuilder: Rebuilder, var: SymbolicNumber) -> None:
    """The expression is computed again from the facts that it is made of."""
    payload = var.symbols.payload(var.text)
    function = eval(f"lambda {', '.join(payload.facts)}: {payload.expression}", dict(FUNCTIONS))
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


@rebuilds(OpenText)
def text(rebuilder: Rebuilder, var: OpenText) -> None:
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


# -- containers --------------------------------------------------------------------------------


@rebuilds(lists.TupleVar)
def tuple_(rebuilder: Rebuilder, var: lists.TupleVar) -> None:
    rebuilder.build("BUILD_TUPLE", var.items)


@rebuilds(lists.SizeVar)
def size(rebuilder: Rebuilder, var: lists.SizeVar) -> None:
    rebuilder.emitter.start_call_const(var.kind)
    rebuilder.build("BUILD_TUPLE", var.items)
    rebuilder.emitter.call(1)


@rebuilds(lists.NamedTupleVar)
def named_tuple(rebuilder: Rebuilder, var: lists.NamedTupleVar) -> None:
    if lists.is_structseq(var.cls):
        rebuilder.emitter.start_call_const(var.cls)
        rebuilder.build("BUILD_TUPLE", var.items)
        rebuilder.emitter.call(1)
        return
    rebuilder.emitter.start_call_const(tuple.__new__)
    if var.class_var is not None:
        rebuilder.load(var.class_var)
    else:
        rebuilder.emitter.load_const(var.cls)
    rebuilder.build("BUILD_TUPLE", var.items)
    rebuilder.emitter.call(2)


@rebuilds(lists.ListVar)
def list_(rebuilder: Rebuilder, var: lists.ListVar) -> None:
    if rebuilder.counts[var] > 1:
        rebuilder.build("BUILD_LIST", [])
        rebuilder.fill(var, list.extend, var.items)
    else:
        rebuilder.build("BUILD_LIST", var.items)


@rebuilds(ModuleSliceVar)
def module_slice(rebuilder: Rebuilder, var: ModuleSliceVar) -> None:
    rebuilder.emitter.start_call_const(var.kind)
    rebuilder.build("BUILD_LIST", var.items)
    rebuilder.emitter.call(1)


@rebuilds(lists.DequeVar)
def deque(rebuilder: Rebuilder, var: lists.DequeVar) -> None:
    rebuilder.emitter.start_call_const(collections.deque)
    rebuilder.build("BUILD_TUPLE", [])
    rebuilder.emitter.load_const(var.limit)
    rebuilder.emitter.call(2)
    rebuilder.fill(var, collections.deque.extend, var.items)


@rebuilds(DictVar)
def dict_(rebuilder: Rebuilder, var: DictVar) -> None:
    kind = var.python_type()
    items: list[Var] = [part for pair in var.entries.values() for part in pair]
    if kind is dict:
        rebuilder.emitter.emit("BUILD_MAP", 0)
    elif kind is collections.defaultdict:
        rebuilder.call_const(kind, var.factory if var.factory is not None else ConstVar(None))
    else:
        rebuilder.call_const(kind)
    if kind is dict and rebuilder.counts[var] <= 1:
        for index in range(0, len(items), 2):
            rebuilder.load(items[index])
            rebuilder.load(items[index + 1])
            rebuilder.emitter.emit("MAP_ADD", 1)
        return
    rebuilder.keep(var)
    store_items(rebuilder, var, var, kind)


def store_items(rebuilder: Rebuilder, var: Var, content: DictVar, kind: type) -> None:
    """Stores the entries into the dict that is kept for `var`, one by one."""
    for key, value in content.entries.values():
        rebuilder.emitter.start_call_const(store_method(kind))
        rebuilder.load(var)
        rebuilder.load(key)
        rebuilder.load(value)
        rebuilder.emitter.call(3)
        rebuilder.emitter.emit("POP_TOP")


def store_method(kind: type) -> Any:
    """How a key is stored without running overrides."""
    ordered = issubclass(kind, collections.OrderedDict)
    return collections.OrderedDict.__setitem__ if ordered else dict.__setitem__


@rebuilds(DictViewVar)
def dict_view(rebuilder: Rebuilder, var: DictViewVar) -> None:
    def load() -> None:
        rebuilder.load(var.mapping)
        rebuilder.emitter.load_attr(var.part)

    rebuilder.emitter.start_call(load)
    rebuilder.emitter.call(0)


@rebuilds(SetVar)
def set_(rebuilder: Rebuilder, var: SetVar) -> None:
    kind = var.python_type()
    rebuilder.emitter.start_call_const(kind)
    rebuilder.build("BUILD_LIST", list(var.entries.values()))
    rebuilder.emitter.call(1)


@rebuilds(lists.RangeVar)
def range_(rebuilder: Rebuilder, var: lists.RangeVar) -> None:
    rebuilder.emitter.load_const(var.value)


@rebuilds(lists.SliceVar)
def slice_(rebuilder: Rebuilder, var: lists.SliceVar) -> None:
    rebuilder.call_const(slice, var.start, var.stop, var.step)


# -- callables ---------------------------------------------------------------------------------


@rebuilds(functions.FunctionVar)
def function(rebuilder: Rebuilder, var: functions.FunctionVar) -> None:
    emitter = rebuilder.emitter
    emitter.start_call_const(types.FunctionType)
    emitter.load_const(var.code)
    emitter.load_const(var.globals)
    emitter.load_const(var.name)
    if var.asked_defaults is not None:
        rebuilder.load(var.asked_defaults)
    elif var._defaults:
        rebuilder.build("BUILD_TUPLE", var._defaults)
    else:
        emitter.load_const(None)
    # Cells may refer to the function itself: it must be kept before their contents are stored.
    cells = list(var._closure or ())
    late = [cell for cell in cells if not is_fetched(cell) and cell not in rebuilder.places]
    for item in late:
        rebuilder.call_const(types.CellType)
        rebuilder.places[item] = emitter.store_fresh("cell")
    if cells:
        rebuilder.build("BUILD_TUPLE", cells)
    else:
        emitter.load_const(None)
    emitter.call(5)
    rebuilder.keep(var)
    if var._kwdefaults:
        emitter.emit("BUILD_MAP", 0)
        for name, value in var._kwdefaults.items():
            emitter.load_const(name)
            rebuilder.load(value)
            emitter.emit("MAP_ADD", 1)
        rebuilder.load(var)
        emitter.store_attr("__kwdefaults__")
    for item in late:
        for contents in item.children():
            rebuilder.load(contents)
            rebuilder.load(item)
            emitter.store_attr("cell_contents")
    if var.qualname != var.name:
        emitter.load_const(var.qualname)
        rebuilder.load(var)
        emitter.store_attr("__qualname__")
    if var.annotations is not None:
        _annotations(rebuilder, var)


def _annotations(rebuilder: Rebuilder, var: functions.FunctionVar) -> None:
    assert var.annotations is not None
    pairs = getattr(var.annotations, "items", None)
    if isinstance(pairs, list):
        rebuilder.build("BUILD_MAP" if not pairs else "BUILD_TUPLE", pairs)
        if pairs:
            rebuilder.emitter.raw.instructions[-1].name = "BUILD_MAP"
            rebuilder.emitter.raw.instructions[-1].arg = len(pairs) // 2
    else:
        rebuilder.load(var.annotations)
    rebuilder.load(var)
    rebuilder.emitter.store_attr("__annotations__")


@rebuilds(functions.MethodVar)
def method(rebuilder: Rebuilder, var: functions.MethodVar) -> None:
    value = getattr(var.function, "value", None)
    if isinstance(value, types.MethodDescriptorType | types.WrapperDescriptorType):
        if var.receiver.python_type() is types.NoneType:  # for `__get__`, None is no receiver
            rebuilder.call_const(getattr, var.receiver, ConstVar(value.__name__))
            return
        # Not `receiver.name`: a subclass may hide the method. CPython crashes without the class.
        rebuilder.call_const(value.__get__, var.receiver, value.__objclass__)
    else:
        rebuilder.call_const(types.MethodType, var.function, var.receiver)


@rebuilds(functions.NamedMethodVar)
def named_method(rebuilder: Rebuilder, var: functions.NamedMethodVar) -> None:
    rebuilder.call_const(getattr, var.receiver, ConstVar(var.name))


@rebuilds(functions.BuiltinVar)
def builtin(rebuilder: Rebuilder, var: functions.BuiltinVar) -> None:
    rebuilder.emitter.load_const(var.value)


@rebuilds(functions.PartialVar)
def partial(rebuilder: Rebuilder, var: functions.PartialVar) -> None:
    args, keywords = var.args, var.keywords
    assert isinstance(args, lists.TupleVar) and isinstance(keywords, DictVar)
    if max(rebuilder.counts[part] for part in (var, args, keywords)) <= 1:
        names = {key.as_constant(): value for key, value in keywords.entries.values()}
        rebuilder.call_keywords(var.python_type(), [var.function, *args.items], names)
    else:
        _partial_of_parts(rebuilder, var)
    if var.attributes and var not in rebuilder.places:
        rebuilder.keep(var)
    for name, value in var.attributes.items():
        rebuilder.load(value)
        rebuilder.load(var)
        rebuilder.emitter.store_attr(name)


def _partial_of_parts(rebuilder: Rebuilder, var: functions.PartialVar) -> None:
    """One that keeps the very tuple and dict."""
    rebuilder.call_const(var.python_type(), var.function)
    rebuilder.keep(var)
    rebuilder.emitter.start_call_const(var.python_type().__setstate__)  # type: ignore[attr-defined]
    rebuilder.load(var)
    rebuilder.build("BUILD_TUPLE", (var.function, var.args, var.keywords, ConstVar(None)))
    rebuilder.emitter.call(2)
    rebuilder.emitter.emit("POP_TOP")


@rebuilds(classes.ClassVar)
def class_(rebuilder: Rebuilder, var: classes.ClassVar) -> None:
    rebuilder.emitter.load_const(var.cls)


# -- objects -----------------------------------------------------------------------------------

# Built-in base -> how an instance of a subclass is filled from its built-in part.
FILLED = {list: list.extend, dict: dict.update, set: set.update}
OWN_NEW = (int, float, complex, str, bytes, tuple, frozenset)


# Built-in classes that insist on their own `__new__`.
STATIC_NEW = (collections.OrderedDict, types.SimpleNamespace)


@rebuilds(object_vars.ObjectVar)
def object_(rebuilder: Rebuilder, var: object_vars.ObjectVar) -> None:
    cls, content = var.cls, var.content
    base = next((kind for kind in (*FILLED, *OWN_NEW) if issubclass(cls, kind)), object)
    if var.class_var is not None:
        rebuilder.load(var.class_var)
        rebuilder.emitter.emit("POP_TOP")
        if var in rebuilder.places:  # the class refers to this instance
            rebuilder.load(var)
            return
    if base in OWN_NEW and content is not None:
        rebuilder.call_const(base.__new__, var.class_var or cls, content)
        return
    new = next((kind for kind in STATIC_NEW if issubclass(cls, kind)), base).__new__
    rebuilder.call_const(new, var.class_var or cls)
    rebuilder.keep(var)
    if isinstance(content, DictVar):
        store_items(rebuilder, var, content, cls)
    elif content is not None and base in FILLED:
        rebuilder.emitter.start_call_const(FILLED[base])
        rebuilder.load(var)
        rebuilder.load(content)
        rebuilder.emitter.call(2)
        rebuilder.emitter.emit("POP_TOP")


def set_outer_context(error: BaseException) -> None:
    """What raising does while a caller handles an exception."""
    handled = sys.exception()
    if handled is not None:
        error.__context__ = handled


@rebuilds(exceptions.ExceptionVar)
def exception(rebuilder: Rebuilder, var: exceptions.ExceptionVar) -> None:
    plain_init = isinstance(var.cls.__init__, types.WrapperDescriptorType)
    if isinstance(var, exceptions.GroupVar):
        parts = var.message, var.sequence
        rebuilder.call_const(BaseExceptionGroup.__new__, var.class_var or var.cls, *parts)
    elif var.class_var is not None or isinstance(var.cls.__new__, types.FunctionType):
        rebuilder.call_const(var.base().__new__, var.class_var or var.cls, *var.args)
    elif plain_init:
        rebuilder.call_const(var.cls, *var.args)
    else:
        rebuilder.call_const(var.cls.__new__, var.cls, *var.args)
    rebuilder.keep(var)
    for name, value in (("__cause__", var.cause), ("__context__", var.context), *var.named.items()):
        if value.source is not None or not (value.is_constant() and value.as_constant() is None):
            rebuilder.load(value)
            rebuilder.load(var)
            rebuilder.emitter.store_attr(name)
    if var.raised_bare:
        rebuilder.call_const(set_outer_context, var)
        rebuilder.emitter.emit("POP_TOP")
    if var.suppress_context.as_constant():
        rebuilder.emitter.load_const(True)
        rebuilder.load(var)
        rebuilder.emitter.store_attr("__suppress_context__")
    if isinstance(var, exceptions.GroupVar) and var.args != [var.message, var.sequence]:
        rebuilder.build("BUILD_TUPLE", var.args)
        rebuilder.load(var)
        rebuilder.emitter.store_attr("args")
    if not var.traceback.is_constant():
        rebuilder.load(var.traceback)
        rebuilder.load(var)
        rebuilder.emitter.store_attr("__traceback__")


@rebuilds(contexts.GraphContextVar)
def graph_context(rebuilder: Rebuilder, var: contexts.GraphContextVar) -> None:
    rebuilder.call_const(contexts.MAKERS[var.kind], *map(ConstVar, var.args))


@rebuilds(exceptions.TracebackVar)
def traceback(rebuilder: Rebuilder, var: exceptions.TracebackVar) -> None:
    """All entries up to one that something else needs, too, in one call."""
    places, rest = [], cast(Var, var)
    while isinstance(rest, exceptions.TracebackVar) and rest not in rebuilder.places:
        if rest is not var and rebuilder.counts[rest] > 1:
            break
        places.append(rebuilder.place_of(rest.code, rest.instruction, rest.globals))
        rest = rest.following
    rebuilder.emitter.start_call_const(hook.traceback)
    rebuilder.load(rest)
    rebuilder.emitter.load_const(tuple(places))
    rebuilder.emitter.call(2)


@rebuilds(exceptions.OutsideTracebackVar)
def outside_traceback(rebuilder: Rebuilder, var: exceptions.OutsideTracebackVar) -> None:
    rebuilder.load(var.exception)
    rebuilder.emitter.load_attr("__traceback__")


@rebuilds(weakrefs.WeakRefVar)
def weak_reference(rebuilder: Rebuilder, var: weakrefs.WeakRefVar) -> None:
    if var.target is None:
        raise Break("rebuild_unknown", repr(var))
    rebuilder.call_const(weakref.ref, var.target)


@rebuilds(object_vars.InstanceDictVar, object_vars.InstanceEntriesVar)
def instance_dict(
    rebuilder: Rebuilder, var: object_vars.InstanceDictVar | object_vars.InstanceEntriesVar
) -> None:
    if hides_dict(var.owner.python_type()):
        rebuilder.call_const(own_dict, var.owner)
    else:
        rebuilder.call_const(object.__getattribute__, var.owner, "__dict__")


@rebuilds(SuperVar)
def super_(rebuilder: Rebuilder, var: SuperVar) -> None:
    rebuilder.call_const(super, var.start_var, var.receiver)


# -- iterators ---------------------------------------------------------------------------------
