"""`range` and `slice`."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

from dynamo.base.errors import Break
from dynamo.base.words import shown
from dynamo.guards.sources import ObjectSource, Source
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.frame import Evaluation, Frame
from dynamo.symbolic.core.large import MOST_ITEMS
from dynamo.symbolic.core.type_methods import NativeVar
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.core.wrapping import wraps


def break_where_long(items: range) -> None:
    """Breaks the graph where each of the items would be taken."""
    if items[MOST_ITEMS:]:
        raise Break("value_too_large", f"the items of {shown(items)}")


class RangeVar(NativeVar):
    """`range` of constants."""

    def __init__(
        self, value: range, source: Source | None = None, trace: Evaluation | None = None
    ) -> None:
        super().__init__(source)
        self._value = value
        self._trace = trace

    @property
    def value(self) -> range:
        if self._trace is not None:
            self._trace.guard("TYPE", self.source, range)
            self._trace.guard("CONST", self.source, self._value)
            self._trace = None
        return self._value

    def describe(self) -> str:
        return shown(self._value)

    def python_type(self) -> type:
        return type(self.value)

    def truth(self, tx: Frame) -> bool:
        return bool(self.value)

    def is_constant(self) -> bool:
        return True

    def as_constant(self) -> Any:
        return self.value

    def length(self, tx: Frame) -> Var:
        return ConstVar(tx.trace.run_real(lambda: len(self.value)))

    def iterate(self, tx: Frame) -> Var:
        return tx.trace.make.range_iterator(self.value)

    def get_attr(self, tx: Frame, name: str) -> Var:
        if name in ("start", "stop", "step"):
            return ConstVar(getattr(self.value, name))
        return tx.trace.attributes.get_builtin_attr(tx, self, name)

    def get_item(self, tx: Frame, key: Var) -> Var:
        if isinstance(key, SliceVar):
            return RangeVar(self.value[key.resolve(tx)])
        position = tx.trace.as_index(tx, key)
        if position is None:
            raise Break("index_unknown", repr(key))
        return ConstVar(tx.trace.run_real(lambda: self.value[position]))


class SliceVar(NativeVar):
    """`slice`."""

    def __init__(self, start: Var, stop: Var, step: Var, source: Source | None = None) -> None:
        super().__init__(source)
        self.start, self.stop, self.step = start, stop, step

    def describe(self) -> str:
        return f"slice({self.start!r}, {self.stop!r}, {self.step!r})"

    def python_type(self) -> type:
        return slice

    def children(self) -> Iterable[Var]:
        return (self.start, self.stop, self.step)

    def is_constant(self) -> bool:
        return all(part.is_constant() for part in self.children())

    def as_constant(self) -> Any:
        return slice(*(part.as_constant() for part in self.children()))

    def resolve(self, tx: Frame) -> slice:
        """The slice that a sequence sees: objects are asked for their index, the step's first."""
        step = self._part(tx, self.step)
        if step == 0:
            tx.trace.raise_exception(ValueError, "slice step cannot be zero")
        return slice(self._part(tx, self.start), self._part(tx, self.stop), step)

    def _part(self, tx: Frame, part: Var) -> int | None:
        if part.is_constant() and part.as_constant() is None:
            return None
        found: int | None = tx.trace.as_index(tx, part)
        if found is None:
            message = "slice indices must be integers or None or have an __index__ method"
            tx.trace.raise_exception(TypeError, message)
        return found

    def as_proxy(self) -> Any:
        return slice(*(part.as_proxy() for part in self.children()))

    def as_fake(self) -> Any:
        return slice(*(part.as_fake() for part in self.children()))

    def get_attr(self, tx: Frame, name: str) -> Var:
        if name in ("start", "stop", "step"):
            return {"start": self.start, "stop": self.stop, "step": self.step}[name]
        return tx.trace.attributes.get_builtin_attr(tx, self, name)

    def hash_key(self, tx: Frame) -> Hashable:
        raise Break("hash_unknown", repr(self))


@wraps(range)
def wrap_range(trace: Evaluation, value: Any, source: Source | None) -> Var:
    """An existing range."""
    return RangeVar(value, source, trace)


@wraps(slice)
def wrap_slice(trace: Evaluation, value: Any, source: Source | None) -> Var:
    """An existing slice of constants."""
    parts = (value.start, value.stop, value.step)
    if isinstance(source, ObjectSource):
        # Of the code, from Python 3.14 on: a break here would come again and again.
        start, stop, step = map(trace.constant, parts)
        return SliceVar(start, stop, step)
    if not all(part is None or type(part) is int for part in parts):
        raise Break("value_unknown", shown(value))
    trace.guard("TYPE", source, slice)
    trace.guard("CONST", source, value)
    start, stop, step = map(ConstVar, parts)
    return SliceVar(start, stop, step, source)
