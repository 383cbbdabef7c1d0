"""Gradients that can be differentiated again: the captured program runs once more, under autograd.

In: a captured module, its joint graph, which inputs autograd saves anyway. Out: a `SecondOrder`,
which the autograd function of the compiled program asks when `create_graph=True`; None where the
program can't run twice (random numbers, writes) or under other modes than those of its call.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import fx
from torch.utils import _pytree as pytree

from dynamo.aot.joint import JointGraph


class SecondOrder:
    """saved: the inputs that `save_for_backward` keeps, in order."""

    def __init__(self, gm: fx.GraphModule, joint: JointGraph, saved: tuple[int, ...]) -> None:
        self.gm, self.saved = gm, saved
        self.others = tuple(at for at in range(len(joint.reference.inputs)) if at not in saved)
        self.places = [position for position, _ in joint.plan.values]
        self.wanted = joint.gradients

    def keep(self, args: tuple[Any, ...]) -> Any:
        """What finds the other inputs again, without keeping them alive."""
        return [_reference(args[at]) for at in self.others]

    def gradients(
        self, kept: Any, saved: tuple[Any, ...], grads: tuple[Any, ...]
    ) -> list[Any] | None:
        """The gradients of all inputs, part of autograd's graph; None where an input has died or
        has been written into meanwhile."""
        args: list[Any] = [None] * (len(self.saved) + len(self.others))
        for at, value in zip(self.saved, saved, strict=False):  # saved outputs come behind
            args[at] = value
        for at, reference in zip(self.others, kept, strict=True):
            value = _follow(reference)
            if value is None:
                return None
            args[at] = value
        for at in self.wanted:  # aliases: no hook runs, no input's history is followed, within
            args[at] = args[at].view_as(args[at])
        leaves = pytree.tree_leaves(self.gm.forward(*args))
        given = [(leaves[place], grad) for place, grad in zip(self.places, grads, strict=False)
                 if grad is not None]  # fmt: skip
        found = torch.autograd.grad(
            [value for value, _ in given], [args[at] for at in self.wanted],
            [grad for _, grad in given], create_graph=True, allow_unused=True,
        )  # fmt: skip
        results: list[Any] = [None] * len(args)
        for at, grad in zip(self.wanted, found, strict=True):
            results[at] = grad
        return results


def second_order(
    gm: fx.GraphModule, joint: JointGraph, saved: tuple[int, ...]
) -> SecondOrder | None:
    """Where the program may run again, what does so."""
    casts = torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda")
    bases = any(is_base for _, is_base in joint.plan.values)
    draws = any(
        isinstance(node.target, torch._ops.OpOverload)
        and torch.Tag.nondeterministic_seeded in node.target.tags
        for node in joint.module.graph.nodes
    )
    if casts or bases or draws or joint.mutations:
        return None
    return SecondOrder(gm, joint, saved)


def _reference(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return weakref.ref(value), value._version


def _follow(reference: Any) -> Any:
    if not isinstance(reference, tuple):
        return reference
    tensor = reference[0]()
    return tensor if tensor is not None and tensor._version == reference[1] else None
