"""Callables that `compile`, `disable` and `torch.jit.script` made, met inside of traced code."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch

from dynamo import hook
from dynamo.base.errors import Break
from dynamo.guards.sources import AttrSource, DictSource, Source
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.frame import Evaluation, Frame
from dynamo.symbolic.core.identities import identity_key
from dynamo.symbolic.core.lookup import find_in_mro
from dynamo.symbolic.core.stack_values import OpaqueVar
from dynamo.symbolic.core.var import ObservedException, Var
from dynamo.symbolic.core.wrapping import wrap_named, wraps
from dynamo.symbolic.tensors.tensor import TensorVar

# TorchScript's integers have 64 bits.
LARGE = 1 << 63


class DisabledVar(OpaqueVar):
    """A function that must not be traced."""

    def call(self, tx: Frame, args: list[Var], kwargs: dict[str, Var]) -> Var:
        name = getattr(self.value, "__qualname__", repr(self.value))
        raise Break("call_disabled", f"{name}: {self.value._disabled_because}")


class CompiledVar(Var):
    """What `compile` made of a function: a call is traced as the function's, all else is its own.

    function: the Var of the function.
    """

    def __init__(self, real: hook.Compiled, source: Source, function: Var) -> None:
        super().__init__(source)
        self.real = real
        self.function = function

    def describe(self) -> str:
        return f"{self.function!r}, compiled"

    def python_type(self) -> type:
        return hook.Compiled

    def truth(self, tx: Frame) -> bool:
        return True

    def call(self, tx: Frame, args: list[Var], kwargs: dict[str, Var]) -> Var:
        return self.function.call(tx, args, kwargs)

    def get_attr(self, tx: Frame, name: str) -> Var:
        if name == "__wrapped__":
            return self.function
        if name == "__class__":
            return tx.trace.wrap(hook.Compiled, None)
        assert self.source is not None
        if name in self.real.__dict__:
            return wrap_named(tx.trace, self.real.__dict__[name], AttrSource(self.source, name))
        tx.trace.guard("DICT_LACKS", DictSource(self.source), name)
        if find_in_mro(hook.Compiled, name) is not None:
            raise Break("attribute_unknown", f"{name} of {self!r}")
        return self.function.get_attr(tx, name)

    def hash_key(self, tx: Frame) -> Hashable:
        return identity_key(tx.trace, self)


@wraps(hook.Compiled)
def wrap_compiled(trace: Evaluation, value: Any, source: Source | None) -> Var:
    """A callable that `compile` or `disable` has made of a function."""
    assert source is not None
    if "_disabled_because" in value.__dict__:
        return DisabledVar(trace, value, source, Break("call_disabled"))
    trace.guard("ID", source, value)
    function = trace.wrap(value.__wrapped__, AttrSource(source, "__wrapped__"))
    return CompiledVar(value, source, function)


class ScriptedVar(OpaqueVar):
    """A function that TorchScript has compiled, called as the function that it was made of."""

    def __init__(self, trace: Evaluation, value: Any, source: Source, function: Var) -> None:
        super().__init__(trace, value, source, Break("attribute_unknown", f"of {value!r}"))
        self.function = function

    def call(self, tx: Frame, args: list[Var], kwargs: dict[str, Var]) -> Var:
        assert self.source is not None
        tx.trace.guard("ID", self.source, self.value)
        declared = {argument.name: str(argument.type) for argument in self.value.schema.arguments}
        if len(args) > len(declared) or not declared.keys() >= kwargs.keys():
            raise Break("call_of_unknown_value", f"{self!r}, which raises")
        given = [as_declared(var, kind) for var, kind in zip(args, declared.values(), strict=False)]
        named = {name: as_declared(var, declared[name]) for name, var in kwargs.items()}
        if None in given or None in named.values():
            raise Break("call_of_unknown_value", f"{self!r} with arguments that it converts")
        try:
            return self.function.call(tx, given, named)  # type: ignore[arg-type]
        except ObservedException as error:  # TorchScript raises another class
            raise Break("call_of_unknown_value", f"{self!r}, which raises") from error


def as_declared(var: Var, declared: str) -> Var | None:
    """What TorchScript makes of an argument of this type: a tensor, or a constant, of exactly the
    type, or a float of an integer. None for the rest, which it converts or refuses."""
    if declared == "Tensor":
        return var if isinstance(var, TensorVar) else None
    inner = declared.removeprefix("Optional[").removesuffix("]")
    if inner != declared and not (var.is_constant() and var.as_constant() is None):
        return as_declared(var, inner)
    if not var.is_constant():
        return None
    value = var.as_constant()
    if inner == "float" and type(value) is int and abs(value) < LARGE:
        return ConstVar(float(value))
    return var if inner != declared or type(value).__name__ == declared else None


@wraps(torch.jit.ScriptFunction)
def wrap_scripted(trace: Evaluation, value: Any, source: Source | None) -> Var:
    """TorchScript keeps the function in an attribute, for compilers like this one."""
    function = getattr(value, "_torchdynamo_inline", None)
    if source is None or function is None:
        raise Break("value_unknown", "a function that TorchScript has compiled")
    return ScriptedVar(
        trace, value, source, trace.wrap(function, AttrSource(source, "_torchdynamo_inline")))
