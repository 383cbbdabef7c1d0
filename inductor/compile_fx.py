"""The default backend: one captured graph in, one compiled callable out.

    captured graph -> functional ATen graph (dynamo.aot) -> loop IR (lowering)
    -> schedule (scheduler) -> C++ and a wrapper (codegen) -> a library and a launcher (runtime)

What a stage can't do is left to ATen, operator by operator; a graph that can't be brought to
functional form at all runs as it was captured. Both are said in the log.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from dynamo.aot.api import compile_forward, compile_inference, compile_training
from dynamo.aot.boxed import of_places, run_as_it_is
from dynamo.aot.budget import within
from dynamo.aot.graphs import LazyGraph
from dynamo.aot.kept_graphs import KeptGraph
from dynamo.aot.partition import DIES
from dynamo.aot.program import is_of_program
from dynamo.aot.recipes import noted
from dynamo.aot.records import BackwardFails, NeedsGradients, Unsupported
from dynamo.backends.registry import at_reset
from dynamo.background.graphs import deferring
from dynamo.background.jobs import is_background
from dynamo.base import logs
from dynamo.base.counters import timed
from dynamo.base.cuts import has_cuts, mark_own_operators
from dynamo.base.gradients import has_gradients
from dynamo.base.loading import collection_paused
from dynamo.base.shortfalls import (
    AT,
    BACKWARD,
    GRAPH,
    PIECE,
    SYMBOLIC,
    Site,
    compiling_at,
    failed,
    place_of,
    refused,
    site_now,
)
from dynamo.base.signals import is_of_signal
from inductor import cpu
from inductor.codegen.bind import Binder, broken_assumption
from inductor.config import check_options, config, does
from inductor.cpu import NoCompiler
from inductor.cpu_products import attach_epilogues, join_chains
from inductor.custom_passes import with_joint_passes
from inductor.dynamic_shapes.lift_numbers import lifts_all
from inductor.dynamic_shapes.pieces import NothingToCompile, compile_pieces, has_unknowns
from inductor.dynamic_shapes.specialise import compile_for_sizes, is_symbolic
from inductor.dynamic_shapes.steps import Step, has_rates
from inductor.dynamic_shapes.symbolic import ForAllSizes, Variant, check_of, places_of
from inductor.early_libraries import with_libraries
from inductor.for_gpu import for_gpu, open_for_gpu
from inductor.freezing import FrozenCall, frozen_inputs, steady_inputs
from inductor.fx_passes.constant_parts import compute_constants_once
from inductor.fx_passes.fold import fold_batch_norms
from inductor.fx_passes.join_products import addresses_of, join_products
from inductor.fx_passes.run import (
    decompositions,
    in_float32,
    joint_laid_out,
    laid_out,
    rewritten,
)
from inductor.graph_cache import keeper_of
from inductor.ir.graph import Prepared
from inductor.kept import (
    has_blocks,
    is_kept,
    is_lazy,
    needs_gradients,
    prepare,
    served,
    settings_now,
)
from inductor.lowering.pointwise import is_odd
from inductor.lowering.registry import LOWERINGS
from inductor.lowering.run import Lowered, lower_graph
from inductor.lowering.sizes import has_symbols
from inductor.preparation import most_bytes
from inductor.report import report_graph, report_steps
from inductor.runtime import _launch
from inductor.scheduler.convolution_chains import chain_convolutions
from inductor.scheduler.convolutions import fuse_convolutions
from inductor.scheduler.library_kernels import choose_library_kernels
from inductor.scheduler.run import schedule_graph
from inductor.scheduler.schedule import Schedule
from inductor.survive import surviving

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
    gm = served(gm, example_inputs, settings)
    ways = Ways(settings, logs.compile_now())
    if any(map(is_lazy, example_inputs)):
        return _as_captured(settings, gm, Unsupported("an input is not what its memory holds"))
    in_pieces = has_unknowns(gm) or has_cuts(gm) or has_blocks(gm, example_inputs, settings)
    if in_pieces or has_gradients(gm) and _records(settings, example_inputs):
        try:
            return ways.compile_cut(gm)
        except Unsupported as refusal:
            return _as_captured(settings, gm, refusal)
    if has_rates(gm, example_inputs) and not lifts_all(gm):
        return Step(gm, example_inputs, ways.compile_graph, ways.compile_piece)
    return ways.compile_graph(gm, example_inputs)


class Ways:
    """How a graph may be compiled: once for all sizes, for each set of sizes, in pieces. Some parts
    are compiled at a call, so the options and the compile that it belongs to are kept."""

    def __init__(self, settings: Mapping[str, Any], what: logs.Compile) -> None:
        self.settings, self.what, self.site = settings, what, site_now()
        self.compile_static: Callable[..., Compiled] = self._static
        self.compile_piece: Callable[..., Compiled] = self._piece
        if is_background():  # what is compiled at a call is so, too
            self.compile_static = _in_background(self._static)
            self.compile_piece = _in_background(self._piece)

    def compile_graph(self, module: torch.fx.GraphModule, inputs: list[Any]) -> Compiled:
        """The whole graph, by what is open in it."""
        return self._by_sizes(module, inputs, self.compile_static)

    def compile_cut(self, module: torch.fx.GraphModule) -> Compiled:
        """Pieces of the graph. Errors: Unsupported."""
        return compile_pieces(module, self.compile_piece)

    def _by_sizes(
        self, module: torch.fx.GraphModule, inputs: list[Any],
        compile_static: Callable[..., Compiled],
    ) -> Compiled:
        if is_symbolic(module, inputs):
            return compile_for_sizes(
                module, inputs, compile_static, self._symbolic, self.compile_cut)
        return compile_static(module, inputs)

    def _static(self, module: torch.fx.GraphModule, inputs: list[Any]) -> Compiled:
        with self._compiling():
            return _compile(
                module, inputs, self.settings,
                refused=lambda refusal: self._cut_or_captured(module, inputs, refusal))

    def _symbolic(self, module: torch.fx.GraphModule, inputs: list[Any]) -> tuple[Any, Compiled]:
        with self._compiling(), timed("inductor"), _defects_refused():
            return _compile_symbolic(module, inputs, self.settings)

    def _piece(self, module: torch.fx.GraphModule, inputs: list[Any]) -> Compiled:
        return self._by_sizes(module, inputs, self._small)

    def _small(self, part: torch.fx.GraphModule, given: list[Any]) -> Compiled:
        with self._compiling():
            return _compile(part, given, self.settings, may_raise=True)

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
        if fails and mark_own_operators(module) or has_gradients(module):
            try:
                return self.compile_cut(module)
            except Unsupported as other:
                refusal = other
        elif fails:
            with contextlib.suppress(Unsupported), _defects_refused(GRAPH, module):
                return self._forward(module, inputs, refusal)
        return _as_captured(self.settings, module, refusal)

    def _forward(
        self, module: torch.fx.GraphModule, inputs: list[Any], refusal: Unsupported
    ) -> Compiled:
        """The forward of a graph whose backward can't be recorded. Once somebody has asked for a
        gradient, and got it, the graph runs as it was captured. Errors: Unsupported."""
        captured: list[Compiled] = []

        def switch() -> None:
            if not captured:
                with compiling_at(self.site):
                    captured.append(_as_captured(self.settings, module, refusal))

        with self._compiling():
            compiled = compile_forward(
                module, inputs, _compile_inference, switch, decompositions=decompositions())
        return lambda *given: (captured[0] if captured else compiled)(*given)


def compile_whole(
    gm: torch.fx.GraphModule, inputs: list[Any], settings: Mapping[str, Any]
) -> Compiled | None:
    """The compiled graph, made now; None where not all of it is compiled at once. The graph needs
    no gradients. Errors: Unsupported, NoCompiler; those of the program and defects."""
    gm = served(gm, inputs, settings)
    cut = has_unknowns(gm) or has_cuts(gm) or has_gradients(gm)
    if cut or is_symbolic(gm, inputs) or any(map(is_lazy, inputs)):
        return None
    backward = functools.partial(_compile_backward, settings, site_now())
    with collection_paused():
        return _compile_program(gm, inputs, settings, backward, {})


def _in_background(compile_part: Callable[..., Compiled]) -> Callable[..., Compiled]:
    def tell(error: Exception) -> None:
        if not isinstance(error, Unsupported):
            raise error
        refused(PIECE, error.reason, str(error.__dict__.get(AT) or ""), strict=False)

    return deferring(compile_part, tell)


compile_fx.check_options = check_options  # type: ignore[attr-defined]
compile_fx.is_kept = is_kept  # type: ignore[attr-defined]
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
            keeper = keeper_of(
                gm, example_inputs, {"settings": settings, "site": site, "compiler": backward})
            if keeper is None:
                return _compile_program(gm, example_inputs, settings, backward, {})
            return keeper.forward(lambda: _compile_program(
                gm, example_inputs, settings, backward, {"keeping": keeper.backward}))
    except Unsupported as refusal:
        return refused(refusal) if refused else _as_captured(settings, gm, refusal)
    except NoCompiler:
        raise
    except Exception as defect:
        if is_of_signal(defect):
            raise
        if may_raise or is_of_program(defect):
            return _raising(gm, defect)
        _report_defect(GRAPH, defect, gm)
        return gm.forward


def _compile_program(
    gm: torch.fx.GraphModule, example_inputs: list[Any], settings: Mapping[str, Any],
    backward: Callable[..., Compiled], keeping: Mapping[str, Any],
) -> Compiled:
    """Errors: Unsupported; NoCompiler; errors of the program and defects."""
    table = decompositions()
    trains = needs_gradients(example_inputs)
    if trains and config.freezing:
        logs.log("inductor").emit("nothing is frozen: the graph may need gradients")
    in_graph = _kernels_write(example_inputs)
    if trains and has_gradients(gm):  # its own are done with
        with contextlib.suppress(NeedsGradients):
            return compile_inference(
                gm, example_inputs, compile_aten, decompositions=table, epilogue_in_graph=in_graph
            )
    if trains:
        return compile_training(
            gm, example_inputs, compile_aten, backward, decompositions=table,
            rewrite=with_joint_passes(joint_laid_out), epilogue_in_graph=in_graph,
            partition=within(config.activation_memory_budget), **keeping,
        )  # fmt: skip
    return compile_inference(
        gm, example_inputs, _inference_compiler(gm, example_inputs, settings),
        decompositions=table, epilogue_in_graph=in_graph,
    )  # fmt: skip


def _raising(gm: torch.fx.GraphModule, error: Exception) -> Compiled:
    """The graph as it was captured; where it does not raise, the error was a defect."""
    reported: list[bool] = []
    site = site_now()

    def call(*inputs: Any) -> Any:
        results = gm.forward(*inputs)
        if not reported:
            reported.append(True)
            _report_defect(GRAPH, error, gm, site.strict, at_call=True)
        return results

    return call


@collection_paused()
def _compile_symbolic(
    gm: torch.fx.GraphModule, example_inputs: list[Any], settings: Mapping[str, Any]
) -> tuple[Callable[..., bool], Compiled]:
    """One ATen graph for all sizes that the capture left open, and what tells where it holds."""
    if config.freezing:
        logs.log("inductor").emit("nothing is frozen: sizes are known at a call only")
    on_gpu = any(isinstance(x, torch.Tensor) and x.is_cuda for x in example_inputs)
    if on_gpu and not config.symbolic_on_gpu:
        raise Unsupported("kernels for all sizes on a GPU are off (symbolic_on_gpu)")
    checks = []
    trains = needs_gradients(example_inputs)

    def compile_first(module: torch.fx.GraphModule, fakes: list[Any]) -> Compiled:
        if not trains:
            with timed("inductor.passes"):
                module = laid_out(module)
        checks.append(check_of(module.meta["symbols"], places_of(gm, example_inputs), fakes))
        return compile_aten(module, fakes)

    options: dict[str, Any] = {"decompositions": decompositions(), "symbolic": True}
    if trains and has_gradients(gm):
        with contextlib.suppress(NeedsGradients):
            call = compile_inference(
                gm, example_inputs, compile_first,
                epilogue_in_graph=_kernels_write(example_inputs), **options,
            )  # fmt: skip
            return checks[0], call
    if trains:
        compile_backward = functools.partial(_compile_backward, settings, site_now())
        call = compile_training(
            gm, example_inputs, compile_first, compile_backward,
            rewrite=with_joint_passes(lambda module: module),
            partition=within(config.activation_memory_budget),
            epilogue_in_graph=_kernels_write(example_inputs), **options,
        )  # fmt: skip
    else:
        call = compile_inference(
            gm, example_inputs, compile_first,
            epilogue_in_graph=_kernels_write(example_inputs), **options,
        )  # fmt: skip
    return checks[0], call


@contextlib.contextmanager
def _defects_refused(
    kind: str = SYMBOLIC, module: torch.fx.GraphModule | None = None
) -> Iterator[None]:
    """Defects inside are reported; then they are refusals, after which there is another way."""
    try:
        yield
    except (Unsupported, NoCompiler):
        raise
    except Exception as defect:
        _report_defect(kind, defect, module)
        raise Unsupported(f"{type(defect).__name__}: {defect}") from defect


INSTEAD = {
    GRAPH: "the inductor backend failed on a graph, which runs without it",
    SYMBOLIC: "the inductor backend failed on a graph for all sizes; it is compiled for each",
    BACKWARD: "the inductor backend failed on a backward graph, which runs without it",
}


def _report_defect(
    kind: str, defect: Exception, gm: torch.fx.GraphModule | None, strict: bool | None = None,
    at_call: bool = False,
) -> None:
    """One warning, or the error itself; see `failed`."""
    place = place_of(defect, () if gm is None else gm.graph.nodes)
    failed(kind, defect, INSTEAD[kind], place, strict=strict, at_call=at_call)


@collection_paused()
def _compile_backward(
    settings: Mapping[str, Any],
    site: Site,
    module: torch.fx.GraphModule,
    fakes: list[Any],
) -> Compiled:
    """The backward half, compiled later than its forward, which has run already: so what can't be
    compiled runs as ATen."""
    what = replace(site.compile, part="backward")
    if settings.get("passes"):  # they are told; the key of a kept graph knows nothing of it
        module.meta["is_backward"] = True
    try:
        with config.patch(**settings), logs.compiling(what):
            compiled = compile_aten(module, fakes)
            return surviving(compiled, module, site) if config.kernels else compiled
    except NoCompiler:
        raise
    except Unsupported as refusal:
        place = place_of(refusal, module.graph.nodes) or site.place
        refused(BACKWARD, refusal.reason, place, quiet=not _wants_kernels(settings),
                strict=site.strict)  # fmt: skip
    except Exception as defect:
        _report_defect(BACKWARD, defect, module, site.strict)
    return run_as_it_is(module)


def _records(settings: Mapping[str, Any], example_inputs: list[Any]) -> bool:
    """True where CUDA graphs are wanted, and some inputs on a CPU: forward, backward and the
    optimizer (which counts steps there) stay apart, so that the others are recorded."""
    with config.patch(**settings):
        wanted = config.cudagraphs
    on_gpu = {x.is_cuda for x in example_inputs if isinstance(x, torch.Tensor)}
    return wanted and len(on_gpu) == 2


def _kernels_write(example_inputs: list[Any]) -> bool:
    """True where kernels may write into the inputs."""
    tensors = [value for value in example_inputs if isinstance(value, torch.Tensor)]
    return config.kernels and not any(is_odd(tensor.dtype) for tensor in tensors)


def _wants_kernels(settings: Mapping[str, Any]) -> bool:
    with config.patch(**settings):
        return config.kernels


def _as_captured(
    settings: Mapping[str, Any], gm: torch.fx.GraphModule, refusal: Unsupported
) -> Compiled:
    if isinstance(refusal, NothingToCompile):
        logs.log("inductor").emit(f"this graph runs as it was captured: {refusal.reason}")
        return gm.forward
    place = place_of(refusal, gm.graph.nodes)
    refused(GRAPH, refusal.reason, place, quiet=not _wants_kernels(settings))
    return gm.forward


def _inference_compiler(
    gm: torch.fx.GraphModule, example_inputs: list[Any], settings: Mapping[str, Any]
) -> Callable[[torch.fx.GraphModule, list[Any]], Compiled]:
    on_gpu = any(isinstance(x, torch.Tensor) and x.is_cuda for x in example_inputs)
    if on_gpu and config.kernels and does("patterns"):
        return functools.partial(_compile_joined, addresses_of(example_inputs))
    freezes = config.freezing and config.kernels and not on_gpu
    frozen = frozen_inputs(gm, example_inputs) if freezes else frozenset[int]()
    if not frozen:
        return _compile_inference
    steady = steady_inputs(gm, example_inputs, frozen)
    return functools.partial(_compile_frozen, frozen, steady, settings)


def _compile_joined(
    addresses: Mapping[int, int], module: torch.fx.GraphModule, fakes: list[Any]
) -> Compiled:
    """addresses: where the inputs lie on a GPU, by position."""
    if not has_symbols(module):
        with timed("inductor.passes"):
            module = join_products(
                module, addresses, LOWERINGS.__contains__, config.max_autotune)
    return _compile_inference(module, fakes)


def _compile_frozen(
    frozen: frozenset[int], steady: frozenset[int], settings: Mapping[str, Any],
    module: torch.fx.GraphModule, fakes: list[Any],
) -> Compiled:
    """As below; where the weights change all the time, the graph is compiled without freezing."""
    if has_symbols(module):
        return _compile_inference(module, fakes)
    graph = torch.fx.Graph()  # the stages write into the other one
    graph.output(graph.graph_copy(module.graph, {}))
    copy = LazyGraph(module, graph)
    copy.meta.update(module.meta)
    call = _compile_inference(module, fakes, frozen, steady)

    if isinstance(call, FrozenCall):
        call.instead = _plain_instead(settings, KeptGraph(copy))
    return call


def _plain_instead(
    settings: Mapping[str, Any], kept: KeptGraph
) -> Callable[[], Compiled | None]:
    """What compiles a graph without freezing, for `FrozenCall`."""

    def compile_plain() -> Compiled | None:
        module = kept.module()
        fakes = [n.meta["val"] for n in module.graph.nodes if n.op == "placeholder"]
        try:
            with config.patch(**settings), torch.no_grad(), collection_paused():
                return _compile_inference(module, fakes)
        except Exception as defect:
            if is_of_signal(defect):
                raise
            _report_defect(GRAPH, defect, module, at_call=True)
            return None

    return noted(compile_plain, _plain_instead, settings, kept)  # type: ignore[no-any-return]


def _compile_inference(
    module: torch.fx.GraphModule, fakes: list[Any], frozen: frozenset[int] = frozenset(),
    steady: frozenset[int] = frozenset(),
) -> Compiled:
    if not has_symbols(module):
        module = _with_constants(module, fakes, frozen, steady)
    return compile_aten(module, fakes)


def _with_constants(
    module: torch.fx.GraphModule, fakes: list[Any], frozen: frozenset[int], steady: frozenset[int]
) -> torch.fx.GraphModule:
    """The graph of inference in its layout, with what is computed once among its inputs."""
    with timed("inductor.passes"):
        module = in_float32(module)
        module, made, taken = _prepared(module, len(fakes), frozen, steady)
        module = laid_out(module)
    positions = frozen.union(range(len(fakes), len(fakes) + len(made)))
    module.meta.update(frozen=positions, prepared=made, prepared_bytes=taken)
    return module


@dataclass(frozen=True, slots=True)
class Generated:
    """The code of a graph on a CPU, and what made it. prepared: what its last inputs hold."""

    units: list[str]
    spec: dict[str, Any]
    lowered: Lowered
    prepared: tuple[Prepared, ...]


@collection_paused()
@with_libraries
def generate_inference(
    module: torch.fx.GraphModule, fakes: list[Any], frozen: frozenset[int], steady: frozenset[int]
) -> Generated:
    """The code of an ATen graph of inference on a CPU, for a package (`package/graph.py`)."""
    if has_symbols(module):
        with timed("inductor.passes"):
            module = laid_out(module)
    else:
        module = _with_constants(module, fakes, frozen, steady)
    with timed("inductor.passes"):
        module = rewritten(module)
    logs.log("aot_graphs").emit(lambda: str(module.code))
    lowered, schedule = _lower_and_schedule(module, None)
    units, spec = _generate(lowered, schedule)
    return Generated(
        units, spec, lowered, (*module.meta.get("prepared", ()), *lowered.graph.prepared))


def _prepared(
    module: torch.fx.GraphModule, count: int, frozen: frozenset[int], steady: frozenset[int]
) -> tuple[torch.fx.GraphModule, tuple[Prepared, ...], int]:
    """The graph with further inputs behind the first `count`, what these hold, and the bytes of
    those that were computed from steady inputs."""
    if not frozen:
        return module, (), 0
    module, values, taken = compute_constants_once(module, steady, most_bytes())
    known = frozen.union(range(count, count + len(values)))
    module, norms = fold_batch_norms(module, known)
    return module, (*values, *norms), taken


@with_libraries
def compile_aten(module: torch.fx.GraphModule, fakes: list[Any]) -> Compiled:
    """Compiles a functional ATen graph with fakes in `meta["val"]`; see `compile_fx`."""
    with timed("inductor.passes"):
        module = rewritten(module)
    logs.log("aot_graphs").emit(lambda: str(module.code))
    if not config.kernels:
        return run_as_it_is(module)
    if has_symbols(module):
        return ForAllSizes(
            module, functools.partial(_compile_variant, module, logs.compile_now())).call
    lowered, schedule = _lower_and_schedule(module, None)
    if lowered.graph.device.type != "cpu":
        call = for_gpu(lowered, schedule, module.meta.get("values"), _dying(module))
        return _tensors_only(call, lowered)
    units, spec = _generate(lowered, schedule)
    call = _tensors_only(cpu.load(units, spec, cpu.cache_store()), lowered)
    prepared = (*module.meta.get("prepared", ()), *lowered.graph.prepared)
    if not prepared:
        return call
    unused = [n for n, one in enumerate(lowered.graph.inputs) if one is None and n >= len(fakes)]
    return FrozenCall(call, prepared, len(fakes), unused)


def _dying(module: torch.fx.GraphModule) -> frozenset[int]:
    """Inputs that nobody holds but who calls the graph."""
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    return frozenset([at for at, node in enumerate(placeholders) if DIES in node.meta])


@collection_paused()
@with_libraries
def _compile_variant(
    module: torch.fx.GraphModule, what: logs.Compile, hints: Sequence[int] | None
) -> Variant:
    """The code of a graph whose sizes are known at a call; hints: sizes that it is likely for."""
    with logs.compiling(what), _defects_refused():
        lowered, schedule = _lower_and_schedule(module, hints)
        symbols = lowered.symbols
        assert symbols is not None
        tensors = tuple(n for n, buffer in enumerate(lowered.graph.inputs) if buffer is not None)
        if lowered.graph.device.type != "cpu":
            values = module.meta.get("values")
            holds, bind = open_for_gpu(lowered.graph, schedule, symbols.sizes, values)
        else:
            units, spec = _generate(lowered, schedule)
            path = cpu.build(units, cpu.cache_store())
            binder = Binder(spec, symbols.sizes)
            holds, bind = binder.holds, cpu.bind_launcher(path, binder, len(tensors))
    broken = functools.partial(broken_assumption, symbols.sizes)
    return Variant(holds, broken, bind, tuple(symbols.sources), tensors)


def _lower_and_schedule(
    module: torch.fx.GraphModule, hints: Sequence[int] | None
) -> tuple[Lowered, Schedule]:
    with timed("inductor.lowering"):
        lowered = lower_graph(
            module, hints, inline=does("inlining"), in_memory_order=does("layout"),
            convolves=does("templates"))
    threads = torch.get_num_threads()
    if config.library_kernels != "default":
        with timed("inductor.library_kernels"):
            frozen = module.meta.get("frozen", ())
            chosen = choose_library_kernels(
                lowered.graph, cpu.cache_store(), threads, frozen, does("templates"),
                module.meta.get("prepared_bytes", 0))
            lowered = replace(lowered, graph=chosen)
    with timed("inductor.scheduler"):
        schedule = schedule_graph(lowered.graph, threads, does("fusion"))
        if does("fusion"):
            schedule = fuse_convolutions(lowered.graph, schedule)
            schedule = chain_convolutions(lowered.graph, schedule)
            schedule = attach_epilogues(lowered.graph, schedule)
            schedule = join_chains(lowered.graph, schedule)
    report_graph(lowered, schedule)
    return lowered, schedule


def _generate(lowered: Lowered, schedule: Schedule) -> tuple[list[str], dict[str, Any]]:
    report_steps(schedule)
    cores = len(os.sched_getaffinity(0))
    return cpu.generate("graph", lowered.graph, schedule, torch.get_num_threads(), cores)


def _tensors_only(launcher: Compiled, lowered: Lowered) -> Compiled:
    """The launcher takes tensors; numbers among the inputs are constants of the graph."""
    inputs = lowered.graph.inputs
    if None not in inputs:
        return launcher
    return of_places(launcher, [n for n, buffer in enumerate(inputs) if buffer is not None])
