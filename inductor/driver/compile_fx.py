"""The default backend: one captured graph in, one compiled callable out.

    captured graph -> functional ATen graph (dynamo.aot) -> loop IR (lowering)
    -> schedule (scheduler) -> C++ and a wrapper (codegen) -> a library and a launcher (runtime)

What a stage can't do falls back to ATen, operator by operator; a graph that can't be brought to
functional form at all runs as it was captured. Both are said in the log.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch

from dynamo.aot.api import compile_forward, compile_inference, compile_training
from dynamo.aot.boxed import run_as_it_is
from dynamo.aot.budget import within
from dynamo.aot.flat_programs import has_learners, has_wrapped_ends
from dynamo.aot.program import is_of_program
from dynamo.aot.records import (
    TAKES_WRAPPERS,
    BackwardFails,
    Keeping,
    NeedsGradients,
    Retrace,
    Unsupported,
)
from dynamo.backends.registry import at_reset
from dynamo.background.graphs import deferring
from dynamo.background.jobs import is_background
from dynamo.base import logs
from dynamo.base.counters import timed
from dynamo.base.examples import real_examples
from dynamo.base.fallbacks import (
    AT,
    BACKWARD,
    GRAPH,
    SUBGRAPH,
    Site,
    compiling_at,
    place_of,
    refused,
    site_now,
)
from dynamo.base.loading import collection_paused
from dynamo.base.signals import is_of_signal
from dynamo.graph_operators.cuts import has_cuts, mark_own_operators
from dynamo.graph_operators.gradients import has_gradients
from inductor.cache.graph_cache import CacheEntry, cache_entry_of, symbolic_entry_of
from inductor.cache.graph_key import shows_symbols
from inductor.collectives.settings import tie
from inductor.config import check_options, config, is_enabled, records_graphs
from inductor.driver import from_aten
from inductor.driver.cached_aten import Cached, as_it_is, looking
from inductor.driver.cpu import NoCompiler
from inductor.driver.failures import as_captured, defects_refused, report_defect, wants_kernels
from inductor.driver.inference import compile_plainly, inference_compiler
from inductor.driver.known_results import (
    has_blocks,
    is_cached,
    is_lazy,
    prepare,
    settings_now,
    with_known_calls,
)
from inductor.driver.lazy_inputs import of_lazy, with_plain_inputs
from inductor.driver.survive import surviving
from inductor.driver.wrapped_ends import compile_wrapped
from inductor.dynamic_shapes.numbers.choose import Compilers, compile_for_numbers
from inductor.dynamic_shapes.specialise import BySizes, compile_for_sizes, is_symbolic
from inductor.dynamic_shapes.subgraph import CompileSubgraph
from inductor.dynamic_shapes.subgraphs import compile_subgraphs, has_unbacked
from inductor.dynamic_shapes.symbolic import CompileSymbolic, check_of, places_of
from inductor.fx_passes.custom import with_joint_passes
from inductor.fx_passes.fakes import any_on_gpu
from inductor.fx_passes.pipeline import decompositions, in_loops, joint_laid_out, laid_out
from inductor.runtime import _launch, compile_jobs

Compiled = Callable[..., Any]

at_reset(_launch.release_memory)


def compile_fx(
    gm: torch.fx.GraphModule,
    example_inputs: list[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Compiled:
    """Compiles a captured graph; the result takes the graph's inputs and returns its outputs.

    gm: torch-level calls, parameters as inputs. example_inputs: real tensors (or numbers) whose
    metadata the result is specialised to. mode, options: see `inductor.config`.
    Errors: ValueError for an unknown option.

        >>> compiled = compile_fx(gm, [torch.randn(8)])
    """
    settings = settings_now(mode, options)
    example_inputs = real_examples(example_inputs)
    plain = with_plain_inputs(gm, example_inputs) if any(map(is_lazy, example_inputs)) else None
    if plain is not None:
        compiled = compile_fx(*plain, mode=mode, options=options)
        return of_lazy(compiled, gm.forward, example_inputs)
    strategies = Strategies(settings, logs.compile_now())
    entry = strategies.entry_for_sizes(gm, example_inputs)
    cached = None if entry is None else strategies.found(entry)
    if cached is not None:
        return cached
    if has_wrapped_ends(gm, example_inputs) and not (
            has_learners(example_inputs) and _in_subgraphs(gm, example_inputs, settings)):
        # else each subgraph is made of plain tensors: a gradient of another class than guessed is
        # learnt where a whole backward is recorded
        plainly = functools.partial(compile_fx, mode=mode, options=options)
        static = Strategies(settings, logs.compile_now()).compile_static
        return compile_wrapped(gm, example_inputs, settings, plainly, static)
    gm = with_known_calls(gm, example_inputs, settings)
    if any(map(is_lazy, example_inputs)):
        return as_captured(settings, gm, Unsupported("an input is not what its memory holds"))
    in_subgraphs = _in_subgraphs(gm, example_inputs, settings)
    if in_subgraphs or has_gradients(gm) and _records(settings, example_inputs):
        try:
            return strategies.compile_cut(gm)
        except Unsupported as refusal:
            return as_captured(settings, gm, refusal)
    if entry is None:
        return strategies.compile_graph(gm, example_inputs)
    return strategies.made(entry, gm, example_inputs)


def begin() -> None:
    """Start the processes that compile kernels for a GPU, where the program uses one."""
    if torch.cuda.is_initialized():
        compile_jobs.begin()


compile_fx.begin = begin  # type: ignore[attr-defined]


def _in_subgraphs(
    gm: torch.fx.GraphModule, example_inputs: list[Any], settings: Mapping[str, Any]
) -> bool:
    return has_unbacked(gm) or has_cuts(gm) or has_blocks(gm, example_inputs, settings)


class Strategies:
    """How a graph may be compiled: once for all sizes, for each set of sizes, in subgraphs. Some
    parts are compiled at a call, so the options and the compile that it belongs to are held."""

    def __init__(self, settings: Mapping[str, Any], what: logs.Compile) -> None:
        self.settings, self.what, self.site = settings, what, site_now()
        self.compile_static: Callable[..., Compiled] = self._static
        self.compile_subgraph: Callable[..., Compiled] = self._subgraph
        self.compile_symbolic: CompileSymbolic = self._symbolic
        self.backward = functools.partial(_compile_backward, settings, self.site)
        self.copies: list[torch.fx.GraphModule] = []  # of the graph, that callables refer to
        self.keeping: Keeping | None = None
        self.is_found = False
        if is_background():  # what is compiled at a call is so, too
            self.compile_static = _in_background(self._static)
            self.compile_subgraph = _in_background(self._subgraph)

    def compile_graph(self, module: torch.fx.GraphModule, inputs: list[Any]) -> Compiled:
        """The whole graph, by its numbers and sizes."""
        return self._by_numbers(module, inputs, self.compile_static, self.compile_subgraph)

    def compile_cut(self, module: torch.fx.GraphModule) -> Compiled:
        """Subgraphs of the graph. Errors: Unsupported."""
        return compile_subgraphs(module, self.compile_subgraph, with_gradients=True)

    # -- graphs for all sizes, in the cache --------------------------------------------------------

    def entry_for_sizes(
        self, module: torch.fx.GraphModule, inputs: list[Any]
    ) -> CacheEntry | None:
        """Its place in the cache; None for a graph of static sizes, and where it has none."""
        if not shows_symbols(module):
            return None
        given = {"settings": self.settings, "site": self.site, "compiler": self.backward,
                 "symbolic": self.compile_symbolic, "copies": self.copies}  # fmt: skip
        with self._compiling():
            return symbolic_entry_of(module, inputs, given)

    def found(self, entry: CacheEntry) -> Compiled | None:
        """What an earlier process has compiled."""
        with self._compiling(), timed("inductor"):
            cached = entry.found()
        self.is_found = cached is not None
        return cached

    def made(
        self, entry: CacheEntry, module: torch.fx.GraphModule, inputs: list[Any]
    ) -> Compiled:
        """The whole graph, compiled now and cached."""
        self.keeping = entry.backward
        return entry.made(lambda: self.compile_graph(module, inputs))

    def _by_numbers(
        self, module: torch.fx.GraphModule, inputs: list[Any],
        compile_static: Callable[..., Compiled], step: CompileSubgraph | None = None,
    ) -> Compiled:
        return compile_for_numbers(module, inputs, Compilers(
            lambda gm, given: compile_for_sizes(gm, given, compile_static, self.compile_symbolic),
            lambda gm, given: BySizes(gm, given, compile_static), self.compile_cut, step))

    def _static(self, module: torch.fx.GraphModule, inputs: list[Any]) -> Compiled:
        with self._compiling():
            return _compile(
                module, inputs, self.settings,
                refused=lambda refusal: self._cut_or_captured(module, inputs, refusal))

    def _symbolic(self, module: torch.fx.GraphModule, inputs: list[Any]) -> tuple[Any, Compiled]:
        # A backward belongs to one forward: those for sizes that come later are not cached.
        keeping, self.keeping = self.keeping, None
        self.copies.append(module)
        with self._compiling(), timed("inductor"), defects_refused():
            if self.is_found:
                module = with_known_calls(module, inputs, self.settings)
            return _compile_symbolic(module, inputs, self.settings, self.backward, keeping)

    def _subgraph(self, module: torch.fx.GraphModule, inputs: list[Any]) -> Compiled:
        if has_wrapped_ends(module, inputs):
            return BySizes(module, inputs, self._small)
        return self._by_numbers(module, inputs, self._small)

    def _small(self, part: torch.fx.GraphModule, given: list[Any]) -> Compiled:
        with self._compiling():
            return _compile(part, given, self.settings, may_raise=True,
                            refused=lambda refusal: self._gradients_apart(part, refusal))

    def _gradients_apart(self, part: torch.fx.GraphModule, refusal: Unsupported) -> Compiled:
        """A part without a functional form: what stands around its gradients is compiled."""
        if has_gradients(part):
            try:
                return compile_subgraphs(part, self.compile_subgraph)
            except Unsupported as other:
                refusal = other
        return as_captured(self.settings, part, refusal)

    @contextlib.contextmanager
    def _compiling(self) -> Iterator[None]:
        """As where the graph was captured: parts are compiled at a call."""
        with config.patch(**self.settings), logs.compiling(self.what), compiling_at(self.site):
            yield

    def _cut_or_captured(
        self, module: torch.fx.GraphModule, inputs: list[Any], refusal: Unsupported
    ) -> Compiled:
        """What is done with a graph that has no functional form."""
        fails = isinstance(refusal, BackwardFails)
        functions = refusal.functions if isinstance(refusal, BackwardFails) else ()
        if fails and mark_own_operators(module, functions) or has_gradients(module):
            try:
                return self.compile_cut(module)
            except Unsupported as other:
                refusal = other
        elif fails and not module.meta.get(TAKES_WRAPPERS):
            with contextlib.suppress(Unsupported), defects_refused(GRAPH, module):
                return self._forward(module, inputs, refusal)
        return as_captured(self.settings, module, refusal)

    def _forward(
        self, module: torch.fx.GraphModule, inputs: list[Any], refusal: Unsupported
    ) -> Compiled:
        """The forward of a graph whose backward can't be recorded. Once somebody has asked for a
        gradient, and got it, the graph runs as it was captured. Errors: Unsupported."""
        captured: list[Compiled] = []

        def switch() -> None:
            if not captured:
                with compiling_at(self.site):
                    captured.append(as_captured(self.settings, module, refusal))

        with self._compiling():
            compiled = compile_forward(
                module, inputs, compile_plainly, switch, decompositions=decompositions())
        return lambda *given: (captured[0] if captured else compiled)(*given)


def compile_whole(
    gm: torch.fx.GraphModule, inputs: list[Any], settings: Mapping[str, Any]
) -> Compiled | None:
    """The compiled graph, made now; None where not all of it is compiled at once. The graph needs
    no gradients. Errors: Unsupported, NoCompiler; those of the program and defects."""
    gm = with_known_calls(gm, inputs, settings)
    cut = has_unbacked(gm) or has_cuts(gm) or has_gradients(gm)
    if cut or is_symbolic(gm, inputs) or any(map(is_lazy, inputs)):
        return None
    backward = functools.partial(_compile_backward, settings, site_now())
    with collection_paused():
        return _compile_program(gm, inputs, settings, backward, {})


def _in_background(compile_part: Callable[..., Compiled]) -> Callable[..., Compiled]:
    def tell(error: Exception) -> None:
        if not isinstance(error, Unsupported):
            raise error
        refused(SUBGRAPH, error.reason, str(error.__dict__.get(AT) or ""), strict=False)

    return deferring(compile_part, tell)


compile_fx.check_options = check_options  # type: ignore[attr-defined]
compile_fx.is_cached = is_cached  # type: ignore[attr-defined]
compile_fx.prepare = prepare  # type: ignore[attr-defined]


def aot_eager(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Compiled:
    """The default backend without kernels: functional ATen graphs, forward and backward, run by
    PyTorch. What is wrong with "inductor" and right with this one is wrong in the kernels."""
    return compile_fx(gm, example_inputs, options={"kernels": False})


@collection_paused()
def _compile(
    gm: torch.fx.GraphModule,
    example_inputs: list[Any],
    settings: Mapping[str, Any],
    may_raise: bool = False,
    refused: Callable[[Unsupported], Compiled] | None = None,
) -> Compiled:
    """may_raise: the graph may raise for these inputs; then it does when it is called. refused:
    what to do with a graph that has no functional form; else it runs as it was captured."""
    site = site_now()
    backward = functools.partial(_compile_backward, settings, site)
    try:
        with timed("inductor"):
            given = {"settings": settings, "site": site}
            entry = cache_entry_of(gm, example_inputs, {**given, "compiler": backward})
            if entry is None:
                cached = looking(given)
                backward = functools.partial(backward, cached=cached)
                return _compile_program(gm, example_inputs, settings, backward, {}, cached)
            return entry.forward(lambda: _compile_program(
                gm, example_inputs, settings, backward, {"keeping": entry.backward}))
    except Unsupported as refusal:
        return refused(refusal) if refused else as_captured(settings, gm, refusal)
    except (NoCompiler, Retrace):
        raise
    except Exception as defect:
        if is_of_signal(defect):
            raise
        if may_raise or is_of_program(defect):
            return _raising(gm, defect)
        report_defect(GRAPH, defect, gm)
        return gm.forward


def _compile_program(
    gm: torch.fx.GraphModule, example_inputs: list[Any], settings: Mapping[str, Any],
    backward: Callable[..., Compiled], keeping: Mapping[str, Any], cached: Cached = as_it_is,
) -> Compiled:
    """Errors: Unsupported; NoCompiler; errors of the program and defects."""
    table = decompositions()
    trains = has_learners(example_inputs)
    if trains and has_gradients(gm):  # its own are done with
        on_gpu = any_on_gpu(example_inputs)
        step = compile_plainly if on_gpu else from_aten.compile_aten  # its layouts are a GPU's
        with contextlib.suppress(NeedsGradients):
            return compile_inference(
                gm, example_inputs, cached(step, "forward"), decompositions=table,
                epilogue_in_graph=config.kernels)
    if trains:
        return compile_training(
            gm, example_inputs, cached(_forward_of_training, "forward"), backward,
            decompositions=table, rewrite=with_joint_passes(joint_laid_out),
            epilogue_in_graph=config.kernels, partition=within(config.activation_memory_budget),
            inference=inference_compiler(gm, example_inputs, settings, cached, learns=True),
            **keeping,
        )  # fmt: skip
    return compile_inference(
        gm, example_inputs, inference_compiler(gm, example_inputs, settings, cached),
        decompositions=table, epilogue_in_graph=config.kernels,
    )  # fmt: skip


def _forward_of_training(module: torch.fx.GraphModule, fakes: list[Any]) -> Compiled:
    if config.freezing:
        logs.log("inductor").emit("nothing is frozen: the graph may need gradients")
    return from_aten.compile_aten(module, fakes)


def _raising(gm: torch.fx.GraphModule, error: Exception) -> Compiled:
    """The graph as it was captured; where it does not raise, the error was a defect."""
    reported: list[bool] = []
    site = site_now()

    def call(*inputs: Any) -> Any:
        results = gm.forward(*inputs)
        if not reported:
            reported.append(True)
            report_defect(GRAPH, error, gm, site.strict, at_call=True)
        return results

    return call


@collection_paused()
def _compile_symbolic(
    gm: torch.fx.GraphModule, example_inputs: list[Any], settings: Mapping[str, Any],
    compile_backward: Callable[..., Compiled], keeping: Keeping | None,
) -> tuple[Callable[..., bool], Compiled]:
    """One ATen graph for all sizes that the capture left open, and what tells where it holds."""
    if config.freezing:
        logs.log("inductor").emit("nothing is frozen: sizes are known at a call only")
    if any_on_gpu(example_inputs) and not is_enabled("symbolic"):
        raise Unsupported("kernels for all sizes on a GPU are off (leave_out)")
    checks = []
    trains = has_learners(example_inputs)

    def compile_first(module: torch.fx.GraphModule, fakes: list[Any]) -> Compiled:
        checks.append(check_of(module.meta["symbols"], places_of(gm, example_inputs), fakes))
        return from_aten.compile_aten(module, fakes)

    def compile_alone(module: torch.fx.GraphModule, fakes: list[Any]) -> Compiled:
        with timed("inductor.passes"):
            module = laid_out(module)
        return compile_first(module, fakes)

    options: dict[str, Any] = {"decompositions": decompositions(), "symbolic": True}
    if trains and has_gradients(gm):
        with contextlib.suppress(NeedsGradients):
            call = compile_inference(
                gm, example_inputs, compile_first,
                epilogue_in_graph=config.kernels, **options,
            )  # fmt: skip
            return checks[0], call
    if trains:
        if keeping is not None:
            options["keeping"] = keeping
        call = compile_training(
            gm, example_inputs, compile_first, compile_backward,
            rewrite=with_joint_passes(in_loops),
            partition=within(config.activation_memory_budget),
            epilogue_in_graph=config.kernels, inference=compile_alone, **options,
        )  # fmt: skip
    else:
        call = compile_inference(
            gm, example_inputs, compile_alone,
            epilogue_in_graph=config.kernels, **options,
        )  # fmt: skip
    return checks[0], call


@collection_paused()
def _compile_backward(
    settings: Mapping[str, Any],
    site: Site,
    module: torch.fx.GraphModule,
    fakes: list[Any],
    cached: Cached = as_it_is,
) -> Compiled:
    """The backward half, compiled later than its forward, which has run already: so what can't be
    compiled runs as ATen."""
    what = replace(site.compile, part="backward")
    if settings.get("passes"):  # passes see it; the key of a cached graph knows nothing of it
        module.meta["is_backward"] = True
    try:
        with config.patch(**settings), logs.compiling(what):
            tie(site)
            return cached(functools.partial(_compile_half, site), "backward")(module, fakes)
    except NoCompiler:
        raise
    except Unsupported as refusal:
        place = place_of(refusal, module.graph.nodes) or site.place
        refused(BACKWARD, refusal.reason, place, quiet=not wants_kernels(settings),
                strict=site.strict)  # fmt: skip
    except Exception as defect:
        report_defect(BACKWARD, defect, module, site.strict)
    return run_as_it_is(module)


def _compile_half(site: Site, module: torch.fx.GraphModule, fakes: list[Any]) -> Compiled:
    compiled = from_aten.compile_aten(module, fakes)
    return surviving(compiled, module, site) if config.kernels else compiled


def _records(settings: Mapping[str, Any], example_inputs: list[Any]) -> bool:
    """True where CUDA graphs are wanted, and some inputs on a CPU: forward, backward and the
    optimizer (which counts steps there) stay apart, so that the others are recorded."""
    with config.patch(**settings):
        wanted = records_graphs()
    on_gpu = {x.is_cuda for x in example_inputs if isinstance(x, torch.Tensor)}
    return wanted and len(on_gpu) == 2
