"""Further inputs of a graph that hold its frozen weights as some library wants them.

In: a loop graph and the positions of inputs that hardly ever change. Out: input buffers and what
they hold (`ir/graph.py: Prepared`), each made once however many nodes read it.
"""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch

from inductor.config import config
from inductor.ir.graph import (
    InputBuffer,
    Layout,
    LoopGraph,
    Node,
    Prepared,
    ViewRef,
)
from inductor.scheduler.dependencies import written_in_place


class Preparer:
    """The frozen inputs of a graph (name: position), and what has been prepared of them."""

    def __init__(self, graph: LoopGraph, frozen: Collection[int], taken: int = 0) -> None:
        """taken: bytes of what has been prepared before."""
        self.graph = graph
        written = {name for node in graph.nodes for name in written_in_place(node)}
        self.frozen = {
            buffer.name: position
            for position, buffer in enumerate(graph.inputs)
            if position in frozen and buffer is not None and buffer.name not in written
        }
        self.inputs: dict[tuple[Any, ...], tuple[InputBuffer, Prepared]] = {}
        self.room = most_bytes() - taken

    def has_room(self, weight: ViewRef) -> bool:
        """Whether a copy of a weight may be kept."""
        return math.prod(weight.size) * weight.dtype.itemsize <= self.room

    def as_it_is(self, weight: ViewRef) -> Layout:
        """The layout of a contiguous copy."""
        return Layout(self.graph.device, weight.dtype, weight.size, contiguous(weight.size))

    def prepare(
        self, kind: str, view: ViewRef, layout: Layout, make: Callable[..., Any],
        how: tuple[Any, ...] = (),
    ) -> str:
        """The name of the further input. how: what `make` depends on beside the view."""
        key = (kind, view, how)
        if key not in self.inputs:
            position = len(self.graph.inputs) + len(self.inputs)
            name = f"arg{position}_{kind}"
            buffer = InputBuffer(name, layout, position, packed=kind == "packed")
            of_view = functools.partial(_make_of_view, make, view)
            self.inputs[key] = buffer, Prepared((self.frozen[view.buffer],), of_view)
            self.room -= layout.numel() * layout.dtype.itemsize
        return self.inputs[key][0].name

    def inputs_for(self, nodes: Sequence[Node]) -> tuple[InputBuffer | None, ...]:
        """All inputs of a graph of these nodes; None for frozen ones that nothing reads any more:
        they need not be handed over."""
        read = {name for node in nodes for name in node.reads()}
        read.update(o.buffer for o in self.graph.outputs if isinstance(o, ViewRef))
        gone = self.frozen.keys() - read
        known = (None if b is None or b.name in gone else b for b in self.graph.inputs)
        return (*known, *(buffer for buffer, _ in self.inputs.values()))

    def prepared(self) -> tuple[Prepared, ...]:
        """What the inputs hold that have come."""
        return tuple(item for _, item in self.inputs.values())


def contiguous(size: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a contiguous tensor."""
    return tuple(math.prod(size[n + 1 :]) for n in range(len(size)))


def most_bytes() -> int:
    """Memory for the prepared weights of a graph."""
    if not isinstance(config.freezing, bool):
        return int(config.freezing) << 20
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4


def _make_of_view(make: Callable[..., Any], view: ViewRef, value: torch.Tensor) -> torch.Tensor:
    made: torch.Tensor = make(
        value.as_strided(view.size, view.stride, value.storage_offset() + view.offset)
    )
    return made
