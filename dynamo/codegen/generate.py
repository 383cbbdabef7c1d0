"""The new code object of a traced frame.

    fetch what effects may overwrite; call the graph; replay effects; then return the value, or at a
    break: run the instruction that could not be traced and go on in continuations.
"""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from types import CodeType
from typing import Any

import torch

from dynamo.base import logs
from dynamo.base.subclasses import is_plain_subclass
from dynamo.bytecode.decode import Instruction
from dynamo.bytecode.emit import Emitter
from dynamo.bytecode.raw import Raw, RawCode, assemble
from dynamo.bytecode.versions import VERSION
from dynamo.codegen import effects as effect_rows
from dynamo.codegen import rebuild_containers as rebuild_containers  # registers rows
from dynamo.codegen import rebuild_functions as rebuild_functions
from dynamo.codegen import rebuild_iterators as rebuild_iterators
from dynamo.codegen import rebuild_objects as rebuild_objects
from dynamo.codegen import retry
from dynamo.codegen.break_frames import Level, Passing, exit_roots
from dynamo.codegen.continuation import QUIET_RESUME, Continuations
from dynamo.codegen.copied import copy_instruction, net_effect, null_place
from dynamo.codegen.direct import Direct, direct_call
from dynamo.codegen.draws import Draws
from dynamo.codegen.fetch import Fetcher
from dynamo.codegen.local_names import name_locals
from dynamo.codegen.mode_resets import Modes
from dynamo.codegen.operands import operands
from dynamo.codegen.rebuild import Rebuilder, is_fetched, needed
from dynamo.codegen.release import release
from dynamo.hook import GRAPH_INPUTS, Place, pass_on
from dynamo.symbolic.core.constant import ConstVar, NullVar
from dynamo.symbolic.core.context import CodeCache
from dynamo.symbolic.core.trace_result import BreakExit, Effect, FrameState, ReturnExit
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.shapes.numbers import is_symbolic
from dynamo.symbolic.tensors.tensor import TensorVar

if importlib.util.find_spec("numpy") is not None:
    importlib.import_module("dynamo.codegen.rebuild_arrays")
# Reading these names of the frame in the new code would not find what the program would.
NAME_OPS = {
    "LOAD_FAST": "cannot access local variable '{}' where it is not associated with a value",
    "DELETE_FAST": "cannot access local variable '{}' where it is not associated with a value",
    "LOAD_DEREF": "cannot access local variable '{}' where it is not associated with a value",
    "DELETE_DEREF": "cannot access local variable '{}' where it is not associated with a value",
}
FREE_TEXT = (
    "cannot access free variable '{}' where it is not associated with a value in enclosing scope"
)
# What works on the frame itself, which the new code is not: `forced` breaks may come before these.
FRAME_OPS = frozenset((
    "COPY", "END_FOR", "END_SEND", "JUMP", "LOAD_CLOSURE", "LOAD_CONST", "LOAD_FAST_AND_CLEAR",
    "MAKE_CELL", "NOP", "POP_EXCEPT", "POP_TOP", "PUSH_EXC_INFO", "PUSH_NULL", "STORE_CLOSURE",
    "STORE_DEREF", "STORE_FAST", "SWAP",
))


def works_on_frame(state: FrameState, instruction: Instruction) -> bool:
    """True for one of `FRAME_OPS`, and one of `NAME_OPS` whose variable has a value."""
    if instruction.op not in NAME_OPS:
        return instruction.op in FRAME_OPS
    cell = state.cells.get(instruction.arg)
    return instruction.arg in state.locals or cell is not None and any(cell.children())


# Breaks after which the whole instruction runs in a continuation.
RESUMED = frozenset(("frame_introspection", "dropped_value", "trace_too_long"))


def is_resumed(exit: BreakExit, instruction: Instruction) -> bool:
    """True where the innermost frame goes on at the break's instruction, in a continuation."""
    return exit.reason.code in RESUMED or works_on_frame(exit.frames[0], instruction)


ENDS = frozenset(("RAISE_VARARGS", "RERAISE"))


@dataclass(frozen=True, slots=True)
class Plan:
    """What the new code has to do.

    outputs: Vars of the graph's results, in order; function: the compiled graph, None for none.
    has_inputs: False where the hook collects nothing for the graph.
    builtins: the builtins dict of the frame.
    reruns: True where the frame goes on in eager, from its start, when the graph raises.
    tests: True where the graph tests what the trace has expected.
    symbolic_axes: see `TraceResult`.
    draws: which of the random numbers are the graph's last inputs.
    """

    code: CodeType
    globals: dict[str, Any]
    builtins: dict[str, Any]
    exit: ReturnExit | BreakExit
    effects: tuple[Effect, ...]
    outputs: tuple[Var, ...]
    function: Callable[..., Any] | None
    has_inputs: bool = True
    reruns: bool = False
    tests: bool = False
    symbolic_axes: Mapping[Var, tuple[int, ...]] = field(default_factory=dict)
    draws: tuple[int, ...] = ()


def generate(
    plan: Plan, codes: CodeCache, continuations: Continuations, compile_id: str
) -> tuple[CodeType, Direct | None]:
    """The new code, and what the hook may do in its place."""
    code, direct = Generator(plan, codes, continuations).run()
    logs.log("bytecode").emit(
        lambda: f"new code of {plan.code.co_qualname}\n{codes.decode(code).listing()}", compile_id)
    return code, direct


def place_of(
    codes: CodeCache, continuations: Continuations, code: CodeType, instruction: int,
    module_globals: dict[str, Any] | None,
) -> Place:
    """The place of an instruction in the program, for a traceback."""
    code, instruction = continuations.origin(code, instruction)
    decoded = codes.decode(code)
    raw = decoded.raw.instructions[decoded.instructions[instruction].end - 1]
    return code, module_globals, raw.offset, raw.position[0] or code.co_firstlineno


class Generator:
    """Makes one code object."""

    def __init__(self, plan: Plan, codes: CodeCache, continuations: Continuations) -> None:
        self.plan = plan
        self.codes = codes
        self.continuations = continuations
        self.raw = _empty_like(plan.code)
        self.emitter = Emitter(self.raw, (plan.code.co_firstlineno, None, None, None))
        fetcher = Fetcher(self.emitter, plan.globals, plan.builtins)
        counts = needed(exit_roots(plan.exit), plan.effects)
        self.place_of = partial(place_of, codes, continuations)
        self.rebuilder = Rebuilder(self.emitter, fetcher, counts, self.place_of)
        self.depth = 0
        self.draws = Draws(self.rebuilder, plan.effects)
        self.modes = Modes(self.rebuilder, plan.effects)
        self.call: tuple[Raw, Raw] | None = None  # first and last instruction of the graph's call
        self.done = 0  # how many instructions come before a break's, or the return
        self.leaves: list[Raw] = []  # where the program's code runs again, see `release`
        self.passing: list[Passing] = []

    def run(self) -> tuple[CodeType, Direct | None]:
        emitter = self.emitter
        if self.raw.freevars:
            emitter.emit("COPY_FREE_VARS", len(self.raw.freevars))
        behind = self.continuations.is_continuation(self.plan.code)
        emitter.emit("RESUME", QUIET_RESUME if behind else 0)
        begin = len(self.raw.instructions)
        self.draws.make(self.plan.reruns or self.plan.tests)
        if self.plan.effects:
            for var in self.rebuilder.counts:
                if is_fetched(var):
                    assert var.source is not None
                    self.rebuilder.fetcher.store(var.source)
        for var in self.rebuilder.counts:
            if is_symbolic(var) and not is_fetched(var):  # from what the inputs are before the call
                self.rebuilder.load(var)
                self.rebuilder.places[var] = emitter.store_fresh("number")
        if self.plan.function is not None:
            self._call_graph(self.plan.function)
        self.modes.note()
        for effect in self.plan.effects if len(self.plan.effects) > 1 else ():
            effect_rows.hold(self.rebuilder, effect)
        for effect in self.plan.effects:
            effect_rows.replay(self.rebuilder, effect)
        if isinstance(self.plan.exit, ReturnExit):
            self.rebuilder.load(self.plan.exit.value)
            self.done = len(self.raw.instructions)
            emitter.emit("RETURN_VALUE")
        else:
            self._break(self.plan.exit)
        self._emit_passing(self.passing)
        self._emit_handlers(begin)
        release(self.raw, self._held_locals(), self.leaves)
        if isinstance(self.plan.exit, BreakExit):
            name_locals(self.raw, self.plan.exit.frames[-1].locals, self.rebuilder.places)
        self.raw.stacksize = emitter.stack_bound() + self.plan.code.co_stacksize
        return assemble(self.raw), direct_call(self.raw)

    def _emit_handlers(self, begin: int) -> None:
        """What errors of the graph do, and errors before it and behind."""
        emitter, plan = self.emitter, self.plan
        raising = self.continuations.raising(plan.code)
        own = self.raw.instructions[begin : self.done]
        parts = [own]
        if self.call is not None:
            retry.emit_handler(emitter, self.call, plan.code, raising, plan.reruns, plan.tests,
                               self.draws.undo)
            first, last = map(own.index, self.call)
            parts = [own[:first], own[last + 1 :]]
        restore = self.modes.restore if self.modes else None
        if raising is not None or restore is not None:
            ranges = [(part[0], part[-1]) for part in parts if part]
            retry.emit_thrower(emitter, ranges, plan.code, raising, restore)

    def _held_locals(self) -> tuple[str, ...]:
        """Parameters of the program's own functions, which eager holds till the function's end, and
        the one that `super()` without arguments reads."""
        code = self.plan.code
        if self.continuations.is_continuation(code):
            return code.co_varnames[:1] if "__class__" in code.co_freevars else ()
        return code.co_varnames[: self.raw.parameters]

    def _call_graph(self, function: Callable[..., Any]) -> None:
        emitter = self.emitter
        first = len(self.raw.instructions)
        emitter.start_call_const(function)
        if self.plan.has_inputs:
            self.raw.varnames.append(GRAPH_INPUTS)
            emitter.load_fast(GRAPH_INPUTS)
            emitter.delete_fast(GRAPH_INPUTS)
        else:
            emitter.emit("BUILD_TUPLE", 0)
        self.draws.join(self.plan.draws)
        self.call = self.raw.instructions[first], emitter.call_spread(keywords=False)
        outputs = self.plan.outputs
        if not outputs:
            emitter.emit("POP_TOP")
            return
        emitter.emit("UNPACK_SEQUENCE", len(outputs))
        for var in outputs:
            self.rebuilder.places[var] = emitter.store_fresh("graph_out")
        for var in outputs:
            if isinstance(var, TensorVar) and (
                    var.cls is torch.nn.Parameter or is_plain_subclass(var.cls)):
                emitter.load_const(var.cls)
                self.rebuilder.load(var)
                emitter.store_attr("__class__")

    # -- tracebacks -------------------------------------------------------------------------

    def _emit_passing(self, passing: list[Passing]) -> None:
        """What the exceptions that pass calls of the new code do there."""
        emitter = self.emitter
        for item in passing:
            first = emitter.emit("PUSH_EXC_INFO")
            emitter.protect(item.call, item.call, first, item.depth)
            name = emitter.store_fresh("passing")
            emitter.emit("POP_EXCEPT")
            emitter.start_call_const(pass_on)
            emitter.load_fast(name)
            emitter.load_const(item.places)
            emitter.call(2)
            emitter.emit("POP_TOP")
            emitter.load_fast(name)
            emitter.delete_fast(name)
            last = emitter.emit("RERAISE", 0)
            if item.outer is not None:
                emitter.protect(first, last, *item.outer)

    # -- breaks -----------------------------------------------------------------------------

    def _break(self, exit: BreakExit) -> None:
        levels: list[Level] = []
        for state in reversed(exit.frames):
            caller = levels[0] if levels else None
            levels.insert(0, Level(self, state, caller, exit.keeps_all))
        levels[-1].ends_frame = self.continuations.is_continuation(self.plan.code)
        line = exit.frames[-1].line.lineno
        self.emitter.position = (line, None, None, None)
        for level in levels:
            level.keep_values()
        self.done = len(self.raw.instructions)
        first = levels[0]
        if len(levels) == 1 and not is_resumed(exit, first.instruction):
            self._run_here(first, exit)
            return
        self._nested(levels, len(levels) - 1)
        self.emitter.emit("RETURN_VALUE")

    def _nested(self, levels: list[Level], number: int) -> None:
        """Leaves the return value of the frame `number` on the stack (0 is the innermost)."""
        level = levels[number]
        if number == 0:
            level.call_continuation("at", level.state.instruction, level.state.stack, ())
            return

        def after() -> None:
            name = self.emitter.store_fresh("result")
            level.leave_handled()
            stack = level.state.stack
            level.call_continuation("after", level.state.instruction + 1, stack, (name,))

        self._guarded(level, lambda: self._nested(levels, number - 1), after)

    def _guarded(
        self, level: Level, action: Callable[[], None], after: Callable[[], None]
    ) -> None:
        """Runs `action` where an exception goes to the handler of the frame's instruction; then
        `after`. Both ways leave the frame's return value on the stack."""
        emitter = self.emitter
        level.enter_handled()
        start = emitter.label()
        emitter.place(start)
        self.depth += level.handled
        depth = self.depth
        passed = len(self.passing)
        action()
        inside = self.passing[passed:]
        self.depth -= level.handled
        last = self.raw.instructions[-1]
        after()
        if level.handler is None:
            return
        join = emitter.label()
        emitter.jump(join)
        handler = Raw("PUSH_EXC_INFO", position=emitter.position)
        beyond = len(level.callers())
        for item in inside:
            item.outer, item.places = (handler, depth), item.places[beyond:]
            self.passing.remove(item)
        self._emit_passing(inside)
        emitter.append(handler)
        name = emitter.store_fresh("exception")
        emitter.emit("POP_EXCEPT")
        level.leave_handled()
        level.call_continuation("raise", level.state.instruction, level.state.stack, (name,))
        emitter.place(join)
        emitter.protect(start, last, handler, depth)

    # -- the instruction itself ------------------------------------------------------------------

    def _run_here(self, level: Level, exit: BreakExit) -> None:
        """Runs the root frame's own instruction in the new code."""
        instruction = level.instruction
        if instruction.op in NAME_OPS:
            self._raise_unbound(level, instruction)
            return
        if exit.branches:
            self._branch(level, instruction)
            return
        null = null_place(instruction)
        used, popped = operands(instruction)
        used_stack = level.state.stack[len(level.state.stack) - used :]
        net = net_effect(level.decoded, instruction)

        def action() -> None:
            for place, var in enumerate(used_stack):
                is_left = place < used - popped
                if is_left and isinstance(var, NullVar) and not VERSION.pops_null:
                    self.emitter.load_const(None)  # NULL can't be taken from the stack again
                else:
                    self.rebuilder.load(var)
            first = len(self.raw.instructions)
            copy_instruction(self.emitter, level.decoded, instruction, without_null=bool(null))
            self.leaves.append(self.raw.instructions[first])

        def after() -> None:
            if instruction.op in ENDS:
                return
            count = net + popped - bool(null)
            names = [self.emitter.store_fresh("result") for _ in range(count)][::-1]
            for _ in range(used - popped):
                self.emitter.emit("POP_TOP")
            level.leave_handled()
            rest = level.state.stack[: len(level.state.stack) - popped]
            if null == "first":
                rest = (*rest, NullVar())
            level.call_continuation(
                "after", instruction.index + 1, rest, tuple(names), null
            )
            self.emitter.emit("RETURN_VALUE")

        self._guarded(level, action, after)
        self.emitter.emit("RETURN_VALUE")

    def _raise_unbound(self, level: Level, instruction: Instruction) -> None:
        name = instruction.arg
        free = name in level.state.code.co_freevars
        text = (FREE_TEXT if free else NAME_OPS[instruction.op]).format(name)

        def action() -> None:
            if free:
                self.rebuilder.call_keywords(
                    NameError, [ConstVar(text)], {"name": ConstVar(name)})
            else:
                self.rebuilder.call_const(UnboundLocalError, text)
            self.emitter.emit("RAISE_VARARGS", 1)

        self._guarded(level, action, lambda: None)
        self.emitter.emit("RETURN_VALUE")

    def _branch(self, level: Level, instruction: Instruction) -> None:
        emitter = self.emitter
        stack = level.state.stack
        top, rest = stack[-1], stack[:-1]
        other = emitter.label()
        loop = instruction.op == "FOR_ITER"
        or_pop = instruction.op.endswith("_OR_POP")

        def action() -> None:
            self.rebuilder.load(top)
            if loop:
                self.leaves.append(emitter.emit("FOR_ITER", target=other))
                return
            if or_pop:
                emitter.emit("COPY", 1)
            test = "TRUE" if "TRUE" in instruction.op else "FALSE"
            op = f"POP_JUMP_IF_{test}" if or_pop else instruction.op
            emitter.jump_if(op, other)

        def after() -> None:
            names: list[str] = []
            if loop:
                names = [emitter.store_fresh("item")]
            if loop or or_pop:
                emitter.emit("POP_TOP")
            level.leave_handled()
            remaining = stack if loop else rest
            level.call_continuation("after", instruction.index + 1, remaining, tuple(names))
            emitter.emit("RETURN_VALUE")
            if loop:
                for name in VERSION.exhausted:
                    if name == "END_FOR":
                        other.name = "END_FOR"
                        emitter.place(other)
                    else:
                        emitter.emit(name)
                if not VERSION.exhausted:
                    emitter.place(other)
            else:
                emitter.place(other)
            if or_pop:
                emitter.emit("POP_TOP")
            level.leave_handled()
            remaining = stack if or_pop else rest
            level.call_continuation("after", instruction.target, remaining, ())
            emitter.emit("RETURN_VALUE")

        self._guarded(level, action, after)
        self.emitter.emit("RETURN_VALUE")


def _empty_like(code: CodeType) -> RawCode:
    """A code object with the same arguments and free variables, and nothing in it yet."""
    return RawCode(
        instructions=[],
        protected=[],
        consts=[code.co_consts[0] if code.co_consts else None],
        names=[],
        varnames=list(code.co_varnames),
        cellvars=(),
        freevars=code.co_freevars,
        argcount=code.co_argcount,
        posonlyargcount=code.co_posonlyargcount,
        kwonlyargcount=code.co_kwonlyargcount,
        flags=code.co_flags & ~inspect.CO_GENERATOR,
        stacksize=0,
        filename=code.co_filename,
        name=code.co_name,
        qualname=code.co_qualname,
        firstlineno=code.co_firstlineno,
    )
