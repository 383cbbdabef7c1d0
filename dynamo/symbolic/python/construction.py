"""What calling a class makes. A base of `Trace`.

In: a class and Vars. Out: the Var of a new object, on which `__new__` and `__init__` have run as
the class has them. What C code of unknown classes makes breaks the graph.
"""

from __future__ import annotations

import builtins
import collections
import dataclasses
import enum
import inspect
import types
import typing
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.modules.lazy import LazyModuleMixin

from dynamo.base.errors import Break
from dynamo.base.words import shown
from dynamo.guards.sources import ObjectSource, Source
from dynamo.symbolic.core import table
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.frame import Evaluation, Frame
from dynamo.symbolic.core.lookup import (
    base_of,
    class_dict,
    find_in_mro,
    find_owner,
    full_name,
    is_derived,
    module_of,
    name_in_c,
)
from dynamo.symbolic.core.table import rule
from dynamo.symbolic.core.unguarded import Unguarded
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.core.wrapping import wraps_if
from dynamo.symbolic.python import decided
from dynamo.symbolic.python.classes import ClassVar
from dynamo.symbolic.python.dicts import DictVar
from dynamo.symbolic.python.exceptions import ExceptionVar
from dynamo.symbolic.python.lists import ListVar, TupleVar
from dynamo.symbolic.python.objects import ObjectVar, instance_of
from dynamo.symbolic.python.sets import SetVar

CONTENT_TYPES: dict[type, Callable[[], Var]] = {
    list: ListVar, dict: DictVar, set: SetVar,
    collections.OrderedDict: lambda: DictVar(collections.OrderedDict),
}


class Construction:
    """`cls(...)` over Vars, for one trace. make_tensor: of `tensors.wrappers`;
    make_constant: of `tensors.meshes`."""

    make_tensor: typing.ClassVar[Callable[..., Var | None]]
    make_constant: typing.ClassVar[Callable[..., Var | None]]

    def __init__(self, trace: Evaluation) -> None:
        self.trace = trace

    def construct(
        self, tx: Frame, var: ClassVar, args: list[Var], kwargs: dict[str, Var]
    ) -> Var:
        """`cls(*args, **kwargs)`."""
        cls = var.cls
        result = decided.call_decided(tx, cls, args, kwargs)
        if result is None:
            result = table.apply(tx, cls, args, kwargs)
        if result is not None:
            return result
        self.trace.attributes.find_special(type(cls), "__call__")
        found = find_owner(type(cls), "__call__")
        if found is not None and found[1] is dict:  # a TypedDict
            return tx.trace.call(tx, dict, *args, **kwargs)
        if found is not None and found[1] is not type.__call__:
            constant = self.make_constant(tx, cls, args, kwargs)  # pybind11's classes, torch 2.11
            if constant is not None:
                return constant
            if not issubclass(cls, enum.Enum):
                method = self.trace.attributes.bind(tx, var, type(cls), "__call__")
                return method.call(tx, args, kwargs)
        return self.construct_plain(tx, var, args, kwargs)

    def construct_plain(
        self, tx: Frame, var: ClassVar, args: list[Var], kwargs: dict[str, Var]
    ) -> Var:
        """`type.__call__(cls, ...)`: `__new__`, then `__init__`."""
        cls = var.cls
        if issubclass(cls, type):
            raise Break("class_definition", f"{cls.__qualname__}(..)")
        if issubclass(cls, enum.Enum):
            return enum_member(tx, cls, [arg.as_constant() for arg in args])
        if cls is torch.Tensor:
            raise Break("call_of_unknown_function", "torch.Tensor")
        if issubclass(cls, torch.Tensor):
            tensor = self.make_tensor(tx, cls, args, kwargs)
            if tensor is None:
                raise Break("tensor_subclass", f"{cls.__qualname__}()")
            return tensor
        constant = self.make_constant(tx, cls, args, kwargs)
        if constant is not None:
            return constant
        if issubclass(cls, torch.jit.ScriptModule | LazyModuleMixin):
            raise Break("module_structure_change", f"{cls.__qualname__}()")
        new = self.trace.attributes.find_special(cls, "__new__")
        made_by_python = isinstance(getattr(new, "__func__", new), types.FunctionType)
        owner = find_owner(cls, "__new__")
        if not made_by_python and owner is not None and is_programs(owner[0]):
            raise Break("call_of_unknown_function", f"{owner[0].__qualname__}.__new__")
        if made_by_python:
            maker = self.trace.attributes.bind(tx, None, cls, "__new__")
            made = tx.call(maker, [var, *args], kwargs)
            if not is_derived(made.python_type(), cls):
                return made
            cls = made.python_type()
        else:
            made = self.new_object(tx, cls, args)
        self.trace.attributes.find_special(cls, "__init__")
        init = find_owner(cls, "__init__")
        if init is not None and not isinstance(init[1], types.WrapperDescriptorType):
            method = self.trace.attributes.bind(tx, made, cls, "__init__")
            result = tx.call(method, args, kwargs).python_type()
            if result is not type(None):
                message = f"__init__() should return None, not '{name_in_c(result)}'"
                tx.trace.raise_exception(TypeError, message)
        elif issubclass(cls, collections.OrderedDict):  # it may call methods of the class
            self.trace.call_real(tx, collections.OrderedDict.__init__, [made, *args], kwargs)
        elif isinstance(made, ObjectVar) and made.content is not None and (
            not isinstance(made.content, TupleVar)  # which its `__new__` has filled
        ):
            made.content = self.construct(tx, ClassVar(base_of(cls), None, None), args, kwargs)
        elif kwargs and isinstance(made, ExceptionVar):
            raise Break("argument_mismatch", f"{cls.__name__}() takes no keyword arguments")
        elif isinstance(made, ExceptionVar):
            made.args = list(args)
        elif not made_by_python and (kwargs or (args and new is object.__new__)):
            tx.trace.raise_exception(TypeError, f"{cls.__name__}() takes no arguments")
        return made

    def new_object(self, tx: Frame, cls: type, args: list[Var]) -> Var:
        """`cls.__new__(cls, *args)` for a `__new__` of a built-in base."""
        if issubclass(cls, BaseException):
            if find_in_mro(cls, "__del__") is not None or (
                issubclass(cls, ODD_EXCEPTIONS)
            ):
                raise Break("call_of_unknown_function", full_name(cls))
            self.trace.attributes.guard_names(cls)
            return ExceptionVar(cls, list(args))
        static, closed = not cls.__flags__ & (1 << 9), cls.__flags__ & (1 << 7)  # no instances
        if static or closed or self.trace.attributes.has_special(cls, "__del__"):
            raise Break("call_of_unknown_function", full_name(cls))
        base = base_of(cls)
        if base is object:
            if not is_made_by_object(cls):
                raise Break("call_of_unknown_function", full_name(cls))
            self.trace.attributes.guard_abstract(cls)
            if cls.__flags__ & inspect.TPFLAGS_IS_ABSTRACT:
                self.trace.run_real(lambda: object.__new__(cls))
            return instance_of(cls)
        if base is tuple and len(args) < 2:
            return ObjectVar(cls, content=TupleVar.part(args[0].unpack(tx) if args else []))
        if base not in CONTENT_TYPES:
            raise Break("call_of_unknown_function", full_name(cls))
        return ObjectVar(cls, content=CONTENT_TYPES[base]())


# Exceptions with more state than their arguments.
ODD_EXCEPTIONS = (OSError, SyntaxError, ImportError, UnicodeError, BaseExceptionGroup)


def enum_member(tx: Frame, cls: type[enum.Enum], values: list[Any]) -> Var:
    """`cls(value)`, which asks the class's own `_missing_` where no member has the value."""
    if len(values) != 1 or not cls.__members__:
        raise Break("class_definition", f"{cls.__qualname__}{tuple(values)}")
    (value,) = values
    owner = find_owner(cls, "_missing_")
    if owner is not None and module_of(owner[0]) != "enum":
        if type(value) is not cls and all(value != member.value for member in cls):
            raise Break("call_of_unknown_function", f"{cls.__qualname__}({shown(value)})")
    return tx.trace.wrap(tx.trace.run_real(lambda: cls(value)), None)


def is_programs(cls: type) -> bool:
    """True for classes that `class` statements have made: those of C may have its flags, too."""
    return cls.__flags__ & (1 << 9 | 1 << 8) == 1 << 9 and "__module__" in class_dict(cls)


def is_made_by_object(cls: type) -> bool:
    """True where the C part of making an instance is `object.__new__`."""
    for base in cls.__mro__:
        new = class_dict(base).get("__new__")
        if new is not None and not isinstance(new, types.FunctionType | staticmethod):
            return new is object.__new__
    return True


@rule(collections.namedtuple)
def make_named_tuple(tx: Frame, /, *args: Var, **kwargs: Var) -> Var | None:
    """A class of tuples, which this trace makes once."""
    kwargs.setdefault("module", ConstVar(tx.globals.get("__name__", "__main__")))
    try:
        values = [table.plain_value(arg) for arg in args]
        keywords = {name: table.plain_value(arg) for name, arg in kwargs.items()}
    except Break as reason:
        if reason.code != "not_a_constant":
            raise
        return None
    made = tx.trace.run_real(lambda: collections.namedtuple(*values, **keywords))
    tx.trace.state(Unguarded).refuse("it keeps a class that it has made")
    return tx.trace.wrap(made, ObjectSource(made, made.__name__))


@rule([builtins.__build_class__, type.__new__, collections.namedtuple, typing.NamedTuple,
       dataclasses._process_class])  # type: ignore[attr-defined]
def define_class(tx: Frame, /, *args: Var, **kwargs: Var) -> Var:
    raise Break("class_definition")


EXISTING: tuple[tuple[type, Callable[..., Var]], ...] = (
    (collections.OrderedDict, lambda **k: DictVar(collections.OrderedDict, **k)),
    (dict, lambda **k: DictVar(dict, **k)),
    (list, lambda **k: ListVar(**k)),
    (tuple, lambda **k: TupleVar(**k)),
)


@wraps_if(90, lambda value: bool(type(value).__flags__ & (1 << 9))
          and issubclass(type(value), dict | list | tuple)
          and find_in_mro(type(value), "default_factory") is None)
def wrap_with_content(trace: Any, value: Any, source: Source | None) -> Var:
    """An instance of a subclass of dict, list or tuple written in Python."""
    make = next(make for base, make in EXISTING if issubclass(type(value), base))
    content = make(source=source, real=value, trace=trace)
    return ObjectVar(type(value), source, real=value, trace=trace, content=content)
