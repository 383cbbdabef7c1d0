"""The attempts to trace one frame: each learns something, until one ends in a `TraceResult`.

In: a frame of the program. Out: graph, guards, effects and exit of an attempt that holds.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch

from dynamo import hook
from dynamo.base import logs
from dynamo.base.errors import (
    Break,
    InternalError,
    RestartTrace,
)
from dynamo.base.gpu_state import settle_choices
from dynamo.base.loading import collection_paused
from dynamo.base.subclasses import as_in_program, outer_modes
from dynamo.codegen.break_frames import differentiated, exit_roots
from dynamo.codegen.continuation import Continuations
from dynamo.codegen.live import live_frames, may_show_lifetimes
from dynamo.codegen.rebuild import is_fetched, needed
from dynamo.graph_operators.gradients import own_saved_tensor_hooks
from dynamo.guards.explain import failures
from dynamo.guards.sources import CellSource, LocalSource, Scope, Source
from dynamo.shapes.fake import NotSymbolic
from dynamo.symbolic.core.context import CodeCache, CompileContext
from dynamo.symbolic.core.stack_values import UnreadVar
from dynamo.symbolic.core.trace_result import (
    BreakExit,
    DrawEffect,
    Effect,
    ReturnExit,
    TraceResult,
)
from dynamo.symbolic.core.unguarded import Met, Unguarded
from dynamo.symbolic.core.var import ObservedException, Var
from dynamo.symbolic.machine.breaks import EndTrace
from dynamo.symbolic.machine.finalizers import ObservedLocals, guard_let_go
from dynamo.symbolic.machine.frame import SymbolicFrame
from dynamo.symbolic.machine.trace import Trace
from dynamo.symbolic.python.generators import GeneratorVar
from dynamo.symbolic.python.sets import SetVar
from dynamo.symbolic.shapes.sizes import symbolic_axes
from dynamo.symbolic.shapes.symbolic_text import UnreadText
from dynamo.symbolic.shapes.unbacked import UnbackedNumber
from dynamo.symbolic.tensors.contexts import GraphContextVar
from dynamo.symbolic.tensors.function_modes import enter_outer_modes
from dynamo.symbolic.tensors.gradient_calls import watch_wanted
from dynamo.symbolic.tensors.inference import outside_inference_mode
from dynamo.symbolic.tensors.masked_partials import has_mask
from dynamo.symbolic.tensors.memory import (
    guard_views_apart,
    keep_apart,
    keep_changed_apart,
    keep_keys_apart,
)
from dynamo.symbolic.tensors.min_max import Extreme
from dynamo.symbolic.tensors.modes import keep_modes
from dynamo.symbolic.tensors.picking import settle_picks
from dynamo.symbolic.tensors.repeating import (
    cut_where_caught,
)
from dynamo.symbolic.tensors.state import tensor_state
from dynamo.symbolic.tensors.tables import keep_tables_apart
from dynamo.symbolic.tensors.tensor import TensorVar

RESTARTS = 100
# What has to hold of all that the trace has met, and is guarded when it is over. Errors:
# RestartTrace where it does not hold now.
AT_THE_END: tuple[Callable[[Trace], None], ...] = (
    keep_apart,  # inputs of a graph that writes into an array's memory share none
    guard_views_apart,  # no input is a view of one that was made to require grad
    keep_keys_apart,  # objects that were keys of a dict or set are different ones
    keep_changed_apart,  # an object that is changed is none of the others that were looked at
    keep_tables_apart,  # the graph writes into no table of known values
)


class Attempts:
    """Traces frames of one region."""

    def __init__(self, codes: CodeCache, continuations: Continuations) -> None:
        self.codes = codes
        self.continuations = continuations

    def trace(self, frame: hook.FrameState, context: CompileContext) -> TraceResult:
        """Attempts to trace the frame until one ends without a new lesson."""
        log_code(frame, self.codes, context.compile_id)
        start = time.perf_counter()
        settle_choices()
        raises = False
        scope = Scope(frame.locals, frame.globals, frame.builtins, frame.cells)
        for _ in range(RESTARTS):
            loaded = len(sys.modules)
            context.raised_at.clear()
            with as_in_program():
                trace = Trace(context)
            trace.forced_breaks = frozenset(context.forced)
            modes = contextlib.ExitStack()
            modes.enter_context(collection_paused())  # for one attempt: what it leaves may be much
            outer = outer_modes()
            modes.enter_context(torch._C.DisableTorchFunction() if outer else  # the trace asks them
                                torch._C.DisableTorchFunctionSubclass())
            modes.enter_context(outside_inference_mode())
            modes.enter_context(own_saved_tensor_hooks())
            modes.callback(keep_modes())
            modes.callback(trace.leave)
            try:
                root = self.root_frame(frame, trace)
                modes.callback(root.clear)
                enter_outer_modes(trace, outer)
                result = self.attempt(frame, root)
                if context.violated is not None and not raises:
                    raise context.violated
                if len(sys.modules) != loaded and failures(result.guards, scope):
                    continue  # what an operator of torch has imported fills torch's own lists
                return result
            except ObservedException as error:
                raises = True  # the program's own error comes before one about its sizes
                assert error.step is not None
                step = error.step
                cause = Break("escaping_exception", error.value.python_type().__name__)
            except NotSymbolic as reason:
                logs.log("dynamic").emit(f"sizes are static: {reason}", context.compile_id)
                trace.symbols.check_declared(reason)
                context.symbolic, context.static_sizes = False, True
                context.static_because = str(reason)
                context.forced.clear()
                continue
            except RestartTrace as restart:
                if restart.step is None:  # other steps may lie before other instructions
                    context.forced.clear()
                    continue
                step, cause = restart.step, restart.cause or Break("inner_break")
            finally:
                modes.close()
                trace.release()
            assert step not in context.forced, (step, cause)
            context.forced[step] = cause.bare()
            context.seconds_lost = time.perf_counter() - start
        raise InternalError(f"{frame.code.co_qualname}: no end of restarts")

    def root_frame(self, frame: hook.FrameState, trace: Trace) -> SymbolicFrame:
        """The frame that is compiled, of which nothing has run yet."""
        locals_: dict[str, Var] = {
            name: UnreadVar(value, LocalSource(name)) for name, value in frame.locals.items()
        }
        root = SymbolicFrame(trace, frame.code, frame.globals, locals_, {})
        if self.continuations.is_continuation(frame.code):
            trace.observed_locals = ObservedLocals(locals_)
            trace.passed_iterator = self.continuations.passed_iterator(frame.code)
        trace.frames.append(root)
        for name, cell in frame.cells.items():
            root.cells[name] = trace.wrap(cell, CellSource(name))  # type: ignore[assignment]
        trace.frames.pop()
        return root

    def attempt(self, frame: hook.FrameState, root: SymbolicFrame) -> TraceResult:
        """One attempt: runs the root frame on Vars."""
        trace = root.trace
        start: dict[Source, Any] = {LocalSource(n): value for n, value in frame.locals.items()}
        exit: ReturnExit | BreakExit
        try:
            exit = ReturnExit(root.run())
            root.leave()
        except EndTrace as end:
            keeps = self.continuations.keeps_all(frame.code)
            all_values = keeps or may_show_lifetimes(end.exit)
            exit = live_frames(end.exit, self.codes, trace.objects.real_values(), all_values)
            guard_let_go(trace, start, end.exit, exit)
        roots = exit_roots(exit)
        effects = trace.effects.records(roots)
        reached = needed(roots, effects)
        settle_picks(trace, reached)
        settle_orders(trace, reached)
        refuse_escaping(trace, reached, exit)
        outputs = choose_outputs(exit, effects)
        for var in outputs:
            var.as_proxy()  # made now: unused inputs are about to go
        watch_wanted(trace, outputs, differentiated(exit))
        if not trace.context.settings.fullgraph:
            cut_where_caught(trace.graph.graph)
        axes = symbolic_axes(trace.symbols, roots) if isinstance(exit, BreakExit) else {}
        for guard_rest in AT_THE_END:
            guard_rest(trace)
        trace.symbols.finish(Scope(frame.locals, frame.globals, frame.builtins, frame.cells))
        graph = trace.graph.finish()
        met = what_was_met(trace) if trace.context.cacheable else None
        return TraceResult(
            frame.code, graph, trace.guards, effects, exit, trace.steps, trace.handles, axes, met)


def log_code(frame: hook.FrameState, codes: CodeCache, compile_id: str) -> None:
    logs.log("bytecode").emit(
        lambda: f"code of {frame.code.co_qualname}\n{codes.decode(frame.code).listing()}",
        compile_id,
    )


def what_was_met(trace: Trace) -> Met:
    """The real objects that the trace has met, and what it took as fixed."""
    unguarded, searched = trace.state(Unguarded), trace.attributes.searched_classes()
    return unguarded.met(
        [(value, var.source) for value, var in trace.objects.items()], searched)


def settle_orders(trace: Trace, reached: Counter[Any]) -> None:
    """Sets that leave the trace have the order that they would have."""
    for var in list(reached):
        if isinstance(var, SetVar):
            var.settle(trace)


def refuse_escaping(trace: Trace, reached: Counter[Any], exit: ReturnExit | BreakExit) -> None:
    """Errors: RestartTrace where a value is alive behind the trace that can't be rebuilt."""
    for suspended, generator in trace.suspended.items():
        if generator() not in reached:  # it must be closed when the program lets go of it
            raise RestartTrace(
                suspended.created_at, Break("escaping_generator", repr(generator()))
            )
    for var in reached:
        if isinstance(var, GeneratorVar) and not is_fetched(var) and var.started:
            raise RestartTrace(var.frame.created_at, Break(
                "escaping_generator",
                f"{var!r}, alive at: {getattr(exit, 'reason', 'return')}"))
        if isinstance(var, UnreadText):
            raise RestartTrace(var.made_at, Break("text_of_tensor", var.tensor))
        if isinstance(var, Extreme):
            var.look()
        if isinstance(var, TensorVar) and not is_fetched(var) and has_mask(var.fake):
            raise RestartTrace(var.node.meta["step"], Break(
                "tensor_subclass", "a DTensor that leaves the graph before its mask is used"))
        if isinstance(var, GraphContextVar) and var.step is not None:
            raise RestartTrace(var.step, Break("call_of_unknown_function", repr(var)))
    for mode, step in tensor_state(trace).function_modes:
        if step is not None:
            raise RestartTrace(
                step, Break("call_of_unknown_function", f"{mode!r}, a mode that stays"))


def choose_outputs(exit: ReturnExit | BreakExit, effects: tuple[Effect, ...]) -> tuple[Var, ...]:
    """Tensors (and unbacked numbers) made in the trace that the exit or an effect needs."""
    counts: Counter[Var] = needed(exit_roots(exit), effects)
    drawn = {effect.result for effect in effects if isinstance(effect, DrawEffect)}
    return tuple(
        var for var in counts
        if isinstance(var, TensorVar | UnbackedNumber) and not is_fetched(var) and var not in drawn
    )
