"""Minimum cut of a small directed network (Dinic's method, integers).

In: edges with capacities. Out: the nodes on the source's side of the minimum cut that lies nearest
to the sink. Written here because a general graph library takes longer to import than this to run.

    >>> network = FlowNetwork()
    >>> for edge in (("s", "a", 3), ("a", "b", 1), ("b", "t", None)):
    ...     network.add(*edge)
    >>> sorted(network.source_side("s", "t"))
    ['a', 's']
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

_INFINITE = 1 << 62


class FlowNetwork:
    """Nodes are any hashable values; edges are numbered, and edge ^ 1 is the reverse one."""

    def __init__(self) -> None:
        self._number: dict[Hashable, int] = {}
        self._edges: list[list[int]] = []
        self._target: list[int] = []
        self._room: list[int] = []

    def add(self, source: Hashable, target: Hashable, capacity: int | None) -> None:
        """An edge; capacity None is infinite."""
        room = _INFINITE if capacity is None else capacity
        a, b = self._node(source), self._node(target)
        for start, end, free in ((a, b, room), (b, a, 0)):
            self._edges[start].append(len(self._target))
            self._target.append(end)
            self._room.append(free)

    def _node(self, name: Hashable) -> int:
        number = self._number.get(name)
        if number is None:
            number = self._number[name] = len(self._edges)
            self._edges.append([])
        return number

    def source_side(self, source: Hashable, sink: Hashable) -> set[Any] | None:
        """The source's side of the minimum cut; None where only an infinite one exists."""
        start, end = self._node(source), self._node(sink)
        while True:
            level = self._levels(start)
            if level[end] < 0:
                beyond = self._leading_to(end)
                return {name for name, number in self._number.items() if number not in beyond}
            following = [0] * len(self._edges)
            while amount := self._augment(start, end, level, following):
                if amount >= _INFINITE >> 1:
                    return None

    def _leading_to(self, end: int) -> set[int]:
        """The nodes from which edges with room lead to `end`."""
        found, frontier = {end}, [end]
        for node in frontier:
            for edge in self._edges[node]:
                other = self._target[edge]
                if self._room[edge ^ 1] and other not in found:
                    found.add(other)
                    frontier.append(other)
        return found

    def _levels(self, start: int) -> list[int]:
        """Distances from the start over edges with room; -1 for what is not reached."""
        level = [-1] * len(self._edges)
        level[start] = 0
        frontier = [start]
        for node in frontier:
            for edge in self._edges[node]:
                other = self._target[edge]
                if self._room[edge] and level[other] < 0:
                    level[other] = level[node] + 1
                    frontier.append(other)
        return level

    def _augment(self, start: int, end: int, level: list[int], following: list[int]) -> int:
        """Sends flow along one shortest path; how much (0: there is none left)."""
        path: list[int] = []
        node = start
        while node != end:
            edges = self._edges[node]
            while following[node] < len(edges):
                edge = edges[following[node]]
                if self._room[edge] and level[self._target[edge]] == level[node] + 1:
                    break
                following[node] += 1
            else:
                if not path:
                    return 0
                node = self._target[path.pop() ^ 1]
                following[node] += 1
                continue
            path.append(edge)
            node = self._target[edge]
        amount = min(self._room[edge] for edge in path)
        for edge in path:
            self._room[edge] -= amount
            self._room[edge ^ 1] += amount
        return amount
