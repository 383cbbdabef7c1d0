"""Replays the effects of a trace on the real objects, in program order: one row per kind."""

from __future__ import annotations

import collections
import contextlib
import gc
import itertools
import threading
import types
from collections.abc import Callable
from typing import Any

from torch.utils.hooks import RemovableHandle

from dynamo._C import read_entry, store_attribute, store_item
from dynamo.base.errors import Break
from dynamo.base.instances import own_dict
from dynamo.codegen.rebuild import Rebuilder, is_fetched, rebuilds
from dynamo.codegen.rebuild_containers import store_method, write_table
from dynamo.codegen.rebuild_iterators import advance
from dynamo.hook import Disabled
from dynamo.symbolic.core import trace_result as tr
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.lookup import all_in_mro, class_dict, find_in_mro, is_own_method
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.python.binders import is_data_descriptor
from dynamo.symbolic.python.dicts import DictVar
from dynamo.symbolic.python.lists import DequeVar, ListVar
from dynamo.symbolic.python.objects import ObjectVar
from dynamo.symbolic.python.set_twins import Operand, Step
from dynamo.symbolic.python.sets import SetVar
from dynamo.symbolic.shapes.numbers import SymbolicNumber
from dynamo.symbolic.tensors.handles import HandleVar
from dynamo.symbolic.tensors.tensor import TensorVar


def hold(rebuilder: Rebuilder, effect: tr.Effect) -> None:
    """Keeps what the effect will replace in a local.

    What dies may run code of the program, which must find all effects made: a later one would write
    over what it does.
    """
    emitter = rebuilder.emitter
    if isinstance(effect, tr.StoreAttrEffect) and effect.raw and is_fetched(effect.target):
        if not replaces_plain(effect.value):
            rebuilder.call_const(read_entry, effect.target, effect.name)
            emitter.store_fresh("held")
    elif isinstance(effect, tr.ContentsEffect) and is_fetched(effect.target):
        rebuilder.call_const(gc.get_referents, effect.target)  # runs no `__iter__`
        emitter.store_fresh("held")
    elif isinstance(effect, tr.StoreItemEffect) and not replaces_plain(effect.value):
        rebuilder.call_const(dict.get, effect.target, effect.key)
        emitter.store_fresh("held")
    elif isinstance(effect, tr.StoreClassAttrEffect) and not replaces_plain(effect.value):
        emitter.start_call_const(own_class_entry)
        emitter.load_const(effect.cls)
        emitter.load_const(effect.name)
        emitter.call(2)
        emitter.store_fresh("held")
    elif isinstance(effect, tr.StoreGlobalEffect) and not replaces_plain(effect.value):
        emitter.start_call_const(dict.get)
        emitter.load_const(effect.module_globals)
        emitter.load_const(effect.name)
        emitter.call(2)
        emitter.store_fresh("held")


def own_class_entry(cls: type, name: str) -> Any:
    """What a class itself has by this name, None where it has nothing."""
    return class_dict(cls).get(name)


def replaces_plain(value: Var | None) -> bool:
    """True for a tensor or a number: what they take the place of is most often another one."""
    if isinstance(value, ConstVar):
        return value._value is not None
    return isinstance(value, TensorVar | SymbolicNumber)


def replay(rebuilder: Rebuilder, effect: tr.Effect) -> None:
    """Emits one effect."""
    ROWS[type(effect)](rebuilder, effect)


def _drop(rebuilder: Rebuilder) -> None:
    rebuilder.emitter.emit("POP_TOP")


def store_attr(rebuilder: Rebuilder, effect: tr.StoreAttrEffect) -> None:
    emitter = rebuilder.emitter
    hidden = effect.raw and is_hidden(effect.target.python_type(), effect.name)
    if effect.value is None or effect.renewed:
        delete = delete_hidden if hidden else delete_attribute
        rebuilder.call_const(delete, effect.target, effect.name)
        _drop(rebuilder)
    if not effect.raw:
        if effect.value is not None:
            rebuilder.load(effect.value)
            rebuilder.load(effect.target)
            emitter.store_attr(effect.name)
    elif effect.value is not None:
        store = store_hidden if hidden else raw_store(effect.target)
        rebuilder.call_const(store, effect.target, effect.name, effect.value)
        _drop(rebuilder)


def raw_store(target: Any) -> Any:
    """The built-in `__setattr__` below all overrides."""
    kind = target.python_type()
    if issubclass(kind, BaseException):
        return BaseException.__setattr__
    if issubclass(kind, threading.local):
        return threading.local.__setattr__
    stores = [store for _, store in all_in_mro(kind, "__setattr__") if not is_own_method(store)]
    return store_attribute if stores == [object.__setattr__] else object.__setattr__


def is_hidden(cls: type, name: str) -> bool:
    """True where a descriptor of the class stands before the entry of the instance dict."""
    raw = find_in_mro(cls, name)
    builtin = (types.MemberDescriptorType, types.GetSetDescriptorType)
    return raw is not None and not isinstance(raw, builtin) and is_data_descriptor(raw)


def store_hidden(target: Any, name: str, value: Any) -> None:
    dict.__setitem__(own_dict(target), name, value)


def delete_hidden(target: Any, name: str) -> None:
    dict.pop(own_dict(target), name, None)


def delete_attribute(target: Any, name: str) -> None:
    """Deletes an attribute, which may have been made in the trace, too."""
    with contextlib.suppress(AttributeError):
        local = issubclass(type(target), threading.local)  # which asks the object nothing
        (threading.local if local else object).__delattr__(target, name)


def contents(rebuilder: Rebuilder, effect: tr.ContentsEffect) -> None:
    target: Any = effect.target
    holder = target
    if isinstance(target, ObjectVar) and target.content is not None:
        holder = target.content
    for kind, row in CONTENTS:
        if isinstance(holder, kind):
            row(rebuilder, target, holder)
            return
    raise Break("rebuild_unknown", f"contents of {target!r}")


def store_key(rebuilder: Rebuilder, effect: tr.StoreItemEffect) -> None:
    rebuilder.call_const(store_item, effect.target, effect.key, effect.value)
    _drop(rebuilder)


def _list(rebuilder: Rebuilder, target: Any, holder: Any) -> None:
    emitter = rebuilder.emitter
    emitter.start_call_const(list.__setitem__)
    rebuilder.load(target)
    emitter.load_const(slice(None))
    rebuilder.build("BUILD_LIST", holder.items)
    emitter.call(3)
    _drop(rebuilder)


def write_items(target: collections.deque[Any], items: list[Any]) -> None:
    """Other items at the places that are there, which iterators do not mind."""
    for index, item in enumerate(items):
        target[index] = item


def _deque(rebuilder: Rebuilder, target: Any, holder: Any) -> None:
    emitter = rebuilder.emitter
    rebuilder.build("BUILD_LIST", holder.items)  # first: they may be fetched from the deque itself
    saved = emitter.store_fresh("items")
    if holder.changes:
        rebuilder.call_const(collections.deque.clear, target)
        _drop(rebuilder)
    emitter.start_call_const(collections.deque.extend if holder.changes else write_items)
    rebuilder.load(target)
    emitter.load_fast(saved)
    emitter.call(2)
    _drop(rebuilder)


MOST_STEPS = 1000  # that are made one by one


def _dict(rebuilder: Rebuilder, target: Any, holder: Any) -> None:
    kind = target.python_type()
    ordered = issubclass(kind, collections.OrderedDict)
    emitter = rebuilder.emitter
    # Build the new items first: they may be fetched from the dict itself.
    pairs = [part for pair in holder.entries.values() for part in pair]
    rebuilder.build("BUILD_TUPLE", pairs)
    saved = emitter.store_fresh("items")
    if holder.removals and (ordered or len(holder.steps) > MOST_STEPS):
        rebuilder.call_const(collections.OrderedDict.clear if ordered else dict.clear, target)
        _drop(rebuilder)
    elif holder.removals:  # without it the keys stand where they stood
        for method, key in holder.steps:
            stored = [None] if method is dict.__setitem__ else []  # its value comes below
            rebuilder.call_const(method, target, *([] if key is None else [key]), *stored)
            _drop(rebuilder)
    for index in range(0, len(pairs), 2):
        emitter.start_call_const(store_method(kind))
        rebuilder.load(target)
        for offset in (0, 1):
            emitter.load_fast(saved)
            emitter.load_const(index + offset)
            emitter.subscript()
        emitter.call(3)
        _drop(rebuilder)


def _set(rebuilder: Rebuilder, target: Any, holder: SetVar) -> None:
    """Does what the trace has done: only the same steps give the same order."""
    if holder in rebuilder.replayed:
        return
    rebuilder.replayed.add(holder)
    for adds, steps in itertools.groupby(holder.steps, lambda step: step.method is set.add):
        if adds:
            parts = [part for step in steps for part in step.parts()]
            steps = iter([Step(set.update, (Operand("list", parts),))])
        for method, operands in steps:
            rebuilder.emitter.start_call_const(method)
            rebuilder.load(target)
            for operand in operands:
                load_operand(rebuilder, target, operand)
            rebuilder.emitter.call(1 + len(operands))
            _drop(rebuilder)


def load_operand(rebuilder: Rebuilder, target: Any, operand: Operand) -> None:
    emitter = rebuilder.emitter
    if operand.kind == "self":
        rebuilder.load(target)
    elif operand.kind == "item":
        rebuilder.load(operand.values[0])
    elif operand.kind == "set":
        write_table(rebuilder, lambda: emitter.load_const(set), operand.table, operand.values)
    else:
        if operand.kind == "dict":
            emitter.start_call_const(dict.fromkeys)
        rebuilder.build("BUILD_LIST", operand.values)
        if operand.kind == "dict":
            emitter.call(1)


CONTENTS: tuple[tuple[Any, Callable[[Rebuilder, Any, Any], None]], ...] = (
    (DequeVar, _deque),
    (ListVar, _list),
    (DictVar, _dict),
    (SetVar, _set),
)


def grow(rebuilder: Rebuilder, effect: tr.GrowEffect) -> None:
    emitter = rebuilder.emitter
    emitter.start_call_const(effect.method)
    rebuilder.load(effect.target)
    rebuilder.build("BUILD_LIST", list(effect.items))
    emitter.call(2)
    _drop(rebuilder)


def store_global(rebuilder: Rebuilder, effect: tr.StoreGlobalEffect) -> None:
    emitter = rebuilder.emitter
    if effect.value is None or effect.renewed:  # the name may have been made in the trace, too
        emitter.start_call_const(dict.pop)
        for part in (effect.module_globals, effect.name, None):
            emitter.load_const(part)
        emitter.call(3)
        _drop(rebuilder)
    if effect.value is None:
        return
    rebuilder.load(effect.value)
    emitter.load_const(effect.module_globals)
    emitter.load_const(effect.name)
    emitter.emit("STORE_SUBSCR")


def store_class_attr(rebuilder: Rebuilder, effect: tr.StoreClassAttrEffect) -> None:
    emitter = rebuilder.emitter
    rebuilder.load(effect.value)
    emitter.load_const(effect.cls)
    emitter.store_attr(effect.name)


def store_cell(rebuilder: Rebuilder, effect: tr.StoreCellEffect) -> None:
    if not is_fetched(effect.cell):
        return  # a cell made in the trace is built with its contents
    if effect.value is not None:
        rebuilder.load(effect.value)
        rebuilder.load(effect.cell)
        rebuilder.emitter.store_attr("cell_contents")
    else:
        rebuilder.load(effect.cell)
        rebuilder.emitter.delete_attr("cell_contents")


def consume(rebuilder: Rebuilder, effect: tr.ConsumeEffect) -> None:
    rebuilder.call_const(advance, effect.iterator, effect.count)
    _drop(rebuilder)


def call(rebuilder: Rebuilder, effect: tr.CallEffect) -> None:
    args = [arg if isinstance(arg, Var) else ConstVar(arg) for arg in effect.args]
    rebuilder.call_const(effect.function, *args)
    _drop(rebuilder)


def register(rebuilder: Rebuilder, effect: tr.RegisterEffect) -> None:
    if effect.result is not None and effect.result in rebuilder.places:
        return  # something that was rebuilt before has needed the handle
    register_hook(rebuilder, effect.function, effect.target, effect.value)
    if effect.result is None or not rebuilder.counts[effect.result]:
        _drop(rebuilder)
    else:
        rebuilder.places[effect.result] = rebuilder.emitter.store_fresh("handle")


@rebuilds(HandleVar)
def hook_handle(rebuilder: Rebuilder, var: HandleVar) -> None:
    """Registers the hook, which so far was only to be registered."""
    register_hook(rebuilder, var.function, var.target, var.hook)
    rebuilder.keep(var)
    if var.removed:
        rebuilder.call_const(REMOVE, var)
        rebuilder.emitter.emit("POP_TOP")


def register_hook(rebuilder: Rebuilder, function: Any, target: Var, hook: Var | None) -> None:
    """Leaves on the stack what registering gives."""
    rebuilder.call_const(function, target, *([] if hook is None else [hook]))


REMOVE = Disabled(RemovableHandle.remove)


ROWS: dict[type[tr.Effect], Callable[[Rebuilder, Any], None]] = {
    tr.StoreAttrEffect: store_attr,
    tr.ContentsEffect: contents,
    tr.GrowEffect: grow,
    tr.StoreItemEffect: store_key,
    tr.StoreGlobalEffect: store_global,
    tr.StoreClassAttrEffect: store_class_attr,
    tr.StoreCellEffect: store_cell,
    tr.ConsumeEffect: consume,
    tr.CallEffect: call,
    tr.RegisterEffect: register,
    tr.DrawEffect: lambda rebuilder, effect: None,  # made before the graph's call
}
