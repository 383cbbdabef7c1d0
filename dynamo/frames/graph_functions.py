"""A captured graph and its function: compiled by the backend now, or in the background.

In: what a trace has found, what the user asked for. Out: the graph with its outputs, and what the
new bytecode calls, with all that is done around a compiled function: its results are checked, modes
are put back after errors, and what raises is looked at.
"""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from dynamo import hook
from dynamo.backends.registry import is_own
from dynamo.backends.rescue import located, rescued
from dynamo.backends.results import checked
from dynamo.backends.symbolic_graphs import Opened, has_symbolic, takes_symbolic
from dynamo.base import counters, logs, recordings
from dynamo.base.config import config
from dynamo.base.errors import BackendError, DynamoError
from dynamo.base.fallbacks import GRAPH, Site, compiling_at, refused
from dynamo.base.graph_copies import copy_graph
from dynamo.base.signals import is_of_signal
from dynamo.base.subclasses import outer_modes
from dynamo.codegen.generate import Plan
from dynamo.codegen.prune import prune
from dynamo.frames.attempts import choose_outputs
from dynamo.guards.records import GuardSet, UserLine
from dynamo.guards.sources import DrawSource, Scope, Source
from dynamo.options import CompileOptions
from dynamo.symbolic.core.trace_result import DrawEffect, GraphRecord, TraceResult
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.tensors.contexts import MODE_NODES, changes_modes, leaves_on_error
from dynamo.symbolic.tensors.repeating import (
    Runs,
    can_undo,
    errors_to_undo,
    has_tests,
    puts_back,
    reruns,
    runs_of,
    settle_tests,
)
from dynamo.symbolic.tensors.tensor import TensorVar

Call = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class ClosedGraph:
    """The graph of a trace, with its outputs.

    record: None where nothing is left to compute. outputs: Vars of the results, in order. again:
    True where the part runs once more when it raises. tests: True where the graph tests what the
    trace has expected. runs: how often the graph may run (see `Runs`).
    """

    record: GraphRecord | None
    outputs: tuple[Var, ...]
    repeatable: bool = False
    tests: bool = False
    runs: Runs = Runs(False, False)

    def sources(self) -> list[Source]:
        """Where its inputs come from."""
        return [] if self.record is None else [item.source for item in self.record.inputs]

    def collected(self) -> list[Source]:
        """Those of them that the guard program fetches."""
        return [source for source in self.sources() if not isinstance(source, DrawSource)]

    def draws(self) -> tuple[int, ...]:
        """The numbers of the random numbers among its inputs."""
        return tuple([one.number for one in self.sources() if isinstance(one, DrawSource)])

    def tensors(self) -> list[bool]:
        """Which of its outputs are tensors."""
        return [isinstance(var, TensorVar) for var in self.outputs]


def plan_of(
    frame: hook.FrameState, result: TraceResult, graph: ClosedGraph, function: hook.Compiled | None
) -> Plan:
    """What the new code has to do. function: the compiled graph."""
    return Plan(
        frame.code, frame.globals, frame.builtins, result.exit, result.effects, graph.outputs,
        function, has_inputs=bool(graph.collected()), reruns=graph.repeatable, tests=graph.tests,
        symbolic_axes=result.symbolic_axes, draws=graph.draws(),
    )


def close(result: TraceResult) -> ClosedGraph:
    """What of the trace's graph is needed."""
    outputs = choose_outputs(result.exit, result.effects)
    record = close_graph(result.graph, outputs)
    if record is None:
        return ClosedGraph(None, outputs)
    graph, repeatable = record.module.graph, False
    tests = has_tests(graph)
    if tests:
        repeatable = can_undo(graph)
    elif result.handles or not all(isinstance(e, DrawEffect) for e in result.effects):
        repeatable = reruns(graph)
    runs = runs_of(graph)
    return ClosedGraph(record, outputs, repeatable, tests, runs)


def close_graph(record: GraphRecord | None, outputs: tuple[Var, ...]) -> GraphRecord | None:
    """The graph with its output node, without nodes that nothing needs; None where none is left."""
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
    if not outputs and all(
        node.target in MODE_NODES for node in graph.nodes if node.op.startswith("call_")
    ):  # modes are set by effects, too
        return None
    record.module.recompile()
    inputs = tuple(item for item in record.inputs if item.name in left)
    return replace(record, inputs=inputs, operations=operations)


class GraphFunctions:
    """The compiled graphs of one region."""

    def __init__(self) -> None:
        self.numbers = itertools.count()

    @staticmethod
    def is_opened(record: GraphRecord | None, options: CompileOptions) -> bool:
        """True where the backend's assumptions become guards, so that it goes before these."""
        if record is None or not takes_symbolic(options.backend):
            return False
        return has_symbolic(record.module)

    def compile(
        self, module: fx.GraphModule, sources: Iterable[Source], frame: hook.FrameState,
        options: CompileOptions, compile_id: str, repeatable: bool, tensors: list[bool],
        runs: Runs, guards: GuardSet | None = None,
    ) -> hook.Compiled:
        """The backend's function for the graph, callable without the hook; sources: of its inputs;
        repeatable: whether the part runs once more when it raises; tensors: which of the outputs
        are tensors; runs: see `ClosedGraph`; guards: gets those of a backend that takes what is
        open."""
        logs.log("graph").emit(lambda: str(module.graph), compile_id)
        logs.log("graph_code").emit(lambda: module.print_readable(print_output=False), compile_id)
        if recordings.wanted():
            recordings.keep("graph", copy_graph(module.graph))
        scope = Scope(frame.locals, frame.globals, frame.builtins, frame.cells)
        sources = tuple(sources)
        inputs = [source.fetch(scope) for source in sources]
        counters.counters["stats"]["graphs"] += 1
        place = f"{frame.code.co_filename}:{frame.code.co_firstlineno} in {frame.code.co_name}"
        site = Site(place, options.fullgraph, logs.compile_now())
        compiler = GraphCompiler(module, options, site, repeatable, tensors, runs)
        if guards is not None and takes_symbolic(options.backend) and has_symbolic(module):
            line = UserLine(frame.code.co_filename, frame.code.co_firstlineno, frame.code.co_name)
            opened = Opened(module, inputs, sources, line)
            compiled = compiler.compile_opened(opened)
            for guard in opened.guards:
                guards.add(guard)
        else:
            compiled = compiler.compile(inputs)
        function = hook.Compiled(None, compiled)
        function.__dict__["__name__"] = f"__compiled_fn_{next(self.numbers)}"
        return function


@dataclass(frozen=True, slots=True)
class GraphCompiler:
    """again: the part of the program runs once more when it raises; tensors: which outputs of the
    graph are tensors; runs: see `ClosedGraph`."""

    module: fx.GraphModule
    options: CompileOptions
    site: Site
    repeatable: bool
    tensors: list[bool]
    runs: Runs

    def compile(self, inputs: list[Any]) -> Call:
        """What is called; see the top of the file. Errors: DynamoError."""
        wrap = self._wrapper()
        if self.options.background:
            return self._in_background(inputs, wrap)
        return wrap(self._by_backend(self.module, inputs))

    def compile_opened(self, opened: Opened) -> Call:
        """The same for a backend of the program's own and a graph with open inputs, now: its guards
        are wanted."""
        wrap = self._wrapper()
        return wrap(self._with_line(lambda: opened.compile(self._compile)))

    def _in_background(self, inputs: list[Any], wrap: Callable[[Call], Call]) -> Call:
        background = importlib.import_module("dynamo.background.graphs")
        options = self.options
        return background.compile_later(  # type: ignore[no-any-return]
            self.module, inputs, options.backend, options.extra(), self._by_backend, wrap,
            self._tell, options.background_calls)

    def _tell(self, error: Exception) -> None:
        """Counts an error of a compile in the background. Errors: it, where the user wants one."""
        if self.site.strict or not config.suppress_errors:
            raise error
        reason = str(error).removeprefix(self.site.place).strip()
        refused(GRAPH, reason.rstrip("."), self.site.place, strict=False)

    def _by_backend(self, module: fx.GraphModule, inputs: list[Any]) -> Call:
        """The backend's function. Errors: DynamoError."""
        return self._with_line(lambda: self._compile(module, inputs))

    def _compile(self, module: fx.GraphModule, inputs: list[Any]) -> Call:
        with compiling_at(self.site), asking_off():
            compiled = self.options.compile_graph(module, inputs)
        if not callable(compiled):
            raise TypeError(f"a backend returns a callable, not {compiled!r}")
        return compiled

    def _with_line(self, compile_it: Callable[[], Call]) -> Call:
        """What it gives. Errors: DynamoError, with the user's line."""
        try:
            return compile_it()
        except DynamoError:
            raise
        except Exception as error:
            if is_of_signal(error):
                raise
            name = self.options.backend_name
            failure = backend_failure(error, self.site.place, name, self.module)
            raise failure from (None if is_explained(error) else error)

    def _wrapper(self) -> Callable[[Call], Call]:
        """What goes around the backend's function; made before the backend, which may change the
        graph."""
        module, site, backend = self.module, self.site, self.options.backend
        undone = errors_to_undo(module.graph, self.repeatable, self.runs.calm)
        twice = self.runs.twice
        changes = changes_modes(module.graph)
        tensors, in_modes = self.tensors, bool(outer_modes())

        def wrap(compiled: Call) -> Call:
            captured: Call = module.forward
            if tensors and not is_own(backend):
                compiled = checked(compiled, tensors, site.place, self.options.backend_name)
            looked_at = is_own(backend) and compiled != captured
            if changes:
                compiled, captured = leaves_on_error(compiled), leaves_on_error(captured)
            if undone:
                compiled, captured = puts_back(compiled, undone), puts_back(captured, undone)
            if in_modes:  # they have seen what they would see
                compiled, captured = unseen(compiled), unseen(captured)
            if looked_at:
                return rescued(compiled, captured, module.graph, site, twice)
            return located(compiled)

        return wrap


def asking_off() -> AbstractContextManager[None]:
    """Where a backend works: nobody is asked, the program's modes included."""
    off: Any = torch._C.DisableTorchFunction if outer_modes() else (
        torch._C.DisableTorchFunctionSubclass)
    return off()  # type: ignore[no-any-return]


def unseen(function: Call) -> Call:
    """The function, whose operations no function mode sees."""

    def call(*args: Any) -> Any:
        with torch._C.DisableTorchFunction():
            return function(*args)

    return call


def is_explained(error: Exception) -> bool:
    """True for an error whose text says all, as that there is no compiler."""
    return bool(getattr(error, "explained", False))


def backend_failure(
    error: Exception, place: str, backend: str, module: torch.fx.GraphModule
) -> BackendError:
    """What a user reads of a backend's error."""
    if is_explained(error):
        text = f"{place}\n  The backend {backend!r} failed: {error}"
    else:
        text = (
            f"{place}\n  The backend {backend!r} failed: {type(error).__name__}: {error}\n"
            f"  The graph that it was compiling:\n{module.code.strip()}")
    failure = BackendError(text)
    failure.graph_module = module
    return failure
