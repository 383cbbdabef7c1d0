"""What opcodes, breaks and calls need of the frame that executes them, and of its trace."""

from __future__ import annotations

from typing import Any, Protocol

from dynamo.guards.records import UserLine
from dynamo.symbolic.core.frame import Evaluation, Frame
from dynamo.symbolic.core.var import ObservedException, Var
from dynamo.symbolic.python.cells import CellVar
from dynamo.symbolic.python.functions import FunctionVar


class RunningTrace(Evaluation, Protocol):
    """The trace, as far as only the machine asks it: names, imports and `with`."""

    @property
    def frames(self) -> list[Any]: ...


class RunningFrame(Frame, Protocol):
    """One frame while it executes instructions, see `SymbolicFrame`."""

    ip: int
    parent: Any
    handled: Var | None
    result: Var | None
    yielded: bool
    arguments: tuple[list[Var], dict[str, Var]] | None
    created_at: int
    clock_at_start: int
    mark_at_start: Any
    stack_at_start: list[Var]
    is_generator: bool
    function: FunctionVar | None

    @property
    def trace(self) -> RunningTrace: ...
    def push(self, var: Var, /) -> None: ...
    def pop(self, index: int = -1, /) -> Var: ...
    def pop_many(self, count: int) -> list[Var]: ...
    def read(self, var: Var, iterator_is_opaque: bool = False) -> Var: ...
    def run(self) -> Var: ...
    def step(self) -> None: ...
    def handle(self, error: ObservedException) -> None: ...
    def set_context(self, value: Var) -> None: ...
    def user_line(self) -> UserLine: ...
    def child(
        self, function: FunctionVar, names: dict[str, Var], closure: dict[str, CellVar]
    ) -> RunningFrame: ...
