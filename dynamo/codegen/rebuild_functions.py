"""How the new bytecode makes functions, bound methods and partials."""

from __future__ import annotations

import types
import weakref

from dynamo.codegen.rebuild import Rebuilder, is_fetched, rebuilds
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.python import functions, lists, partials, weakrefs
from dynamo.symbolic.python.dicts import DictVar


@rebuilds(functions.FunctionVar)
def function(rebuilder: Rebuilder, var: functions.FunctionVar) -> None:
    emitter = rebuilder.emitter
    emitter.start_call_const(types.FunctionType)
    emitter.load_const(var.code)
    emitter.load_const(var.globals)
    emitter.load_const(var.name)
    if var.read_defaults is not None:
        rebuilder.load(var.read_defaults)
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
    if isinstance(var.annotations, functions.FunctionVar):  # they are made when asked for
        rebuilder.load(var.annotations)
        rebuilder.load(var)
        rebuilder.emitter.store_attr("__annotate__")
        return
    pairs = getattr(var.annotations, "items", None)
    if isinstance(pairs, list):
        rebuilder.emitter.emit("BUILD_MAP", rebuilder.load_all(pairs) // 2)
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


@rebuilds(weakrefs.MadeWeakRefVar)
def weak_reference(rebuilder: Rebuilder, var: weakrefs.MadeWeakRefVar) -> None:
    rebuilder.call_const(weakref.ref, var.target)


@rebuilds(partials.PartialVar)
def partial(rebuilder: Rebuilder, var: partials.PartialVar) -> None:
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


def _partial_of_parts(rebuilder: Rebuilder, var: partials.PartialVar) -> None:
    """One that keeps the very tuple and dict."""
    rebuilder.call_const(var.python_type(), var.function)
    rebuilder.keep(var)
    rebuilder.emitter.start_call_const(var.python_type().__setstate__)  # type: ignore[attr-defined]
    rebuilder.load(var)
    rebuilder.build("BUILD_TUPLE", (var.function, var.args, var.keywords, ConstVar(None)))
    rebuilder.emitter.call(2)
    rebuilder.emitter.emit("POP_TOP")
