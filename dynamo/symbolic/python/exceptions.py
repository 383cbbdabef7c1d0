"""Exception instances of the traced program."""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Hashable, Iterable
from pathlib import Path
from typing import Any, NoReturn

from dynamo import hook
from dynamo.base.errors import Break
from dynamo.guards.sources import CallSource, ObjectSource, Source
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.frame import Evaluation, Frame
from dynamo.symbolic.core.identities import identity_key
from dynamo.symbolic.core.lookup import find_in_mro, find_owner, is_heap_type
from dynamo.symbolic.core.var import ObservedException, Var
from dynamo.symbolic.python.demands import as_demanded
from dynamo.symbolic.python.lists import TupleVar

SLOTS = ("__cause__", "__context__", "__traceback__", "__suppress_context__")


HEAP_TYPE = 1 << 9
OWN_FOLDER = str(Path(__file__).parents[2]) + os.sep
SET_TRACEBACK = hook.Disabled(BaseException.with_traceback)
# Built-in class -> the attribute that holds its first argument, and what the interpreter sets.
FIRST_ARGUMENT: dict[type, str] = {StopIteration: "value", SystemExit: "code"}
NAMED: dict[type, tuple[str, ...]] = {
    AttributeError: ("name", "obj"), NameError: ("name",), UnboundLocalError: ("name",),
}


def may_be(name: str, value: Var) -> bool:
    """True for what Python takes for an exception's attribute of this name."""
    kind = value.python_type()
    if name == "__suppress_context__":
        return kind is bool
    wanted = types.TracebackType if name == "__traceback__" else BaseException
    return kind is type(None) or issubclass(kind, wanted)


class ExceptionVar(Var):
    """An exception made in the trace.

    cls: its class; args: what `args` holds. Attributes written by the program are in `written`,
    those that the interpreter set in `named`. raised_bare: True where no frame of the trace was
    handling anything when it was raised: what a caller handles then becomes its `__context__`.
    """

    def __init__(self, cls: type[BaseException], args: list[Var], source: Source | None = None):
        super().__init__(source)
        self.cls = cls
        self.args = args
        self.cause: Var = ConstVar(None)
        self.context: Var = ConstVar(None)
        self.raised_bare = False
        self.traceback: Var = ConstVar(None)
        self.suppress_context: Var = ConstVar(False)
        self.written: dict[str, Var | None] = {}
        self.named: dict[str, Var] = {}

    def base(self) -> type:
        """The nearest class written in C."""
        return next(cls for cls in self.cls.__mro__ if not cls.__flags__ & HEAP_TYPE)

    def first_argument(self) -> Var:
        """What StopIteration and SystemExit carry."""
        if len(self.args) > 1 and self.base() is SystemExit:
            return TupleVar(self.args)
        return self.args[0] if self.args else ConstVar(None)

    def name_once(self, **parts: Var) -> bool:
        """Sets what the interpreter tells of a failed lookup, unless it is known already."""
        if self.base() not in NAMED or self.named:
            return False
        self.named.update(parts)
        return True

    def describe(self) -> str:
        return f"the exception {self.cls.__name__}({', '.join(map(repr, self.args))})"

    def python_type(self) -> type:
        return self.cls

    def children(self) -> Iterable[Var]:
        yield from self.args
        yield from (self.cause, self.context)
        yield from self.named.values()
        yield from (value for value in self.written.values() if value is not None)
        if not self.traceback.is_constant():
            yield self.traceback

    def truth(self, tx: Frame) -> bool:
        for name in ("__bool__", "__len__"):
            if tx.trace.attributes.has_special(self.cls, name):
                method = tx.trace.attributes.get_class_attr(tx, self, name)
                return as_demanded(tx, name, self.cls, tx.call(method, [], {})).truth(tx)
        return True

    def check_reader(self, tx: Frame, name: str) -> None:
        """Breaks where the class has a function or a property that the base's part hides."""
        reader, found = (find_owner(self.cls, part) for part in ("__getattribute__", name))
        hidden = name not in self.written and found is not None and is_heap_type(found[0])
        is_part = name == "args" or name in (
            *SLOTS, *NAMED.get(self.base(), ()), FIRST_ARGUMENT.get(self.base()))
        if reader is None or is_heap_type(reader[0]) or (hidden and is_part):
            raise Break("attribute_unknown", f"{name} of {self!r}")

    def get_attr(self, tx: Frame, name: str) -> Var:
        self.check_reader(tx, name)
        if name in self.written:
            value = self.written[name]
            if value is not None:
                return value
        elif name == "args":
            return TupleVar(self.args)
        elif name == FIRST_ARGUMENT.get(self.base()):
            return self.first_argument()
        elif name in NAMED.get(self.base(), ()):
            return self.named.get(name, ConstVar(None))
        elif name in SLOTS:
            if name == "__context__" and self.raised_bare and handled_outside(tx.trace):
                raise Break("attribute_unknown", f"{name} of {self!r}, what a caller handles")
            return getattr(self, name.strip("_"))  # type: ignore[no-any-return]
        return tx.trace.attributes.get_class_attr(tx, self, name)

    def set_attr(self, tx: Frame, name: str, value: Var) -> None:
        if name == "args":
            self.args = value.unpack(tx)
        elif name in NAMED.get(self.base(), ()):
            self.named[name] = value
        elif name == FIRST_ARGUMENT.get(self.base()):
            raise Break("attribute_store_unknown", f"{name} of {self!r}")
        elif name in SLOTS and not may_be(name, value):
            raise Break("attribute_store_unknown", f"{name} of {self!r}")
        elif name == "__cause__":
            self.cause, self.suppress_context = value, ConstVar(True)
        elif name in SLOTS:
            setattr(self, name.strip("_"), value)
            self.raised_bare &= name != "__context__"
        else:
            hidden = find_in_mro(self.cls, name)
            custom = find_in_mro(self.cls, "__setattr__") is not BaseException.__setattr__
            if custom or find_in_mro(type(hidden), "__set__") is not None:
                raise Break("attribute_store_unknown", f"{name} of {self!r}")
            tx.trace.effects.store_attr(self, name, value)
            self.written[name] = value
            return
        tx.trace.effects.tick()

    def hash_key(self, tx: Frame) -> Hashable:
        return identity_key(tx.trace, self)


def read_attribute(tx: Frame, value: Var, name: str) -> Var:
    """`value.name`; the error of a failed lookup tells of what was looked for.

    Where the error leaves the trace, the lookup runs in Python: it tells that of an error that a
    function of the program (a property) has raised.
    """
    try:
        return value.get_attr(tx, name)
    except ObservedException as error:
        found = error.value
        if isinstance(found, ExceptionVar) and found.base() is AttributeError:
            if found.name_once(name=ConstVar(name), obj=value) and error.step is not None:
                error.step = tx.step_at_start - tx.current.part
        raise


def stopped(stop: Var) -> ExceptionVar:
    """What a StopIteration that leaves a generator's own code becomes."""
    error = ExceptionVar(RuntimeError, [ConstVar("generator raised StopIteration")])
    error.cause = error.context = stop
    error.suppress_context = ConstVar(True)
    return error


class TracebackVar(Var):
    """An entry of a traceback and those behind it.

    code, instruction: the frame's, which the exception has left there; globals: its own, None for
    those of the root frame; following: the next entry, or None.
    """

    def __init__(
        self, code: types.CodeType, instruction: int, module_globals: dict[str, Any] | None,
        following: Var,
    ) -> None:
        super().__init__()
        self.code = code
        self.instruction = instruction
        self.globals = module_globals
        self.following = following

    def python_type(self) -> type:
        return types.TracebackType

    def children(self) -> Iterable[Var]:
        return () if self.following.is_constant() else (self.following,)

    def truth(self, tx: Frame) -> bool:
        return True

    def get_attr(self, tx: Frame, name: str) -> Var:
        if name == "tb_next":
            return self.following
        raise Break("traceback_read", name)

    def hash_key(self, tx: Frame) -> Hashable:
        return identity_key(tx.trace, self)


class OutsideTracebackVar(Var):
    """The traceback of an exception from outside; it has one."""

    def __init__(self, exception: Var) -> None:
        super().__init__()
        self.exception = exception

    def python_type(self) -> type:
        return types.TracebackType

    def children(self) -> Iterable[Var]:
        return (self.exception,)

    def truth(self, tx: Frame) -> bool:
        return True

    def is_same(self, tx: Frame, other: Var) -> bool:
        if self is other:
            return True
        if isinstance(other, OutsideTracebackVar):
            raise Break("traceback_read", "its identity")
        return False

    def get_attr(self, tx: Frame, name: str) -> Var:
        raise Break("traceback_read", name)


def traceback_of(exception: Var) -> Var:
    """The traceback of an exception that has been raised."""
    if isinstance(exception, ExceptionVar):
        return exception.traceback
    return OutsideTracebackVar(exception)


def lacks_traceback(exception: Var) -> bool:
    """True for an exception of the trace that has none. (CPython 3.11 crashes in a `with` then.)"""
    return isinstance(exception, ExceptionVar) and exception.traceback.is_constant()


def note_passing(frame: Frame, exception: Var) -> None:
    """The exception is about to leave, or be caught in, the frame: its traceback gets an entry."""
    if frame.code.co_filename.startswith(OWN_FOLDER):
        return  # it stands for a function that is written in C
    module_globals = frame.globals if frame.parent is not None else None
    place = frame.code, frame.current.index, module_globals
    if isinstance(exception, ExceptionVar):
        exception.traceback = TracebackVar(*place, exception.traceback)
    else:
        entry = TracebackVar(*place, OutsideTracebackVar(exception))
        frame.trace.effects.call(SET_TRACEBACK, exception, entry)


def handled_outside(trace: Evaluation) -> bool:
    """True where a caller, or a block around the part, handles an exception."""
    if not trace.handled:
        handled = CallSource(ObjectSource(sys.exception, "sys.exception"))
        trace.guard("ID", handled, None)
    return trace.handled


def raise_name_error(name: str, text: str) -> NoReturn:
    """Raises NameError in the traced program; it knows the name."""
    error = ExceptionVar(NameError, [ConstVar(text)])
    error.name_once(name=ConstVar(name))
    raise ObservedException(error)
