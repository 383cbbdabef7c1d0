"""A cut that saves less than the minimum cut does, and computes more again: `within(budget)`.

Of the bytes that lie between what the minimum cut saves and the least that could be saved (all that
gives the same again is recomputed) a part is spent: on the values that cost most to compute
for the bytes that they take (the knapsack problem).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import torch
from torch import fx

from dynamo.aot.fakes import bytes_of, elements_of, is_fake
from dynamo.aot.min_cut import min_cut, read_by_backward
from dynamo.aot.partition import Cutter, Halves

aten = torch.ops.aten

UNITS = 1000  # into which the bytes are divided
FLOPS_OF_BYTE = 200  # how many a machine does while it moves one


def within(budget: float) -> Cutter:
    """The cut for a budget: 1 for the minimum cut, 0 for the least that can be saved.

    >>> within(1.0) is min_cut
    True
    """
    return min_cut if budget >= 1 else functools.partial(_cut, budget)


def _cut(budget: float, halves: Halves) -> list[fx.Node]:
    usual, least = min_cut(halves), min_cut(halves, anything=True)
    bound = {*halves.inputs, *halves.outputs}
    sizes = {node: bytes_of(node.meta["val"]) for node in {*usual, *least} if node not in bound}
    most, fewest = (sum(sizes.get(node, 0) for node in cut) for cut in (usual, least))
    if fewest >= most:
        return usual
    items = [node for node in usual if node in sizes and node not in least]
    known = {*usual, *least}
    worth = [_recomputed_price(node, known) for node in items]
    room = budget * (most - fewest)
    chosen = knapsack([sizes[node] for node in items], worth, room)
    free = [node for node in usual if node not in sizes]
    saved = {*least, *free, *(items[at] for at in chosen)}
    return _reached(halves, saved)


def knapsack(sizes: Sequence[int], worth: Sequence[float], room: float) -> list[int]:
    """Which items fit into the room and are worth most together.

    >>> knapsack([6, 5, 5], [7.0, 5.0, 5.0], 10)
    [1, 2]
    """
    if sum(sizes) <= room:
        return list(range(len(sizes)))
    unit = max(room / UNITS, 1e-9)
    best: list[tuple[float, tuple[int, ...]]] = [(0.0, ())] * (UNITS + 1)
    for at, (size, value) in enumerate(zip(sizes, worth, strict=True)):
        units = math.ceil(size / unit - 1e-6)
        for filled in range(UNITS, units - 1, -1):
            before, items = best[filled - units]
            if before + value > best[filled][0]:
                best[filled] = (before + value, (*items, at))
    return list(best[UNITS][1])


def _reached(halves: Halves, saved: set[fx.Node]) -> list[fx.Node]:
    """Of the saved values those from which backward starts, in order."""
    work, seen = list(read_by_backward(halves)), set[fx.Node]()
    while work:
        node = work.pop()
        if node not in seen:
            seen.add(node)
            if node not in saved:
                work.extend(node.all_input_nodes)
    return [node for node in halves.available if node in saved and node in seen]


def _recomputed_price(node: fx.Node, known: set[fx.Node]) -> float:
    """What it costs to compute a value from the others, in bytes that could move meanwhile."""
    work, seen, total = [node], {node}, 0.0
    while work:
        current = work.pop()
        total += _price(current)
        for given in current.all_input_nodes:
            if given not in seen and given not in known and given.op == "call_function":
                seen.add(given)
                work.append(given)
    return total


def _price(node: fx.Node) -> float:
    values = node.meta["val"]
    value = values[0] if isinstance(values, (tuple, list)) and values else values
    if not is_fake(value):
        return 0.0
    moved = float(bytes_of(value))
    operands = [given.meta["val"] for given in node.all_input_nodes]
    operands = [given for given in operands if is_fake(given)]
    if node.target in (aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default):
        inner = int(operands[-2].shape[-1])
        return moved + 2.0 * elements_of(value) * inner / FLOPS_OF_BYTE
    if node.target is aten.convolution.default:
        inner = elements_of(operands[1]) // max(int(operands[1].shape[0]), 1)
        return moved + 2.0 * elements_of(value) * inner / FLOPS_OF_BYTE
    if "attention" in str(node.target) and len(operands) > 1:
        return moved + 4.0 * elements_of(value) * int(operands[1].shape[-2]) / FLOPS_OF_BYTE
    return moved + sum(float(bytes_of(given)) for given in operands)
