"""Calls of `dynamo.comptime`, which run while the program is traced.

In: the symbolic frame. Out: text for a person; the graph and what is known stay as they are.
"""

from __future__ import annotations

import builtins
import types
from typing import Any

from dynamo.base.comptime import Comptime
from dynamo.base.errors import Break, DynamoError
from dynamo.guards.listing import lines
from dynamo.guards.sources import Source
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.frame import Evaluation, Frame
from dynamo.symbolic.core.places import user_line, user_stack
from dynamo.symbolic.core.stack_values import OpaqueVar
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.core.wrapping import wraps
from dynamo.symbolic.python.functions import FunctionVar, NamedMethodVar


class Context(Comptime):
    """What a function that runs while compiling is given. frame: where it is called."""

    def __init__(self, frame: Frame) -> None:
        self.frame = frame

    def print(self, *values: Any) -> None:
        print(*values)

    def graph(self) -> Any:
        """The `torch.fx.Graph` that is captured so far, to be looked at only."""
        return self.frame.trace.graph.graph

    def print_graph(self) -> None:
        print(self.graph())

    def print_bt(self) -> None:
        print(*user_stack(self.frame.trace.frames), sep="\n")

    def print_locals(self) -> None:
        contents = {name: cell.peek(self.frame.trace) for name, cell in self.frame.cells.items()}
        for name, var in {**self.frame.locals, **contents}.items():
            print(f"{name} = {shown(var)}")

    def print_value_stack(self) -> None:
        print(*map(shown, self.frame.stack), sep="\n")

    def print_guards(self) -> None:
        print(*lines(self.frame.trace.guards), sep="\n")

    def breakpoint(self) -> None:
        builtins.breakpoint()


class ComptimeVar(OpaqueVar):
    """`dynamo.comptime` in traced code."""

    def get_attr(self, tx: Frame, name: str) -> Var:
        return NamedMethodVar(self, name)

    def call(self, tx: Frame, args: list[Var], kwargs: dict[str, Var]) -> Var:
        given = dict(zip(("fn", "fallback_fn"), args, strict=False)) | kwargs
        function = given.get("fn")
        if not isinstance(function, FunctionVar) or len(args) > 2 or (
            not given.keys() <= {"fn", "fallback_fn"}
        ):
            raise Break("argument_mismatch", f"comptime of {function!r}")
        self.guard(tx)
        real = function.real or made(tx, function)
        try:
            real(Context(tx))
        except Exception as error:
            line = user_line(tx.trace.frames)
            raise DynamoError(
                f"{line}\n  A function given to comptime failed while compiling: "
                f"{type(error).__name__}: {error}\n  What to do: mend it; its argument has the "
                "methods of dynamo.comptime."
            ) from error
        return ConstVar(None)

    def call_method(
        self, tx: Frame, name: str, args: list[Var], kwargs: dict[str, Var]
    ) -> Var:
        self.guard(tx)
        if name == "print":
            print(*map(shown, args))
        elif name in vars(Comptime) and not (name.startswith("_") or args or kwargs):
            getattr(Context(tx), name)()
        else:
            raise Break("attribute_unknown", f"{name} of comptime")
        return ConstVar(None)

    def guard(self, tx: Frame) -> None:
        """Another object may stand there later."""
        tx.trace.guard("ID", self.source, self.value)


def shown(var: Var | None) -> str:
    """A value in words."""
    if var is None:
        return "unbound"
    return repr(var.as_constant()) if var.is_constant() else repr(var)


def made(tx: Frame, function: FunctionVar) -> types.FunctionType:
    """The function that the traced code has just defined."""
    cells = []
    for cell in function.closure(tx):
        value = cell.peek(tx.trace)
        if value is not None and value.is_constant():
            cells.append(types.CellType(value.as_constant()))
        else:
            cells.append(types.CellType(shown(value)))
    return types.FunctionType(
        function.code, function.globals, function.name, None, tuple(cells))


@wraps(Comptime)
def wrap_comptime(trace: Evaluation, value: Any, source: Source | None) -> Var:
    assert source is not None
    return ComptimeVar(trace, value, source, Break("value_unknown", "comptime"))
