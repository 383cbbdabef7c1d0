"""Callables: Python functions (real, or made in the trace), bound methods, built-ins.

A real function is guarded by identity where its place normally holds one function for ever (a
module's globals, a class), and by its code where a new closure may stand there at each call.
"""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Callable, Hashable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from dynamo.base.autograd_apply import APPLY, is_apply
from dynamo.base.decisions import decisions
from dynamo.base.errors import Break
from dynamo.graph_operators.regions import is_marked, most_kinds_of
from dynamo.guards.sources import (
    AttrSource,
    DictSource,
    GlobalSource,
    ItemSource,
    ModuleSource,
    ObjectSource,
    Source,
)
from dynamo.symbolic.core.constant import VALUE_TYPES, ConstVar
from dynamo.symbolic.core.frame import Evaluation, Frame
from dynamo.symbolic.core.identities import identity_key
from dynamo.symbolic.core.lookup import find_in_mro, module_of, name_in_c, note_written, order_names
from dynamo.symbolic.core.unguarded import Unguarded
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.core.wrapping import wrap_named, wraps, wraps_if
from dynamo.symbolic.python.cells import CellVar

FIXED_LIBRARIES = frozenset({"torch", *sys.stdlib_module_names}) - {"__main__"}


def is_settled_place(source: Source) -> bool:
    """True for places where a function normally stays: a module's or a class's dict."""
    if isinstance(source, GlobalSource | ObjectSource):
        return True
    return (
        isinstance(source, ItemSource | AttrSource)
        and isinstance(source.root(), GlobalSource | ObjectSource | ModuleSource)
        and not any(isinstance(step, AttrSource) for step in source.base.chain())
    )


# What torch.compiler.nested_compile_region makes, in this file, has the function there.
NESTED_REGION = "__marked_compile_region_fn__"
NESTED_REGIONS_FILE = os.path.join("torch", "_higher_order_ops", "invoke_subgraph.py")
# torch's own compiler, when it is used first, puts these around functions of torch's.
LATE_WRAPPER = torch._disable_dynamo(len).__code__  # type: ignore[attr-defined]


def _region(tx: Frame, function: Var, marked: Any) -> AbstractContextManager[None]:
    """Where the operations of a call of a block that the program marks are made."""
    code = function.code if isinstance(function, FunctionVar) else None
    place = "" if code is None else f"{code.co_filename}:{code.co_firstlineno}"
    return tx.trace.graph.region(place, most_kinds_of(marked))


class FunctionVar(Var):
    """A Python function.

    real: the existing function, or None for one made in the trace; then code, globals, defaults,
    kwdefaults, closure and name describe it.
    """

    def __init__(
        self,
        real: types.FunctionType | None = None,
        *,
        code: types.CodeType | None = None,
        globals: dict[str, Any] | None = None,
        defaults: Iterable[Var] = (),
        kwdefaults: dict[str, Var] | None = None,
        closure: Iterable[CellVar] = (),
        name: str | None = None,
        qualname: str | None = None,
        annotations: Var | None = None,
        source: Source | None = None,
        trace: Evaluation | None = None,
    ) -> None:
        super().__init__(source)
        self.real = real
        self._trace = trace
        self.written: dict[str, Var | None] = {}
        self.renewed: set[str] = set()  # names that were deleted and set again
        self.read_defaults: Var | None = None  # of one made in the trace, once they are asked for
        if real is not None:
            self.code: types.CodeType = real.__code__
            self.globals: dict[str, Any] = real.__globals__
            self.name, self.qualname = real.__name__, real.__qualname__
            self._defaults: list[Var] | None = None
            self._kwdefaults: dict[str, Var] | None = None
            self._closure: tuple[CellVar, ...] | None = None
        else:
            assert code is not None and globals is not None
            self.code, self.globals = code, globals
            self.name = name or code.co_name
            self.qualname = qualname or code.co_qualname
            self._defaults, self._kwdefaults = list(defaults), dict(kwdefaults or {})
            self._closure = tuple(closure)
        self.annotations = annotations

    tells_place = False

    def describe(self) -> str:
        return f"the function {self.qualname}"

    def python_type(self) -> type:
        if self._trace is not None and self.source is not None:
            self._trace.guard("TYPE", self.source, types.FunctionType)
        return types.FunctionType

    def children(self) -> Iterable[Var]:
        if self.real is None:
            if self.read_defaults is not None:
                yield self.read_defaults
            else:
                yield from self._defaults or ()
            yield from (self._kwdefaults or {}).values()
            yield from self._closure or ()
            if self.annotations is not None:
                yield self.annotations
        yield from (value for value in self.written.values() if value is not None)

    # -- parts ------------------------------------------------------------------------------

    def guard(self) -> None:
        """Guards that the real function is this one (once)."""
        if self._trace is not None and self.source is not None:
            trace, self._trace = self._trace, None
            if is_settled_place(self.source):
                trace.guard("ID", self.source, self.real)
            if not is_settled_place(self.source) or self.may_change():
                trace.guard("CODE", self.source, self.code)

    def may_change(self) -> bool:
        """True for functions of the program: nothing writes into those of torch and of Python."""
        root = str(self.globals.get("__name__")).partition(".")[0]
        return root not in FIXED_LIBRARIES

    def behind_wrapper(self) -> str | None:
        """The attribute with the function that is to be traced in the place of a wrapper of
        torch's own compiler: a compiled function is what it compiles, and parts of torch are
        wrapped, once that compiler is used, so that it leaves them alone. What
        `nested_compile_region` made is the repeated function: its operations are marked.

        Breaks for what `torch.compiler.disable` has made.
        """
        marks = {} if self.real is None else self.real.__dict__
        if NESTED_REGION in marks and self.code.co_filename.endswith(NESTED_REGIONS_FILE):
            return NESTED_REGION
        if "_torchdynamo_disable" in marks:
            original = marks.get("__wrapped__")
            if isinstance(original, types.FunctionType) and module_of(original).startswith(
                ("torch.optim.", "torch.random")
            ):
                return "__wrapped__"
        if self.real is not None and self.real.__code__ is LATE_WRAPPER and (
            self.real.__module__ == "torch.random"
        ):
            return "__wrapped__"
        if marks.get("_torchdynamo_wrapper_id") != id(self.real):  # copied by functools.wraps
            return None
        original = marks["_torchdynamo_orig_callable"]
        if "_torchdynamo_disable" not in marks:
            return "_torchdynamo_orig_callable"
        if not marks.get("_torchdynamo_disable_recursive", True) and hasattr(original, "__code__"):
            decisions.keep("skipped", original.__code__)
        why = marks.get("_torchdynamo_disable_msg") or "torch.compiler.disable"
        raise Break("call_disabled", f"{getattr(original, '__qualname__', self.qualname)}: {why}")

    def guard_identity(self, trace: Evaluation) -> None:
        """Guards the function object itself: needed where code alone does not decide."""
        if self.source is not None:
            trace.guard("ID", self.source, self.real)

    def guard_signature(self, trace: Evaluation) -> None:
        """Guards all that `inspect.signature` looks at."""
        self.guard_identity(trace)
        if self.source is None or self.real is None:
            return
        for name in ("__code__", "__defaults__", "__kwdefaults__"):
            trace.guard("ID", AttrSource(self.source, name), getattr(self.real, name))
        for name in ("__kwdefaults__", "__annotations__"):
            items = getattr(self.real, name)
            if items:
                place = AttrSource(self.source, name)
                trace.guard("DICT_KEYS", place, tuple(items))
                for key, item in items.items():
                    trace.guard("ID", ItemSource(place, key), item)
        if not self.real.__annotations__:
            trace.guard("BOOL_TRUTH", AttrSource(self.source, "__annotations__"), False)
        own = DictSource(self.source)
        for name in ("__signature__", "__wrapped__", "__text_signature__"):
            if name in self.real.__dict__:
                trace.guard("ID", ItemSource(own, name), self.real.__dict__[name])
            else:
                trace.guard("DICT_LACKS", own, name)

    def _part(self, trace: Evaluation, value: Any, source: Source) -> Var:
        assert self.source is not None
        if type(value) in VALUE_TYPES and is_settled_place(self.source) and not self.may_change():
            return ConstVar(value)
        return trace.wrap(value, source)

    def defaults(self, tx: Frame) -> list[Var]:
        """Defaults of the last positional parameters."""
        if self._defaults is None:
            assert self.real is not None and self.source is not None
            base = AttrSource(self.source, "__defaults__")
            values = self.real.__defaults__ or ()
            self._defaults = [  # counted from the last parameter, as Python does
                self._part(tx.trace, value, ItemSource(base, index - len(values)))
                for index, value in enumerate(values)
            ]
        return self._defaults

    def defaults_tuple(self, tx: Frame) -> Var:
        """`__defaults__` of a function that the trace has made: one object."""
        if self.read_defaults is None:
            self.read_defaults = tx.trace.make.tuple(self.defaults(tx))
        return self.read_defaults

    def kwdefaults(self, tx: Frame) -> dict[str, Var]:
        """Defaults of keyword-only parameters; the program may write into their dict."""
        if self._kwdefaults is None:
            assert self.real is not None and self.source is not None
            base = AttrSource(self.source, "__kwdefaults__")
            if self.real.__kwdefaults__ is not None and self.may_change():
                return keywords_of(tx, tx.trace.wrap(self.real.__kwdefaults__, base))
            self._kwdefaults = {
                name: self._part(tx.trace, value, ItemSource(base, name))
                for name, value in (self.real.__kwdefaults__ or {}).items()
            }
        return self._kwdefaults

    def closure(self, tx: Frame) -> tuple[CellVar, ...]:
        """The cells of the free variables."""
        if self._closure is None:
            assert self.real is not None and self.source is not None
            base = AttrSource(self.source, "__closure__")
            cells = []
            for index, cell in enumerate(self.real.__closure__ or ()):
                var = tx.trace.wrap(cell, ItemSource(base, index))
                assert isinstance(var, CellVar)
                cells.append(var)
            self._closure = tuple(cells)
        return self._closure

    # -- protocol ---------------------------------------------------------------------------

    def truth(self, tx: Frame) -> bool:
        return self.python_type() is types.FunctionType

    def call(self, tx: Frame, args: list[Var], kwargs: dict[str, Var]) -> Var:
        behind = self.behind_wrapper()
        if behind is not None:
            self.guard_identity(tx.trace)
            assert self.source is not None and self.real is not None
            real = self.real.__dict__[behind]
            inner = tx.trace.wrap(real, AttrSource(self.source, behind))
            with _region(tx, inner, real) if behind == NESTED_REGION else nullcontext():
                return inner.call(tx, args, kwargs)
        if self.real is not None:
            if tx.trace.is_modelled(self.real):
                self.guard_identity(tx.trace)
                return tx.trace.call_real(tx, self.real, args, kwargs)
            self.guard()
            if id(self.real.__code__) in SHORTCUTS:
                found = self._shorten(tx, args, kwargs)
                if found is not None:
                    return found
            if is_marked(self.real):
                with _region(tx, self, self.real):
                    return tx.inline(self, args, kwargs)
        return tx.inline(self, args, kwargs)

    def _shorten(
        self, tx: Frame, args: list[Var], kwargs: dict[str, Var]
    ) -> Var | None:
        """What the row of `SHORTCUTS` answers; None where the code is to be traced."""
        assert self.real is not None
        code, defaults = self.real.__code__, self.real.__defaults__ or ()
        names = code.co_varnames[: code.co_argcount]
        given = {*names[: len(args)], *kwargs}
        wanted = names[: len(names) - len(defaults)]
        fits = len(given) == len(args) + len(kwargs) and given.issuperset(wanted)
        _, before, shortcut = SHORTCUTS[id(code)]
        if not fits or not given.issubset(names) or self.real.__defaults__ is not before:
            return None
        with tx.using_results():
            return shortcut(tx, *args, **kwargs)

    def hash_key(self, tx: Frame) -> Hashable:
        if self.real is not None:
            self.guard_identity(tx.trace)
        return identity_key(tx.trace, self)

    def is_same(self, tx: Frame, other: Var) -> bool:
        if self is not other and self.real is not None:
            if isinstance(other, ConstVar) or isinstance(other, FunctionVar) and (
                    other.source is not None or other.real is None):
                self.python_type()  # `same` guards that two from outside are two
            else:
                self.guard_identity(tx.trace)
        return self is other

    def get_attr(self, tx: Frame, name: str) -> Var:
        return tx.trace.attributes.get_function_attr(tx, self, name)

    def set_attr(self, tx: Frame, name: str, value: Var) -> None:
        self._write(tx, name, value)

    def del_attr(self, tx: Frame, name: str) -> None:
        self.get_attr(tx, name)
        self._write(tx, name, None)

    def _write(self, tx: Frame, name: str, value: Var | None) -> None:
        self.python_type()
        wanted = WRITABLE_PARTS.get(name, object)
        known = find_in_mro(types.FunctionType, name) is None or (
            name in WRITABLE_PARTS and value is not None)
        if not known or (value is not None and not issubclass(value.python_type(), wanted)):
            raise Break("attribute_store_unknown", f"{name} of {self!r}")
        tx.trace.effects.store_attr(self, name, value, raw=False)
        note_written(self.written, self.renewed, name, value)
        if name == "__annotations__" and ANNOTATE in WRITABLE_PARTS:  # a setter clears the other
            self.written[ANNOTATE] = ConstVar(None)
        elif name == ANNOTATE and value is not None and value.python_type() is not types.NoneType:
            self.written.pop("__annotations__", None)

    # -- the instance dict --------------------------------------------------------------------

    def own_names(self, tx: Frame) -> list[str]:
        """Names in `__dict__`, in order."""
        before: tuple[str, ...] = ()
        if self.real is not None:
            before = tuple(self.real.__dict__)
            tx.trace.guard("DICT_KEYS", self._own_place(), before)
        own = {name: value for name, value in self.written.items()
               if find_in_mro(types.FunctionType, name) is None}
        return order_names(before, own, self.renewed)

    def read_own(self, tx: Frame, name: str) -> Var | None:
        """An entry of `__dict__`, None where there is none (which is guarded)."""
        if find_in_mro(types.FunctionType, name) is not None:
            raise Break("attribute_unknown", f"{name} in the __dict__ of {self!r}")
        if name in self.written or self.real is None:
            return self.written.get(name)
        if name in self.real.__dict__:
            place = ItemSource(self._own_place(), name)
            return wrap_named(tx.trace, self.real.__dict__[name], place)
        tx.trace.guard("DICT_LACKS", self._own_place(), name)
        return None

    def _own_place(self) -> DictSource:
        if self.source is None:
            raise Break("attribute_unknown", f"__dict__ of {self!r}")
        self.guard()
        return DictSource(self.source)

    def write_own(self, tx: Frame, name: str, value: Var | None) -> None:
        """Sets (None: deletes) an entry of `__dict__`."""
        if find_in_mro(types.FunctionType, name) is not None:
            raise Break("attribute_store_unknown", f"{name} in the __dict__ of {self!r}")
        self._write(tx, name, value)


# What the program may set of what each function has, and the types that are taken.
WRITABLE_PARTS: dict[str, type | types.UnionType] = {
    "__name__": str, "__qualname__": str, "__module__": object, "__doc__": object,
    "__annotations__": dict, "__type_params__": tuple,
}
ANNOTATE = "__annotate__"  # what makes the annotations when they are asked for, from 3.14 on
if ANNOTATE in vars(types.FunctionType):
    WRITABLE_PARTS[ANNOTATE] = types.FunctionType | types.NoneType
# Attributes that a bound method has itself; others are its function's.
OWN_OF_METHODS = frozenset({*dir(object), "__call__", "__get__"}) - {"__doc__"}


# What a method of C is when it is bound.
BOUND_AS = {
    types.WrapperDescriptorType: types.MethodWrapperType,
    types.MethodDescriptorType: types.BuiltinFunctionType,
    types.ClassMethodDescriptorType: types.BuiltinFunctionType,
}


class MethodVar(Var):
    """A bound method: `function` is called with `receiver` first."""

    def __init__(self, function: Var, receiver: Var, source: Source | None = None) -> None:
        super().__init__(source)
        self.function = function
        self.receiver = receiver

    def describe(self) -> str:
        return f"{self.function!r} of {self.receiver!r}".replace("the function", "the method", 1)

    def python_type(self) -> type:
        if not isinstance(self.function, BuiltinVar):
            return types.MethodType
        return BOUND_AS.get(type(self.function.value), types.MethodType)

    def children(self) -> Iterable[Var]:
        return (self.function, self.receiver)

    def truth(self, tx: Frame) -> bool:
        return True

    def call(self, tx: Frame, args: list[Var], kwargs: dict[str, Var]) -> Var:
        return self.function.call(tx, [self.receiver, *args], kwargs)

    def get_attr(self, tx: Frame, name: str) -> Var:
        if name == "__self__":
            return self.receiver
        kind = self.python_type()
        if name == "__func__" and kind is types.MethodType:
            return self.function
        if name == "__class__":
            return tx.trace.wrap(kind, None)  # type: ignore[no-any-return]
        if kind is not types.MethodType and find_in_mro(kind, name) is None:
            message = f"'{name_in_c(kind)}' object has no attribute '{name}'"
            tx.trace.raise_exception(AttributeError, message)
        if name in OWN_OF_METHODS or (name == "__module__" and kind is types.BuiltinFunctionType):
            raise Break("attribute_unknown", f"{name} of {self!r}")
        return self.function.get_attr(tx, name)

    def hash_key(self, tx: Frame) -> Hashable:
        return ("method", self.function.hash_key(tx), identity_key(tx.trace, self.receiver))

    def is_same(self, tx: Frame, other: Var) -> bool:
        if self is not other and self.source is None and isinstance(other, MethodVar):
            return False
        return self is other


class NamedMethodVar(Var):
    """`receiver.name`, bound, of a Var that has its methods in `call_method`."""

    def __init__(self, receiver: Var, name: str) -> None:
        super().__init__()
        self.receiver, self.name = receiver, name

    def children(self) -> Iterable[Var]:
        return (self.receiver,)

    def call(self, tx: Frame, args: list[Var], kwargs: dict[str, Var]) -> Var:
        return self.receiver.call_method(tx, self.name, args, kwargs)


# By the id of a function's code (which stays alive here): its code and defaults, and what may
# answer a call with the same parameters in place of the code; None where that is to be traced.
SHORTCUTS: dict[int, tuple[types.CodeType, Any, Callable[..., Var | None]]] = {}


def shortens(function: types.FunctionType) -> Callable[[Any], Any]:
    """Registers a row of `SHORTCUTS`."""

    def register(handler: Callable[..., Var | None]) -> Callable[..., Var | None]:
        code = function.__code__
        SHORTCUTS[id(code)] = code, function.__defaults__, handler
        return handler

    return register


UNBOUND = (types.MethodDescriptorType, types.WrapperDescriptorType)  # methods of a built-in class


class BuiltinVar(Var):
    """A callable without Python code of its own: what it does is a row of the rule table."""

    def __init__(
        self, value: Any, source: Source | None = None, trace: Evaluation | None = None
    ) -> None:
        super().__init__(source)
        self._value = value
        self._trace = trace

    @property
    def value(self) -> Any:
        if self._trace is not None and self.source is not None:
            trace, self._trace = self._trace, None
            if not trace.is_fixed_place(self.source):
                trace.guard("ID", self.source, self._value)
            elif not isinstance(self.source, ObjectSource):
                trace.state(Unguarded).read(self.source, self._value)
        return self._value

    tells_place = False

    def describe(self) -> str:
        return f"the function {getattr(self._value, '__qualname__', None) or repr(self._value)}"

    def python_type(self) -> type:
        return type(self.value)

    def truth(self, tx: Frame) -> bool:
        return bool(self.value)

    def call(self, tx: Frame, args: list[Var], kwargs: dict[str, Var]) -> Var:
        value = self.value
        if isinstance(value, UNBOUND) and args:
            owner = value.__objclass__
            if not any(part is owner for part in args[0].python_type().__mro__):
                raise Break("argument_mismatch", f"{value.__qualname__}() of {args[0]!r}")
        return tx.trace.call_real(tx, value, args, kwargs)

    def get_attr(self, tx: Frame, name: str) -> Var:
        getter = find_in_mro(type(self.value), name) if name == "__get__" else None
        if isinstance(getter, types.WrapperDescriptorType):
            return MethodVar(BuiltinVar(getter), self)
        try:
            found = getattr(self.value, name)
        except AttributeError as error:
            tx.trace.raise_exception(AttributeError, *error.args)
        source = None if self.source is None else AttrSource(self.source, name)
        return tx.trace.wrap(found, source)

    def hash_key(self, tx: Frame) -> Hashable:
        return ("constant", self.value)

    def is_same(self, tx: Frame, other: Var) -> bool:
        return self is other or (isinstance(other, BuiltinVar) and other.value is self.value)


def keywords_of(tx: Frame, mapping: Var) -> dict[str, Var]:
    """What `f(**mapping)` gives by name."""
    found: dict[str, Var] = {}
    for key in mapping.unpack(tx):
        name = key.as_constant()
        if not isinstance(name, str):
            tx.trace.raise_exception(TypeError, "keywords must be strings")
        found[name] = mapping.get_item(tx, key)
    return found


def inline_polyfill(
    tx: Frame, function: Any, args: list[Var], kwargs: dict[str, Var]
) -> Var:
    """Runs a Python function that is no part of the program as part of this trace."""
    var = tx.trace.wrap(function, ObjectSource(function, function.__name__))
    assert isinstance(var, FunctionVar)
    return tx.inline(var, args, kwargs)


@wraps(types.FunctionType)
def wrap_function(trace: Evaluation, value: Any, source: Source | None) -> Var:
    """A Python function."""
    return FunctionVar(value, source=source, trace=trace)


@wraps(types.MethodType)
def wrap_method(trace: Evaluation, value: Any, source: Source | None) -> Var:
    """A bound method of a Python function (or of another callable)."""
    assert source is not None
    trace.guard("TYPE", source, types.MethodType)
    function = trace.wrap(value.__func__, AttrSource(source, "__func__"))
    receiver = trace.wrap(value.__self__, AttrSource(source, "__self__"))
    return MethodVar(function, receiver, source)


@wraps(types.BuiltinFunctionType, types.MethodWrapperType)
def wrap_builtin(trace: Evaluation, value: Any, source: Source | None) -> Var:
    """A C function; one that is bound to an object becomes a bound method."""
    receiver = getattr(value, "__self__", None)
    if is_apply(value) and source is not None:  # of a torch that has it built in
        trace.guard("TYPE", source, type(value))
        trace.guard("CONST", AttrSource(source, "__name__"), value.__name__)
        applied = trace.wrap(receiver, AttrSource(source, "__self__"))
        return MethodVar(BuiltinVar(APPLY), applied, source)
    if receiver is None or isinstance(receiver, types.ModuleType | type):
        return BuiltinVar(value, source, trace)
    # The method of a base class may be hidden by a Python override: take the first C one.
    found = (vars(cls).get(value.__name__) for cls in type(receiver).__mro__)
    kinds = types.MethodDescriptorType | types.WrapperDescriptorType
    descriptor = next((item for item in found if isinstance(item, kinds)), None)
    if descriptor is None or source is None:
        return BuiltinVar(value, source, trace)
    trace.guard("TYPE", source, type(value))
    trace.guard("CONST", AttrSource(source, "__name__"), value.__name__)
    return MethodVar(
        trace.wrap(descriptor, None), trace.wrap(receiver, AttrSource(source, "__self__")), source
    )


@wraps(
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.ClassMethodDescriptorType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
)
def wrap_descriptor(trace: Evaluation, value: Any, source: Source | None) -> Var:
    """A method or attribute of a built-in type, unbound."""
    return BuiltinVar(value, source, trace)


OPERATORS = (torch._ops.OpOverload, torch._ops.OpOverloadPacket)


@wraps_if(20, lambda value: issubclass(type(value), OPERATORS))
def wrap_operator(trace: Evaluation, value: Any, source: Source | None) -> Var:
    """`torch.ops.namespace.name`."""
    return BuiltinVar(value, source, trace)
