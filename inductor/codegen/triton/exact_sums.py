"""Sums that are computed in another way where they turn out to be infinite or no number.

In: a `Kernel` whose stages sum twice: quickly, and then, where that is not finite, term by term
(`lowering/gemms.py: summed`). Out: the same with one reduction for both, whose operands are the
terms of either; the printers put the second loop into a branch that no program takes while all is
finite.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from inductor.ir.body import IndirectVar, LoopBody, Op
from inductor.scheduler.assemble import drop_dead
from inductor.scheduler.schedule import Kernel

SUM_OR_EXACT = "sum_or_exact"


def join_exact_sums(kernel: Kernel) -> Kernel:
    """See the top of the file."""
    stages = tuple(_joined(stage) for stage in kernel.stages)
    return kernel if stages == kernel.stages else replace(kernel, stages=stages)


def _joined(stage: LoopBody) -> LoopBody:
    pairs = [
        (position, *found) for position in range(len(stage.ops))
        if (found := _quick_sum(stage.ops, position)) is not None
    ]  # fmt: skip
    if not pairs:
        return stage
    ops, same = list(stage.ops), dict[int, int]()
    for second, is_finite, first in pairs:
        terms, exact = ops[first].args[0], ops[ops[second].args[0]].args[2]
        ops[second] = replace(ops[second], args=(terms, exact), imm=SUM_OR_EXACT)
        for position, op in enumerate(ops):
            if op.name == "where" and op.args == (is_finite, first, second):
                same[position] = second
    moved = [replace(op, args=tuple(same.get(arg, arg) for arg in op.args)) for op in ops]
    return replace(stage, ops=drop_dead(moved))


def _quick_sum(ops: Sequence[Op], position: int) -> tuple[int, int] | None:
    """Where a sum is one of where(abs(s) < infinity, 0, exact): that test, and the sum s."""
    op = ops[position]
    if op.name != "reduction" or op.imm != "sum" or ops[op.args[0]].name != "where":
        return None
    is_finite, _, _ = ops[op.args[0]].args
    test = ops[is_finite]
    if test.name != "lt" or ops[test.args[0]].name != "abs":
        return None
    (first,) = ops[test.args[0]].args
    is_sum = ops[first].name == "reduction" and ops[first].imm == "sum"
    return (is_finite, first) if is_sum else None


def without_exact(ops: Sequence[Op]) -> tuple[tuple[Op, ...], dict[int, int]]:
    """The ops with sums of the quick terms alone; for the position of each, that of the exact
    terms."""
    exact = {n: op.args[1] for n, op in enumerate(ops) if op.imm == SUM_OR_EXACT}
    return tuple(
        replace(op, args=op.args[:1], imm="sum") if op.imm == SUM_OR_EXACT else op for op in ops
    ), exact


def needed_for(ops: Sequence[Op], wanted: Sequence[int]) -> set[int]:
    """The positions of the ops of which these are made, and their own; of loads, too, those that
    say where."""
    places = {op.imm.var.name: n for n, op in enumerate(ops) if isinstance(op.imm, IndirectVar)}
    found, waiting = set[int](), list(wanted)
    while waiting:
        at = waiting.pop()
        if at not in found:
            found.add(at)
            waiting += ops[at].args
            index = ops[at].index
            named = () if index is None else index.variables()
            waiting += [places[var.name] for var in named if var.name in places]
    return found


def only_for(ops: Sequence[Op], wanted: Sequence[int]) -> frozenset[int]:
    """Those of these ops that nothing else is made of. ops: without uses of the wanted ones."""
    ends = [n for n, op in enumerate(ops) if op.name in ("store", "reduction")]
    return frozenset(needed_for(ops, wanted) - needed_for(ops, ends))
