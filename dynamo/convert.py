"""The story of one frame: from the hook's question to an entry.

decode -> trace (again with what was learned, where needed) -> choose outputs -> prune the graph ->
compile it by the backend -> generate bytecode -> build guards -> entry.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import CodeType
from typing import Any

import torch
import torch.utils.checkpoint

from dynamo import hook
from dynamo.attempts import Attempts, choose_outputs
from dynamo.base import counters, events, logs, recordings
from dynamo.base.breaks import summarize
from dynamo.base.config import config
from dynamo.base.counters import timed
from dynamo.base.decisions import decisions
from dynamo.base.defects import internal_error
from dynamo.base.errors import (
    Break,
    DynamoError,
    SkipFrame,
)
from dynamo.base.loading import collection_paused
from dynamo.base.recursion import recursion_room
from dynamo.base.shortfalls import Site
from dynamo.break_reports import BreakReports, frame_event, skip_event
from dynamo.cache import forward_code, function_modes
from dynamo.captures.keeper import Keeper
from dynamo.codegen.again import throw
from dynamo.codegen.continuation import Continuations
from dynamo.codegen.generate import Plan, generate
from dynamo.codegen.prune import prune
from dynamo.entries import EntryRecord
from dynamo.frames.callers import is_caller
from dynamo.frames.libraries import OWN, is_whole, library_of
from dynamo.frames.worth import is_bound, mentions_tensors
from dynamo.graph_functions import GraphCompiler
from dynamo.guards.build import build_program
from dynamo.guards.listing import lines, python_lines, verbose_lines
from dynamo.guards.records import Guard, released
from dynamo.guards.shape_code import Fact
from dynamo.guards.sources import DrawSource, Scope, Source
from dynamo.options import CompileOptions
from dynamo.shapes.marks import Mark
from dynamo.symbolic.core.context import CodeCache, CompileContext
from dynamo.symbolic.core.effects import outside_changes
from dynamo.symbolic.core.trace_result import (
    BreakExit,
    DrawEffect,
    GraphRecord,
    ReturnExit,
    TraceResult,
)
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.machine.inline import is_left_to_python, spreads_work
from dynamo.symbolic.tensors.repeating import (
    can_undo,
    has_tests,
    runs_again,
    settle_tests,
)
from dynamo.symbolic.tensors.tensor import TensorVar

WHOLE = {"capture_scalar_outputs": True, "capture_dynamic_output_shape_ops": True}
# A trace takes in more than what a continuation begins with.
LEAST_STEPS = 100


class Converter:
    """Turns the frames of one region into entries; keeps what they share."""

    def __init__(self, asked: CodeType | None = None) -> None:
        """asked: what the user compiles, which is traced also where it is torch's own."""
        self.codes = CodeCache()
        self.continuations = Continuations(self.codes.decode)
        self.attempts = Attempts(self.codes, self.continuations)
        self.numbers = itertools.count()
        self.warned: set[int] = set()
        self.breaks = BreakReports(self.continuations)
        self.kept = Keeper(self.continuations)
        self.asked = asked

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
        reason = self.skip_reason(frame)
        if reason is not None:
            self.tell_skipped(frame, reason, compile_id)
            return hook.SKIP
        try:
            with timed("convert"), recursion_room():
                context = self.context_of(frame, options, compile_id, changed or {})
                try:
                    return self.convert(frame, context)
                finally:
                    context.raised_at.clear()
        except SkipFrame as skip:
            self.tell_skipped(frame, skip.reason, compile_id)
            counters.counters["skips"][skip.reason] += 1
            return hook.SKIP if skip.forever else None
        except RecursionError:
            return None  # the program is about to meet it itself
        except Break as reason:
            # A value is alive that can't be rebuilt: the frame runs as it is,
            # what it calls is compiled.
            logs.log("graph_breaks").emit(f"skip {frame.code.co_qualname}: {reason}", compile_id)
            counters.counters["skips"][str(reason)] += 1
            events.record(skip_event(frame.code, summarize(str(reason)), compile_id))
            return hook.SKIP
        except DynamoError as error:
            if config.verbose:
                raise
            raise error.with_traceback(None) from error.__cause__  # the user's frames are enough
        except Exception as error:
            internal_error(frame.code, error, self.warned)
            return hook.SKIP

    def tell_skipped(self, frame: hook.FrameState, reason: str, compile_id: str) -> None:
        """A frame runs as it is."""
        logs.log("dynamo").emit(f"skip {frame.code.co_qualname}: {reason}", compile_id)
        if library_of(frame.code, frame.globals) is None:
            events.record(skip_event(frame.code, reason, compile_id))

    def throw(self, frame: hook.FrameState, error: BaseException) -> Any:
        """What a frame gives that meets an error of compiling it, as of Ctrl-C: a continuation may
        start inside of the program's handlers and `with` blocks."""
        raising = self.continuations.raising(frame.code)
        closure = tuple([frame.cells[name] for name in frame.code.co_freevars])
        args = [] if raising is None else [*frame.locals.values()]
        return throw(error, raising, frame.globals, closure, args)

    def skip_reason(self, frame: hook.FrameState) -> str | None:
        """Why frames of this code are run as they are, None where they are traced."""
        if self.continuations.is_continuation(frame.code):
            return None
        if decisions.has("skipped", frame.code):
            return "the user skips it"
        if frame.code is torch.nn.Module._call_impl.__code__:
            forward = forward_code(type(frame.locals["self"]))
            if forward is not None and spreads_work(forward):
                return "the module spreads the work of the one inside it, which is compiled"
        reason = library_of(frame.code, frame.globals)
        if frame.code is self.asked and (reason != OWN or is_caller(frame.code)):
            return None
        return reason

    # -- the stages -------------------------------------------------------------------------

    def context_of(
        self, frame: hook.FrameState, options: CompileOptions, compile_id: str,
        changed: Mapping[Fact, int | float],
    ) -> CompileContext:
        carried = self.continuations.carried(frame.code)
        return CompileContext(
            self.codes, options, max(config.max_steps, LEAST_STEPS), config.inline_depth,
            compile_id,
            changed={**dict.fromkeys(carried), **(changed if learns(options) else {})},
            carried=carried,
            learns=learns(options), everything_dynamic=is_dynamic(options),
            declared=declared_marks(frame, options),
            no_tables=not learns(options) or any(fact.what == "values" for fact in changed),
        )

    def convert(self, frame: hook.FrameState, context: CompileContext) -> Any:
        options, compile_id = context.settings, context.compile_id
        keeping = self.kept.place_of(frame, context, frame.code is self.asked)
        if keeping is not None:
            with timed("kept"), collection_paused():
                found = keeping.find(self.compile_graph)
            if found is not None:
                return found
        log_code(frame, self.codes, compile_id)
        # One whole graph holds what only the running program knows, where that is possible at all.
        with timed("trace"), config.patch(**(WHOLE if options.fullgraph else {})):
            result = self.attempts.trace(frame, context)
        exit = result.exit
        repeated = isinstance(exit, BreakExit) and self.breaks.is_repeated(exit, frame.code)
        event = frame_event(frame, result, context, repeated)
        events.record(event)
        if result.effects:
            logs.log("effects").emit(lambda: "\n".join(map(repr, result.effects)), compile_id)
        if isinstance(exit, BreakExit):
            self.breaks.tell(exit, options, compile_id, repeated)
        self.check_worth(frame, result)
        with timed("outputs"):
            outputs = choose_outputs(exit, result.effects)
            graph = close_graph(result.graph, outputs)
        function, again, tests = None, False, False
        if graph is not None:
            tests = has_tests(graph.module.graph)
            if tests:
                again = can_undo(graph.module.graph)
            elif result.handles or not all(isinstance(e, DrawEffect) for e in result.effects):
                again = runs_again(graph.module.graph)
            if keeping is not None:
                keeping.note_graph(graph.module)  # the backend may change it
            with timed("backend"):
                function = self.compile_graph(
                    graph.module, [item.source for item in graph.inputs], frame, options,
                    compile_id, again, [isinstance(var, TensorVar) for var in outputs])
        sources = [item.source for item in graph.inputs] if graph is not None else []
        collect = [source for source in sources if not isinstance(source, DrawSource)]
        plan = Plan(
            frame.code, frame.globals, frame.builtins, exit, result.effects, outputs, function,
            has_inputs=bool(collect), runs_again=again, tests=tests,
            open_axes=result.open_axes,
            draws=tuple(source.number for source in sources if isinstance(source, DrawSource)),
        )
        with timed("codegen"), collection_paused():
            code, direct = generate(plan, self.codes, self.continuations)
        logs.log("bytecode").emit(
            lambda: f"new code of {frame.code.co_qualname}\n{self.codes.decode(code).listing()}",
            compile_id,
        )
        with timed("guards"), collection_paused():
            guards = tuple(result.guards)
            program = build_program(guards, collect, frame.code)
        logs.log("guards").emit(lambda: "\n".join(guard_lines(frame, guards, program)), compile_id)
        logs.log("verbose_guards").emit(lambda: "\n".join(verbose_lines(guards)), compile_id)
        counters.counters["stats"]["frames"] += 1
        changes = outside_changes(result.effects)
        if keeping is not None:
            with timed("keep"), collection_paused():
                keeping.keep(result, guards, sources, code, function, direct,
                             {"again": again, "changes": changes, "event": event.data,
                              "tensors": [isinstance(var, TensorVar) for var in outputs]})
        return hook.Entry(
            code, program, EntryRecord(
                tuple(map(released, guards)), compile_id, frame.code, changes, function_modes()),
            direct=direct,
        )

    def check_worth(self, frame: hook.FrameState, result: TraceResult) -> None:
        """A frame that breaks before any tensor was met gains nothing from being replaced."""
        if result.graph is not None or isinstance(result.exit, ReturnExit):
            return
        introspects = result.exit.reason.code == "frame_introspection"
        if introspects and len(result.exit.frames) == 1 and not result.effects:
            raise SkipFrame("it looks at its local variables as a whole")
        if self.continuations.is_continuation(frame.code):
            return
        if any(guard.kind == "TENSOR" for guard in result.guards):
            return
        if mentions_tensors(frame):
            return
        raise SkipFrame(
            "no tensor before the first break", forever=self.codes.is_endless(frame.code)
        )

    def compile_graph(
        self, module: torch.fx.GraphModule, sources: Iterable[Source], frame: hook.FrameState,
        options: CompileOptions, compile_id: str, again: bool, tensors: list[bool],
    ) -> hook.Compiled:
        """The backend's function for the graph, callable without the hook; sources: of its inputs;
        again: True where the part runs once more when it raises; tensors: which of the outputs are
        tensors."""
        logs.log("graph").emit(lambda: str(module.graph), compile_id)
        logs.log("graph_code").emit(lambda: module.print_readable(print_output=False), compile_id)
        if recordings.wanted():
            recordings.keep("graph", copy_of_graph(module.graph))
        scope = Scope(frame.locals, frame.globals, frame.builtins, frame.cells)
        inputs = [source.fetch(scope) for source in sources]
        counters.counters["stats"]["graphs"] += 1
        place = f"{frame.code.co_filename}:{frame.code.co_firstlineno} in {frame.code.co_name}"
        site = Site(place, options.fullgraph, logs.compile_now())
        compiled = GraphCompiler(module, options, site, again, tensors).compile(inputs)
        function = hook.Compiled(None, compiled)
        function.__dict__["__name__"] = f"__compiled_fn_{next(self.numbers)}"
        return function


def declared_marks(
    frame: hook.FrameState, options: CompileOptions
) -> Mapping[int, Mapping[int, Mark]]:
    """What `dynamic=` says of the tensors that this frame gets."""
    if options.dims is None:
        return {}
    cells = {name: cell.cell_contents for name, cell in frame.cells.items() if is_bound(cell)}
    return options.dims.marks(frame.code, {**cells, **frame.locals})


def learns(options: CompileOptions) -> bool:
    """True where what changes becomes symbolic."""
    return config.automatic_dynamic_shapes and options.dynamic is not False or is_dynamic(options)


def is_dynamic(options: CompileOptions) -> bool:
    """True where sizes are symbolic from the first compile."""
    if options.dynamic is None:
        return not config.assume_static_by_default
    return options.dynamic


# -- parts of the stages -------------------------------------------------------------------------


def close_graph(record: GraphRecord | None, outputs: tuple[Var, ...]) -> GraphRecord | None:
    """The graph with its output node, without nodes that nobody needs; None where none is left."""
    if record is None:
        return None
    graph = record.module.graph
    graph.output(tuple(var.as_proxy() for var in outputs))
    prune(graph)
    settle_tests(graph)
    for node in list(graph.nodes):
        if node.op == "placeholder" and not node.users:
            graph.erase_node(node)
    left = {node.target for node in graph.nodes if node.op == "placeholder"}
    operations = sum(node.op.startswith("call_") for node in graph.nodes)
    if not operations and not outputs:
        return None
    record.module.recompile()
    inputs = tuple(item for item in record.inputs if item.name in left)
    return replace(record, inputs=inputs, operations=operations)


def copy_of_graph(graph: torch.fx.Graph) -> torch.fx.Graph:
    """The graph as it is now: a backend may change it."""
    copy = torch.fx.Graph()
    copy.output(copy.graph_copy(graph, {}))
    return copy


def guard_lines(frame: hook.FrameState, guards: Iterable[Guard], program: Any) -> list[str]:
    """What an entry assumes, then what of it runs Python code, which a first run tells."""
    program.run(frame.locals, frame.globals, frame.builtins, frame.cells)
    found = python_lines(guards, program)
    return [*lines(guards), *(f"runs Python code: {line}" for line in found)]


def log_code(frame: hook.FrameState, codes: CodeCache, compile_id: str) -> None:
    logs.log("bytecode").emit(
        lambda: f"code of {frame.code.co_qualname}\n{codes.decode(frame.code).listing()}",
        compile_id,
    )
