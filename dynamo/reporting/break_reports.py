"""What is reported of a graph break, once each: counter, log, event; and where it is an error."""

from __future__ import annotations

from collections import Counter
from types import CodeType, MethodType
from typing import Any

from dynamo import hook
from dynamo.base import counters, events, logs
from dynamo.base.breaks import describe, group_of, summarize
from dynamo.base.errors import Break, Unsupported
from dynamo.base.events import Event
from dynamo.base.strictness import Part, is_strict
from dynamo.base.user_lines import user_place
from dynamo.codegen.continuation import Continuations
from dynamo.frames.libraries import library_of
from dynamo.guards.records import name_of_part, source_text
from dynamo.options import CompileOptions
from dynamo.symbolic.core.context import CompileContext
from dynamo.symbolic.core.stack_values import UnreadVar
from dynamo.symbolic.core.trace_result import BreakExit, TraceResult
from dynamo.symbolic.python.functions import MethodVar
from dynamo.symbolic.python.objects import ObjectVar

CALLS = ("call_function", "call_method", "call_module")


class BreakReports:
    """The breaks of one region."""

    def __init__(self, continuations: Continuations) -> None:
        self._continuations = continuations
        self._reported: dict[tuple[int, int], str] = {}  # those in inlined calls, by their place

    def is_repeated(self, exit: BreakExit, code: CodeType) -> bool:
        """True where a continuation only runs the call that has cut the frames around it, which
        had that break reported."""
        state = exit.frames[0]
        original, instruction = self._continuations.origin(state.code, state.instruction)
        place = id(original), instruction  # a continuation keeps the code alive
        if len(exit.frames) > 1:
            self._reported[place] = exit.reason.code
            return False
        begins = self._continuations.begins_at(code, original, instruction)
        return begins and self._reported.get(place) == exit.reason.code

    def report_attempt(
        self, frame: hook.FrameState, result: TraceResult, context: CompileContext
    ) -> Event:
        """Says what a trace has found. Errors: Unsupported where it must not break."""
        exit, compile_id = result.exit, context.compile_id
        repeated = isinstance(exit, BreakExit) and self.is_repeated(exit, frame.code)
        event = frame_event(frame, result, context, repeated)
        events.record(event)
        if result.effects:
            logs.log("effects").emit(lambda: "\n".join(map(repr, result.effects)), compile_id)
        if isinstance(exit, BreakExit):
            self.report_break(exit, context.settings, compile_id, repeated)
        return event

    def report_break(
        self, exit: BreakExit, options: CompileOptions, compile_id: str, repeated: bool
    ) -> None:
        """Says why the graph ends. Errors: Unsupported where it must not."""
        line = exit.frames[0].line
        text = describe(exit.reason, str(line), source_text(line))
        if not repeated:
            counters.counters[group_of(str(exit.reason))][str(exit.reason)] += 1
            logs.log("graph_breaks").emit(text, compile_id)
        if exit.reason.code == "escaping_exception":
            return
        strict = describe(exit.reason, str(line), source_text(line), strict=True)
        if options.fullgraph:
            raise Unsupported(f"{strict}\n  fullgraph=True allows no graph break.")
        if is_error(exit):
            raise Unsupported(f"{strict}\n  error_on_graph_break(True) allows no graph break here.")

    def report_skipped(self, frame: hook.FrameState, reason: str, compile_id: str) -> None:
        """A frame runs as it is."""
        logs.log("dynamo").emit(f"skip {frame.code.co_qualname}: {reason}", compile_id)
        if library_of(frame.code, frame.globals) is None:
            events.record(skip_event(frame.code, reason, compile_id))

    def report_unbuildable(self, frame: hook.FrameState, reason: Break, compile_id: str) -> None:
        """A frame runs as it is, since a value is alive that can't be rebuilt."""
        logs.log("graph_breaks").emit(f"skip {frame.code.co_qualname}: {reason}", compile_id)
        counters.counters["skips"][str(reason)] += 1
        events.record(skip_event(frame.code, summarize(str(reason)), compile_id))


def is_error(exit: BreakExit) -> bool:
    """True where the innermost `error_on_graph_break` around a break says so: those of the trace
    have their `__exit__` on a stack."""
    for var in (var for state in exit.frames for var in reversed(state.stack)):
        if isinstance(var, UnreadVar) and isinstance(var.value, MethodType):
            kind = type(var.value.__self__)
        elif isinstance(var, MethodVar) and isinstance(var.receiver, ObjectVar):
            kind = var.receiver.cls
        else:
            continue
        if issubclass(kind, Part):
            return kind.error
    return is_strict()


def frame_event(
    frame: hook.FrameState, result: TraceResult, context: CompileContext, repeated: bool
) -> Event:
    """What tracing a frame has found: its operations with their lines, and the break at its end, if
    any.

    repeated: see `BreakReports.is_repeated`.
    """
    operations = 0 if result.graph is None else result.graph.operations
    nodes = () if result.graph is None else result.graph.module.graph.nodes
    lines = Counter(user_place(n.meta.get("stack_trace")) for n in nodes if n.op in CALLS)
    what = logs.compile_now()
    data: dict[str, Any] = {
        "frame": name_of_part(frame.code), "operations": operations, "region": what.region,
        "name": what.name, "file": frame.code.co_filename, "line": frame.code.co_firstlineno,
        "lines": [(*place, count) for place, count in lines.items() if place is not None],
    }
    if isinstance(result.exit, BreakExit):
        reason, frames = result.exit.reason, result.exit.frames
        data["break"] = {
            "code": reason.code, "detail": reason.detail, "reason": str(reason),
            "stack": [str(state.line) for state in reversed(frames)],
            "text": describe(reason, str(frames[0].line), source_text(frames[0].line)),
            "seconds_lost": context.seconds_lost, "repeated": repeated,
            "places": [(state.line.filename, state.line.lineno) for state in reversed(frames)],
        }
    return Event("frame", context.compile_id, data)


def skip_event(code: CodeType, reason: str, compile_id: str) -> Event:
    """A frame of the program runs as it is."""
    data = {"name": code.co_qualname, "file": code.co_filename, "line": code.co_firstlineno,
            "reason": reason, "region": logs.compile_now().region}
    return Event("skip", compile_id, data)
