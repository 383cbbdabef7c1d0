"""The story of one frame: from the hook's question to an entry.

decode -> trace (again with what was learned, where needed) -> choose outputs -> prune the graph ->
compile it by the backend -> generate bytecode -> build guards -> entry.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from types import CodeType
from typing import Any

from dynamo import hook
from dynamo.base import counters
from dynamo.base.config import config
from dynamo.base.defects import internal_error
from dynamo.base.errors import Break, DynamoError, SkipFrame
from dynamo.base.loading import collection_paused
from dynamo.base.recursion import recursion_room
from dynamo.base.waiting import while_waiting
from dynamo.captures.trace_cache import TraceCache
from dynamo.codegen.continuation import Continuations
from dynamo.codegen.generate import generate
from dynamo.codegen.retry import throw
from dynamo.frames import entries
from dynamo.frames.attempts import Attempts
from dynamo.frames.choice import check_worth, skip_reason
from dynamo.frames.graph_functions import GraphFunctions, close, plan_of
from dynamo.frames.libraries import is_whole
from dynamo.frames.settings import context_of
from dynamo.guards.shape_code import Fact
from dynamo.options import CompileOptions
from dynamo.reporting.break_reports import BreakReports
from dynamo.symbolic.core.context import CodeCache, CompileContext
from dynamo.symbolic.machine.inline import is_left_to_python

WHOLE = {"capture_scalar_outputs": True, "capture_dynamic_output_shape_ops": True}


class Converter:
    """Turns the frames of one region into entries; keeps what they share."""

    def __init__(self, requested: CodeType | None = None) -> None:
        """asked: what the user compiles, which is traced also where it is torch's own."""
        self.codes = CodeCache()
        self.continuations = Continuations(self.codes.decode)
        self.attempts = Attempts(self.codes, self.continuations)
        self.functions = GraphFunctions()
        self.warned: set[int] = set()
        self.breaks = BreakReports(self.continuations)
        self.traces = TraceCache(self.continuations)
        self.requested = requested

    def __call__(
        self,
        frame: hook.FrameState,
        options: CompileOptions,
        compile_id: str,
        changed: Mapping[Fact, int | float] | None = None,
    ) -> Any:
        """The hook's answer: an entry, None (run it as it is this time) or SKIP.

        changed: numbers and sizes that had several values in earlier calls, with the first.
        """
        if is_left_to_python(frame.function):
            return None  # its code is that of all optimizers' steps
        if is_whole(frame.code):
            return hook.SKIP_RECURSIVE
        reason = skip_reason(frame, self.continuations, self.requested)
        if reason is not None:
            self.breaks.report_skipped(frame, reason, compile_id)
            return hook.SKIP
        try:
            with counters.timed("convert"), recursion_room():
                context = context_of(
                    frame, options, compile_id, changed or {}, self.codes, self.continuations)
                try:
                    return self.convert(frame, context)
                finally:
                    context.raised_at.clear()
        except SkipFrame as skip:
            self.breaks.report_skipped(frame, skip.reason, compile_id)
            counters.counters["skips"][skip.reason] += 1
            return hook.SKIP if skip.forever else None
        except RecursionError:
            return None  # the program is about to meet it itself
        except Break as cause:
            # A value is alive that can't be rebuilt: the frame runs as it is,
            # what it calls is compiled.
            self.breaks.report_unbuildable(frame, cause, compile_id)
            return hook.SKIP
        except DynamoError as error:
            if config.verbose:
                raise
            raise error.with_traceback(None) from error.__cause__  # the user's frames are enough
        except Exception as error:
            internal_error(frame.code, error, self.warned)
            return hook.SKIP

    def throw(self, frame: hook.FrameState, error: BaseException) -> Any:
        """What a frame gives that meets an error of compiling it, as of Ctrl-C: a continuation may
        start inside of the program's handlers and `with` blocks."""
        raising = self.continuations.raising(frame.code)
        if isinstance(error, DynamoError) and not config.verbose:
            error.__traceback__ = None  # the user's frames are enough
        if raising is None:
            try:
                raise error
            finally:
                del error  # its traceback has this frame
        closure = tuple([frame.cells[name] for name in frame.code.co_freevars])
        return throw(error, raising, frame.globals, closure, [*frame.locals.values()])

    # -- the stages -------------------------------------------------------------------------

    def convert(self, frame: hook.FrameState, context: CompileContext) -> Any:
        options, compile_id = context.settings, context.compile_id
        keeping = self.traces.place_of(frame, context, frame.code is self.requested)
        context.cacheable = keeping is not None
        if keeping is not None:
            with counters.timed("kept"), collection_paused():
                found = keeping.find(self.functions.compile)
            if found is not None:
                return found
        begin = getattr(options.backend, "begin", None)
        if begin is not None:
            begin()
        # One whole graph holds what only the running program knows, where that is possible at all.
        with counters.timed("trace"), config.patch(**(WHOLE if options.fullgraph else {})):
            result = self.attempts.trace(frame, context)
        event = self.breaks.report_attempt(frame, result, context)
        if options.settle is not None:
            keeping, result = None, options.settle(frame, result)
        check_worth(frame, result, self.continuations, self.codes)
        with counters.timed("outputs"):
            graph = close(result)
        made: list[entries.Checks] = []
        opened = self.functions.is_opened(graph.record, options)
        if opened:
            keeping = None  # the next process may have another backend of that name

        def prepare() -> None:
            """What does not depend on the compiled graph."""
            made.append(entries.make_checks(result, graph.collected()))
            if keeping is not None:
                with counters.timed("keep"), collection_paused():
                    keeping.prepare(result, made[0], graph.sources())

        function = None
        if graph.record is not None:
            if keeping is not None:
                keeping.note_graph(graph.record.module)  # the backend may change it
            waiting = nullcontext() if opened else while_waiting(prepare)
            with waiting, counters.timed("backend"):
                function = self.functions.compile(
                    graph.record.module, graph.sources(), frame, options, compile_id,
                    graph.repeatable, graph.tensors(), graph.runs, result.guards)
        if graph.record is None or opened:
            prepare()
        plan = plan_of(frame, result, graph, function)
        with counters.timed("codegen"), collection_paused():
            code, direct = generate(plan, self.codes, self.continuations, compile_id)
        entry = entries.make_entry(frame, result, made[0], code, direct, compile_id)
        counters.counters["stats"]["frames"] += 1
        if keeping is not None:
            with counters.timed("keep"), collection_paused():
                keeping.keep(code, function, direct,
                             {"repeatable": graph.repeatable, "changes": entry.keepalive.changes,
                              "event": event.data, "tensors": graph.tensors(),
                              "runs": tuple(graph.runs)})
        return entry
