"""Outputs of a graph that has run backward itself: they require grad, and their backward raises.

Eager frees what backward needs when it has run, unless the graph is retained. What is returned
after that (the loss, most often) still has a history.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd.graph import _engine_run_backward

from dynamo.aot.fakes import is_fake

FREED = "backward through the graph a second time"


def spent_outputs(outputs: Sequence[Any]) -> frozenset[int]:
    """The outputs (fakes that a program has left) whose backward raises for what was freed."""
    return frozenset(at for at, out in enumerate(outputs) if is_fake(out) and _is_spent(out))


def _is_spent(out: Any) -> bool:
    if not out.requires_grad or out.grad_fn is None:
        return False
    try:
        _engine_run_backward(
            (out,), (torch.ones_like(out),), True, False, _leaves(out), True, accumulate_grad=False
        )
    except RuntimeError as error:
        return FREED in str(error)
    return False


def _leaves(out: Any) -> tuple[Any, ...]:
    """The ends of all ways back from a tensor."""
    found, seen, work = [], {out.grad_fn}, [out.grad_fn]
    while work:
        node = work.pop()
        following = [pair for pair in node.next_functions if pair[0] is not None]
        if hasattr(node, "variable"):
            found.append(node.variable)
        for other, _ in following:
            if other not in seen:
                seen.add(other)
                work.append(other)
    return tuple(found)


class _Spent(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: tuple[torch.Tensor, ...], *leaves: torch.Tensor) -> Any:
        return values

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        with torch.enable_grad():
            value = torch.ones((), requires_grad=True).exp()
            value.backward()
            value.backward()  # raises what eager raises


# Without what looks at each argument for functorch.
_apply: Any = super(torch.autograd.Function, _Spent).apply


def spend(values: tuple[torch.Tensor, ...], leaves: tuple[torch.Tensor, ...]) -> None:
    """Gives tensors a history that leads to these leaves and can't be run."""
    with torch.enable_grad():
        _apply(values, *leaves)
