"""`class` statements, `type(name, bases, namespace)`, and what the standard library puts into class
bodies."""

from __future__ import annotations

import builtins
import dataclasses
import enum
import functools
import types
import typing
from _abc import _abc_init  # type: ignore[import-not-found]
from abc import ABCMeta
from typing import Any

import torch

from dynamo.base.errors import Break, RestartTrace
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.frame import Frame
from dynamo.symbolic.core.lookup import all_in_mro, find_in_mro, is_derived, module_of
from dynamo.symbolic.core.table import rule
from dynamo.symbolic.core.var import ObservedException, Var
from dynamo.symbolic.core.wrapping import sees_comparisons
from dynamo.symbolic.python.cells import CellVar
from dynamo.symbolic.python.classes import ClassVar
from dynamo.symbolic.python.dicts import DictVar
from dynamo.symbolic.python.functions import FunctionVar
from dynamo.symbolic.python.library_classes import (
    EnumBody,
    enum_class,
    named_tuple_class,
    only_base,
    typed_dict_class,
)
from dynamo.symbolic.python.lists import TupleVar
from dynamo.symbolic.python.made_classes import (
    MadeClassVar,
    MadePartVar,
    StandIn,
    kind_of,
    runs_program,
)
from dynamo.symbolic.python.supers import SuperVar

NONE = ConstVar(None)
# Metaclasses that do nothing beyond what `MadeClasses.make` does.
PLAIN_METACLASSES = (type, ABCMeta)

# Methods of a metaclass that the evaluator's own questions about a class would call.
ASKED_OF_KINDS = ("__hash__", "__eq__", "__getattribute__", "__getattr__",
                  "__subclasscheck__", "__init_subclass__")


@rule([builtins.__build_class__])
def build_class(tx: Frame, body: Var, name: Var, /, *bases: Var, **keywords: Var) -> Var:
    """`class name(*bases, **keywords): body`."""
    if not isinstance(body, FunctionVar):
        raise Break("class_definition", repr(body))
    if only_base(bases) in (typing.NamedTuple, typing.TypedDict) and not set(keywords) - {"total"}:
        return class_of_fields(tx, body, name, only_base(bases), keywords)
    classes = class_vars(bases)
    metaclass = keywords.pop("metaclass", None)
    if metaclass is not None and not isinstance(metaclass, ClassVar):
        raise Break("class_definition", f"its metaclass is {metaclass!r}")
    kind = winner(tx, type if metaclass is None else metaclass.cls, classes)
    if kind is enum.EnumType:
        members = EnumBody()
        tx.run_class_body(body, members)
        return enum_class(tx, name, classes, members, keywords)
    arguments = [name, TupleVar(list(classes))]
    prepare = find_in_mro(kind, "__prepare__")
    namespace: Var = DictVar()
    if prepare is not type.__dict__["__prepare__"]:
        maker = tx.trace.wrap(kind, None).get_attr(tx, "__prepare__")
        namespace = tx.call(maker, arguments, keywords)
        if find_in_mro(namespace.python_type(), "__getitem__") is None:
            given = namespace.python_type().__name__
            tx.trace.raise_exception(TypeError, (
                f"{kind.__name__}.__prepare__() must return a mapping, not {given}"))
    cell = tx.run_class_body(body, namespace)
    if kind in PLAIN_METACLASSES:
        made: Var = make_type(tx, kind, name, classes, namespace, keywords)
    else:
        made = tx.call(tx.trace.wrap(kind, None), [*arguments, namespace], keywords)
    if isinstance(cell, CellVar) and cell.peek(tx.trace) is not made:
        raise Break("class_definition", "its metaclass leaves __class__ empty")
    return made


def class_of_fields(
    tx: Frame, body: FunctionVar, name: Var, base: Any, keywords: dict[str, Var]
) -> Var:
    """`class name(NamedTuple)` or `class name(TypedDict)`."""
    fields = DictVar()
    tx.run_class_body(body, fields)
    if base is typing.NamedTuple:
        if keywords:
            raise Break("class_definition", repr(name))
        return named_tuple_class(tx, name, fields)
    return typed_dict_class(tx, name, fields, keywords.get("total", ConstVar(True)).as_constant())


def class_vars(bases: tuple[Var, ...] | list[Var]) -> list[ClassVar]:
    classes = [base for base in bases if isinstance(base, ClassVar)]
    if len(classes) < len(bases):
        odd = next(base for base in bases if not isinstance(base, ClassVar))
        raise Break("class_definition", f"a base is {odd!r}")
    return classes


def winner(tx: Frame, kind: type, bases: list[ClassVar]) -> type:
    """The most derived of the metaclasses."""
    for base in bases:
        other = type(base.cls)
        if is_derived(other, kind):
            kind = other
        elif not is_derived(kind, other):
            tx.trace.raise_exception(TypeError, (
                "metaclass conflict: the metaclass of a derived class must be a (non-strict) "
                "subclass of the metaclasses of all its bases"))
    return kind


def make_type(
    tx: Frame, kind: type, name: Var, bases: list[ClassVar], namespace: Var,
    keywords: dict[str, Var],
) -> MadeClassVar:
    """`type.__new__(kind, name, bases, namespace, **keywords)`."""
    made = tx.trace.made
    content = getattr(namespace, "content", None) or namespace
    kind = winner(tx, kind, bases)
    init = find_in_mro(kind, "__init__")
    if isinstance(init, types.WrapperDescriptorType) and init is not type.__init__:
        raise Break("class_definition", f"{kind.__qualname__} is written in C")
    if not is_silent_kind(tx, kind) or not isinstance(content, DictVar) or any(
        issubclass(base.cls, torch.Tensor | torch.jit.ScriptModule) for base in bases
    ):
        raise Break("class_definition", repr(name))
    entries = {key.as_constant(): value for key, value in content.entries.values()}
    cell = entries.pop("__classcell__", None)
    entries.setdefault("__module__", ConstVar(tx.globals.get("__name__")))
    var = made.make(kind, name.as_constant(), bases, entries, tx.step_at_start)
    if isinstance(cell, CellVar):
        cell.store(tx, var)
    elif cell is not None:
        tx.trace.raise_exception(TypeError, (
            f"__classcell__ must be a nonlocal cell, not {cell.python_type()!r}"))
    for key, value in [*entries.items()]:  # a descriptor may write to the class
        set_name(tx, var, key, value)
    init_subclass(tx, var, keywords)
    return var


def is_silent_kind(tx: Frame, kind: type) -> bool:
    """True where nothing of a metaclass is asked behind its back, and where `type.__new__` makes
    its classes (ctypes has its own)."""
    makers = (raw for _, raw in all_in_mro(kind, "__new__"))
    in_c = next(raw for raw in makers if isinstance(raw, types.BuiltinFunctionType))
    own_order = find_in_mro(kind, "mro") is not type.__dict__["mro"]  # would run for the model
    return in_c is type.__dict__["__new__"] and not own_order and not sees_comparisons(kind) and (
        kind not in tx.trace.made.vars
        or not any(isinstance(find_in_mro(kind, name), types.FunctionType)
                   for name in ASKED_OF_KINDS))


def set_name(tx: Frame, cls: MadeClassVar, name: str, value: Var) -> None:
    """Tells a descriptor where it is."""
    kind = kind_of(value)
    if kind is None or find_in_mro(kind, "__set_name__") is None:
        return
    if isinstance(value, MadePartVar):
        try:
            value.real.__set_name__(cls.cls, name)
        except TypeError as error:  # as above
            raise RestartTrace(cls.step, Break("class_definition", str(error))) from error
    else:
        try:
            value.call_method(tx, "__set_name__", [cls, ConstVar(name)], {})
        except ObservedException as error:  # to which Python adds where it was
            raise Break("class_definition", f"{cls!r}: __set_name__ of {value!r}") from error


def init_subclass(tx: Frame, cls: MadeClassVar, keywords: dict[str, Var]) -> None:
    """`super(cls, cls).__init_subclass__(**keywords)`; typing's has run already."""
    if runs_program(cls.cls.__bases__):
        hook = SuperVar(cls, cls, cls.cls).get_attr(tx, "__init_subclass__")
        tx.call(hook, [], keywords)
    elif keywords:
        tx.trace.call(tx, object.__dict__["__init_subclass__"], cls, **keywords)


@rule([type.__new__])
def new_type(
    tx: Frame, kind: Var, name: Var, bases: Var, namespace: Var, /, **keywords: Var
) -> Var | None:
    assert isinstance(kind, ClassVar)
    return make_type(tx, kind.cls, name, class_vars(bases.unpack(tx)), namespace, keywords)


@rule([type])
def call_type(tx: Frame, name: Var, /, *parts: Var, **keywords: Var) -> Var | None:
    """`type(name, bases, namespace)`."""
    if len(parts) != 2:
        return None
    if not isinstance(parts[0], TupleVar):
        raise Break("class_definition", repr(name))
    classes = class_vars(parts[0].unpack(tx))
    kind = winner(tx, type, classes)
    if kind in PLAIN_METACLASSES:
        return make_type(tx, kind, name, classes, parts[1], keywords)
    return tx.call(tx.trace.wrap(kind, None), [name, *parts], keywords)


@rule([type.__init__, _abc_init])
def nothing(tx: Frame, /, *args: Var, **keywords: Var) -> Var:
    return NONE


def known_flag(name: str, value: Var) -> Var:
    """An argument of `dataclasses.field`: what is no default decides how the class is made."""
    if name == "default" and find_in_mro(kind_of(value) or object, "__set_name__") is not None:
        # The field calls it, in the model, too.
        raise Break("class_definition", f"the default of a field is {value!r}")
    if name in ("default", "default_factory") or (name == "doc" and not value.is_constant()):
        return value
    if name == "metadata" and not (value.is_constant() and value.as_constant() is None):
        raise Break("class_definition", "a field with metadata")
    return ConstVar(value.as_constant())


def register_part(function: Any) -> None:
    """Makes a call of a decorator of methods, or the like, a part of a class."""
    def make(tx: Frame, /, *args: Var, **kwargs: Var) -> Var:
        if function is dataclasses.field:
            kwargs = {name: known_flag(name, value) for name, value in kwargs.items()}
        try:  # with a function for each: Python 3.13's `cached_property` asks it for its module
            function(*[len] * len(args), **dict.fromkeys(kwargs, len))
        except ValueError:  # of the values, which are others
            pass
        except TypeError as error:
            raise Break("argument_mismatch", str(error)) from error
        return tx.trace.made.make_part(function, list(args), kwargs)

    rule(function)(make)


for _function in (property, classmethod, staticmethod, functools.cached_property,
                  dataclasses.field, enum.auto):
    register_part(_function)


@rule([dataclasses._process_class])  # type: ignore[attr-defined]
def process_dataclass(tx: Frame, /, cls: Var, *args: Var, **kwargs: Var) -> Var:
    """`@dataclass` of a class that the trace has made."""
    if not isinstance(cls, MadeClassVar):
        raise Break("class_definition", f"{cls!r} becomes a dataclass")
    values = tuple(arg.as_constant() for arg in args)
    keywords = {name: arg.as_constant() for name, arg in kwargs.items()}
    check_fields(tx, cls)
    process = functools.partial(dataclasses._process_class, **keywords)  # type: ignore[attr-defined]
    before = cls.cls
    after = tx.trace.run_real(lambda: process(before, *values))
    if after is not before:  # slots=True
        return tx.trace.made.make_by(process, [cls, *values], tx.step_at_start)
    cls.decorators.append((process, values))
    tx.trace.made.note_parts(cls)
    return cls


def decides_field(tx: Frame, note: Any) -> bool:
    """True for a stand-in of a text, of `InitVar[..]` or of an alias."""
    known = tx.trace.objects.var_of(note)
    kind = None if known is None else kind_of(known)
    return isinstance(note, StandIn) and (
        kind is None or issubclass(kind, str) or module_of(kind) in ("dataclasses", "typing"))


def check_fields(tx: Frame, cls: MadeClassVar) -> None:
    """The model's defaults are stand-ins: what dataclasses ask of them is asked of the Vars."""
    notes = cls.cls.__dict__.get("__annotations__", {})
    if any(decides_field(tx, note) for note in notes.values()):
        raise Break("class_definition", f"annotations of {cls!r} decide what its fields are")
    for name in notes:
        value = cls.entries.get(name, NONE)
        kind = kind_of(value)
        if isinstance(value, MadePartVar):
            default = value.kwargs.get("default")
            kind = None if default is None else kind_of(default)
        if kind is not None and kind.__hash__ is None:
            raise Break("class_definition", f"the default of a field is {value!r}")

