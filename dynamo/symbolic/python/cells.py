"""Cells: the variables that closures share.

A cell made in the trace lives in its Var only; one that existed before (a free variable of the
root frame, or the closure of a real function) is read through its source, and stores are effects.
"""

from __future__ import annotations

import types
from collections.abc import Iterable
from typing import Any

from dynamo.guards.sources import CellContentsSource, Source
from dynamo.symbolic.core.frame import Evaluation, Frame
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.core.wrapping import wrap_or_pass_on, wraps
from dynamo.symbolic.python.exceptions import raise_name_error


class CellVar(Var):
    """A cell object.

    contents: None when empty. `real` is the existing cell, whose contents are read at first use;
    trace: of one that the program holds as a value.
    """

    def __init__(
        self,
        source: Source | None = None,
        contents: Var | None = None,
        real: types.CellType | None = None,
        trace: Evaluation | None = None,
    ) -> None:
        super().__init__(source)
        self._contents = contents
        self._unread = real
        self._trace = trace

    def python_type(self) -> type:
        if self._trace is not None:
            self._trace.guard("TYPE", self.source, types.CellType)
        return types.CellType

    def children(self) -> Iterable[Var]:
        return () if self._contents is None else (self._contents,)

    def peek(self, trace: Evaluation) -> Var | None:
        """The contents, None when the cell is empty."""
        cell = self._unread
        if cell is not None:
            self._unread = None
            assert self.source is not None
            try:
                value = cell.cell_contents
            except ValueError:
                trace.guard("CELL_EMPTY", self.source, None)
            else:
                place = CellContentsSource(self.source)
                if not issubclass(type(value), type):  # `__class__`, which nothing empties
                    trace.guard("PRESENT", place)
                self._contents = wrap_or_pass_on(trace, value, place)
        return self._contents

    def load(self, tx: Frame, name: str = "", free: bool = False) -> Var:
        """The contents; raises what CPython raises for an empty cell."""
        contents = self.peek(tx.trace)
        if contents is not None:
            return contents
        if free:
            raise_name_error(
                name,
                f"cannot access free variable '{name}' where it is not associated with "
                "a value in enclosing scope",
            )
        tx.trace.raise_exception(
            UnboundLocalError,
            f"cannot access local variable '{name}' where it is not associated with a value",
        )

    def store(self, tx: Frame, value: Var) -> None:
        tx.trace.effects.store_cell(self)
        self._unread = None
        self._contents = value

    def delete(self, tx: Frame) -> None:
        tx.trace.effects.store_cell(self)
        self._unread = None
        self._contents = None

    def get_attr(self, tx: Frame, name: str) -> Var:
        if name == "cell_contents":
            self.python_type()
            contents = self.peek(tx.trace)
            if contents is None:
                tx.trace.raise_exception(ValueError, "Cell is empty")
            return contents
        return super().get_attr(tx, name)

    def set_attr(self, tx: Frame, name: str, value: Var) -> None:
        if name == "cell_contents":
            self.python_type()
            self.store(tx, value)
        else:
            super().set_attr(tx, name, value)


@wraps(types.CellType)
def wrap_cell(trace: Evaluation, value: Any, source: Source | None) -> Var:
    """A cell that existed before the frame."""
    return CellVar(source, None, value, trace)
