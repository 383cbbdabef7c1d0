"""Classes that the standard library makes of constants: named tuples and enumerations.

The trace works on a real class made of the same constants (a model, as in `made_classes`); the new
bytecode calls the same function again, and stores methods and what else is no constant into it.
"""

from __future__ import annotations

import collections
import enum
import types
import typing
from typing import Any

from dynamo.base.errors import Break
from dynamo.base.words import shown
from dynamo.guards.sources import ObjectSource
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.frame import Frame
from dynamo.symbolic.core.lookup import find_owner, module_of
from dynamo.symbolic.core.table import plain_value, rule
from dynamo.symbolic.core.var import ObservedException, Var
from dynamo.symbolic.python.classes import ClassVar
from dynamo.symbolic.python.dicts import DictVar
from dynamo.symbolic.python.functions import FunctionVar
from dynamo.symbolic.python.made_classes import MadeClassVar, MadePartVar
from dynamo.symbolic.python.objects import EnumVar

GIVEN_NAMES = ("__module__", "__qualname__", "__doc__", "__static_attributes__", "__firstlineno__")
HIDDEN = frozenset({"__annotations__", *GIVEN_NAMES})
# What a class statement of a named tuple may not set.
PROHIBITED = frozenset({"__new__", "__init__", "__slots__", "__getnewargs__", "_fields",
                        "_field_defaults", "_make", "_replace", "_asdict", "_source",
                        "__set_name__", "__class_getitem__", "__init_subclass__"})
# What an enumeration reads while it is made; its other methods are stored afterwards.
READ_BY_ENUM = frozenset({
    "__new__", "__init__", "__init_subclass__", "__set_name__", "__del__", "__reduce_ex__",
    "__reduce__", "__format__", "__str__", "__getnewargs__", "__getnewargs_ex__", "__getstate__",
    "__slots__", "_generate_next_value_", "_missing_", "_ignore_", "_order_", "_numeric_repr_",
})


def as_given(tx: Frame, var: Var) -> Any:
    """The real value of a constant, a class or an alias."""
    if isinstance(var, MadeClassVar):
        raise Break("class_definition", f"{var!r} is a part of it")
    if isinstance(var, ClassVar):
        return var.cls
    real = getattr(var, "real", None)
    if real is not None and not var.is_constant():
        tx.trace.guard("ID", var.source, real)
        return real
    return plain_value(var)


# -- named tuples ------------------------------------------------------------------------------


@rule([collections.namedtuple])
def named_tuple(tx: Frame, /, *args: Var, **kwargs: Var) -> Var:
    """`namedtuple("P", "a b")`."""
    values = tuple(plain_value(arg) for arg in args)
    keywords = {name: plain_value(value) for name, value in kwargs.items()}
    if keywords.get("module") is None:
        keywords["module"] = tx.globals.get("__name__", "__main__")
    maker = Recipe(collections.namedtuple, tuple(keywords))
    return tx.trace.made.make_by(maker, [*values, *keywords.values()], tx.step_at_start)


class Recipe:
    """A function and the names of its last arguments."""

    def __init__(self, function: Any, names: tuple[str, ...]) -> None:
        self.function, self.names = function, names

    def __call__(self, *args: Any) -> type:
        split = len(args) - len(self.names)
        keywords = dict(zip(self.names, args[split:], strict=True))
        return self.function(*args[:split], **keywords)  # type: ignore[no-any-return]


def by_statement(
    base: Any, name: str, entries: dict[str, Any], keywords: dict[str, Any]
) -> type:
    """`class name(base, **keywords)` with these entries, all constants."""
    return types.new_class(name, (base,), keywords, lambda body: body.update(entries))


def only_base(bases: tuple[Var, ...]) -> Any:
    """`NamedTuple` or `TypedDict`, which are functions, where it is the only base."""
    base = bases[0] if len(bases) == 1 else None
    return base.real if isinstance(base, FunctionVar) else None


def named_tuple_class(tx: Frame, name: Var, namespace: DictVar) -> Var:
    """`class P(NamedTuple): ..`, its body run."""
    entries = {key.as_constant(): value for key, value in namespace.entries.values()}
    notes = entries.get("__annotations__", DictVar())
    if not isinstance(notes, DictVar) or PROHIBITED & set(entries) or "__classcell__" in entries:
        raise Break("class_definition", repr(name))
    fields = {key.as_constant(): as_given(tx, value) for key, value in notes.entries.values()}
    defaults = [field for field in fields if field in entries]
    if list(fields)[len(fields) - len(defaults) :] != defaults:
        raise Break("class_definition", f"{name!r}: a field without a default behind one with it")
    given = {key: plain_value(entries[key]) for key in GIVEN_NAMES if key in entries}
    given.setdefault("__module__", tx.globals.get("__name__"))
    given |= {field: as_given(tx, entries[field]) for field in defaults}
    given["__annotations__"] = fields
    made: MadeClassVar = tx.trace.made.make_by(
        by_statement, [typing.NamedTuple, name.as_constant(), given, {}], tx.step_at_start)
    for key, value in entries.items():
        if key not in fields and key not in HIDDEN:
            made.set_attr(tx, key, value)
    return made


def functional(name: str, fields: list[tuple[str, Any]], module: str) -> type:
    """`NamedTuple(name, fields)`, called in a module."""
    made = typing.NamedTuple(name, fields)  # type: ignore[misc]
    made.__module__ = module
    return made


@rule([typing.NamedTuple])
def functional_named_tuple(tx: Frame, name: Var, fields: Var) -> Var:
    """`NamedTuple("P", [("a", int)])`."""
    pairs = [item.unpack(tx) for item in fields.unpack(tx)]
    known = [(key.as_constant(), as_given(tx, kind)) for key, kind in pairs]
    return tx.trace.made.make_by(  # type: ignore[no-any-return]
        functional, [name.as_constant(), known, tx.globals.get("__name__")], tx.step_at_start)


# -- dicts with types --------------------------------------------------------------------------


def typed_dict_class(tx: Frame, name: Var, namespace: DictVar, total: bool) -> Var:
    """`class T(TypedDict): ..`, its body run."""
    entries = {key.as_constant(): value for key, value in namespace.entries.values()}
    notes = entries.get("__annotations__", DictVar())
    if not isinstance(notes, DictVar) or set(entries) - HIDDEN:
        raise Break("class_definition", repr(name))
    fields = {key.as_constant(): as_given(tx, value) for key, value in notes.entries.values()}
    given = {key: plain_value(entries[key]) for key in GIVEN_NAMES if key in entries}
    given.setdefault("__module__", tx.globals.get("__name__"))
    given["__annotations__"] = fields
    return tx.trace.made.make_by(  # type: ignore[no-any-return]
        by_statement, [typing.TypedDict, name.as_constant(), given, {"total": total}],
        tx.step_at_start)


# -- enumerations ------------------------------------------------------------------------------


class EnumBody(DictVar):
    """The names in the body of an enumeration, each of which is set once."""

    def set_item(self, tx: Frame, key: Var, value: Var) -> None:
        if key.hash_key(tx) in self.entries and not str(key.as_constant()).startswith("__"):
            raise Break("class_definition", f"{key!r} is set again")
        super().set_item(tx, key, value)


def make_enum(
    name: str, bases: tuple[type, ...], members: dict[str, Any], keywords: dict[str, Any]
) -> type:
    """`class name(*bases, **keywords)` with these members and nothing else."""
    body = enum.EnumType.__prepare__(name, bases, **keywords)
    for key, value in members.items():
        body[key] = value() if value is enum.auto else value
    return enum.EnumType(name, bases, body, **keywords)  # type: ignore[arg-type]


def enum_class(
    tx: Frame, name: Var, bases: list[ClassVar], namespace: DictVar,
    keywords: dict[str, Var],
) -> Var:
    """`class E(Enum): ..`, its body run."""
    entries = {key.as_constant(): value for key, value in namespace.entries.values()}
    if READ_BY_ENUM & set(entries) or "__classcell__" in entries:
        raise Break("class_definition", repr(name))
    autos = [value for value in entries.values() if is_auto(value)]
    if len(set(autos)) < len(autos):  # one object, which would be another for each name
        raise Break("class_definition", repr(name))
    later: dict[str, Var] = {}
    members: dict[str, Any] = {}
    for key, value in entries.items():
        if is_part_of_class(value):
            later[key] = value
        elif key == "__annotations__" and isinstance(value, DictVar):
            pairs = value.entries.values()
            members[key] = {name.as_constant(): as_given(tx, kind) for name, kind in pairs}
        else:
            members[key] = enum.auto if is_auto(value) else as_given(tx, value)
    members.setdefault("__module__", tx.globals.get("__name__"))
    kinds = tuple(as_given(tx, base) for base in bases)
    known = {key: as_given(tx, value) for key, value in keywords.items()}
    made: MadeClassVar = tx.trace.made.make_by(
        make_enum, [name.as_constant(), kinds, members, known], tx.step_at_start)
    for key, value in later.items():
        made.store(tx, key, value)
    return with_members(tx, made)


def functional_enum(kind: Any, name: str, names: Any, start: int, module: str) -> type:
    """`Enum(name, names)`, called in a module."""
    return kind(name, names, module=module, start=start)  # type: ignore[no-any-return]


def _register_functional(kind: type[enum.Enum]) -> None:
    @rule(kind)
    def make(
        tx: Frame, name: Var, names: Var, *, start: Var = ConstVar(1)  # noqa: B008
    ) -> Var:
        """`Enum("E", "A B")`; the names also in a list, with values in pairs or in a dict."""
        module = tx.globals.get("__name__")
        if not isinstance(module, str):
            raise Break("class_definition", f"{kind.__name__}({name!r})")
        known = [kind, name.as_constant(), plain_value(names), start.as_constant(), module]
        return with_members(tx, tx.trace.made.make_by(functional_enum, known, tx.step_at_start))


for _kind in (enum.Enum, enum.IntEnum, enum.StrEnum):
    _register_functional(_kind)


def with_members(tx: Frame, made: MadeClassVar) -> MadeClassVar:
    """Makes the members known: they are no constants, for each call makes new ones."""
    for member in made.cls.__members__.values():  # type: ignore[attr-defined]
        var = EnumVar(made.cls, None, real=member)
        var.class_var = made
        tx.trace.objects.remember(member, var)
    return made


def enum_member(tx: Frame, cls: type[enum.Enum], values: list[Any]) -> Var:
    """`cls(value)`, which asks the class's own `_missing_` where no member has the value."""
    if len(values) != 1 or not cls.__members__:
        raise Break("class_definition", f"{cls.__qualname__}{tuple(values)}")
    (value,) = values
    owner = find_owner(cls, "_missing_")
    if owner is not None and module_of(owner[0]) != "enum":
        if type(value) is not cls and all(value != member.value for member in cls):
            return missing_member(tx, cls, value)
    return tx.trace.wrap(tx.trace.run_real(lambda: cls(value)), None)


def missing_member(tx: Frame, cls: type[enum.Enum], value: Any) -> Var:
    """What the `_missing_` of the program gives for a value: a member, or None for an error."""
    var = ClassVar(cls, ObjectSource(cls, cls.__name__), None)
    try:
        method = tx.trace.attributes.get_from_class(tx, var, "_missing_")
        found = tx.call(method, [ConstVar(value)], {})
    except ObservedException as error:  # of which Python tells that the value is none
        raise Break("call_of_unknown_function", f"{cls.__qualname__}({shown(value)})") from error
    if found.is_constant() and found.as_constant() is None:
        tx.trace.raise_exception(ValueError, f"{value!r} is not a valid {cls.__qualname__}")
    if found.python_type() is not cls:
        raise Break("call_of_unknown_function", f"{cls.__qualname__}({shown(value)})")
    return found


def is_auto(var: Var) -> bool:
    return isinstance(var, MadePartVar) and var.function is enum.auto


def is_part_of_class(var: Var) -> bool:
    """True for methods, properties and the like, which are no members."""
    return isinstance(var, FunctionVar) or (isinstance(var, MadePartVar) and not is_auto(var))
