"""Making bound methods and simple objects: `types.MethodType(f, x)`, `types.SimpleNamespace(...)`,
`operator.itemgetter`, `attrgetter` and `methodcaller` through polyfills."""

from __future__ import annotations

import operator
import types
from collections.abc import Callable
from typing import Any

import torch

from dynamo.base.errors import Break
from dynamo.base.words import noun
from dynamo.guards.sources import ItemSource, Source, StateSource
from dynamo.guards.states import state_of
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.frame import Evaluation, Frame
from dynamo.symbolic.core.lookup import find_in_mro
from dynamo.symbolic.core.table import rule
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.core.wrapping import wraps
from dynamo.symbolic.python.functions import BuiltinVar, FunctionVar, MethodVar
from dynamo.symbolic.python.objects import ObjectVar
from dynamo.symbolic.tensors.compiled import CompiledVar
from dynamo.symbolic.tensors.tensor import TensorVar


@rule(types.MethodType)
def bind_method(tx: Frame, function: Var, receiver: Var) -> Var | None:
    """`types.MethodType(function, receiver)`."""
    if not isinstance(function, FunctionVar | CompiledVar):  # need not be callable, or is bound
        raise Break("call_of_unknown_function", f"types.MethodType({function!r}, {receiver!r})")
    function.python_type()
    return MethodVar(function, receiver)


@rule(types.FunctionType.__get__, FunctionVar)
def bind_function(
    tx: Frame, function: Var, receiver: Var, owner: Var = ConstVar(None)  # noqa: B008
) -> Var | None:
    """`function.__get__(receiver, owner)`."""
    if receiver.is_constant() and receiver.as_constant() is None:
        return function
    return MethodVar(function, receiver)


@rule(types.GetSetDescriptorType.__get__, BuiltinVar)
def read_descriptor(
    tx: Frame, descriptor: BuiltinVar, instance: Var, owner: Var = ConstVar(None)  # noqa: B008
) -> Var | None:
    """`type(x).shape.__get__(x)` of a tensor."""
    name = getattr(descriptor.value, "__name__", "")
    if not isinstance(instance, TensorVar):
        return None
    if find_in_mro(torch.Tensor, name) is not descriptor.value:
        return None
    return instance.get_attr(tx, name)


@rule(types.SimpleNamespace)
def make_namespace(tx: Frame, /, **attributes: Var) -> Var | None:
    """`types.SimpleNamespace(name=value)`."""
    result = ObjectVar(types.SimpleNamespace)
    for name, value in attributes.items():
        result.write_own(tx, name, value)
    return result


@wraps(types.SimpleNamespace)
def wrap_namespace(trace: Evaluation, value: Any, source: Source | None) -> Var:
    """A namespace from outside."""
    return ObjectVar(types.SimpleNamespace, source, real=value, trace=trace)


class ItemGetterVar(Var):
    """`itemgetter`, `attrgetter` or `methodcaller`.

    get: what it does with one argument.
    """

    def __init__(
        self, kind: Any, parts: list[Var], get: Callable[[Frame, Var], Var]
    ) -> None:
        super().__init__()
        self.kind, self.parts, self.get = kind, parts, get

    def describe(self) -> str:
        return noun(self.kind.__name__)

    def python_type(self) -> type:
        return self.kind  # type: ignore[no-any-return]

    def children(self) -> list[Var]:
        return self.parts

    def truth(self, tx: Frame) -> bool:
        return True

    def call(self, tx: Frame, args: list[Var], kwargs: dict[str, Var]) -> Var:
        if len(args) != 1 or kwargs:
            message = f"{self.kind.__name__} expected 1 argument, got {len(args)}"
            tx.trace.raise_exception(TypeError, message)
        with tx.using_results():
            return self.get(tx, args[0])


def _one_or_tuple(tx: Frame, values: list[Var]) -> Var:
    return values[0] if len(values) == 1 else tx.trace.make.tuple(values)


@rule(operator.itemgetter)
def make_itemgetter(tx: Frame, *keys: Var) -> Var | None:
    """`operator.itemgetter(key, ...)`."""
    if not keys:
        return None
    return ItemGetterVar(
        operator.itemgetter,
        list(keys),
        lambda tx, value: _one_or_tuple(tx, [value.get_item(tx, key) for key in keys]),
    )


@rule(operator.attrgetter)
def make_attrgetter(tx: Frame, *names: Var) -> Var | None:
    """`operator.attrgetter("a.b", ...)`."""
    if not names or not all(name.is_constant() for name in names):
        return None

    def get(tx: Frame, value: Var) -> Var:
        found = []
        for name in names:
            part = value
            for step in name.as_constant().split("."):
                part = part.get_attr(tx, step)
            found.append(part)
        return _one_or_tuple(tx, found)

    return ItemGetterVar(operator.attrgetter, list(names), get)


@rule(operator.methodcaller)
def make_methodcaller(tx: Frame, name: Var, /, *args: Var, **kwargs: Var) -> Var | None:
    """`operator.methodcaller("name", *args)`."""
    return ItemGetterVar(
        operator.methodcaller,
        [name, *args, *kwargs.values()],
        lambda tx, value: value.call_method(tx, name.as_constant(), list(args), dict(kwargs)),
    )


MAKERS: dict[type, Callable[..., Var | None]] = {
    operator.itemgetter: make_itemgetter, operator.attrgetter: make_attrgetter,
    operator.methodcaller: make_methodcaller,
}


@wraps(*MAKERS)
def wrap_getter(trace: Evaluation, value: Any, source: Source | None) -> Var:
    """One from outside: its parts are read (and guarded) from it."""
    assert source is not None
    try:
        parts = state_of(value)
    except TypeError as error:
        raise Break("value_unknown", f"{type(value).__name__}: {error}") from error
    trace.guard("TYPE", source, type(value))
    place = StateSource(source)
    trace.guard("LENGTH", place, len(parts))
    known = [trace.wrap(part, ItemSource(place, at)) for at, part in enumerate(parts)]
    made = MAKERS[type(value)](None, *known)
    assert made is not None
    made.source = source
    return made
