"""Plain objects of the program that an operation of the graph holds: configurations and the like.

A graph has no place for an object of a class of the program. What is made of values that say all of
it (a dataclass, a named tuple, an enum's member, a container of such) is held by the operation and
guarded value by value; other objects break the graph.
"""

from __future__ import annotations

import dataclasses
import enum
import types
from typing import Any

import torch
import torch.distributed
from torch.utils._pytree import is_constant_class

from dynamo.base.errors import Break
from dynamo.base.value_types import VALUES
from dynamo.guards.sources import (
    AttrSource,
    DictSource,
    EqualSource,
    ItemSource,
    SameAs,
    Source,
)
from dynamo.symbolic.core.frame import Evaluation, Frame
from dynamo.symbolic.core.lookup import find_in_mro
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.python.lists import ListVar, TupleVar
from dynamo.symbolic.python.objects import ObjectVar

# One object for each value.
UNIQUE = (torch.dtype, torch.layout, torch.memory_format, enum.Enum, type, types.FunctionType,
          types.BuiltinFunctionType)
DISTRIBUTED = frozenset(("DTensorSpec", "TensorMeta", "DeviceMesh", "Shard", "_StridedShard",
                         "Replicate", "Partial"))
GROUPS = (torch.distributed.ProcessGroup,) if torch.distributed.is_available() else ()
DEPTH = 6


def is_fixed(value: Any) -> bool:
    """True for what says all by its type and value, and can't change."""
    if type(value) is tuple:
        return all(map(is_fixed, value))
    return type(value) in VALUES or type(value) is torch.device


def by_equality(value: Any) -> bool:
    """True where `==` says all: its class says so, or it is of torch's distributed tensors."""
    return is_constant_class(type(value)) or is_of_distributed(value)


def is_of_distributed(value: Any) -> bool:
    """True for a mesh of devices, or a placement of a distributed tensor."""
    cls = type(value)
    return cls.__name__ in DISTRIBUTED and cls.__module__.startswith("torch.distributed.")


def is_structural(value: Any, depth: int = DEPTH) -> bool:
    """True where guards on parts of the value say all of it."""
    if is_fixed(value) or isinstance(value, UNIQUE):
        return True
    if depth == 0:
        return False
    if isinstance(value, tuple) or type(value) is list:
        return all(is_structural(item, depth - 1) for item in value)
    if type(value) is dict:
        return all(is_fixed(key) and is_structural(item, depth - 1) for key, item in value.items())
    if by_equality(value) or isinstance(value, GROUPS):
        return True
    own = getattr(value, "__dict__", None)
    return dataclasses.is_dataclass(type(value)) and type(own) is dict and all(
        is_structural(item, depth - 1) for item in own.values())


def guard_value(trace: Evaluation, value: Any, source: Source) -> None:
    """Guards a structural value."""
    if is_fixed(value) or type(value) is list and all(map(is_fixed, value)):
        trace.guard("CONST", source, list(value) if type(value) is list else value)
    elif isinstance(value, UNIQUE):
        trace.guard("ID", source, value)
    elif isinstance(value, tuple | list):
        trace.guard("TYPE", source, type(value))
        trace.guard("LENGTH", source, len(value))
        for index, item in enumerate(value):
            guard_value(trace, item, ItemSource(source, index))
    elif type(value) is dict:
        trace.guard("TYPE", source, dict)
        trace.guard("DICT_KEYS", source, tuple(value))
        for key, item in value.items():
            guard_value(trace, item, ItemSource(source, key))
    elif isinstance(value, GROUPS):
        trace.guard("ID", source, value)
    elif by_equality(value):
        trace.guard("CONST", EqualSource(source, SameAs(value)), True)
    else:
        trace.guard("TYPE", source, type(value))
        trace.guard("DICT_KEYS", DictSource(source), tuple(value.__dict__))
        for name, item in value.__dict__.items():
            guard_value(trace, item, place_of(value, source, name))


def place_of(real: Any, source: Source, name: str) -> Source:
    """Where an attribute is found: in the instance's dict, where it is there and nothing hides it.
    What is read from a dict is not checked again while the dict is as it was."""
    own = getattr(real, "__dict__", {})
    hidden = hasattr(type(find_in_mro(type(real), name)), "__set__")
    return AttrSource(source, name) if hidden or name not in own else (
        ItemSource(DictSource(source), name))


def held(trace: Evaluation, var: Var) -> Any:
    """The object of the program, guarded. Errors: Break where guards can't say what it is."""
    if isinstance(var, TupleVar | ListVar):
        return var.rebuild([held(trace, item) for item in var.items])
    if var.is_constant():
        return var.as_constant()
    known = getattr(var, "value", None) if not isinstance(var, ObjectVar) else None
    if is_of_distributed(known) or isinstance(known, GROUPS):  # see `meshes`
        return known
    if not isinstance(var, ObjectVar) or var.written or var.source is None or (
            not is_structural(real := var.real)):
        raise Break("not_a_graph_argument", repr(var))
    guard_value(trace, real, var.source)
    return real


def without_objects(
    tx: Frame, function: Any, args: list[Var], kwargs: dict[str, Var]
) -> tuple[Any, list[Var], dict[str, Var]]:
    """A function that holds the objects among the arguments, and the other arguments."""
    objects: dict[int | str, Any] = {}
    given: list[tuple[int | str, Var]] = [*enumerate(args), *kwargs.items()]
    for key, var in given:
        if not is_argument(var):
            objects[key] = held(tx.trace, var)
    if not objects:
        return function, args, kwargs
    rest = [var for at, var in enumerate(args) if at not in objects]
    named = {name: var for name, var in kwargs.items() if name not in objects}
    count = len(args)

    def call(*given: Any, **options: Any) -> Any:
        values = iter(given)
        filled = [objects[at] if at in objects else next(values) for at in range(count)]
        held_options = {name: value for name, value in objects.items() if type(name) is str}
        return function(*filled, **options, **held_options)

    call.__name__ = call.__qualname__ = getattr(function, "__name__", "call")
    call.__module__ = __name__
    return call, rest, named


def is_argument(var: Var) -> bool:
    """Whether a node can have it as an argument. (A tensor can, also one of a transform, which is
    no value of the graph.)"""
    if var.is_tensor:
        return True
    if isinstance(var, TupleVar | ListVar):
        return all(map(is_argument, var.items))
    try:
        var.as_proxy()
    except Break as reason:
        if reason.code != "not_a_graph_argument":
            raise
        return False
    return True
