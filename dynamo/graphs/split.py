"""A graph cut into parts that run one after the other.

In: a `torch.fx` graph module. Out: a module of submodules `part_0`, `part_1`, .., with the same
arguments and results, made by `torch.fx.passes.split_module`. Parts are given by a predicate (what
runs where) or balanced as the stages of a pipeline ("torch.fx", section 6.2.3 of the paper).
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

from torch import fx
from torch.fx.passes.split_module import split_module

from dynamo.graphs.cost import CALLS, Peaks, analyze
from dynamo.graphs.effects import has_effect

# Without a machine to measure: a usual ratio of arithmetic to memory.
USUAL = Peaks(200e9, 20e9)


def split_by(module: fx.GraphModule, predicate: Callable[[fx.Node], bool]) -> fx.GraphModule:
    """Parts in which the predicate holds for all operations, or for none.

    An operation joins the earliest part of its kind that comes behind what it reads, so there are
    as few parts as the order of the operations allows. Where some write in place, the program's
    order stays, and a part ends where the kind changes. Results are those of the whole graph.

    >>> class Net(torch.nn.Module):
    ...     def forward(self, x):
    ...         return (x.sin() + 1).sin()
    >>> parts = split_by(fx.symbolic_trace(Net()), lambda node: node.target == "sin")
    >>> [name for name, part in parts.named_children()]
    ['part_0', 'part_1', 'part_2']
    """
    nodes = [node for node in module.graph.nodes if node.op in CALLS]
    kinds = {node: predicate(node) for node in nodes}
    if any(has_effect(module, node) for node in nodes):
        # A write reaches what no edge of the graph tells.
        return _split(module, _in_order(kinds), in_order=True)
    part: dict[fx.Node, int] = {}
    for node in nodes:
        least = 0 if kinds[node] == kinds[nodes[0]] else 1
        for given in node.all_input_nodes:
            if given in part:
                least = max(least, part[given] + (kinds[given] != kinds[node]))
        part[node] = least
    return _split(module, part, in_order=False)


def split_stages(
    module: fx.GraphModule, count: int, *args: Any, peaks: Peaks = USUAL
) -> fx.GraphModule:
    """`count` stages whose slowest takes as little as possible, by the roofline of each operation.

    args: of the graph, for its shapes. peaks: of the machine. The order of operations stays.
    Errors: ValueError where the graph has fewer operations than stages.
    """
    costs = analyze(module, *args, peaks=peaks).nodes
    seconds = {cost.name: peaks.seconds(cost.flops, cost.moved) for cost in costs}
    nodes = [node for node in module.graph.nodes if node.op in CALLS]
    if not 1 <= count <= len(nodes):
        raise ValueError(f"{len(nodes)} operations can't make {count} stages")
    limit = _least_limit([seconds[node.name] for node in nodes], count)
    part, stage, used = {}, 0, 0.0
    for at, node in enumerate(nodes):
        left = count - 1 - stage
        full = used > 0 and used + seconds[node.name] > limit
        if left and at and (full or len(nodes) - at <= left):
            stage, used = stage + 1, 0.0
        used += seconds[node.name]
        part[node] = stage
    return _split(module, part, in_order=True)


def _in_order(kinds: Mapping[fx.Node, bool]) -> dict[fx.Node, int]:
    part, at, last = {}, -1, None
    for node, kind in kinds.items():
        at, last = at + (kind != last), kind
        part[node] = at
    return part


def _least_limit(seconds: list[float], count: int) -> float:
    """The least time of the slowest of `count` stages, within a millionth."""
    low, high = max(seconds), sum(seconds)
    for _ in range(40):
        middle = (low + high) / 2
        stages, used = 1, 0.0
        for each in seconds:
            if used + each > middle:
                stages, used = stages + 1, 0.0
            used += each
        low, high = (low, middle) if stages <= count else (middle, high)
    return high


def _split(
    module: fx.GraphModule, part: Mapping[fx.Node, int], in_order: bool
) -> fx.GraphModule:
    used = {number: at for at, number in enumerate(sorted(set(part.values())))}
    place = {node: used[number] for node, number in part.items()}
    made = split_module(module, module, place.__getitem__, keep_original_order=in_order)
    made.graph.set_codegen(copy.copy(module.graph._codegen))
    for at in range(len(used)):
        made.add_submodule(f"part_{at}", made.get_submodule(f"submod_{at}"))
        made.delete_submodule(f"submod_{at}")
    for node in made.graph.nodes:
        if node.op == "call_module":
            node.target = node.target.replace("submod_", "part_")
    made.recompile()
    return made
