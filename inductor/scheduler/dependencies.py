"""Who must run before whom in a `LoopGraph`, and which pairs may share a kernel at all.

Values: a reader after the last writer. Contents of buffers that are written in place: the writer
after everybody who wants the old contents. Calls with effects (random numbers, collectives): in the
order of `inductor.collectives.calls`. What a call writes as a part of something
(`operators/gemm_sums.py`): before all that follows.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from inductor.collectives.calls import EffectOrder
from inductor.ir.graph import ComputedBuffer, ExternKernel, LoopGraph, Node
from inductor.operators.gemm_sums import IN_ORDER


@dataclass(frozen=True, slots=True, eq=False)
class Dependencies:
    """By position of a node in the graph.

    before: all nodes that must run before it; values: buffers that it reads and the position of the
    node that computes them, where the two might share a kernel; users: reverse of `before`; old:
    those that read what it overwrites.
    viewed: buffers that calls have given views of.
    """

    before: list[set[int]] = field(default_factory=list)
    values: list[dict[str, int]] = field(default_factory=list)
    users: list[set[int]] = field(default_factory=list)
    old: list[set[int]] = field(default_factory=list)
    viewed: set[str] = field(default_factory=set)


def find_dependencies(graph: LoopGraph) -> Dependencies:
    """Dependencies between the nodes of a graph."""
    mutated = {name for node in graph.nodes for name in written_in_place(node)}
    found = Dependencies()
    writer: dict[str, int] = {}
    readers: dict[str, list[int]] = {}
    views: dict[str, tuple[str, ...]] = {}  # of calls that give views: what they look at
    effects = EffectOrder()
    last_part: int | None = None
    for position, node in enumerate(graph.nodes):
        before: set[int] = set()
        values: dict[str, int] = {}
        old: set[int] = set()
        for name in node.reads():
            if name in writer:
                before.add(writer[name])
                if name not in mutated:
                    values[name] = writer[name]
            for read in (name, *views.get(name, ())):
                readers.setdefault(read, []).append(position)
        for name in written_in_place(node):
            old.update(readers.get(name, ()))
            if name in writer:
                before.add(writer[name])
            readers[name] = []
            writer[name] = position
        old.discard(position)
        before |= old
        if isinstance(node, ExternKernel):
            before |= effects.before(position, node.target, node.args)
        if last_part is not None:
            before.add(last_part)
        if isinstance(node, ExternKernel) and node.target in IN_ORDER:
            last_part = position
        if isinstance(node, ExternKernel) and node.target.is_view:
            seen = node.reads()
            views[node.name] = (*seen, *(root for name in seen for root in views.get(name, ())))
            found.viewed.update(views[node.name])
        writer[node.name] = position
        before.discard(position)
        found.before.append(before)
        found.values.append(values)
        found.old.append(old)
        found.users.append(set())
        for other in before:
            found.users[other].add(position)
    return found


def written_in_place(node: Node) -> tuple[str, ...]:
    """Buffers made by somebody else into which the node writes."""
    if isinstance(node, ComputedBuffer):
        return (node.mutates,) if node.mutates else ()
    return node.mutates if isinstance(node, ExternKernel) else ()

