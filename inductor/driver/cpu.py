"""The CPU path behind the schedule: C++ kernels and wrapper, built, loaded as one callable."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from dynamo.base import logs, recordings
from dynamo.base.config import config
from dynamo.base.counters import timed
from dynamo.store.content import Store
from dynamo.store.records import report_lookup
from dynamo.store.toolchain import Toolchain, find_toolchain
from inductor import metrics
from inductor.cache.launched import note_launcher, titled
from inductor.cache.recorded import keep_lowered
from inductor.codegen.bind import Binder, broken_assumption
from inductor.codegen.cpp.convolution_epilogue import print_convolution_epilogue
from inductor.codegen.cpp.epilogue import print_epilogue
from inductor.codegen.cpp.kernel import KernelSource, print_kernel
from inductor.codegen.cpp.readable import readable_code
from inductor.codegen.cpp.unit import print_units
from inductor.codegen.sharing import placeholder_layouts, share_kernels
from inductor.codegen.wrapper import print_wrapper
from inductor.dynamic_shapes.symbolic import Variant
from inductor.ir.extent import Sizes
from inductor.ir.graph import Layout, LoopGraph
from inductor.lowering.sizes import Source
from inductor.runtime import _launch
from inductor.runtime.build import Built, build_library, library_without_compiler
from inductor.scheduler.fuse_convolutions import bounds_of
from inductor.scheduler.gemms import epilogue_over_rows
from inductor.scheduler.memory import plan_memory
from inductor.scheduler.schedule import Kernel, Schedule


class NoCompiler(RuntimeError):
    """There is no working C++ compiler on this machine. explained: the text is all that a user
    needs, without a traceback of the compiler."""

    explained = True


def need_toolchain(store: Store) -> Toolchain:
    """The C++ compiler. Errors: NoCompiler, with what to do."""
    found = find_toolchain(store)
    if isinstance(found, str):
        raise NoCompiler(
            f"{found}, and the default backend needs one.\n  What to do: install g++ or clang++, "
            'name another with CXX=..., or use backend="eager"; python -m dynamo.doctor examines '
            "this machine."
        )
    return found


def generate(
    name: str, graph: LoopGraph, schedule: Schedule, threads: int, cores: int
) -> tuple[list[str], dict[str, Any]]:
    """C++ texts of a schedule, and the launcher's description."""
    layouts = graph.layouts()
    with timed("inductor.codegen"):
        plan = plan_memory(graph, schedule)
        sources, by_name = _print_kernels(schedule, layouts, threads)
        behind, epilogues = _print_epilogues(schedule, layouts)
        fused, of_convolutions = _print_convolution_epilogues(schedule, layouts)
        behind += fused
        epilogues |= of_convolutions
        wrapper = print_wrapper(name, graph, schedule, plan, by_name, threads, epilogues)
        tail = "\n".join([*(source.text for source in behind), wrapper.text])
        units = print_units(sources, tail, cores)
    kernels = [*sources, *behind]
    logs.log("output_code").emit(lambda: readable_code(schedule, kernels, wrapper.text))
    logs.keep("kernels.cpp", "\n".join(units))
    logs.log("kernel_code").emit(lambda: "\n".join(source.text for source in kernels))
    logs.log("schedule").emit(lambda: f"{schedule}\n{plan.places}\narena: {plan.arena_bytes}")
    keep_lowered(graph, schedule, wrapper.spec["steps"])
    return units, wrapper.spec


def _print_kernels(
    schedule: Schedule, layouts: dict[str, Layout], threads: int
) -> tuple[list[KernelSource], dict[str, KernelSource]]:
    """Texts of the different kernels; and for each kernel its text with its own buffers."""
    return _print_shared(
        schedule.kernels(), layouts, lambda kernel, own: print_kernel(kernel, own, threads)
    )


def _print_epilogues(
    schedule: Schedule, layouts: dict[str, Layout]
) -> tuple[list[KernelSource], dict[str, KernelSource]]:
    """The same for what GEMMs of our own call."""
    kernels = [
        epilogue_over_rows(kernel, part.gemms[0])
        for template in schedule.templates()
        for part in template.parts
        if (kernel := part.epilogue) is not None
    ]
    printed, by_name = _print_shared(kernels, layouts, print_epilogue)
    for part in (part for template in schedule.templates() for part in template.parts):
        if part.epilogue is not None and part.target:
            source, moved = by_name[part.epilogue.name], {part.gemms[0].name: part.target}
            parameters = tuple(moved.get(name, name) for name in source.parameters)
            by_name[part.epilogue.name] = replace(source, parameters=parameters)
    return printed, by_name


def _print_shared(
    kernels: Iterable[Kernel],
    layouts: dict[str, Layout],
    print_one: Callable[[Kernel, dict[str, Layout]], KernelSource],
) -> tuple[list[KernelSource], dict[str, KernelSource]]:
    printed: dict[str, KernelSource] = {}
    by_name: dict[str, KernelSource] = {}
    for shared in share_kernels(kernels):
        source = printed.get(shared.kernel.name)
        if source is None:
            own = placeholder_layouts(shared, layouts)
            source = printed[shared.kernel.name] = print_one(shared.kernel, own)
        parameters = tuple(shared.buffers[name] for name in source.parameters)
        begins = tuple(shared.begins[name] for name in source.parameters)
        by_name[shared.name] = replace(source, parameters=parameters, begins=begins)
    return list(printed.values()), by_name


def _print_convolution_epilogues(
    schedule: Schedule, layouts: dict[str, Layout]
) -> tuple[list[KernelSource], dict[str, KernelSource]]:
    """As above, of what follows convolutions of our own."""
    printed: dict[tuple[str, int, int], KernelSource] = {}
    by_name: dict[str, KernelSource] = {}
    fused = [one for one in schedule.fused_convolutions() if bounds_of(one) is None]
    for one, shared in zip(fused, share_kernels(x.epilogue for x in fused), strict=True):
        assert one.call.layout is not None
        channels = one.call.layout.size[1]
        sizes = one.call.layout.numel() // channels, channels
        source = printed.get((shared.kernel.name, *sizes))
        if source is None:
            own = placeholder_layouts(shared, layouts)
            names = {name: place for place, name in shared.buffers.items()}
            source = print_convolution_epilogue(shared.kernel, own, names[one.call.name], *sizes)
            printed[shared.kernel.name, *sizes] = source
        moved = {one.call.name: one.target}
        buffers = [shared.buffers[name] for name in source.parameters]
        parameters = tuple(moved.get(name, name) for name in buffers)
        begins = tuple(shared.begins[name] for name in source.parameters)
        by_name[shared.name] = replace(source, parameters=parameters, begins=begins)
    return list(printed.values()), by_name


def build(units: list[str], store: Store) -> str:
    """The path of the library, built or found."""
    log = logs.log("cache")
    known = library_without_compiler(units, store)
    if known is not None:
        metrics.count("libraries_reused")
        log.emit(f"library {known.name}: found, though there is no compiler now")
        return str(known)
    toolchain = need_toolchain(store)
    if config.debug_dir:  # a debugger shows the C++ file beside the library
        toolchain = replace(toolchain, compile_flags=(*toolchain.compile_flags, "-g"))
    with timed("inductor.build"):
        wanted = log.enabled or recordings.wanted()
        built: Built = build_library(units, toolchain, store, explain=wanted)
    metrics.count("libraries_reused" if built.reused else "libraries_built")
    report_lookup(f"library {built.key.digest}", built.reused, lambda: built.reason)
    return str(built.path)


def load(units: list[str], spec: dict[str, Any], store: Store) -> Any:
    """Build (or find) the library and make it callable: flat tensors in, a tuple out."""
    path = build(units, store)
    launcher = launch(path, titled(spec))
    note_launcher(launcher, path, spec, units)
    return launcher


def variant_of(
    path: str, spec: dict[str, Any], sizes: Sizes, sources: tuple[Source, ...],
    tensors: tuple[int, ...], traces: Sequence[str | None] | None = None,
) -> Variant:
    """The code of a library for all sizes. spec: of its launchers, with extents. traces: see
    `with_numbers` of `cache/launched.py`."""
    binder = Binder(spec, sizes)
    broken = functools.partial(broken_assumption, sizes)
    bind = bind_launcher(path, binder, len(tensors), {} if traces is None else {"traces": traces})
    return Variant(binder.holds, broken, bind, sources, tensors, sizes)


def bind_launcher(
    path: str, binder: Binder, inputs: int, more: Mapping[str, Any]
) -> Callable[[tuple[int, ...]], Callable[..., Any]]:
    """What makes the callable for values of the symbols, which takes so many inputs. Where these
    are only numbers for kernels (the position in a cache, say), one launcher does for all. more: of
    its description."""
    what = logs.compile_now()

    def made_of(spec: dict[str, Any]) -> Any:
        return launch(path, {**titled(spec, what), **more})

    if not binder.is_fixed:
        return lambda values: made_of(binder.bind(values))
    made: list[Any] = []

    def bind(values: tuple[int, ...]) -> Callable[..., Any]:
        if not made:
            made.append(made_of(binder.bind_any(values, inputs)))
        launcher, numbers = made[0], torch.tensor(values, dtype=torch.int64)
        return lambda *given: launcher(*given, numbers)

    return bind


def launch(path: str, spec: dict[str, Any]) -> Any:
    """The callable of a library."""
    with timed("inductor.load"):
        return _launch.Launcher(path, spec)
