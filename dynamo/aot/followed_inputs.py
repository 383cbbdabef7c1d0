"""Inputs that only some outputs of a node lead to, where the program's caller sees backward arrive.

A compiled program is one node of autograd's graph, or a few: see `groups`. Backward through one
output of a node goes on to all of its inputs, with no gradient to those that the output was not
computed from. That shows: a hook there is called with None, and an autograd function before it runs
its backward, on zeros. In eager neither is reached. So where such an input of a call is followed,
each output has a node of its own for that call, with edges to its own inputs only. What two of them
share is computed twice in backward.

    >>> x = torch.ones(2, requires_grad=True)
    >>> handle = x.register_hook(lambda grad: grad * 2)
    >>> is_followed(x), is_followed(torch.ones(2, requires_grad=True))
    (True, False)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction

OURS = "compiled_edges"  # on the functions that are nodes of compiled programs: how many edges
# Nodes before an input that are looked at. Chosen; 24 take some 35 us of a call where nothing is
# found, and 64 took 100.
MOST = 24


def has_followed(args: Sequence[Any], places: Sequence[int]) -> bool:
    """True where the tensor at one of these places is followed."""
    return any(is_followed(args[at]) for at in places)


def is_followed(tensor: torch.Tensor) -> bool:
    """True where a backward that comes to this tensor without a gradient does something: a hook is
    there, or an autograd function of the program not far before it."""
    if tensor._backward_hooks or tensor._post_accumulate_grad_hooks:
        return True
    if tensor.is_leaf:
        return False
    work, seen = [tensor.grad_fn], set[Any]()
    while work and len(seen) < MOST:
        node: Any = work.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if isinstance(leaf, torch.Tensor):
            if leaf._backward_hooks or leaf._post_accumulate_grad_hooks:
                return True
        elif isinstance(node, BackwardCFunction):
            edges = getattr(node._forward_cls, OURS, None)  # type: ignore[attr-defined]
            if edges is None:
                return True
            if edges > MOST:  # to list them takes as long as to look at as many nodes
                continue
        work += [before for before, _ in node.next_functions]
    return False
