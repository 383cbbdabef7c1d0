"""The real objects that a trace has met: one Var for each, so that aliasing is kept."""

from __future__ import annotations

import contextlib
import enum
import sys
import types
from collections.abc import Iterable, Iterator
from typing import Any

from dynamo.base.errors import Break
from dynamo.guards.sources import ObjectSource, Source
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.frame import Evaluation
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.core.wrapping import wrap_value

# Found by their names, not only where they were met first.
NAMED = (
    type, enum.Enum, types.FunctionType, types.BuiltinFunctionType, types.MethodDescriptorType,
    types.WrapperDescriptorType, types.ClassMethodDescriptorType, types.GetSetDescriptorType,
    types.MemberDescriptorType, types.MethodWrapperType, types.ModuleType, property,
)


def references(known: tuple[Any, Any] | None) -> int:
    """References to the Var of an object and its Var, while they are counted."""
    return 0 if known is None else sys.getrefcount(known[1])


# Those to a Var that nothing else holds. Measured: what counting adds differs from one Python to
# another, for since 3.14 an argument that a variable holds too is not counted once more.
ONLY_HERE = references((None, object()))


class KnownObjects:
    """One per trace. owners: objects by the ids of their instance dicts. collecting: lists that get
    a warning behind the graph, by id."""

    def __init__(self, trace: Evaluation) -> None:
        self.trace = trace
        self._by_id: dict[int, tuple[Any, Var]] = {}
        self._wrapped: list[Var] | None = None  # what `wrap` gave, while that is noted
        self.owners: dict[int, Any] = {}
        self.collecting: dict[int, Any] = {}

    def clear(self) -> None:
        self._by_id.clear()
        self.owners.clear()

    def wrap(self, value: Any, source: Source | None) -> Var:
        """The Var of a real value that is found at `source`; one Var per object."""
        var = self._wrap(value, source)
        if self._wrapped is not None:
            self._wrapped.append(var)
        return var

    @contextlib.contextmanager
    def noting_known(self) -> Iterator[list[Var]]:
        """Inside, the list gets the Vars of all real values that are looked at."""
        outer, self._wrapped = self._wrapped, []
        try:
            yield self._wrapped
        finally:
            if outer is not None:
                outer.extend(self._wrapped)
            self._wrapped = outer

    def _wrap(self, value: Any, source: Source | None) -> Var:
        key = id(value)
        known = self._by_id.get(key)
        if known is not None:
            var = known[1]
            if source is None and var.source is not None and issubclass(type(value), NAMED):
                self.trace.guard("ID", var.source, value)  # at a later call it must be there, too
            elif source is not None and var.source is not None and (
                var.source is not source and var.source != source
            ):
                self.trace.guard("SAME", source, var.source)
            return var
        if key in self.collecting:
            raise Break("call_of_unknown_function", "what lists the warnings")
        if source is None:
            source = ObjectSource(value, getattr(value, "__name__", type(value).__name__))
        var = wrap_value(self.trace, value, source)
        if not isinstance(var, ConstVar):
            self._by_id[key] = (value, var)
        return var

    def items(self) -> Iterable[tuple[Any, Var]]:
        """The objects that the trace has met, with their Vars."""
        return self._by_id.values()

    def var_of(self, value: Any) -> Var | None:
        """The Var of a real object that the trace has met."""
        known = self._by_id.get(id(value))
        return None if known is None else known[1]

    def is_unused(self, value: Any) -> bool:
        """True where the program holds the Var of a real object no more, or it has none."""
        return references(self._by_id.get(id(value))) <= ONLY_HERE

    def real_values(self) -> dict[Var, Any]:
        """The real objects that the trace has met, by their Vars."""
        return {var: value for value, var in self._by_id.values()}

    def remember(self, value: Any, var: Var) -> None:
        """Makes `var` the Var of a real object (for trackers made by hand)."""
        self._by_id[id(value)] = (value, var)
