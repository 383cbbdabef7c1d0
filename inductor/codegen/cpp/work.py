"""How much work a stage is, and how many threads it is worth.

One unit is about 0.04 ns of one core: a vectorised load or addition of one float. To start and join
threads costs about as much as half of `PARALLEL_WORK`.
"""

from __future__ import annotations

from math import prod

from inductor.ir.body import LoopBody, Op
from inductor.ir.extent import Extent, hint_of
from inductor.ir.scalar_ops import SCALAR_OPS

# In additions: with less, one thread does all. Weights are of one scalar instruction each. Both are
# chosen, not measured.
PARALLEL_WORK = 1 << 17
WEIGHTS = {"constant": 0, "truediv": 4, "sqrt": 4, "rsqrt": 6, "fma": 1, "indirect": 8,
           "reduction": 2}  # fmt: skip
MATH, INTEGER_DIVISION = 10, 20


def stage_work(stage: LoopBody) -> int:
    """Work of a stage for one outer iteration."""
    inner = prod(stage.ranges) * max(1, prod(stage.reduction_ranges), key=hint_of)
    return inner * sum(weigh(op) for op in stage.ops)


def weigh(op: Op) -> int:
    known = WEIGHTS.get(op.name)
    if known is not None:
        return known
    row = SCALAR_OPS[op.name]
    if row.accepts == "f" and row.cpp.startswith("k_") and row.result == "same":
        return MATH
    if op.name in ("floordiv", "truncdiv", "remainder", "fmod", "pow"):
        return INTEGER_DIVISION
    return 1 if op.dtype.itemsize <= 4 else 2


def count_threads(work: int, threads: int) -> int:
    """How many of the threads are worth it; all where the work is known at a call only."""
    if type(work) is Extent:
        return threads
    if work < PARALLEL_WORK:
        return 1
    return max(1, min(threads, 2 * work // max(PARALLEL_WORK, 1)))
