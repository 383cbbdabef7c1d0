"""One frame at a break: what of it lives on, and how the new code calls its continuations."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import TYPE_CHECKING

import torch

from dynamo.base.errors import Break
from dynamo.bytecode.raw import Raw
from dynamo.codegen.continuation import STACK, Layout
from dynamo.codegen.live import RECEIVER
from dynamo.codegen.rebuild import is_fetched, needed
from dynamo.guards.shape_code import Fact
from dynamo.guards.sources import LocalSource
from dynamo.hook import Place, call_last, call_moving
from dynamo.symbolic.core.constant import NullVar
from dynamo.symbolic.core.stack_values import SavedExceptionVar
from dynamo.symbolic.core.trace_result import BreakExit, FrameState, ReturnExit
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.python.cells import CellVar
from dynamo.symbolic.python.sets import SetVar

if TYPE_CHECKING:
    from dynamo.codegen.generate import Generator


@dataclass(slots=True, eq=False)
class Passing:
    """An exception passes a call of the new code, at a depth of the stack: its traceback shows
    `places` for it. outer: the handler that it goes to, and the depth of the stack there."""

    call: Raw
    depth: int
    places: tuple[Place, ...]
    outer: tuple[Raw, int] | None = None


def exit_roots(exit: ReturnExit | BreakExit) -> list[Var]:
    """What leaves the trace."""
    if isinstance(exit, ReturnExit):
        return [exit.value]
    roots: list[Var] = []
    for state in exit.frames:
        roots += [var for var in state.stack if not isinstance(var, NullVar)]
        roots += [*state.locals.values(), *state.cells.values()]
    return roots


def differentiated(exit: ReturnExit | BreakExit) -> Collection[Var]:
    """What is alive in frames that go on and may call `torch.autograd.grad`."""
    if isinstance(exit, ReturnExit):
        return ()
    states = tuple([state for state in exit.frames if "grad" in state.code.co_names and (
        "autograd" in state.code.co_names or state.globals.get("grad") is torch.autograd.grad)])
    return needed(exit_roots(BreakExit(exit.reason, states, False)), ()).keys()


class Level:
    """One frame of a break while its code is made. keeps_all: see `BreakExit`."""

    def __init__(
        self, generator: Generator, state: FrameState, caller: Level | None, keeps_all: bool
    ) -> None:
        self.generator = generator
        self.caller = caller
        self.keeps_all = keeps_all
        self.ends_frame = False  # its continuation's result is the new code's, which keeps nothing
        code, instruction = generator.continuations.origin(state.code, state.instruction)
        self.state = FrameState(
            code=code,
            instruction=instruction,
            stack=state.stack,
            locals=state.locals,
            cells=state.cells,
            globals=state.globals,
            line=state.line,
        )
        self.decoded = generator.codes.decode(code)
        self.instruction = self.decoded.instructions[instruction]
        self.handler = self.decoded.handlers[instruction]
        self.saved = [
            var for var in state.stack if isinstance(var, SavedExceptionVar) and var.active
        ]
        self.handled = len(self.saved)

    def callers(self) -> tuple[Place, ...]:
        """Where the frames that call this one are, for a traceback."""
        if self.caller is None:
            return ()
        state = self.caller.state
        module_globals = None if self.caller.caller is None else state.globals
        place = self.generator.place_of(state.code, state.instruction, module_globals)
        return (*self.caller.callers(), place)

    def keep_values(self) -> None:
        """Rebuilds what the continuations need, once for all of them."""
        rebuilder = self.generator.rebuilder
        for var in exit_roots(BreakExit(Break("inner_break"), (self.state,), False)):
            if isinstance(var, SavedExceptionVar):
                if not var.active:
                    continue
                var = var.current
            if is_fetched(var):
                assert var.source is not None
                rebuilder.fetcher.store(var.source)
                continue
            if var in rebuilder.places or not _is_built(var):
                continue
            rebuilder.load(var)
            if var in rebuilder.places:
                rebuilder.emitter.emit("POP_TOP")
            else:
                rebuilder.places[var] = rebuilder.emitter.store_fresh("kept")

    def enter_handled(self) -> None:
        """Makes the exceptions that the frame is handling the current ones."""
        emitter = self.generator.emitter
        for saved in self.saved:
            self.generator.rebuilder.load(saved.current)
            emitter.emit("PUSH_EXC_INFO")
            emitter.emit("POP_TOP")

    def leave_handled(self) -> None:
        for _ in self.saved:
            self.generator.emitter.emit("POP_EXCEPT")

    def call_continuation(
        self,
        form: str,
        instruction: int,
        stack: tuple[Var, ...],
        names: tuple[str, ...],
        null: str = "",
    ) -> None:
        """Calls the continuation with stack, locals, and values that lie in locals `names`.

        null: NULL lies above these values ("last") or below the last one ("middle").
        """
        generator, state, emitter = self.generator, self.state, self.generator.emitter
        locals_ = self._ordered_locals()
        own_cells = tuple(name for name in state.cells if name in state.code.co_cellvars)
        cells = tuple(name for name in state.cells if name not in own_cells)
        kinds = [_kind(var) for var in stack]
        if form != "raise":
            kinds += ["value"] * len(names)
        if null in ("middle", "last"):
            kinds.insert(len(kinds) - (null == "middle"), "null")
        layout = Layout(tuple(kinds), tuple(locals_), own_cells, cells, self.keeps_all)
        code = generator.continuations.get(state.code, instruction, layout, form).code
        given = {name: state.locals[name] for name in locals_}
        given |= {f"{STACK}{slot}": var for slot, var in enumerate(stack)}
        generator.continuations.carry(code, {
            Fact(LocalSource(name), "size", axis)
            for name, var in given.items() for axis in generator.plan.symbolic_axes.get(var, ())
        })  # fmt: skip
        emitter.start_call_const(call_last if self.ends_frame else call_moving)
        self._load_function(code)
        for var in (*map(state.locals.get, locals_), *map(state.cells.get, own_cells)):
            assert var is not None
            generator.rebuilder.load(var)
        count = len(locals_) + len(own_cells)
        for var in stack:
            if not isinstance(var, NullVar):
                generator.rebuilder.load(var)
                count += 1
        for name in names:
            emitter.load_fast(name)
            emitter.delete_fast(name)
        call = emitter.call(1 + count + len(names))
        generator.leaves.append(call)
        generator.passing.append(Passing(call, generator.depth, self.callers()))

    def _ordered_locals(self) -> list[str]:
        names = list(self.state.locals)
        order = {name: index for index, name in enumerate(self.state.code.co_varnames)}
        order[RECEIVER] = -1
        return sorted(names, key=lambda name: (order.get(name, len(order)), name))

    def _load_function(self, code: CodeType) -> None:
        emitter = self.generator.emitter
        if not code.co_freevars:
            emitter.load_const(FunctionType(code, self.state.globals, code.co_name))
            return
        emitter.start_call_const(FunctionType)
        emitter.load_const(code)
        emitter.load_const(self.state.globals)
        emitter.load_const(code.co_name)
        emitter.load_const(None)
        for name in code.co_freevars:
            self.generator.rebuilder.load(self.state.cells.get(name) or CellVar())
        emitter.emit("BUILD_TUPLE", len(code.co_freevars))
        emitter.call(5)


def _is_built(var: Var) -> bool:
    """True for values that are more than a load of a constant; an empty set is no constant."""
    return isinstance(var, SetVar) or bool(tuple(var.children())) or not var.is_constant()


def _kind(var: Var) -> str:
    if isinstance(var, NullVar):
        return "null"
    return "saved" if isinstance(var, SavedExceptionVar) and var.active else "value"
