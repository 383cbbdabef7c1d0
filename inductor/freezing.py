"""Parameters and buffers as constants of inference: what is made of them once.

In: a captured graph with its inputs (which of them are frozen), and for the compiled graph what it
wants prepared (`ir/graph.py: Prepared`). Out: a callable that hands prepared tensors on. It looks
at each call whether the frozen tensors are what they were (the same object, version and memory) and
prepares again what is not, so that a load of other weights or an optimizer's step between calls is
seen. Not seen: writes that do not count as a version (through `.data`, NumPy, other processes).
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from inductor.ir.graph import Prepared

PLAIN = (Tensor, torch.nn.Parameter)


def frozen_inputs(gm: fx.GraphModule, example_inputs: Sequence[Any]) -> frozenset[int]:
    """Positions of a module's parameters and buffers among the inputs."""
    nodes = [node for node in gm.graph.nodes if node.op == "placeholder"]
    return frozenset(
        position
        for position, (node, value) in enumerate(zip(nodes, example_inputs, strict=True))
        if isinstance(value, torch.nn.Parameter) or node.meta.get("held_by_module")
        if type(value) in PLAIN and not value.is_inference()
    )


class FrozenCall:
    """Calls `compiled` with the inputs and the prepared tensors behind them."""

    def __init__(self, compiled: Callable[..., Any], prepared: Sequence[Prepared]) -> None:
        self.compiled = compiled
        self.prepared = prepared
        self.positions = sorted({position for item in prepared for position in item.positions})
        # Replaced as a whole: calls may come from several threads.
        self.known: tuple[list[Any], list[Tensor]] | None = None

    def __call__(self, *inputs: Any) -> Any:
        if self.known is None:
            return self.compiled(*inputs, *self._prepare(inputs))
        seen, made = self.known
        for position, identity in zip(self.positions, seen, strict=True):
            value = inputs[position]
            if identity is None or identity[0]() is not value:
                break
            if value._version != identity[1] or value.data_ptr() != identity[2]:
                break
        else:
            return self.compiled(*inputs, *made)
        return self.compiled(*inputs, *self._prepare(inputs))

    def _prepare(self, inputs: Sequence[Any]) -> list[Tensor]:
        self.known = None  # what is out of date does not live beside what is new
        seen = [_identity(inputs[position]) for position in self.positions]
        with torch.inference_mode(False), torch.no_grad():
            made = [
                item.make(*(inputs[position].detach() for position in item.positions))
                for item in self.prepared
            ]
        self.known = seen, made
        return made


def _identity(value: Tensor) -> tuple[Any, int, int] | None:
    """None: nobody can tell whether it has changed."""
    if value.is_inference():
        return None
    return weakref.ref(value), value._version, value.data_ptr()
