"""The GPU path behind the schedule: Triton kernels and a Python wrapper, loaded as one callable."""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dynamo.aot.recipes import not_cacheable
from dynamo.aot.records import Unsupported
from dynamo.base import logs
from dynamo.base.counters import timed
from dynamo.base.fallbacks import KERNEL, failed, refused
from dynamo.base.signals import is_of_signal
from dynamo.store.content import cache_store, make_key
from dynamo.store.records import report_lookup
from inductor import metrics
from inductor.autotune.gpu_blocks import tune_blocks
from inductor.autotune.tuning import Tuner
from inductor.cache.gpu_module import GpuModule, binaries_of, finished, with_recipe
from inductor.cache.launched import title_of
from inductor.cache.recorded import GpuRecord, keep_on_gpu
from inductor.codegen.python_wrapper import print_python_wrapper
from inductor.codegen.triton.launch import NotPrintable
from inductor.codegen.triton.print_joint import join_small
from inductor.codegen.triton.print_kernel import TritonKernel, TritonSource, print_kernel
from inductor.codegen.triton.print_list import ListSource, print_list
from inductor.codegen.triton.template import print_template
from inductor.config import config, is_enabled
from inductor.ir.graph import ComputedBuffer, Layout, LoopGraph
from inductor.ir.interpret import interpret_nodes
from inductor.runtime.cuda_graphs import Graphing
from inductor.runtime.modules import import_file
from inductor.runtime.triton_launch import Preparation, compile_launchers
from inductor.scheduler.lists import join_lists
from inductor.scheduler.schedule import Kernel, KernelList, Schedule, TemplateKernel
from inductor.scheduler.verify import is_scattered

WORKERS = 8  # threads that build kernels; chosen, not measured: bounds memory


def available() -> str:
    """Why Triton kernels cannot be generated here; empty if they can."""
    if importlib.util.find_spec("triton") is None:
        return (f"triton is not installed in {sys.prefix}, so nothing is compiled for the GPU "
                "(pip install triton)")
    return ""


class KernelErrors(Exception):
    """Triton has failed with some functions; errors: by their names."""

    def __init__(self, errors: Mapping[str, Exception]) -> None:
        names = "; ".join(f"{name}: {type(e).__name__}: {e}" for name, e in errors.items())
        super().__init__(f"Triton can't compile {names}")
        self.errors = errors


@dataclass(frozen=True, slots=True)
class Generated:
    """text: of a Python module. slow: kernels that run as ATen operators in it (`Slow`).
    functions: the kernel that each of Triton's functions is of, by name. record: what profilers are
    told. lists: of these functions, those that do several kernels."""

    text: str
    slow: tuple[str, ...]
    functions: Mapping[str, str]
    record: GpuRecord
    lists: Mapping[str, KernelList]


def generate(
    graph: LoopGraph, schedule: Schedule, symbols: Sequence[str] = (), tuner: Tuner | None = None,
    broken: frozenset[str] = frozenset(), lists: bool = True, dying: Sequence[str] = (),
) -> Generated:
    """The Python module of a schedule. symbols: the sizes known at a call; with some,
    Unsupported is raised where Triton cannot do a kernel. tuner: finds the best blocks. broken:
    kernels to run as ATen. lists: equal kernels may be one launch. dying: inputs that the caller
    lets go of."""
    layouts = graph.layouts()
    kernels: dict[str, TritonKernel] = {}
    slow: list[str] = []
    if lists and not symbols and is_enabled("lists"):
        schedule = join_lists(graph, schedule, broken, dying)
    with timed("inductor.codegen"):
        printed: dict[str, ListSource | TritonSource] = {
            step.name: print_list(step, layouts)
            for step in schedule.steps if isinstance(step, KernelList)
        }
        for kernel in schedule.kernels():
            if kernel.name in broken:
                slow.append(kernel.name)
                continue
            try:
                kernels[kernel.name] = _print(kernel, layouts)
            except NotPrintable as refusal:
                if symbols:
                    raise Unsupported(f"{kernel.name}: {refusal}") from None
                slow.append(kernel.name)
                _report_slow(graph, kernel, str(refusal))
        if tuner is not None:
            kernels = tune_blocks(graph, schedule, kernels, tuner)
        templates = {step.name: print_template(step, layouts) for step in schedule.templates()}
        if lists and not symbols and is_enabled("lists"):
            schedule, small = join_small(graph, schedule, kernels)
            printed |= small
        batched = bool(config.cudagraphs)  # where not all of it is recorded, at least these
        text = print_python_wrapper(
            graph, schedule, kernels, symbols, templates, printed, dying, batched)
    logs.log("output_code").emit(text)
    logs.keep("flex_kernels.py", text)
    logs.log("kernel_code").emit(
        lambda: "\n".join([
            *(source.text for made in kernels.values() for source in made.all_sources()),
            *(source.text for source in printed.values())])
    )
    logs.log("schedule").emit(lambda: str(schedule))
    functions = {source.name: name for name, k in kernels.items() for source in k.all_sources()}
    own = {template.name: name for name, template in templates.items()}
    own |= {source.name: name for name, source in printed.items()}
    record = keep_on_gpu(graph, schedule, {**functions, **own}, text)
    by_function = {
        printed[step.name].name: step for step in schedule.steps if isinstance(step, KernelList)
    }
    return Generated(text, tuple(slow), functions, record, by_function)


def build(
    graph: LoopGraph, schedule: Schedule, tuner: Tuner | None,
    graphing: Callable[[Sequence[str]], Graphing | None], dying: Sequence[str] = (),
) -> Callable[..., Any]:
    """The callable of a schedule of static sizes. A kernel with which Triton fails runs as ATen
    operators, alone. tuner, dying: see `generate`; graphing: makes `graphed` of `load` of the names
    of such kernels."""
    broken: frozenset[str] = frozenset()
    lists = True
    while True:
        made = generate(graph, schedule, (), tuner, broken, lists, dying)
        try:
            bound, module = load_module(
                made.text, graph, False, graphing(made.slow), None if made.slow else made.record)
            if made.slow:
                return not_cacheable(bound(), f"{made.slow[0]} runs as ATen operators")
            return bound() if module is None else with_recipe(bound(), module)
        except KernelErrors as errors:
            if not made.lists.keys().isdisjoint(errors.errors):
                _report_broken_lists(graph, made.lists, errors)
                lists = False
                continue
            found = {made.functions.get(name, name): e for name, e in errors.errors.items()}
            if not found.keys() <= {kernel.name for kernel in schedule.kernels()} - broken:
                raise
            for kernel in schedule.kernels():
                if kernel.name in found:
                    _report_broken(graph, kernel, found[kernel.name])
            broken |= found.keys()


def _print(kernel: Kernel, layouts: dict[str, Layout]) -> TritonKernel:
    if torch.are_deterministic_algorithms_enabled() and _meets(kernel):
        raise NotPrintable("what meets at one place is in no fixed order")
    return print_kernel(kernel, layouts)


def _report_slow(graph: LoopGraph, kernel: Kernel, reason: str) -> None:
    metrics.count("slow_kernels")
    logs.log("inductor").emit(f"{kernel.name} ({', '.join(kernel.nodes)}) runs as ATen: {reason}")
    refused(KERNEL, reason, _lines_of(graph, kernel), strict=False)


def _report_broken(graph: LoopGraph, kernel: Kernel, error: Exception) -> None:
    metrics.count("slow_kernels")
    text = f"Triton failed with the kernel {kernel.name}, which runs as ATen operators"
    failed(KERNEL, error, text, _lines_of(graph, kernel))


def _report_broken_lists(
    graph: LoopGraph, lists: Mapping[str, KernelList], errors: KernelErrors
) -> None:
    for name, error in errors.errors.items():
        if name in lists:
            text = f"Triton failed with {name}, so that kernels are started one by one"
            failed(KERNEL, error, text, _lines_of(graph, lists[name].kernels[0]))


def report_broken_templates(graph: LoopGraph, schedule: Schedule, errors: KernelErrors) -> None:
    """Says that Triton has failed with a template, so that none is used."""
    metrics.count("slow_kernels")
    text = f"Triton failed with {', '.join(errors.errors)}; GEMMs run as ATen operators"
    first = next(schedule.templates())
    failed(KERNEL, next(iter(errors.errors.values())), text, _lines_of(graph, first))


def _lines_of(graph: LoopGraph, kernel: Kernel | TemplateKernel) -> str:
    """The user's lines of a kernel, and its operators."""
    found = [node.origins for node in graph.nodes if node.name in kernel.nodes]
    lines = dict.fromkeys(line for origins in found for line in origins.lines)
    targets = dict.fromkeys(target for origins in found for target in origins.targets)
    return f"{', '.join(lines) or 'a graph'} ({', '.join(targets) or kernel.name})"


def _meets(kernel: Kernel) -> bool:
    """Whether several iterations may store into one place, and their order counts."""
    return any(
        op.imm == "add" and op.dtype.is_floating_point
        or op.imm == "set" and is_scattered(op)
        for stage in kernel.stages
        for op in stage.stores()
    )


def load(text: str, graph: LoopGraph, measure: bool) -> Callable[..., Callable[..., Any]]:
    """The first result of `load_module`, without more."""
    return load_module(text, graph, measure)[0]


def load_module(
    text: str, graph: LoopGraph, measure: bool, graphed: Graphing | None = None,
    cached: GpuRecord | None = None,
) -> tuple[Callable[..., Callable[..., Any]], GpuModule | None]:
    """Import the module and compile its kernels. The first result takes the values of the symbols
    (if there are any) and gives the callable for them: flat tensors in, a tuple out.

    graphed: makes it, and the graph's constants, a callable that is recorded as a CUDA graph.
    cached: for a module that another process may take over, what profilers show of it; the second
    result is what that process makes it of.
    """
    made = _imported(text, graph, measure)
    with timed("inductor.build"):
        errors = made.preparation.compile_all(min(WORKERS, os.cpu_count() or 1))
    if errors:
        raise KernelErrors(errors)
    bound = made.bound(graphed, title_of(logs.compile_now()))
    if cached is None:
        return bound, None
    return bound, GpuModule(
        text, graph.device, tuple(made.constants), binaries_of(made.preparation), graphed,
        cached.steps, cached.functions)


def load_all(
    modules: Sequence[tuple[str, LoopGraph]],
) -> list[Callable[..., Callable[..., Any]] | Exception]:
    """`load` of many modules, whose kernels are compiled together. For one that is not there for
    use, why: what importing it raises, or Triton with one of its kernels."""
    found: list[_Imported | Exception] = []
    for text, graph in modules:
        try:
            found.append(_imported(text, graph, False))
        except Exception as error:  # the others are of use without it
            if is_of_signal(error):
                raise
            found.append(error)
    errors: dict[int, Exception] = {}
    with timed("inductor.build"):
        for device in dict.fromkeys(graph.device for _, graph in modules):
            likely = [
                launcher for one in found
                if isinstance(one, _Imported) and one.preparation.device == device
                for launcher in one.preparation.likely()
            ]
            failed = compile_launchers(likely, device, min(WORKERS, os.cpu_count() or 1))
            errors |= {id(launcher): error for launcher, error in failed}
    return [
        one if isinstance(one, Exception) else one.first_error(errors) or one.bound(None, "")
        for one in found
    ]


@dataclass(frozen=True, slots=True)
class _Imported:
    """A module whose kernels are not compiled yet."""

    preparation: Preparation
    constants: list[torch.Tensor]
    bind: Callable[..., Callable[..., Any]]

    def first_error(self, errors: Mapping[int, Exception]) -> Exception | None:
        """errors: by the identities of launchers."""
        own = map(id, self.preparation.launchers)
        return next((errors[each] for each in own if each in errors), None)

    def bound(self, graphed: Graphing | None, title: str) -> Callable[..., Callable[..., Any]]:
        """Takes the values of symbols and gives the callable for them."""

        def with_sizes(*sizes: int) -> Callable[..., Any]:
            device = self.preparation.device
            return finished(self.bind(*sizes), device, self.constants, graphed, title)

        return with_sizes


def _imported(text: str, graph: LoopGraph, measure: bool) -> _Imported:
    store = cache_store()
    key = make_key("triton", {"source": text})
    path, known = store.file_of(key, ".py", text.encode())
    metrics.count("libraries_reused" if known else "libraries_built")
    report_lookup(f"module {key.digest}", known, lambda: store.explain_miss(key))
    with timed("inductor.load"):
        module = import_file(f"inductor_generated_{path.stem}", path)
        preparation = Preparation(graph.device, measure)
        constants = [constant.value.detach() for constant in graph.constants]
        bind = module.make(constants, preparation.prepare, functools.partial(Slow.of, graph))
    return _Imported(preparation, constants, bind)


@dataclass(frozen=True, slots=True)
class Slow:
    """A kernel without Triton: its nodes are interpreted, operation by operation, with ATen."""

    nodes: tuple[ComputedBuffer, ...]
    parameters: tuple[str, ...]

    @staticmethod
    def of(graph: LoopGraph, names: tuple[str, ...], parameters: tuple[str, ...]) -> Slow:
        """The nodes of these names; it is called with tensors for `parameters`."""
        nodes = (n for n in graph.nodes if isinstance(n, ComputedBuffer) and n.name in names)
        return Slow(tuple(nodes), parameters)

    def __call__(self, *tensors: torch.Tensor) -> None:
        interpret_nodes(self.nodes, dict(zip(self.parameters, tensors, strict=True)))
