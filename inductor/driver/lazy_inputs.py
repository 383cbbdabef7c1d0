"""Inputs whose memory holds their conjugates or their negatives: the graph gets what it holds.

In: a captured graph, and inputs of which some are lazily conjugated or negated. Out: the same graph
of plain inputs, which conjugates or negates them itself. To conjugate such a tensor again copies
nothing: that is a view of what memory holds, through which writes and gradients go as before.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx

from dynamo.aot.runtime import run_as_captured

OTHERWISE = "inputs are conjugated or negated otherwise than in the first"
Compiled = Callable[..., Any]
Bits = tuple[bool, bool]


def bits_of(value: Any) -> Bits:
    """Whether a tensor is conjugated, and whether it is negated, lazily."""
    return isinstance(value, torch.Tensor) and value.is_conj(), (
        isinstance(value, torch.Tensor) and value.is_neg())


def flipped(value: Any, bits: Bits) -> Any:
    """A view of the tensor that is conjugated or negated once more."""
    value = value.conj() if bits[0] else value
    return torch._neg_view(value) if bits[1] else value


def with_plain_inputs(
    gm: fx.GraphModule, inputs: Sequence[Any]
) -> tuple[fx.GraphModule, list[Any]] | None:
    """The graph and its inputs; None where there are none such, where the graph gives one of them
    itself, which would be another object, and for symbolic sizes."""
    bits = [*map(bits_of, inputs)]
    if not any(map(any, bits)):
        return None
    changed = copy.copy(gm)
    changed.graph = copy.deepcopy(gm.graph)
    nodes = changed.graph.find_nodes(op="placeholder")
    end = changed.graph.output_node()
    last = nodes[-1]
    for node, own in zip(nodes, bits, strict=True):
        if not any(own):
            continue
        example = node.meta.get("example_value")
        if end in node.users or not isinstance(example, torch.Tensor):
            return None
        if any(type(n) is not int for n in (*example.shape, *example.stride())):
            return None
        given: fx.Node = node
        for is_set, function in zip(own, (torch.conj, torch._neg_view), strict=True):
            if is_set:
                with changed.graph.inserting_after(last):
                    last = changed.graph.call_function(function, (given,))
                last.meta = {**node.meta}
                given = last
        own_nodes = made_of(given, node)
        node.replace_all_uses_with(given, lambda user, own=own_nodes: user not in own)
        node.meta = {**node.meta, "example_value": flipped(example, own)}
    changed.recompile()
    return changed, [flipped(value, own) for value, own in zip(inputs, bits, strict=True)]


def made_of(last: fx.Node, first: fx.Node) -> set[fx.Node]:
    """The nodes from one to the other, of which each takes the one before."""
    found = set[fx.Node]()
    while last is not first:
        found.add(last)
        last = last.all_input_nodes[0]
    return found


def of_lazy(compiled: Compiled, original: Compiled, inputs: Sequence[Any]) -> Compiled:
    """The callable of such inputs. compiled: of plain ones. original: for others, which are counted
    as not compiled."""
    bits = [*map(bits_of, inputs)]

    def call(*args: Any) -> Any:
        if [*map(bits_of, args)] != bits:
            return run_as_captured(original, OTHERWISE, *args)
        return compiled(*[flipped(value, own) for value, own in zip(args, bits, strict=True)])

    return call
