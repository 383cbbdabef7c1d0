"""Joins stages of a kernel whose stages become functions of their own.

In: a kernel. Out: the same with fewer stages: what is computed once for each row goes into the
reduction before or after it, and reductions of which none needs another one share a loop. Each
stage would be a launch, which costs more than its work.
"""

from __future__ import annotations

from dataclasses import replace

from inductor.ir.body import IndirectVar, LoopBody, Op
from inductor.scheduler.domain import product
from inductor.scheduler.schedule import Kernel


def join_stages(kernel: Kernel) -> Kernel:
    """See the top of the file."""
    stages = [kernel.stages[0]]
    for stage in kernel.stages[1:]:
        joined = _joined(stages[-1], stage)
        if joined is None:
            stages.append(stage)
        else:
            stages[-1] = joined
    return replace(kernel, stages=tuple(stages))


def _joined(first: LoopBody, second: LoopBody) -> LoopBody | None:
    """One stage for two; None where one of them has loops that the other would run in."""
    if product(first.ranges) != 1 or product(second.ranges) != 1:
        return None
    loops = first.reduction_ranges
    if product(second.reduction_ranges) != 1:
        if product(loops) != 1 and loops != second.reduction_ranges:
            return None
        loops = second.reduction_ranges
    if first.is_of_rows() or second.is_of_rows():
        return None
    for stage in (first, second):
        if any(isinstance(op.imm, IndirectVar) for op in stage.ops):
            return None
        if product(stage.reduction_ranges) == 1 and any(o.name == "reduction" for o in stage.ops):
            return None
    stored = {op.buffer: op for op in first.stores()}
    if any(op.imm != "set" for op in (*first.stores(), *second.stores())):
        return None
    ops = list(first.ops)
    at: list[int] = []
    for op in second.ops:
        if op.name == "load" and op.buffer in stored:
            before = stored[op.buffer]
            if op.args or op.index != before.index or op.dtype is not before.dtype:
                return None
            at.append(before.args[0])
            continue
        at.append(len(ops))
        ops.append(replace(op, args=tuple(at[arg] for arg in op.args)))
    if _reduces_twice(ops):
        return None
    return LoopBody((), loops, tuple(ops))


def _reduces_twice(ops: list[Op]) -> bool:
    """Whether something that follows from a reduction is reduced again."""
    late: set[int] = set()
    for position, op in enumerate(ops):
        follows = any(arg in late for arg in op.args)
        if op.name == "reduction":
            if follows:
                return True
            late.add(position)
        elif follows:
            late.add(position)
    return False
