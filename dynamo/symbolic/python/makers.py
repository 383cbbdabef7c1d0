"""Containers and iterators, for trackers that these are made of themselves."""

from __future__ import annotations

from collections.abc import Iterable

from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.frame import Frame
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.python.dicts import DictVar
from dynamo.symbolic.python.iterators import (
    DequeIteratorVar,
    IndexIteratorVar,
    RangeIteratorVar,
    SequenceIteratorVar,
)
from dynamo.symbolic.python.lists import DequeVar, SequenceVar, TupleVar
from dynamo.symbolic.python.sets import SetVar


class Makers:
    """See the module; `trace.make` is one."""

    def tuple(self, items: list[Var]) -> Var:
        return TupleVar(items)

    def dict(self, items: dict[str, Var]) -> Var:
        return DictVar.from_names(items)

    def empty_set(self) -> Var:
        return SetVar()

    def iterator(self, items: Iterable[Var], text: ConstVar | None = None) -> Var:
        """An iterator over known items, those of a str or bytes if it is given."""
        return SequenceIteratorVar(TupleVar(list(items)), text)

    def sequence_iterator(self, tx: Frame, var: Var) -> Var:
        assert isinstance(var, SequenceVar)
        return DequeIteratorVar(var) if isinstance(var, DequeVar) else SequenceIteratorVar(var)

    def range_iterator(self, value: range) -> Var:
        return RangeIteratorVar(value)

    def index_iterator(self, var: Var) -> Var:
        return IndexIteratorVar(var)
