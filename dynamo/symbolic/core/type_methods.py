"""Methods of built-in types, called by their names."""

from __future__ import annotations

import types

from dynamo.symbolic.core.frame import Frame
from dynamo.symbolic.core.lookup import find_in_mro, name_in_c
from dynamo.symbolic.core.var import Var

METHOD_DESCRIPTORS = (
    types.MethodDescriptorType,
    types.WrapperDescriptorType,
    types.FunctionType,
)


def call_type_method(
    tx: Frame, var: Var, name: str, args: list[Var], kwargs: dict[str, Var]
) -> Var:
    """`var.name(*args)` where the type of var is built in."""
    cls = var.python_type()
    raw = find_in_mro(cls, name)
    if raw is None:
        tx.trace.raise_exception(
            AttributeError, f"'{name_in_c(cls)}' object has no attribute '{name}'"
        )
    if isinstance(raw, types.ClassMethodDescriptorType | staticmethod):
        return tx.trace.call_real(tx, getattr(cls, name), args, kwargs)
    if not isinstance(raw, METHOD_DESCRIPTORS):
        return tx.call_attribute(var, name, args, kwargs)
    return tx.trace.call_real(tx, raw, [var, *args], kwargs)


class NativeVar(Var):
    """A value of a built-in type, whose methods are found in the type."""

    __slots__ = ()

    def get_attr(self, tx: Frame, name: str) -> Var:
        return tx.trace.attributes.get_builtin_attr(tx, self, name)

    def call_method(
        self, tx: Frame, name: str, args: list[Var], kwargs: dict[str, Var]
    ) -> Var:
        return call_type_method(tx, self, name, args, kwargs)
