"""Classes that the traced program makes.

The trace works on a *model*: a real class with the same name, bases and entries, made while
tracing, whose methods and other parts are stand-ins that the trace knows the Vars of. No code of
the program runs for a model, and it never leaves the trace: where the class is needed afterwards,
new bytecode makes it again of the real parts (`make_bare`, one store per entry, then `finish`).
"""

from __future__ import annotations

import types
import weakref
from _abc import _abc_init  # type: ignore[import-not-found]
from abc import ABCMeta
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from dynamo import _C
from dynamo.base.errors import Break, RestartTrace
from dynamo.base.words import noun
from dynamo.guards.sources import ObjectSource, Source
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.frame import Evaluation, Frame
from dynamo.symbolic.core.lookup import (
    class_dict,
    find_in_mro,
    find_owner,
    instance_dict,
    module_of,
)
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.python.classes import ClassVar
from dynamo.symbolic.python.dicts import DictVar
from dynamo.symbolic.python.functions import BuiltinVar, FunctionVar
from dynamo.symbolic.python.lists import ListVar, TupleVar
from dynamo.symbolic.python.objects import ObjectVar

# Entries that `type.__new__` itself reads, which must be constants.
READ_BY_TYPE = ("__slots__", "__doc__", "__module__", "__qualname__", "__match_args__",
                "__firstlineno__", "__static_attributes__")
WRAPPED = ("__new__", "__init_subclass__", "__class_getitem__")
DESCRIBES = ("__get__", "__set__", "__delete__", "__set_name__", "__del__")


class MadeClassVar(ClassVar):
    """A class made in the trace; `cls` is its model.

    entries: what its body left, by name, and what was stored later; names: those of the body;
    fixed: those that `type.__new__` takes, as constants; subclasses: those made in the trace, too;
    decorators: (function, arguments), called with the class when it is complete; step: the
    instruction that made it. kind_var: its metaclass, where that is made in the trace, too.
    recipe: a function and its arguments, for a class that the standard library makes.
    """

    def __init__(
        self, model: type, kind: type, bases: list[ClassVar], entries: dict[str, Var],
        fixed: dict[str, Any], step: int,
    ) -> None:
        super().__init__(model, None, None)
        self.kind = kind
        self.bases = bases
        self.entries = entries
        self.fixed = fixed
        self.step = step
        self.kind_var: MadeClassVar | None = None
        self.recipe: tuple[Callable[..., type], tuple[Any, ...]] | None = None
        self.names = list(entries)
        self.subclasses: list[MadeClassVar] = []
        self.decorators: list[tuple[Callable[..., Any], tuple[Any, ...]]] = []

    def set_attr(self, tx: Frame, name: str, value: Var) -> None:
        if self.must_stay(name):
            super().set_attr(tx, name, value)
            return
        self.store(tx, name, value)

    def store(self, tx: Frame, name: str, value: Var) -> None:
        """`type.__setattr__(self, name, value)`."""
        type.__setattr__(self.cls, name, tx.trace.made.stand_in(value))
        self.entries[name] = value
        tx.trace.made.note_parts(self)
        tx.trace.effects.tick()

    def annotations(self, tx: Frame) -> Var:
        """`cls.__annotations__`: reading makes a dict where the class has none."""
        own = class_dict(self.cls).get("__annotations__")
        if own is not None:
            known: Var | None = tx.trace.objects.var_of(own)
            return tx.trace.constant(own) if known is None else known  # type: ignore[no-any-return]
        real: dict[str, Any] = {}
        made = self.entries["__annotations__"] = DictVar()
        type.__setattr__(self.cls, "__annotations__", real)
        tx.trace.objects.remember(real, made)
        tx.trace.made.note_parts(self)
        tx.trace.effects.tick()
        return made

    def del_attr(self, tx: Frame, name: str) -> None:
        if self.must_stay(name) or name not in self.entries or self.decorators:
            super().del_attr(tx, name)
            return
        type.__delattr__(self.cls, name)
        del self.entries[name]
        if name in self.names:
            self.names.remove(name)
        tx.trace.effects.tick()

    def must_stay(self, name: str) -> bool:
        """True for attributes whose change changes more, or is done by the metaclass."""
        special = (*READ_BY_TYPE, *WRAPPED, *DESCRIBES, "__annotations__")
        setter = find_owner(self.kind, "__setattr__")
        hidden = find_in_mro(self.kind, name)
        return (
            name in special or find_in_mro(type(hidden), "__set__") is not None
            or isinstance(self.cls.__dict__.get(name), types.MemberDescriptorType)
            or setter is None or setter[0] is not type or bool(self.decorators)
        )

    def children(self) -> Iterable[Var]:
        yield from self.bases
        yield from self.subclasses
        if self.kind_var is not None:
            yield self.kind_var
        if self.recipe is not None:
            yield from (arg for arg in self.recipe[1] if isinstance(arg, Var))
        yield from (value for name, value in self.entries.items() if name not in self.fixed)


class MadePartVar(Var):
    """`property(f)`, `classmethod(f)`, `field(default=v)`, .. in a class body: what a call of
    something of the standard library gives. `real` is made of stand-ins."""

    methods_by_name = True

    def __init__(
        self, function: Callable[..., Any], args: list[Var], kwargs: dict[str, Var], real: Any
    ) -> None:
        super().__init__()
        self.function, self.args, self.kwargs, self.real = function, args, kwargs, real

    def describe(self) -> str:
        return noun(self.function.__qualname__)

    def python_type(self) -> type:
        return type(self.real)

    def children(self) -> Iterable[Var]:
        return (*self.args, *self.kwargs.values())

    def truth(self, tx: Frame) -> bool:
        return True

    def get_attr(self, tx: Frame, name: str) -> Var:
        """A part: `fget`, `__func__`, or a method that makes another one (`setter`)."""
        found = getattr(self.real, name, None)
        known = tx.trace.objects.var_of(found)
        if known is not None:
            return known
        raw = find_in_mro(type(self.real), name)
        if isinstance(raw, types.MemberDescriptorType) and self.function is not property:
            return tx.trace.wrap(found, None)  # type: ignore[no-any-return]
        return tx.trace.attributes.get_builtin_attr(tx, self, name)  # type: ignore[no-any-return]

    def call_method(
        self, tx: Frame, name: str, args: list[Var], kwargs: dict[str, Var]
    ) -> Var:
        if self.function is property and name in PROPERTY_PARTS and len(args) == 1 and not kwargs:
            parts = [*self.args, *[ConstVar(None)] * (3 - len(self.args))]
            parts[PROPERTY_PARTS.index(name)] = args[0]
            return tx.trace.made.make_part(property, parts, self.kwargs)
        return super().call_method(tx, name, args, kwargs)


PROPERTY_PARTS = ("getter", "setter", "deleter")


class StandIn:
    """Stands in a model for a value that is no descriptor."""


class MadeClasses:
    """The classes that one trace has made."""

    def __init__(self, trace: Evaluation) -> None:
        self.trace = trace
        self.vars: dict[type, MadeClassVar] = {}
        self._inner: dict[int, tuple[Any, MadeClassVar]] = {}

    def clear(self) -> None:
        """Lets go of the models, which the program must not meet until the collector ends them."""
        for model in self.vars:
            for base in type.__dict__["__bases__"].__get__(model):
                _C.hide_subclass(base, model)
        self.vars.clear()
        self._inner.clear()

    # -- stand-ins --------------------------------------------------------------------------

    def stand_in(self, var: Var) -> Any:
        """What stands for the Var in a model; wrapping it gives the Var again."""
        if isinstance(var, ClassVar):
            return var.cls
        if isinstance(var, BuiltinVar):
            return var.value
        if isinstance(var, ConstVar) and var.source is None and var.is_constant():
            return var.as_constant()
        real = getattr(var, "real", None)
        if isinstance(var, MadePartVar) or (isinstance(var, FunctionVar) and real is not None):
            made = real
        elif isinstance(var, FunctionVar):
            made = self._shell(var)
        elif isinstance(var, ObjectVar) and real is not None:
            var.python_type()
            made = real
        else:
            made = self._plain(var)
        if self.trace.objects.var_of(made) is None:
            self.trace.objects.remember(made, var)
        return made

    def _shell(self, var: FunctionVar) -> Callable[..., Any]:
        def shell(*args: Any, **kwargs: Any) -> NoReturn:
            raise Break("class_definition", f"{var.qualname} is called by C code")

        shell.__name__ = var.name
        for name, value in var.written.items():
            if value is not None and value.is_constant():
                setattr(shell, name, value.as_constant())
        return shell

    def _plain(self, var: Var) -> Any:
        kind = var.python_type()
        if not any(find_in_mro(kind, name) is not None for name in DESCRIBES):
            return StandIn()
        if (
            isinstance(var, ObjectVar) and var.content is None
            and find_in_mro(kind, "__new__") is object.__new__
            and find_in_mro(kind, "__del__") is None
        ):
            return object.__new__(kind)
        raise Break("class_definition", f"a descriptor in it is {var!r}")

    def make_part(
        self, function: Callable[..., Any], args: list[Var], kwargs: dict[str, Var]
    ) -> MadePartVar:
        """What `function(*args, **kwargs)` gives, for a function that only keeps them."""
        real_args = [self.stand_in(arg) for arg in args]
        real_kwargs = {name: self.stand_in(value) for name, value in kwargs.items()}
        real = self.trace.run_real(lambda: function(*real_args, **real_kwargs))
        var = MadePartVar(function, args, kwargs, real)
        self.trace.objects.remember(real, var)
        return var

    # -- making -----------------------------------------------------------------------------

    def make(
        self, kind: type, name: str, bases: list[ClassVar], entries: dict[str, Var], step: int
    ) -> MadeClassVar:
        """`type.__new__(kind, name, bases, entries)`; nothing of the program has run for it yet."""
        for key, value in entries.items():
            check_entry(kind, key, value)
        fixed = {key: plain_entry(entries[key]) for key in READ_BY_TYPE if key in entries}
        real_bases = tuple(base.cls for base in bases)
        model = self.trace.run_real(lambda: make_bare(kind, name, real_bases, list(entries), fixed))
        var = MadeClassVar(model, kind, bases, entries, fixed, step)
        var.kind_var = self.vars.get(kind)
        self.vars[model] = var
        for base in bases:
            if isinstance(base, MadeClassVar):
                base.subclasses.append(var)
        self.trace.objects.remember(model, var)
        for key, value in entries.items():
            if key not in fixed:
                store_entry(model, key, self._entry(key, value))
        try:
            finish(model)
        except TypeError as error:  # in Python, after what `__set_name__` and the like have done
            raise RestartTrace(step, Break("class_definition", f"{name}: {error}")) from error
        self.note_parts(var)
        return var

    def make_by(
        self, function: Callable[..., type], args: list[Any], step: int
    ) -> MadeClassVar:
        """The class that a function of the standard library makes of constants and made classes."""
        real = [arg.cls if isinstance(arg, MadeClassVar) else arg for arg in args]
        model = self.trace.run_real(lambda: function(*real))
        bases = [ClassVar(base, None, None) for base in model.__bases__]
        var = MadeClassVar(model, type(model), bases, {}, {}, step)
        var.recipe = function, tuple(args)
        self.vars[model] = var
        self.trace.objects.remember(model, var)
        self.note_parts(var)
        return var

    def _entry(self, name: str, value: Var) -> Any:
        if name != "__annotations__" or not isinstance(value, DictVar):
            return self.stand_in(value)
        real = {key.as_constant(): self.stand_in(item) for key, item in value.entries.values()}
        self.trace.objects.remember(real, value)
        return real

    def note_parts(self, var: MadeClassVar) -> None:
        """Notes everything that lies in the model, which must not leave the trace."""
        for item in (var.cls, *class_dict(var.cls).values()):
            if isinstance(item, INNER_KINDS):
                if self.trace.objects.var_of(item) in (None, var):
                    self._inner[id(item)] = item, var

    def note_copy(self, copy: Any, source: Source) -> None:
        """Notes a copy of what is found in a model."""
        var = self.is_inside(source)
        if var is not None:
            self._inner[id(copy)] = copy, var

    # -- leaving the trace ------------------------------------------------------------------

    def is_inside(self, source: Source | None) -> MadeClassVar | None:
        """The class whose model the place is in."""
        root = source.root() if self.vars and source is not None else None
        if not isinstance(root, ObjectSource):
            return None
        found = self._inner.get(id(root.value))
        return None if found is None else found[1]

    def check(self, reached: Iterable[Var]) -> None:
        """Breaks before the classes whose models would leave the trace."""
        for var in reached if self.vars else ():
            found = self.is_inside(var.source)
            if found is None and var.source is None and not isinstance(var, ClassVar):
                kind = kind_of(var)
                made = self.vars.get(kind) if kind is not None else None
                found = made if made is not None and var.class_var is not made else None
            if found is not None:
                raise RestartTrace(found.step, Break(
                    "class_definition", f"{found!r}, of which {var!r} outlives the graph"))


def kind_of(var: Var) -> type | None:
    try:
        return var.python_type()
    except Break:
        return None


INNER_KINDS = (types.FunctionType, StandIn, dict, type, types.MappingProxyType,
               types.MemberDescriptorType, types.GetSetDescriptorType, weakref.ref)


def check_entry(kind: type, name: str, value: Var) -> None:
    """Breaks for an entry that can't be stored into a class that exists, and for one that C code
    would ask in the model whether it is abstract."""
    if name == "__new__" and isinstance(value, BuiltinVar):
        raise Break("class_definition", f"its __new__ is {value!r}")
    hidden = find_in_mro(kind, name)
    if hidden is not None and find_in_mro(type(hidden), "__set__") is not None:
        if name not in (*READ_BY_TYPE, "__annotations__"):
            raise Break("class_definition", f"the entry {name!r}, which its metaclass has, too")
    if issubclass(kind, ABCMeta) and any(map(tells_abstract, (value, *value.children()))):
        raise Break("class_definition", f"{value!r}, which tells whether it is abstract")


def tells_abstract(var: Var) -> bool:
    """True where `__isabstractmethod__` is no constant of a function."""
    if isinstance(var, FunctionVar):
        told = var.written.get("__isabstractmethod__")
        return told is not None and not told.is_constant()
    if isinstance(var, ObjectVar):
        return "__isabstractmethod__" in var.written or (
            "__isabstractmethod__" in (instance_dict(var.real) or ())) or (
            find_in_mro(var.cls, "__isabstractmethod__") is not None)
    return False


def plain_entry(var: Var) -> Any:
    """A constant entry; a list for `__slots__` too."""
    if isinstance(var, ListVar | TupleVar):
        return var.python_type()(item.as_constant() for item in var.items)
    return var.as_constant()


def make_bare(
    kind: type, name: str, bases: tuple[type, ...], names: Iterable[str], fixed: dict[str, Any]
) -> type:
    """A class without its entries (but in their order), for which nothing of the program has run.

    >>> make_bare(type, "A", (int,), ["b", "a"], {"__module__": "m"}).__bases__
    (<class 'int'>,)
    """
    def entries() -> dict[str, Any]:
        own = {key: list(value) if type(value) is list else value for key, value in fixed.items()}
        return {key: own.get(key) for key in names} | own

    if not runs_program(bases):
        return type.__new__(kind, name, bases, entries())
    for slots in ({}, {"__slots__": ()}):
        silent = type("Silent", (), {"__init_subclass__": classmethod(do_nothing), **slots})
        cls: type = type.__new__(kind, name, (silent, *bases), entries())
        try:
            cls.__bases__ = bases
            return cls
        except TypeError:
            continue
    raise Break("class_definition", f"{name} has a base whose __init_subclass__ can't be held back")


def do_nothing(cls: type, /, **keywords: Any) -> None:
    """An `__init_subclass__`."""


def runs_program(bases: tuple[type, ...]) -> bool:
    """True where making a subclass calls a function of the program, or one that a bare base still
    lacks."""
    for base in bases:
        found = find_owner(base, "__init_subclass__")
        if found is not None and (found[1] is None or isinstance(found[1], classmethod)):
            return module_of(found[0]) != "typing"
    return False


def store_entry(cls: type, name: str, value: Any) -> None:
    """`type.__new__`'s own way of keeping an entry."""
    if isinstance(value, types.FunctionType):
        if name in WRAPPED:
            value = staticmethod(value) if name == "__new__" else classmethod(value)
    type.__setattr__(cls, name, value)


def store_part(cls: type, name: str, value: Any) -> None:
    """The same for what the standard library puts into classes, some of which keeps its name."""
    type.__setattr__(cls, name, value)
    if find_in_mro(type(value), "__set_name__") is not None:
        value.__set_name__(cls, name)


def finish(cls: type) -> None:
    """What the metaclasses of the standard library do at the end."""
    if issubclass(type(cls), ABCMeta):
        _abc_init(cls)
