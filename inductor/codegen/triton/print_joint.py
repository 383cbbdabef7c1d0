"""Small kernels that stand next to each other, in one launch.

In: a schedule for a GPU and what its kernels became. Out: the schedule in which neighbours that
need nothing of each other are one step (`KernelList`), and a function for each such step, whose
first programs do the first kernel, and so on. A kernel of few programs takes as long as its launch
and the way to memory and back, whatever it does: in a decoder, on an H200, the rotation of queries,
and keys and values on their way into the cache take 1.3, 1.7 and 1.2 us one after the other.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence

from inductor.codegen.triton.configs import ANY_NUMBER, Choices, Config, SizeClass
from inductor.codegen.triton.print_kernel import TritonKernel, TritonSource
from inductor.ir.gpus import GpuProperties
from inductor.ir.graph import LoopGraph
from inductor.runtime.gpu_properties import properties_of
from inductor.scheduler.dependencies import find_dependencies
from inductor.scheduler.schedule import Kernel, KernelList, Schedule, Step
from inductor.scheduler.verify import verify_steps

# Programs for each multiprocessor that run at once whatever they do; kernels of more have other
# things to wait for than each other. Four and not two: a decoder's token of eight sequences takes
# 4.58 ms for 4.63 on an H200. What more would do was not measured.
MOST_PROGRAMS = 4
MOST_KERNELS = 8  # each is compiled in each combination in which it occurs
BLOCKS = "XBLOCK: tl.constexpr, RBLOCK: tl.constexpr"


def join_small(
    graph: LoopGraph, schedule: Schedule, kernels: Mapping[str, TritonKernel]
) -> tuple[Schedule, dict[str, TritonSource]]:
    """See the top of the file. The functions are those of the new steps, by name."""
    gpu, before = properties_of(graph.device), find_dependencies(graph).before
    places = {node.name: at for at, node in enumerate(graph.nodes)}
    steps: list[Step] = []
    sources: dict[str, TritonSource] = {}
    group: list[Kernel] = []

    def end_group() -> None:
        if len(group) > 1:
            name = f"{group[0].name}_and_{len(group) - 1}"
            steps.append(KernelList(name, tuple(group)))
            sources[name] = _joined([kernels[kernel.name].sources[0] for kernel in group])
        else:
            steps.extend(group)
        group.clear()

    for step in schedule.steps:
        if not isinstance(step, Kernel) or not _is_small(kernels.get(step.name), gpu):
            end_group()
            steps.append(step)
            continue
        waits = {at for name in step.nodes for at in before[places[name]]}
        needs = any(places[name] in waits for each in group for name in each.nodes)
        if needs or not _fits(step, group, kernels, gpu):
            end_group()
        group.append(step)
    end_group()
    if not sources:
        return schedule, sources
    made = Schedule(tuple(steps))
    verify_steps(graph, [
        kernel for step in steps
        for kernel in (step.kernels if isinstance(step, KernelList) else (step,))
    ])  # fmt: skip
    return made, sources


def _is_small(printed: TritonKernel | None, gpu: GpuProperties) -> bool:
    """Whether it is one function over single elements, of known size."""
    if printed is None or len(printed.sources) != 1 or printed.scratch or printed.short:
        return False
    (source,) = printed.sources
    if source.numbers or source.splits != 1 or source.columns or len(source.choices.classes) != 1:
        return False
    config = _config_of(source)
    return config.columns == 1 and _programs(source) <= MOST_PROGRAMS * gpu.multiprocessors


def _config_of(source: TritonSource) -> Config:
    return source.choices.classes[0].configs[0]


def _programs(source: TritonSource) -> int:
    rows, second, third = source.grid(_config_of(source))
    return rows * second * third


def _fits(
    kernel: Kernel, group: Sequence[Kernel], kernels: Mapping[str, TritonKernel],
    gpu: GpuProperties,
) -> bool:
    """Whether a kernel can run at the same time as those of a group, with as many warps."""
    if not group or len(group) == MOST_KERNELS:
        return False
    sources = [kernels[each.name].sources[0] for each in (*group, kernel)]
    if len({_config_of(source).warps for source in sources}) != 1:
        return False
    if sum(map(_programs, sources)) > MOST_PROGRAMS * gpu.multiprocessors:
        return False
    reads, writes = set(kernel.reads()), set(kernel.writes())
    return all(
        writes.isdisjoint((*each.reads(), *each.writes())) and reads.isdisjoint(each.writes())
        for each in group
    )


def _joined(sources: Sequence[TritonSource]) -> TritonSource:
    """A function of which each program does a part of one of these."""
    parameters = tuple(dict.fromkeys(name for source in sources for name in source.parameters))
    written = {
        name for source in sources for name, own in zip(
            source.parameters, _signature_of(source), strict=True) if own.startswith("out")
    }  # fmt: skip
    names = {
        name: f"{'out' if name in written else 'in'}{n}" for n, name in enumerate(parameters)
    }
    lines, parts, first = ["    program = tl.program_id(0)"], [], 0
    for number, source in enumerate(sources):
        part = _as_part(source)
        parts.append(part)
        config, count = _config_of(source), _programs(source)
        last = number == len(sources) - 1
        head = "else:" if last else f"{'el' if number else ''}if program < {first + count}:"
        given = ", ".join([f"program - {first}", *(names[name] for name in source.parameters)])
        lines += [f"    {head}", f"        {source.name}_part({given}, {config.rows}, 1)"]
        first += count
    text = "\n".join([f"({', '.join(names.values())}, {BLOCKS}):", *lines, ""])
    digest = hashlib.sha256("".join([text, *parts]).encode()).hexdigest()[:8]
    name = f"{sources[0].name.rpartition('_')[0]}_and_{len(sources) - 1}_{digest}"
    text = "\n\n".join([*dict.fromkeys(parts), f"@triton.jit\ndef {name}{text}"])
    choices = Choices(0, (SizeClass(ANY_NUMBER, (Config(1, 1, _config_of(sources[0]).warps),)),))
    return TritonSource(
        name, text, parameters, (), choices, first, 1, 0,
        any(source.may_fail for source in sources), all(source.repeatable for source in sources),
        (), True,
    )


def _signature_of(source: TritonSource) -> list[str]:
    """The names of a function's buffers."""
    found = re.search(r"def \w+\((.*), " + re.escape(BLOCKS), source.text)
    assert found is not None
    return found[1].split(", ")


def _as_part(source: TritonSource) -> str:
    """A function that others call with the number of a program."""
    text = source.text.replace(f"def {source.name}(", f"def {source.name}_part(program, ", 1)
    return text.replace("tl.program_id(0)", "program")
