"""Cuts the innermost loop of a stage where a condition on its variable changes.

In: a stage, e.g. of a concatenation or a padding: `where(i0 < 32, masked load, masked load)`. Out:
stages over parts of the loop in which such conditions are constant and gone: nothing is masked
there, so that the loops are plain vector code. Loops of reductions are cut where they are printed
(`codegen/cpp/reduction.py`): their parts share the accumulators.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from inductor.ir.body import LoopBody, Op
from inductor.ir.extent import Extent, hint_of, surely_less, up_to_multiple
from inductor.ir.index import Index, Var, variable
from inductor.scheduler.assemble import drop_dead
from inductor.scheduler.domain import substituted
from inductor.scheduler.schedule import Kernel

MOST_PARTS = 4  # of a loop, each of which is compiled; chosen, not measured


def split_kernel(kernel: Kernel) -> Kernel:
    """The kernel with its stages cut; a stage that touches a local of several elements stays."""
    rows = {local.name for local in kernel.locals if local.elements > 1}
    stages: list[LoopBody] = []
    for stage in kernel.stages:
        if stage.reduction_ranges or any(op.buffer in rows for op in stage.ops):
            stages.append(stage)
        else:
            stages += split_stage(stage)
    return replace(kernel, stages=tuple(stages))


def split_stage(stage: LoopBody) -> list[LoopBody]:
    """Parts of a stage, in order of the loop; the stage itself where nothing is to be cut."""
    if not stage.ranges:
        return [stage]
    name, size = f"i{len(stage.ranges) - 1}", stage.ranges[-1]
    parts = find_parts(stage.ops, name, size)
    return [_part(stage, name, *part) for part in parts] if len(parts) > 1 else [stage]


def find_parts(ops: Sequence[Op], name: str, size: int) -> list[tuple[int, int]]:
    """(start, end) of the parts of a loop in which comparisons of its variable are constant; the
    whole loop where it has none, or too many."""
    inside = {c for c in _cuts(ops, name) if surely_less(0, c) and surely_less(c, size)}
    cuts = sorted(inside, key=hint_of)
    edges = [0, *cuts, size]
    parts = list(zip(edges, edges[1:], strict=False))
    if len(parts) > MOST_PARTS or not all(surely_less(*part) for part in parts):
        return [(0, size)]
    return parts


def find_truths(ops: Sequence[Op], name: str, start: int, end: int) -> dict[int, bool]:
    """Comparisons that are constant where the variable is in that part, by position."""
    moved: Index = variable(name, end - start) + start
    there = [op if op.index is None else replace(op, index=op.index.substitute({name: moved}))
             for op in ops]  # fmt: skip
    found = {position: _comparison(op, there) for position, op in enumerate(there)
             if op.name in ("ge", "lt", "gt", "le")}  # fmt: skip
    return {position: truth for position, truth in found.items() if truth is not None}


def _cuts(ops: Sequence[Op], name: str) -> Iterator[int]:
    """Values of the variable at which a comparison of it with a number changes."""
    for op in ops:
        if op.name not in ("ge", "lt", "gt", "le", "eq", "ne"):
            continue
        left, right = (ops[arg] for arg in op.args)
        if left.name != "index_expr" or right.name != "constant" or left.index is None:
            continue
        terms = left.index.terms
        if len(terms) != 1 or not isinstance(terms[0][0], Var) or terms[0][0].name != name:
            continue
        assert isinstance(right.imm, (int, Extent))
        factor, bound = terms[0][1], right.imm - left.index.offset
        if not surely_less(0, factor):
            continue
        at_least, above = up_to_multiple(bound, factor), bound // factor + 1
        if op.name in ("ge", "lt", "eq", "ne"):
            yield at_least
        if op.name in ("gt", "le", "eq", "ne"):
            yield above


def _part(stage: LoopBody, name: str, start: int, end: int) -> LoopBody:
    moved: Index = variable(name, end - start) + start
    ops = _folded(list(substituted(stage, {name: moved})))
    return replace(stage, ranges=(*stage.ranges[:-1], end - start), ops=ops)


def _folded(ops: list[Op]) -> tuple[Op, ...]:
    """Comparisons that the ranges decide are constants, and so is what follows from them."""
    place: list[int] = []
    live: list[Op] = []
    for op in ops:
        op = replace(op, args=tuple(place[arg] for arg in op.args))
        value = _decided(op, live)
        if isinstance(value, bool):
            op = Op("constant", (), torch.bool, imm=value)
        elif isinstance(value, int):
            place.append(value)  # the value of an earlier op
            continue
        elif op.name == "load" and op.args:
            mask = _constant(live, op.args[0])
            if mask is True:
                op = replace(op, args=())
            elif mask is False:
                op = Op("constant", (), op.dtype, imm=_zero(op.dtype))
        place.append(len(live))
        live.append(op)
    return drop_dead(live)


class Position(int):
    """Position of an op, to be told from a truth value."""


def _decided(op: Op, live: list[Op]) -> bool | int | None:
    """The truth value of a comparison or combination, or the position of what it equals."""
    if op.name in ("ge", "lt", "gt", "le"):
        return _comparison(op, live)
    if op.name in ("bitwise_and", "bitwise_or") and op.dtype is torch.bool:
        for one, other in (op.args, op.args[::-1]):
            known = _constant(live, one)
            if known is not None:
                neutral = op.name == "bitwise_and"
                return Position(other) if known is neutral else known
    if op.name == "logical_not":
        known = _constant(live, op.args[0])
        return None if known is None else not known
    if op.name == "where":
        known = _constant(live, op.args[0])
        return None if known is None else Position(op.args[1] if known else op.args[2])
    return None


def _comparison(op: Op, live: list[Op]) -> bool | None:
    left, right = (live[arg] for arg in op.args)
    if right.name != "constant" or left.dtype is not torch.int64:
        return None
    if left.name == "index_expr" and left.index is not None:
        low, high = left.index.low, left.index.high
    elif left.name == "constant":
        low = high = left.imm  # type: ignore[assignment]
    else:
        return None
    bound: int = right.imm  # type: ignore[assignment]
    always, never = {
        "ge": (surely_less(bound - 1, low), surely_less(high, bound)),
        "lt": (surely_less(high, bound), surely_less(bound - 1, low)),
        "gt": (surely_less(bound, low), surely_less(high - 1, bound)),
        "le": (surely_less(high - 1, bound), surely_less(bound, low)),
    }[op.name]
    return True if always else False if never else None


def _constant(live: list[Op], position: int) -> bool | None:
    op = live[position]
    return bool(op.imm) if op.name == "constant" and op.dtype is torch.bool else None


def _zero(dtype: torch.dtype) -> bool | int | float:
    if dtype is torch.bool:
        return False
    return 0.0 if dtype.is_floating_point else 0
