"""From a `LoopGraph` to a `Schedule`: fusion, then one kernel for each group."""

from __future__ import annotations

from inductor.ir.graph import ComputedBuffer, LoopGraph, ViewRef
from inductor.scheduler.assemble import assemble
from inductor.scheduler.dependencies import written_in_place
from inductor.scheduler.fuse import Fused, fuse
from inductor.scheduler.schedule import Schedule, Step
from inductor.scheduler.split import split_kernel
from inductor.scheduler.verify import verify_steps


def schedule_graph(graph: LoopGraph, threads: int, share: bool = True) -> Schedule:
    """The schedule of a graph for a machine with `threads` threads. share: kernels compute more
    than one buffer, where that is faster. Kernels without readers that can't fail are left out."""
    fused = fuse(graph, threads, share)
    outside = {output.buffer for output in graph.outputs if isinstance(output, ViewRef)}
    steps: list[Step] = []
    for members, rows in zip(fused.groups, fused.rows, strict=True):
        nodes = [fused.nodes[member] for member in members]
        computed = [node for node in nodes if isinstance(node, ComputedBuffer)]
        if computed:
            needed = _needed(fused, members, outside)
            kernel = assemble(f"kernel{len(steps)}", computed, rows, needed)
            if needed or kernel.may_fail() or any(node.mutates for node in computed):
                steps.append(split_kernel(kernel))
        else:
            assert not isinstance(nodes[0], ComputedBuffer)
            steps.append(nodes[0])
    verify_steps(graph, steps)
    return Schedule(tuple(steps), fused.refusals)


def _needed(fused: Fused, members: tuple[int, ...], outside: set[str]) -> frozenset[str]:
    """Buffers of the group that are outputs or that other groups use."""
    inside = set(members)
    found = set()
    for member in members:
        name = fused.nodes[member].name
        users = (fused.nodes[user] for user in fused.dependencies.users[member] - inside)
        if name in outside or any(name in (*u.reads(), *written_in_place(u)) for u in users):
            found.add(name)
    return frozenset(found)
