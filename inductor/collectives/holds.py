"""What a collective reads stays as it is until somebody has waited for it.

In: a loop graph. Out: the same, where each wait `holds` the buffers that its collective reads until
then, so that nothing writes into them, or gets their memory, before. Where the program itself
writes into one of them before the wait, or waits in another graph, the collective reads a copy.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

import torch

from inductor.collectives.calls import collective_of, is_wait
from inductor.ir.graph import ExternKernel, LoopGraph, MultiOutput, Node, ViewRef, contiguous

CLONE = torch.ops.aten.clone.default


def hold_operands(graph: LoopGraph) -> LoopGraph:
    """See the top of the file."""
    waits = _waits_of(graph.nodes)
    reading = [at for at, node in enumerate(graph.nodes) if _reads_on(node)]
    if not reading:
        return graph
    nodes: list[Node] = list(graph.nodes)
    roots = _Roots(nodes)
    copies: dict[int, list[Node]] = {}
    for at in reading:
        start = nodes[at]
        assert isinstance(start, ExternKernel)
        behind = waits.get(start.name, [])
        read = roots.of(view.buffer for view in start.views())
        if not behind or _is_written(nodes[at:max(behind)], read):
            copies[at], nodes[at] = _with_copies(start, graph.device)
            read = tuple(copy.name for copy in copies[at])
        for position in behind:
            wait = nodes[position]
            assert isinstance(wait, ExternKernel)
            nodes[position] = replace(wait, holds=tuple(dict.fromkeys((*wait.holds, *read))))
    placed = [node for at, one in enumerate(nodes) for node in (*copies.get(at, ()), one)]
    return replace(graph, nodes=tuple(placed))


def _reads_on(node: Node) -> bool:
    found = collective_of(node.target, node.args) if isinstance(node, ExternKernel) else None
    return found is not None and found.reads_on


def _waits_of(nodes: Iterable[Node]) -> dict[str, list[int]]:
    """Positions of the waits for each call; a list has several."""
    calls: dict[str, str] = {}
    found: dict[str, list[int]] = {}
    for at, node in enumerate(nodes):
        if isinstance(node, MultiOutput):
            calls[node.name] = node.extern
        elif isinstance(node, ExternKernel) and is_wait(node.target):
            (waited,) = [view.buffer for view in node.views()]
            found.setdefault(calls.get(waited, waited), []).append(at)
    return found


class _Roots:
    """Whose memory a buffer shows, too."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        self.shown: dict[str, tuple[str, ...]] = {}
        for node in nodes:
            if isinstance(node, ExternKernel) and (node.target.is_view or is_wait(node.target)):
                self.shown[node.name] = node.reads()

    def of(self, names: Iterable[str]) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self._of(names)))

    def _of(self, names: Iterable[str]) -> Iterator[str]:
        for name in names:
            yield name
            yield from self._of(self.shown.get(name, ()))


def _is_written(nodes: Iterable[Node], names: tuple[str, ...]) -> bool:
    for node in nodes:
        written: Any = getattr(node, "mutates", ())
        if not set(names).isdisjoint((written,) if isinstance(written, str) else written):
            return True
    return False


def _with_copies(start: ExternKernel, device: torch.device) -> tuple[list[Node], ExternKernel]:
    """The copies, in memory of their own, and the call that reads them."""
    copies: list[Node] = []

    def copied(value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(copied, value))
        if not isinstance(value, ViewRef):
            return value
        name = f"{start.name}_copy{len(copies)}"
        layout = contiguous(value.size, value.dtype, device)
        kwargs = (("memory_format", torch.contiguous_format),)
        copies.append(ExternKernel(name, layout, CLONE, (value,), kwargs, (), start.origins))
        return ViewRef(name, value.size, layout.stride, 0, value.dtype)

    return copies, replace(start, args=copied(start.args))

