"""Equal kernels over other buffers, in one launch.

In: a loop graph of known sizes and its schedule for a GPU. Out: the schedule in which kernels that
do the same with other buffers, and need nothing of each other, are one step (`KernelList`): what an
optimizer does with each of its parameters, say. Sizes may differ. Each program of such a launch
finds in a table on the device which kernel's part it does (`codegen/triton/print_list.py`).

A kernel can be one of a list if each iteration stands alone and finds its elements at its own
number, or at one place for all. Kernels that could run at the same time are joined; the steps keep
their order but for that, and nothing is joined where much more memory would be held.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from inductor.ir.body import IndirectVar, Op
from inductor.ir.extent import Extent
from inductor.ir.graph import Layout, LoopGraph
from inductor.ir.index import Index, variable
from inductor.ir.philox import Draw
from inductor.runtime.gpu_properties import properties_of
from inductor.scheduler.domain import loop_names, product, substituted, unflatten
from inductor.scheduler.peak import Held
from inductor.scheduler.schedule import Kernel, KernelList, Schedule, Step
from inductor.scheduler.verify import verify_steps

FEWEST = 4  # kernels of a list
EVEN = 16  # elements; a thread moves several at a time where sizes are multiples
MOST_INT32 = (1 << 31) - (1 << 16)  # the last block may reach over the end
MOST_HELD = 1.1  # of the memory held before
LITTLE = 1 << 26  # bytes that may be held more, of the memory of the device measured
# The same where inputs die, as in a backward: a program holds most when that runs.
MOST_HELD_OF_DYING, LITTLE_OF_DYING = 1.0, 1 << 22
Kind = tuple[object, ...]


def join_lists(
    graph: LoopGraph, schedule: Schedule, alone: Collection[str] = (),
    dying: Collection[str] = (),
) -> Schedule:
    """See the top of the file. alone: names of kernels that are no part of a list. dying: inputs
    that the caller lets go of: what a list makes early lies beside those that die later."""
    layouts = graph.layouts()
    held = Held(graph, schedule, layouts, dying)
    kinds = {
        at: kind for at, unit in enumerate(held.units)
        if isinstance(step := unit.steps[0], Kernel) and step.name not in alone
        and (kind := kind_of(step, layouts)) is not None
    }  # fmt: skip
    kinds = _of_many(kinds)
    before = held.before()
    most = held.peak(range(len(held.units)))
    share, little = (MOST_HELD_OF_DYING, LITTLE_OF_DYING) if dying else (MOST_HELD, LITTLE)
    limit = max(share * most, most + properties_of(graph.device).scaled_by_memory(little))
    while kinds:
        found = replace(schedule, steps=_joined(graph, held, before, kinds))
        now = Held(graph, found, layouts, dying)
        if now.peak(range(len(now.units))) <= limit:
            return found
        kinds = _without_largest(held, kinds)
    return schedule


def _of_many(kinds: Mapping[int, Kind]) -> dict[int, Kind]:
    many = {kind for kind, count in Counter(kinds.values()).items() if count >= FEWEST}
    return {at: kind for at, kind in kinds.items() if kind in many}


def _without_largest(held: Held, kinds: Mapping[int, Kind]) -> dict[int, Kind]:
    """Without the kind whose kernels make most."""
    made: Counter[Kind] = Counter()
    for at, kind in kinds.items():
        made[kind] += sum(held.sizes[name] for name in held.units[at].makes)
    largest = max(made, key=lambda kind: made[kind])
    return {at: kind for at, kind in kinds.items() if kind != largest}


def _joined(
    graph: LoopGraph, held: Held, before: Sequence[set[int]], kinds: Mapping[int, Kind]
) -> tuple[Step, ...]:
    order = _ordered(before, _find_groups(before, kinds))
    verify_steps(graph, [step for group in order for at in group for step in held.units[at].steps])
    steps: list[Step] = []
    for group in order:
        members = [held.units[at].steps[0] for at in group]
        kernels = tuple(step for step in members if isinstance(step, Kernel))
        joined = len(group) > 1
        steps += [KernelList(f"{kernels[0].name}_list", kernels)] if joined else \
            held.units[group[0]].steps
    return tuple(steps)


def kind_of(kernel: Kernel, layouts: Mapping[str, Layout]) -> Kind | None:
    """What the kernels of one list have in common; None for a kernel that is part of none."""
    if len(kernel.stages) != 1 or kernel.locals or kernel.may_fail():
        return None
    (stage,) = kernel.stages
    extents = (*kernel.outer, *stage.ranges)
    if stage.reduction_ranges or any(type(extent) is Extent for extent in extents):
        return None
    total = product(extents)
    if total == 0:
        return None
    ops = flat_ops(kernel)
    places = {name: n for n, name in enumerate(parameters_of(kernel))}
    rows = []
    for op in ops:
        place = _place_of(op, total)
        if place is None or isinstance(op.imm, (IndirectVar, Draw)):
            return None
        if op.name == "store" and (op.imm != "set" or total > 1 and place == "0"):
            return None
        rows.append((op.name, op.args, op.dtype, places.get(op.buffer), place, repr(op.imm)))
    most = max([total, *(layouts[name].storage_elements() for name in places)])
    return (tuple(rows), total == 1, total % EVEN == 0, most >= MOST_INT32)


def flat_ops(kernel: Kernel) -> tuple[Op, ...]:
    """The ops of such a kernel in terms of `x`, the number of an iteration."""
    (stage,) = kernel.stages
    names = loop_names("o", kernel.outer) + loop_names("i", stage.ranges)
    extents = (*kernel.outer, *stage.ranges)
    values = unflatten(variable("x", product(extents)), names, extents)
    return tuple(substituted(stage, values))


def parameters_of(kernel: Kernel) -> tuple[str, ...]:
    """The buffers of a kernel, those of equal kernels in one order."""
    return tuple(dict.fromkeys((*kernel.reads(), *kernel.writes())))


def _place_of(op: Op, total: int) -> str | None:
    """Where an op finds its element: "x", or a number; None for other places, which depend on the
    shape."""
    if op.index is None:
        return ""
    if op.index.is_constant:
        return str(op.index.offset)
    own: Index = variable("x", total)
    return "x" if op.index == own and op.name in ("load", "store") else None


def _find_groups(before: Sequence[set[int]], kinds: Mapping[int, Kind]) -> list[tuple[int, ...]]:
    """Units of one kind that can run at the same time. What is of no kind runs as soon as it can;
    then that kind whose units are all there, or most of them."""
    after: list[list[int]] = [[] for _ in before]
    for at, needed in enumerate(before):
        for other in needed:
            after[other].append(at)
    waiting = [len(needed) for needed in before]
    left = Counter(kinds.values())
    ready: dict[Kind, list[int]] = {}
    groups = []
    run = [at for at, count in enumerate(waiting) if count == 0]
    while run or ready:
        while run:
            at = run.pop()
            if at in kinds and waiting[at] == 0:
                waiting[at] = -1
                ready.setdefault(kinds[at], []).append(at)
                continue
            for other in after[at]:
                waiting[other] -= 1
                if waiting[other] == 0:
                    run.append(other)
        if ready:
            kind = max(ready, key=lambda k: (len(ready[k]) == left[k], len(ready[k])))
            members = ready.pop(kind)
            left[kind] -= len(members)
            if len(members) >= FEWEST:
                groups.append(tuple(sorted(members)))
            run += members
    return groups


def _ordered(
    before: Sequence[set[int]], groups: Iterable[tuple[int, ...]]
) -> list[tuple[int, ...]]:
    """All units, those of a group together: where its first one stood, or as soon as they can."""
    group_of: dict[int, tuple[int, ...]] = {at: (at,) for at in range(len(before))}
    for joined in groups:
        group_of.update({at: joined for at in joined})
    needed = {
        group: {group_of[other] for at in group for other in before[at]} - {group}
        for group in group_of.values()
    }
    after: dict[tuple[int, ...], list[tuple[int, ...]]] = {group: [] for group in needed}
    for group, others in needed.items():
        for other in others:
            after[other].append(group)
    waiting = {group: len(others) for group, others in needed.items()}
    ready = [(group[0], group) for group, count in waiting.items() if count == 0]
    heapq.heapify(ready)
    order: list[tuple[int, ...]] = []
    while ready:
        _, group = heapq.heappop(ready)
        order.append(group)
        for other in after[group]:
            waiting[other] -= 1
            if waiting[other] == 0:
                heapq.heappush(ready, (other[0], other))
    assert len(order) == len(needed)
    return order
