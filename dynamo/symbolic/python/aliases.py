"""Types with parameters, and what they are made of: constants."""

from __future__ import annotations

import types
import typing
from collections.abc import Hashable
from typing import Any

from dynamo.base.errors import Break
from dynamo.guards.sources import Source
from dynamo.symbolic.core.frame import Evaluation, Frame
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.core.wrapping import wraps
from dynamo.symbolic.python.objects import ObjectVar

# Classes of typing's own objects, as far as this Python has them.
OF_TYPING = [
    getattr(typing, name) for name in """_GenericAlias _UnionGenericAlias _SpecialGenericAlias
    _TupleType _CallableType _CallableGenericAlias _SpecialForm _LiteralSpecialForm
    _LiteralGenericAlias""".split() if hasattr(typing, name)
    # From 3.14 on unions have one class; asked anything, typing's old name for it warns.
    and not (name == "_UnionGenericAlias" and typing.Union is types.UnionType)
]
# What `list[int]` has itself; other attributes are those of `list`.
OWN_OF_ALIASES = frozenset("""__class__ __bases__ __origin__ __args__ __parameters__ __unpacked__
    __typing_unpacked_tuple_args__ __mro_entries__ __reduce_ex__ __reduce__ __copy__
    __deepcopy__""".split())


class AliasVar(ObjectVar):
    """`int | None`, `list[int]`, `typing.List` or `typing.List[int]`: a constant."""

    tells_place = False

    def describe(self) -> str:
        return str(self.real)

    def is_constant(self) -> bool:
        return True

    def as_constant(self) -> Any:
        if self._trace is not None:
            trace, self._trace = self._trace, None
            trace.guard("ID", self.source, self.real)
        return self.real

    def get_attr(self, tx: Frame, name: str) -> Var:
        real = self.as_constant()
        if isinstance(real, types.GenericAlias) and name not in OWN_OF_ALIASES:
            return tx.trace.wrap(real.__origin__, None).get_attr(tx, name)
        if isinstance(real, types.UnionType) and name == "__module__":  # as its class has it
            return tx.trace.constant(real.__module__)
        return super().get_attr(tx, name)

    def python_type(self) -> type:
        self.as_constant()
        return self.cls

    def hash_key(self, tx: Frame) -> Hashable:
        return ("constant", self.as_constant())

    def truth(self, tx: Frame) -> bool:
        self.python_type()
        return True

    def get_item(self, tx: Frame, key: Var) -> Var:
        try:
            return tx.trace.generic_alias(tx, self, key)
        except Break:  # a part is made in the trace
            return super().get_item(tx, key)


@wraps(types.UnionType, types.GenericAlias, *OF_TYPING)
def wrap_alias(trace: Evaluation, value: Any, source: Source | None) -> Var:
    """`int | None`, `list[int]`, `typing.List[int]`."""
    return AliasVar(type(value), source, real=value, trace=trace)
