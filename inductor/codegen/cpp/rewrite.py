"""Rewrites of a nest that keep its meaning and make it faster.

`argmax` and `argmin` with a reduced loop innermost would go one by one; instead the greatest
value is found first and then the least position that holds it: two loops, both vectorised. Both
compute the values, so only those are compared that have the same bits in any loop: others are
stored first (`scheduler/assemble.py`), or go one by one.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from inductor.codegen.cpp.nest import Loop, Nest, find_dependences
from inductor.ir.body import Op
from inductor.ir.extent import surely_less
from inductor.ir.index import Index
from inductor.ir.loop_repeats import PLACES, is_exact

LAST = torch.iinfo(torch.int64).max


def split_arg_reductions(nest: Nest) -> Nest:
    """Each argmax and argmin as max or min, a comparison, and the min of positions."""
    ops: list[Op] = []
    place: list[int] = []

    def add(name: str, args: tuple[int, ...], dtype: torch.dtype, imm: object = None) -> int:
        ops.append(Op(name, args, dtype, imm=imm))  # type: ignore[arg-type]
        return len(ops) - 1

    for op in nest.ops:
        args = tuple(place[arg] for arg in op.args)
        if op.imm in PLACES and _may_split(nest, op):
            value, position = args
            dtype = ops[value].dtype
            best = add("reduction", (value,), dtype, str(op.imm)[3:])
            hit = add("eq", (value, best), torch.bool)
            if dtype.is_floating_point:
                nan = add("isnan", (value,), torch.bool)
                hit = add("bitwise_or", (hit, nan), torch.bool)
            last = add("constant", (), torch.int64, LAST)
            candidate = add("where", (hit, position, last), torch.int64)
            place.append(add("reduction", (candidate,), torch.int64, "min"))
        else:
            ops.append(replace(op, args=args))
            place.append(len(ops) - 1)
    found = tuple(ops)
    return Nest(nest.loops, found, find_dependences(found))


def _may_split(nest: Nest, op: Op) -> bool:
    value, position = op.args
    return is_exact(nest.ops, value) and _counts_up(nest, nest.ops[position])


def _counts_up(nest: Nest, position: Op) -> bool:
    """Whether the position grows from each iteration of the r loops to the next."""
    if position.name == "constant":
        return True  # the only iteration
    if position.name != "index_expr" or position.dtype is not torch.int64:
        return False
    assert position.index is not None
    return _is_increasing(position.index, nest.of_kind("r"))


def _is_increasing(index: Index, loops: tuple[Loop, ...]) -> bool:
    reach = 0  # how far the loops further in move the index
    for loop in reversed(loops):
        step = index.stride_of(loop.name)
        if step is None or not surely_less(reach, step):
            return False
        reach += step * (loop.extent - 1)
    return True
