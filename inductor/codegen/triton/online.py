"""Sums of exponentials in the same loop as the maximum that is taken off.

In: the stages of a launch that loops over its columns. Out: the same, or with one stage for two: a
maximum m of values v and a sum of exp(v - m), as in softmax and logsumexp. The sum then keeps a
running maximum of its own and scales what it has when that grows, so v is read once, not twice.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import torch

from inductor.codegen.triton.launch import NotPrintable, Phases, Stage
from inductor.codegen.triton.spelling import SUM_OF_EXP
from inductor.ir.body import IndirectVar, Op
from inductor.ir.extent import hint_of
from inductor.scheduler.assemble import drop_dead

LONG_ROW = 4096  # columns of which a step of a loop takes several tiles

DTYPES = (torch.float32, torch.float64)


def join_maxima(stages: Sequence[Stage], row_locals: Collection[str]) -> tuple[Stage, ...]:
    """See the top of the file. row_locals: names of the locals with one element for each row."""
    found = list(stages[:1])
    for stage in stages[1:]:
        joined = _joined(found[-1], stage, row_locals)
        if joined is None:
            found.append(stage)
        else:
            found[-1] = joined
    return tuple(found)


def _joined(first: Stage, second: Stage, row_locals: Collection[str]) -> Stage | None:
    if not _can_share_a_loop(first, second, row_locals):
        return None
    stored = {
        op.buffer: op.args[0]
        for op in first.ops
        if op.name == "store" and op.buffer in row_locals
    }
    ops, at, online = list(first.ops), list[int](), False
    for op in second.ops:
        if op.name == "load" and op.buffer in stored:
            at.append(stored[op.buffer])
            continue
        moved = replace(op, args=tuple(at[arg] for arg in op.args))
        values = _shifted_values(ops, moved)
        if values is not None:
            moved, online = replace(op, args=(values,), imm=SUM_OF_EXP), True
        at.append(len(ops))
        ops.append(moved)
    joined = replace(first, ops=drop_dead(ops))
    return joined if online and _reduces_once(joined) else None


def _can_share_a_loop(first: Stage, second: Stage, row_locals: Collection[str]) -> bool:
    """Whether neither stage touches memory that the other writes, but for locals of rows."""
    if not (first.reduction and second.reduction and first.columns == second.columns):
        return False
    both = (*first.ops, *second.ops)
    if (first.serial, second.serial) != (1, 1):
        return False
    if any(isinstance(op.imm, IndirectVar) for op in both):
        return False
    stores = {op.buffer for op in both if op.name == "store"}
    if any(op.imm != "set" for op in both if op.name == "store"):
        return False
    loads = [op for op in both if op.name == "load"]
    return all(op.buffer in row_locals and not op.args for op in loads if op.buffer in stores)


def _shifted_values(ops: Sequence[Op], op: Op) -> int | None:
    """Where `op` is a sum of exp(v - maximum of v): the position of v."""
    if op.name != "reduction" or op.imm != "sum" or op.dtype not in DTYPES:
        return None
    power = ops[op.args[0]]
    if power.name != "exp" or ops[power.args[0]].name != "sub":
        return None
    values, shift = ops[power.args[0]].args
    if ops[shift].name != "reduction" or ops[shift].imm != "max":
        return None
    return values if is_same(ops, values, ops[shift].args[0]) else None


def is_same(ops: Sequence[Op], one: int, other: int) -> bool:
    """Whether two ops compute the same."""
    a, b = ops[one], ops[other]
    if one == other:
        return True
    same = replace(a, args=()) == replace(b, args=()) and len(a.args) == len(b.args)
    return same and all(is_same(ops, x, y) for x, y in zip(a.args, b.args, strict=True))


def _reduces_once(stage: Stage) -> bool:
    """Whether nothing that follows from a reduction is wanted for each element."""
    try:
        phases = Phases(stage)
    except NotPrintable:
        return False
    reductions = [op for op in stage.ops if op.name == "reduction"]
    return not any(phases.after[arg] for op in reductions for arg in op.args)


def tiles_of(stage: Stage) -> int:
    """How many tiles of columns a step of a loop takes: several for a sum of exponentials over
    long rows."""
    online = any(op.imm == SUM_OF_EXP for op in stage.ops)
    if not online or hint_of(stage.columns) < LONG_ROW:
        return 1
    phases = Phases(stage)
    stores = any(op.name == "store" and phases.inside[n] for n, op in enumerate(stage.ops))
    return 1 if stores or stage.serial != 1 else 4
