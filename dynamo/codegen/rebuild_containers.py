"""How the new bytecode makes lists, tuples, dicts, sets, their views, ranges and slices."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

from dynamo._C import fill_set, set_table, store_item, store_ordered
from dynamo.codegen.rebuild import Rebuilder, rebuilds
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.python import lists, ranges
from dynamo.symbolic.python.dict_views import DictViewVar
from dynamo.symbolic.python.dicts import DictVar
from dynamo.symbolic.python.sets import SetVar
from dynamo.symbolic.tensors.modules import ModuleSliceVar


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
    return store_ordered if ordered else store_item


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
    if var.twin.has_own_table():
        fill(rebuilder, lambda: rebuilder.emitter.load_const(kind), var)
        return
    rebuilder.emitter.start_call_const(kind)
    rebuilder.build("BUILD_LIST", list(var.entries.values()))
    rebuilder.emitter.call(1)


def fill(rebuilder: Rebuilder, load: Callable[[], None], var: SetVar) -> None:
    """Gives the table of `var`, and its items, to the set or type that `load` loads."""
    items = var.twin.items
    assert items is not None
    write_table(rebuilder, load, set_table(items), [item.var for item in items])


def write_table(
    rebuilder: Rebuilder, load: Callable[[], None], table: bytes, items: list[Var]
) -> None:
    rebuilder.emitter.start_call_const(fill_set)
    load()
    rebuilder.emitter.load_const(table)
    rebuilder.build("BUILD_LIST", items)
    rebuilder.emitter.call(3)


@rebuilds(ranges.RangeVar)
def range_(rebuilder: Rebuilder, var: ranges.RangeVar) -> None:
    rebuilder.emitter.load_const(var.value)


@rebuilds(ranges.SliceVar)
def slice_(rebuilder: Rebuilder, var: ranges.SliceVar) -> None:
    rebuilder.call_const(slice, var.start, var.stop, var.step)
