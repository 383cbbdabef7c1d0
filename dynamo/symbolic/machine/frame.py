"""`SymbolicFrame`: one Python frame, evaluated on Vars.

The frame executes decoded instructions one by one through the handler table of `opcodes/`. A Break
inside an instruction ends the trace (see `breaks.py`); an `ObservedException` is looked up in the
exception table, as CPython does.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType
from typing import TYPE_CHECKING, Any

from dynamo.base.errors import Break, RestartTrace
from dynamo.bytecode.decode import Instruction
from dynamo.bytecode.raw import is_generator_like
from dynamo.bytecode.versions import VERSION
from dynamo.guards.records import UserLine
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.lookup import find_in_mro
from dynamo.symbolic.core.stack_values import OpaqueVar, UnreadVar
from dynamo.symbolic.core.unguarded import Unguarded
from dynamo.symbolic.core.var import ObservedException, Var
from dynamo.symbolic.core.wrapping import wrap_or_pass_on
from dynamo.symbolic.machine import breaks, inline
from dynamo.symbolic.machine.loop_iterators import LoopIteratorVar
from dynamo.symbolic.machine.opcodes import HANDLERS
from dynamo.symbolic.python.cells import CellVar
from dynamo.symbolic.python.exceptions import ExceptionVar, lacks_traceback, note_passing
from dynamo.symbolic.python.generators import GeneratorVar
from dynamo.symbolic.tensors import compiled as compiled  # registers wrappers

if TYPE_CHECKING:
    from dynamo.symbolic.machine.trace import Trace
    from dynamo.symbolic.python.functions import FunctionVar


# Opcodes that push what a call returns and do nothing else with it: a break inside of the call
# can be resumed behind them.
TAIL_OPS = frozenset(
    """CALL CALL_KW CALL_FUNCTION_EX LOAD_ATTR BINARY_SUBSCR BINARY_OP COMPARE_OP UNARY_NEGATIVE
    UNARY_POSITIVE UNARY_INVERT""".split()
)


class SymbolicFrame:
    """One frame of the traced program.

    awaiting: the current instruction will push what the child frame returns, nothing else.
    handled: the exception that the frame itself is handling, see `exception`.
    step_at_start, clock_at_start, mark_at_start, stack_at_start: the state before the current
        instruction.
    """

    def __init__(
        self,
        trace: Trace,
        code: CodeType,
        globals: dict[str, Any],
        locals: dict[str, Var],
        cells: dict[str, CellVar],
        parent: SymbolicFrame | None = None,
        function: FunctionVar | None = None,
    ) -> None:
        self.trace: Trace = trace
        self.code = code
        self.globals = globals
        self.locals = locals
        self.cells = cells
        self.parent = parent
        self.function = function
        self.decoded = trace.context.codes.decode(code)
        self.is_generator = is_generator_like(code)
        trace.handles |= bool(code.co_exceptiontable)
        trace.state(Unguarded).codes[id(code)] = code
        self.stack: list[Var] = []  # the same list for as long as the frame lives
        self.push, self.pop = self.stack.append, self.stack.pop
        self.ip = 0
        self.current: Instruction = self.decoded.instructions[0]
        self.handled: Var | None = None
        self.awaiting = False
        self.result: Var | None = None
        self.yielded = False
        self.arguments: tuple[list[Var], dict[str, Var]] | None = None
        self.created_at = 0
        self.step_at_start = 0
        self.clock_at_start = 0
        self.mark_at_start: Any = None
        self.stack_at_start: list[Var] = []

    # -- execution --------------------------------------------------------------------------

    def run(self) -> Var:
        """Executes until the frame returns (or yields); the value it gives."""
        trace = self.trace
        trace.frames.append(self)
        self.result = None
        try:
            while self.result is None:
                self.step()
            return self.result
        finally:
            trace.frames.pop()

    def clear(self) -> None:
        self.locals.clear()
        self.cells.clear()
        self.stack.clear()
        self.stack_at_start.clear()

    def leave(self) -> None:
        """What happens when the root frame returns and lets go of what it holds."""
        if self.trace.observed_locals:  # they die one by one, real ones and those of the trace
            for frame in self.trace.suspended:
                reason = Break("escaping_generator", frame.code.co_name)
                raise RestartTrace(frame.created_at, reason)
        if self.trace.suspended:
            self.trace.frames.append(self)
            try:
                names = (*self.code.co_varnames, *self.code.co_cellvars)
                for name in reversed(names) if VERSION.clears_last_first else names:
                    self.locals.pop(name, None)
                    self.cells.pop(name, None)
                    self.close_dropped()
                self.clear()
                self.close_dropped()
            except Break as reason:
                raise RestartTrace(self.step_at_start, reason) from reason
            finally:
                self.trace.frames.pop()
        self.clear()

    def step(self) -> None:
        """Executes one instruction."""
        trace = self.trace
        instruction = self.current = self.decoded.instructions[self.ip]
        op = instruction.op
        trace.steps += 1
        self.step_at_start = trace.steps
        self.clock_at_start = trace.effects.clock
        self.mark_at_start = trace.graph.mark()
        self.stack_at_start = self.stack.copy()
        self.ip += 1
        self.awaiting = op in TAIL_OPS
        try:
            if trace.steps in trace.forced_breaks:
                if op in ("LOAD_DEREF", "DELETE_DEREF"):  # raises only while the cell is empty
                    self.load_local(instruction.arg)
                raise trace.context.forced[trace.steps]
            if trace.steps + trace.calls > trace.context.max_steps:
                trace.context.check_length(trace.steps + trace.calls)
            if trace.suspended:
                self.close_dropped()
            if trace.observed_locals and trace.observed_locals.dropped(trace):
                raise Break("dropped_value")
            HANDLERS[op](self, instruction.arg, instruction)
        except Break as reason:
            breaks.end_trace(self, reason)
        except ObservedException as error:
            self.awaiting = False
            self.handle(error)

    def close_dropped(self) -> None:
        """Closes the generators that the program has let go of, as CPython does at once."""
        suspended = self.trace.suspended
        for frame in [frame for frame, var in suspended.items() if var() is None]:
            if suspended.pop(frame, None) is not None:  # closing one may close another
                GeneratorVar(frame).close_dropped(self)

    def has_cleanup(self) -> bool:
        """True for a suspended generator frame that must still run when it is closed."""
        handlers, code = self.decoded.handlers, self.decoded.instructions
        handler = handlers[self.current.index]
        while handler is not None and code[handler.target].op == "CLEANUP_THROW":
            handler = handlers[handler.target]  # `yield from` on 3.12: it only passes on
        return handler is not None and code[handler.target].op != "STOPITERATION_ERROR"

    def handle(self, error: ObservedException) -> None:
        """Goes to the handler of an exception that the current instruction raised."""
        value = error.value
        if error.step is None:
            error.step = self.trace.steps
            self.set_context(value)
        handler = self.decoded.handlers[self.current.index]
        if error.kept_in is not self or (handler and lacks_traceback(value)):
            note_passing(self, value)
        if handler is None:
            try:
                raise error
            finally:
                del error  # its traceback holds this frame: the two would live as a cycle
        del self.stack[handler.depth :]
        if handler.lasti:
            self.push(ConstVar(0))
        self.push(value)
        self.trace.context.raised_at[value] = error.step
        self.ip = handler.target

    @property
    def exception(self) -> Var | None:
        """The exception that is being handled (`sys.exc_info()`), by the frame or by those that
        have called it; a generator may be resumed by another frame each time."""
        if self.handled is not None or self.parent is None:
            return self.handled
        return self.parent.exception

    def set_context(self, value: Var) -> None:
        """Notes which exception was being handled when another was raised."""
        handled = self.exception
        if handled is value or not isinstance(value, ExceptionVar):
            return
        value.raised_bare = handled is None
        if handled is None:
            return
        link: Var = handled
        seen: set[Var] = set()
        while isinstance(link, ExceptionVar) and link not in seen:
            seen.add(link)
            if link.context is value:  # no cycles
                link.context = ConstVar(None)
            link = link.context
        value.context = handled

    # -- stack and names -------------------------------------------------------------------

    def pop_many(self, count: int) -> list[Var]:
        """The topmost values, lowest first."""
        if not count:
            return []
        values = self.stack[-count:]
        del self.stack[-count:]
        return values

    def read(self, var: Var, iterator_is_opaque: bool = False) -> Var:
        """Looks at a local that has not been read so far."""
        if not isinstance(var, UnreadVar):
            return var
        assert var.source is not None
        value = var.value
        if iterator_is_opaque and find_in_mro(type(value), "__next__") is not None:
            kind = OpaqueVar if var.source == self.trace.passed_iterator else LoopIteratorVar
            opaque = kind(self.trace, value, var.source, Break("opaque_iterator", ""))
            self.trace.objects.remember(value, opaque)
            return opaque
        return wrap_or_pass_on(self.trace, value, var.source)

    def load_local(self, name: str) -> Var | None:
        """A local variable, None where it is unbound."""
        cell = self.cells.get(name)
        if cell is not None:
            return cell.peek(self.trace)
        var = self.locals.get(name)
        if type(var) is UnreadVar:
            var = self.locals[name] = self.read(var, name.startswith("__stack_"))
        return var

    # -- calls ------------------------------------------------------------------------------

    def call(self, function: Var, args: list[Var], kwargs: dict[str, Var]) -> Var:
        """A call whose result is used further inside of the current instruction."""
        self.trace.calls += 1  # one instruction may make any number (`"".join(map(f, items))`)
        self.trace.context.check_length(self.trace.steps + self.trace.calls)
        awaiting, self.awaiting = self.awaiting, False
        try:
            return function.call(self, args, kwargs)
        finally:
            self.awaiting = awaiting

    def call_attribute(
        self, var: Var, name: str, args: list[Var], kwargs: dict[str, Var]
    ) -> Var:
        """`var.name(...)` where the call's result is what the current instruction gives."""
        with self.using_results():
            function = var.get_attr(self, name)
        return function.call(self, args, kwargs)

    @contextmanager
    def using_results(self) -> Iterator[None]:
        """Where what a function of the program returns need not be what the current instruction
        gives: a break in such a function can't be resumed behind the instruction."""
        before, self.awaiting = self.awaiting, False
        try:
            yield
        finally:
            self.awaiting = before

    def inline(self, function: FunctionVar, args: list[Var], kwargs: dict[str, Var]) -> Var:
        """Runs a Python function as part of this trace."""
        return inline.inline_function(self, function, args, kwargs)

    def child(
        self, function: FunctionVar, names: dict[str, Var], closure: dict[str, CellVar]
    ) -> SymbolicFrame:
        """A frame for a call of a function; names: its arguments."""
        return SymbolicFrame(
            self.trace, function.code, function.globals, names, closure, self, function)

    def resume(self, tx: SymbolicFrame, value: Var | None, exception: Var | None) -> Var:
        """Continues a generator's frame to its next yield."""
        return inline.resume_generator(self, tx, value, exception)

    def alive(self) -> list[Var]:
        """What a suspended frame keeps alive."""
        return [*self.stack, *self.locals.values(), *self.cells.values()]

    # -- places -----------------------------------------------------------------------------

    def user_line(self) -> UserLine:
        """The line of the current instruction."""
        lineno = self.current.position[0] or self.code.co_firstlineno
        return UserLine(self.code.co_filename, lineno, self.code.co_name)
