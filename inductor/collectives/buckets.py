"""Small collectives of one group, one after the other, become one.

In: a functional ATen graph with fakes, the numbers of a machine. Out: the same graph (changed in
place), where neighbours of one kind, dtype and reduction are one call of a list of tensors. What
each collective costs however little it sends (`machine.py`) is paid once.

What decides is the same on all ranks of a group, or they would send different things: the order and
sizes of its collectives, what needs what, and the numbers of the machine; not what ranks compute,
nor how long that takes. (That they have the same collectives in one graph is for `settings.py`.)

A bucket stands at the place of its first member, if what the others need is there, or is no more
than a cast of an input; or at that of its last one, if nothing reads a result before. It holds at
most `LATENCIES` times what the link sends while a collective starts: then it is so much longer on
its way than any of its members, at most.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from dynamo.aot.fakes import bytes_of, facts_of, is_fake
from dynamo.graph_operators.operator_effects import acts, freedom_of
from inductor.collectives.calls import COALESCED, Collective, collective_of, is_wait
from inductor.collectives.machine import Group, Machine, bandwidth_of, group_of, latency_of

aten = torch.ops.aten
LATENCIES = 8  # see the top of the file; chosen, not measured
MOST_BEFORE = 16  # casts and views that run earlier for a bucket
CASTS = (aten._to_copy.default, torch.ops.prims.convert_element_type.default, aten.clone.default)
# Lists of tensors that are one message; elsewhere each tensor is one, and nothing is gained.
ONE_MESSAGE = {
    "nccl": ("all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor"),
    "fake": ("all_reduce", "all_gather_into_tensor", "reduce_scatter_tensor"),
    "gloo": ("all_reduce", "all_gather_into_tensor"),
}
FIRST, LAST = "first", "last"


@dataclass(slots=True)
class _Bucket:
    """members: starts in order; room: bytes that it may still take; places: where it may stand;
    before: for that of its first member, what has to move in front of it."""

    members: list[fx.Node]
    key: tuple[Any, ...]
    room: float
    places: set[str] = field(default_factory=lambda: {FIRST, LAST})
    before: list[fx.Node] = field(default_factory=list)


def join_collectives(
    module: fx.GraphModule, machine: Machine,
    groups: Callable[[str, torch.device], Group | None] = group_of,
) -> list[tuple[str, ...]]:
    """See the top of the file. Out: the names of those that are one now."""
    nodes = list(module.graph.nodes)
    if sum(_started(node) is not None for node in nodes) < 2:
        return []
    found = [bucket for bucket in _Finder(nodes, machine, groups).run() if len(bucket.members) > 1]
    for bucket in found:
        _put(module.graph, bucket)
    if found:
        module.graph.lint()
        module.recompile()
    return [tuple(member.name for member in bucket.members) for bucket in found]


def _started(node: fx.Node) -> Collective | None:
    return collective_of(node.target, node.args) if node.op == "call_function" else None


class _Finder:
    def __init__(
        self, nodes: list[fx.Node], machine: Machine,
        groups: Callable[[str, torch.device], Group | None],
    ) -> None:
        self.nodes, self.machine, self.groups = nodes, machine, groups
        self.place = {node: at for at, node in enumerate(nodes)}
        self.open: dict[str, _Bucket] = {}  # by group
        self.closed: list[_Bucket] = []

    def run(self) -> list[_Bucket]:
        for node in self.nodes:
            started = _started(node)
            if started is not None:
                self._add(node, started)
            elif is_fence(node):
                self._close(list(self.open))
        self._close(list(self.open))
        return self.closed

    def _close(self, groups: Iterable[str]) -> None:
        self.closed += [self.open.pop(group) for group in groups if group in self.open]

    def _add(self, node: fx.Node, started: Collective) -> None:
        new = self._alone(node, started)
        bucket = self.open.get(started.group)
        if new is None:
            self._close([started.group])
        elif bucket is None or not self._takes(bucket, new):
            self._close([started.group])
            self.open[started.group] = new

    def _alone(self, node: fx.Node, started: Collective) -> _Bucket | None:
        """A bucket of one; None where it has to stay alone."""
        given, fake = node.args[0], node.meta.get("val")
        if started.coalesced or not isinstance(given, fx.Node) or not is_fake(fake):
            return None
        facts = facts_of(given.meta["val"])
        group = self.groups(started.group, facts.device)
        if group is None or started.kind not in ONE_MESSAGE.get(group.backend, ()):
            return None
        latency = latency_of(self.machine, started.kind, group)
        most = LATENCIES * latency * bandwidth_of(self.machine, group)
        size = max(bytes_of(given.meta["val"]), bytes_of(fake))
        key = (node.target, facts.dtype, facts.device, *node.args[1:])
        return _Bucket([node], key, most - size) if size <= most else None

    def _takes(self, bucket: _Bucket, new: _Bucket) -> bool:
        """Whether the new one joins the bucket, and has."""
        (node,) = new.members
        first = bucket.members[0]
        size = max(bytes_of(one.meta["val"]) for one in (node, node.args[0]))  # type: ignore[union-attr]
        if bucket.key != new.key or size > bucket.room:
            return False
        needed = self._needed(node, self.place[first])
        if not needed.isdisjoint(bucket.members):
            return False
        places = set(bucket.places)
        moved = sorted({*bucket.before, *needed}, key=self.place.__getitem__)
        if len(moved) > MOST_BEFORE or not all(map(_is_cast, moved)):
            places.discard(FIRST)
        if any(self.place[reader] < self.place[node] for reader in _readers(bucket.members)):
            places.discard(LAST)
        if not places:
            return False
        bucket.members.append(node)
        bucket.room -= size
        bucket.places, bucket.before = places, moved
        return True

    def _needed(self, node: fx.Node, place: int) -> set[fx.Node]:
        """What the node needs of those behind a place, that place itself included."""
        found: set[fx.Node] = set()
        work = [node]
        while work:
            for given in work.pop().all_input_nodes:
                if given not in found and self.place[given] >= place:
                    found.add(given)
                    work.append(given)
        return found


def is_fence(node: fx.Node) -> bool:
    """Whether a collective may not move to its other side: it writes, or nothing is known of it."""
    if node.op != "call_function" or is_wait(node.target) or _started(node) is not None:
        return False
    schema = getattr(node.target, "_schema", None)
    return acts(node.target) or bool(schema is not None and schema.is_mutable)


def _is_cast(node: fx.Node) -> bool:
    """Whether a node may run earlier than it does, at no cost: it would run anyway."""
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return node.op == "get_attr"
    plain = node.target in CASTS or node.target.is_view
    return plain and freedom_of(node.target).move


def _readers(starts: Iterable[fx.Node]) -> Iterator[fx.Node]:
    """Who reads the results of collectives, but for the end of the graph."""
    for start in starts:
        for user in start.users:
            for reader in user.users if is_wait(user.target) else (user,):
                if reader.op != "output":
                    yield reader


def _put(graph: fx.Graph, bucket: _Bucket) -> None:
    """One call in the place of the members."""
    members = bucket.members
    order = {node: at for at, node in enumerate(graph.nodes)}  # others have moved some
    place = members[0] if FIRST in bucket.places else members[-1]
    for node in bucket.before if place is members[0] else ():
        if order[node] > order[place]:
            place.prepend(node)
    target: Any = members[0].target
    packet = getattr(torch.ops._c10d_functional, target._opname + COALESCED)
    with graph.inserting_before(place):
        given = [member.args[0] for member in members]
        joined = graph.call_function(packet.default, (given, *members[0].args[1:]))
        joined.meta = {**members[0].meta, "val": [member.meta["val"] for member in members]}
    end = joined
    for at, member in enumerate(members):
        with graph.inserting_after(end):
            part = graph.call_function(operator.getitem, (joined, at))
        part.meta = {**member.meta}
        end = part
        for user in list(member.users):
            if order[user] < order[place]:
                end.append(user)  # a wait, which nothing needs yet
                end = user
        member.replace_all_uses_with(part)
        graph.erase_node(member)

