"""Where every buffer of a schedule lives, and when extern results can be freed.

In: a loop graph and its schedule. Out: a `MemoryPlan`: outputs have memory of their own, what a
library call returns stays where the library put it, and all other buffers share an arena at offsets
that were planned from their lifetimes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from inductor.ir.extent import Extent
from inductor.ir.graph import (
    ExternKernel,
    InputBuffer,
    Layout,
    LoopGraph,
    MultiOutput,
    ViewRef,
)
from inductor.operators import cpu_attention_ops
from inductor.scheduler.schedule import (
    Generated,
    Schedule,
    Step,
)

ALIGNMENT = 64  # bytes: a line of the cache, and a vector of AVX-512


@dataclass(frozen=True, slots=True)
class Place:
    """kind: input, packed (an input, too), constant, arena, output or extern; position: of the
    input or constant, or the byte in the arena."""

    kind: str
    position: int


@dataclass(frozen=True, slots=True)
class Life:
    """A buffer in the arena: the first and the last step that touch it, and its size."""

    name: str
    first: int
    last: int
    bytes: int


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """places: of every buffer with memory. dead_after: extern results by the step that uses them
    last. given: extern calls that write into a buffer of ours, with their `out` overload.
    lives: of the buffers in the arena. Where their sizes are known at a call, their places are too:
    then the positions here are 0."""

    places: dict[str, Place]
    arena_bytes: int
    dead_after: dict[int, tuple[str, ...]]
    given: dict[str, torch._ops.OpOverload]
    lives: tuple[Life, ...] = ()


def plan_memory(graph: LoopGraph, schedule: Schedule) -> MemoryPlan:
    """Places for all buffers of a schedule."""
    layouts = graph.layouts()
    places = {
        b.name: Place("packed" if b.packed else "input", n) for n, b in enumerate(_inputs(graph))
    }
    places.update({b.name: Place("constant", n) for n, b in enumerate(graph.constants)})
    outputs = {o.buffer for o in graph.outputs if isinstance(o, ViewRef)}
    calls = [step for step in schedule.single_steps() if isinstance(step, ExternKernel)]
    calls += [one.call for template in schedule.templates() for one in template.gemms()]
    given = {
        call.name: overload for call in calls if (overload := out_overload(call)) is not None
    }
    first, last = _lifetimes(schedule, outputs)
    lives: list[Life] = []
    dead: dict[int, list[str]] = {}
    for name, start in first.items():
        if name in places:
            continue
        step = schedule.steps[start]
        if isinstance(step, (ExternKernel, MultiOutput)) and name not in given:
            if name in layouts:
                places[name] = Place("extern", 0)
                if name not in outputs:
                    dead.setdefault(last[name], []).append(name)
        elif name in outputs:
            places[name] = Place("output", 0)
        else:
            lives.append(Life(name, start, last[name], _bytes(layouts[name])))
    if any(type(life.bytes) is Extent for life in lives):
        positions, total = [0] * len(lives), 0
    else:
        positions, total = pack_arena([(x.first, x.last, x.bytes) for x in lives])
    for life, position in zip(lives, positions, strict=True):
        places[life.name] = Place("arena", position)
    dead_after = {k: tuple(v) for k, v in dead.items()}
    return MemoryPlan(places, total, dead_after, given, tuple(lives))


def _inputs(graph: LoopGraph) -> list[InputBuffer]:
    return [buffer for buffer in graph.inputs if buffer is not None]


def _bytes(layout: Layout) -> int:
    return layout.storage_elements() * layout.dtype.itemsize


def touched(step: Step) -> Iterator[str]:
    """Buffers that a step reads or writes, inputs included."""
    if isinstance(step, Generated):
        yield from step.reads()
        yield from step.writes()
    else:
        yield from step.reads()
        if isinstance(step, ExternKernel):
            yield from step.mutates
        yield step.name


def _lifetimes(schedule: Schedule, outputs: set[str]) -> tuple[dict[str, int], dict[str, int]]:
    """First and last step of each buffer; a call's several results keep none of it alive."""
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for position, step in enumerate(schedule.steps):
        for name in touched(step):
            first.setdefault(name, position)
            last[name] = position
    for name in outputs:
        last[name] = len(schedule.steps)
    return first, last


def pack_arena(lives: Sequence[tuple[int, int, int]]) -> tuple[list[int], int]:
    """Offsets for buffers (first step, last step, bytes), and the size of the arena: the largest
    first, each at the lowest offset at which it meets no other that lives at the same time."""
    placed: list[tuple[int, int, int, int]] = []  # begin, end, first, last
    total = 0
    positions = [0] * len(lives)
    for number in sorted(range(len(lives)), key=lambda n: -lives[n][2]):
        first, last, size = lives[number]
        size = (max(size, 1) + ALIGNMENT - 1) // ALIGNMENT * ALIGNMENT
        begin = 0
        for other_begin, other_end, other_first, other_last in sorted(placed):
            if other_last < first or other_first > last:
                continue
            if begin + size <= other_begin:
                break
            begin = max(begin, other_end)
        placed.append((begin, begin + size, first, last))
        positions[number] = begin
        total = max(total, begin + size)
    return positions, total


# Calls whose `out` overload computes straight into the given memory.
INTO_MEMORY = {
    torch.ops.aten.mm.default: torch.ops.aten.mm.out,
    torch.ops.aten.addmm.default: torch.ops.aten.addmm.out,
    torch.ops.aten.bmm.default: torch.ops.aten.bmm.out,
    torch.ops.aten.baddbmm.default: torch.ops.aten.baddbmm.out,
    cpu_attention_ops.OPERATOR: cpu_attention_ops.INTO_MEMORY,
}


def out_overload(step: ExternKernel) -> torch._ops.OpOverload | None:
    """The overload that writes into given memory, if it saves an allocation."""
    if step.ours and step.target is torch.ops.aten.convolution.default:
        return torch.ops.aten.convolution.out
    if step.ours and step.target is torch.ops.aten.cumsum.default:
        return torch.ops.aten.cumsum.out
    return INTO_MEMORY.get(step.target) if step.layout is not None else None
