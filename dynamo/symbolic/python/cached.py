"""Functions behind `functools.lru_cache`: called while tracing, as the program would call them.

The cache makes the result of one call the result of all later ones, whatever the function reads;
so it is asked once, with the real arguments, and its answer is kept with the entry. Where these are
numbers that change, what is known to read nothing else is traced; other functions end the graph.
"""

from __future__ import annotations

import functools
import gc
import types
from collections.abc import Callable, Hashable
from typing import Any

import torch

from dynamo.base.decisions import is_constant
from dynamo.base.errors import Break
from dynamo.guards.sources import AttrSource, ObjectSource, Source
from dynamo.symbolic.core.constant import VALUE_TYPES, ConstVar
from dynamo.symbolic.core.frame import Evaluation, Frame
from dynamo.symbolic.core.identities import identity_key
from dynamo.symbolic.core.known_libraries import is_pure
from dynamo.symbolic.core.lookup import find_in_mro, name_in_c
from dynamo.symbolic.core.unguarded import Unguarded
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.core.wrapping import wrap_named, wraps
from dynamo.symbolic.python.classes import ClassVar
from dynamo.symbolic.python.functions import BuiltinVar, FunctionVar
from dynamo.symbolic.python.lists import SizeVar, TupleVar
from dynamo.symbolic.python.objects import EnumVar, ObjectVar, is_frozen_dataclass
from dynamo.symbolic.shapes.numbers import SymbolicNumber


class CachedFunctionVar(Var):
    """A `functools.lru_cache` wrapper."""

    tells_place = False

    def __init__(self, real: Any, source: Source | None) -> None:
        super().__init__(source)
        self.real = real

    def describe(self) -> str:
        return f"the function {name_of(self.real)}, which is cached"

    def python_type(self) -> type:
        return type(self.real)

    def truth(self, tx: Frame) -> bool:
        return True

    def call(self, tx: Frame, args: list[Var], kwargs: dict[str, Var]) -> Var:
        trace = tx.trace
        trace.guard("ID", self.source, self.real)
        if trace.is_modelled(self.real):
            return trace.call_real(tx, self.real, args, kwargs)
        inner = getattr(self.real, "__wrapped__", None)
        pure = is_pure(inner)
        if any(map(is_symbolic, (*args, *kwargs.values()))):
            if pure:
                return tx.call_attribute(self, "__wrapped__", args, kwargs)
            if not trace.context.settings.fullgraph:  # better than a compile per number
                raise Break("call_of_unknown_function", f"{self!r}, with a number that changes")
        values = [real_value(trace, arg, keeps_hash) for arg in args]
        keywords = {name: real_value(trace, arg, keeps_hash) for name, arg in kwargs.items()}
        is_known = pure or is_constant(inner) or (
            not keywords and is_cached(self.real, values))
        if not is_known and trace.effects.has_outside():
            raise Break("call_of_unknown_function", f"{self!r} after changes that it may read")
        if not is_known and is_full(self.real) and not trace.context.settings.fullgraph:
            raise Break("call_of_unknown_function", f"{self!r}, whose cache is full")
        try:
            result = self.real(*values, **keywords)
        except Exception as error:  # is not cached: the next call may find another answer
            raise Break("call_of_unknown_function", f"{self!r} raises") from error
        if type(result) in VALUE_TYPES:
            trace.state(Unguarded).answer(self.real, values, keywords, result)
            return ConstVar(result)
        if values or keywords or not is_plain_dict(result):
            trace.state(Unguarded).refuse(f"it keeps what {self!r} gave")
        else:
            trace.state(Unguarded).keep(self.real, result)
        return trace.wrap(result, ObjectSource(result, f"{name_of(self.real)}()"))

    def get_attr(self, tx: Frame, name: str) -> Var:
        if name == "__class__":
            return tx.trace.wrap(self.python_type(), None)
        assert self.source is not None
        if name in self.real.__dict__:
            return wrap_named(tx.trace, self.real.__dict__[name], AttrSource(self.source, name))
        if find_in_mro(self.python_type(), name) is not None:
            raise Break("attribute_unknown", f"{name} of {self!r}")
        tx.trace.guard("LACKS_ATTR", self.source, name)
        message = f"'{name_in_c(self.python_type())}' object has no attribute '{name}'"
        tx.trace.raise_exception(AttributeError, message)

    def hash_key(self, tx: Frame) -> Hashable:
        return identity_key(tx.trace, self)


def is_plain_dict(value: Any) -> bool:
    """True for a dict of texts and plain values, as of the capabilities of a processor."""
    return type(value) in (dict, types.MappingProxyType) and all(
        type(key) is str and type(item) in VALUE_TYPES for key, item in value.items())


def is_symbolic(var: Var) -> bool:
    """True for a number that is not fixed, and for tuples with one."""
    if isinstance(var, TupleVar):
        return any(map(is_symbolic, var.items))
    return isinstance(var, SymbolicNumber) and var.is_symbolic


def is_full(cached: Any) -> bool:
    """True where the answer to a new call takes the place of another one, or is not kept at all."""
    facts = functools._lru_cache_wrapper.cache_info(cached)
    return facts.maxsize is not None and facts.currsize >= facts.maxsize


def name_of(cached: Any) -> str:
    """Its `__qualname__`, which the wrapper of another object than a function may lack."""
    return str(getattr(cached, "__qualname__", "of another object"))


def is_cached(cached: Any, values: list[Any]) -> bool:
    """True where the cache has the answer to a call with these positional arguments."""
    parameters = cached.__dict__.get("cache_parameters")
    if parameters is None or parameters()["typed"]:
        return False
    only = values[0] if len(values) == 1 and type(values[0]) in (int, str) else tuple(values)
    dicts = [item for item in gc.get_referents(cached) if type(item) is dict]
    return any(only in item for item in dicts if item is not cached.__dict__)


def real_value(trace: Evaluation, var: Var, accepts: Callable[[type], bool] | None = None) -> Any:
    """The real argument of a call made while tracing, guarded to be the same one again.

    accepts: says for which classes an object's identity is enough to know.
    """
    if isinstance(var, ConstVar):
        return var.value
    if type(var) is SizeVar and var.is_constant():
        return var.as_constant()
    if type(var) is TupleVar:
        return tuple(real_value(trace, item, accepts) for item in var.items)
    if isinstance(var, ClassVar):
        return var.cls
    if isinstance(var, EnumVar):
        return var.as_constant()
    if isinstance(var, BuiltinVar):
        return var.value
    if isinstance(var, FunctionVar) and var.real is not None:
        var.guard_identity(trace)
        return var.real
    if isinstance(var, ObjectVar) and var.real is not None and not var.written:
        if accepts is None or accepts(var.cls):
            trace.guard("ID", var.source, var.real)
            return var.real
    raise Break("call_of_unknown_function", f"a call made while tracing, with {var!r}")


def keeps_hash(cls: type) -> bool:
    """True where an object equals only itself, or never changes."""
    by_identity = cls.__hash__ is object.__hash__ and cls.__eq__ is object.__eq__
    return by_identity or issubclass(cls, torch.nn.Module) or is_frozen_dataclass(cls)


@wraps(functools._lru_cache_wrapper)
def wrap_cached_function(trace: Evaluation, value: Any, source: Source | None) -> Var:
    """A function behind `functools.lru_cache`."""
    assert source is not None
    trace.guard("TYPE", source, type(value))
    return CachedFunctionVar(value, source)
