"""How the new bytecode makes instances, exceptions, tracebacks, weak references and super()."""

from __future__ import annotations

import collections
import sys
import threading
import types
from typing import cast

from dynamo import hook
from dynamo._C import read_dict
from dynamo.base.instances import hides_dict, own_dict, thread_dict
from dynamo.codegen.rebuild import Rebuilder, rebuilds
from dynamo.codegen.rebuild_containers import fill, store_items
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.python import classes, exceptions
from dynamo.symbolic.python import objects as object_vars
from dynamo.symbolic.python.dicts import DictVar
from dynamo.symbolic.python.lists import TupleVar
from dynamo.symbolic.python.sets import SetVar
from dynamo.symbolic.python.supers import SuperVar
from dynamo.symbolic.tensors import contexts, process_groups

# Built-in base -> how an instance of a subclass is filled from its built-in part.
FILLED = {list: list.extend, dict: dict.update, set: set.update}


# Built-in classes that insist on their own `__new__`.
STATIC_NEW = (collections.OrderedDict, types.SimpleNamespace)


@rebuilds(classes.ClassVar)
def class_(rebuilder: Rebuilder, var: classes.ClassVar) -> None:
    rebuilder.emitter.load_const(var.cls)


@rebuilds(object_vars.EnumVar)
def enum_member(rebuilder: Rebuilder, var: object_vars.EnumVar) -> None:
    rebuilder.emitter.load_const(var.real)


@rebuilds(object_vars.ObjectVar)
def object_(rebuilder: Rebuilder, var: object_vars.ObjectVar) -> None:
    cls, content = var.cls, var.content
    if isinstance(content, TupleVar):
        rebuilder.emitter.start_call_const(tuple.__new__)
        rebuilder.emitter.load_const(cls)
        rebuilder.build("BUILD_TUPLE", content.items)
        rebuilder.emitter.call(2)
        rebuilder.keep(var)
        return
    base = next((kind for kind in FILLED if issubclass(cls, kind)), object)
    new = next((kind for kind in STATIC_NEW if issubclass(cls, kind)), base).__new__
    rebuilder.call_const(new, cls)
    rebuilder.keep(var)
    if isinstance(content, DictVar):
        store_items(rebuilder, var, content, cls)
    elif isinstance(content, SetVar) and content.twin.has_own_table():
        fill(rebuilder, lambda: rebuilder.load(var), content)
        rebuilder.emitter.emit("POP_TOP")
    elif content is not None and base in FILLED:
        rebuilder.emitter.start_call_const(FILLED[base])
        rebuilder.load(var)
        rebuilder.load(content)
        rebuilder.emitter.call(2)
        rebuilder.emitter.emit("POP_TOP")


@rebuilds(process_groups.WorkVar)
def work_of_collective(rebuilder: Rebuilder, var: process_groups.WorkVar) -> None:
    rebuilder.call_const(process_groups.done_work, *var.outputs)
    rebuilder.keep(var)


def set_outer_context(error: BaseException) -> None:
    """What raising does while a caller handles an exception."""
    handled = sys.exception()
    if handled is not None:
        error.__context__ = handled


@rebuilds(exceptions.ExceptionVar)
def exception(rebuilder: Rebuilder, var: exceptions.ExceptionVar) -> None:
    plain_init = isinstance(var.cls.__init__, types.WrapperDescriptorType)
    if isinstance(var.cls.__new__, types.FunctionType):
        rebuilder.call_const(var.base().__new__, var.cls, *var.args)
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


@rebuilds(object_vars.InstanceDictVar, object_vars.InstanceEntriesVar)
def instance_dict(
    rebuilder: Rebuilder, var: object_vars.InstanceDictVar | object_vars.InstanceEntriesVar
) -> None:
    if issubclass(var.owner.python_type(), threading.local):
        rebuilder.call_const(thread_dict, var.owner)
    elif hides_dict(var.owner.python_type()):
        rebuilder.call_const(own_dict, var.owner)
    else:
        rebuilder.call_const(read_dict, var.owner)


@rebuilds(SuperVar)
def super_(rebuilder: Rebuilder, var: SuperVar) -> None:
    rebuilder.call_const(super, var.start_var, var.receiver)
