"""Parts of a buffer that a kernel may write beside each other: columns of rows.

In: nodes that store one element an iteration at a place that is known. Out: their `Window`, or None
where it is something else. Each thread of a kernel may write several windows of one buffer that do
not meet; a window of rows that lie close to each other is a part of what `split` had cut, say.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from inductor.ir.graph import ComputedBuffer
from inductor.ir.index import Var


@dataclass(frozen=True, slots=True)
class Window:
    """In each `period` of elements of a buffer, `count` of them from `start` on. All numbers."""

    buffer: str
    period: int
    start: int
    count: int

    def meets(self, other: Window) -> bool:
        """Whether both may have an element."""
        if self.buffer != other.buffer:
            return False
        first, second = sorted((self, other), key=lambda one: one.start)
        return self.period != other.period or first.start + first.count > second.start


def window_of(node: ComputedBuffer) -> Window | None:
    """What a node writes; None where two iterations might write one element, or where that is not
    part of a period."""
    stores = list(node.body.stores())
    if node.body.reduction_ranges or len(stores) != 1 or stores[0].imm != "set":
        return None
    index = stores[0].index
    if index is None:
        return None
    loops = [atom for atom, _ in index.terms if isinstance(atom, Var) and atom.name.startswith("i")]
    if not len(loops) == len(index.terms) == sum(extent != 1 for extent in node.body.ranges):
        return None
    steps = sorted((step, atom.high + 1) for atom, step in index.terms)
    if any(type(n) is not int for pair in (*steps, (index.offset,)) for n in pair):
        return None
    count = steps[0][1] if steps and steps[0][0] == 1 else 1
    outer = steps[1:] if count > 1 else steps
    if not outer or any(step <= 0 for step, _ in steps) or not _are_nested(outer):
        return None
    period = math.gcd(*[step for step, _ in outer])
    start = index.offset % period
    fits = start + count <= period and index.offset >= 0
    return Window(stores[0].buffer, period, start, count) if fits else None


def are_apart(nodes: Sequence[ComputedBuffer], apart: Sequence[ComputedBuffer]) -> bool:
    """Whether nodes of one kernel leave each other's windows alone. apart: those of them that write
    a part of a buffer each."""
    windows = [window_of(node) for node in apart]
    if any(window is None for window in windows):
        return False
    known = [window for window in windows if window is not None]
    if any(one.meets(other) for at, one in enumerate(known) for other in known[:at]):
        return False
    targets = {window.buffer for window in known}
    for node in nodes:
        read = {op.buffer for op in node.body.loads()}
        stored = set() if node in apart else {op.buffer for op in node.body.stores()}
        if not targets.isdisjoint(read | stored):
            return False
    return True


def _are_nested(steps: Sequence[tuple[int, int]]) -> bool:
    """Whether each step goes beyond all that the smaller ones reach."""
    return all(b >= a * n for (a, n), (b, _) in zip(steps, steps[1:], strict=False))
