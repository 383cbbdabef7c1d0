"""Loads and stores of every second element: of pairs that lie side by side in memory.

In: the ops of a stage, one of its loads, and the loop along which a thread has neighbours (`axis`);
or the stores of a launch. Out: where both elements of each pair lie, so that they are moved as
neighbours, many bytes at a time. What lies two elements apart would be moved element by element,
and a warp would touch each line of the cache for as many instructions as a line has pairs. There
are two kinds of loads:

- `Swapped`: each iteration reads the first, or the second, element of the pair that it belongs to
  itself, as `x[2 * (r // 2)]` (rotary embeddings). All elements of the tile are loaded; a thread
  that has both of a pair gives each its neighbour without moving anything.
- `Doubled`: each iteration reads one element of its own pair, as `x[2 * r]` (gates and values that
  alternate). A tile of twice as many elements is loaded and split.

Two stores, each of one element of each pair, are joined to one of the tile of both.

A condition of a load that only tells the two apart is dropped: Triton loads many bytes at a time
only where a mask is the same for all of them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import torch

from inductor.codegen.triton.launch import Launch, Stage
from inductor.ir.body import OF_ROWS, Op, is_small
from inductor.ir.extent import Extent
from inductor.ir.index import Index, floordiv, mod, variable

NUMBER, SIDE, BOTH = "pair_number", "pair_side", "pair_both"  # variables
COUNTED = frozenset({"x", "r", "s", "g"})  # variables that are no values of indirect ops
NEITHER = frozenset({"indirect", "reduction", "keep", *OF_ROWS})  # of which nothing is said
COMPARISONS: Mapping[str, Callable[[int, int], bool]] = {
    name: getattr(operator, name) for name in ("lt", "le", "gt", "ge", "eq", "ne")
}


@dataclass(frozen=True, slots=True)
class Swapped:
    """both: where the elements of the tile lie, along the axis; side: which of a pair is wanted;
    conditions: positions of the ops that have to hold for a load."""

    both: Index
    side: int
    conditions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Doubled:
    """both: where the elements of the doubled tile lie, along `BOTH`; side: which is wanted."""

    both: Index
    side: int


def pair_of(
    ops: Sequence[Op], position: int, axis: str, elements: int
) -> Swapped | Doubled | None:
    """None for a load that is none of a pair, or where it is not sure that both elements of all
    pairs are there. elements: of the buffer."""
    op = ops[position]
    assert op.index is not None
    if is_small(op.dtype) or op.dtype is torch.bool:
        return None
    extent = _extent_of(op.index, axis)
    if not extent or not _is_counted(op.index) or type(op.index.offset) is Extent:
        return None
    if op.index.step_of(axis) == 2:
        return _doubled(ops, position, axis, extent, elements)
    if extent % 2:
        return None
    side = op.index.offset % 2
    halves = _halves(axis, extent)
    inner = op.index.substitute(halves)
    if inner.depends_on(SIDE) or inner.step_of(NUMBER) != 2:
        return None
    conditions = _kept_conditions(ops, op, halves)
    if conditions is None:
        return None
    both = op.index + mod(variable(axis, extent), 2) - side

    def is_other(other: Op) -> bool:
        return _kept_conditions(ops, other, halves) == conditions

    if both.step_of(axis) != 1 or not _is_there(ops, op, side, both, elements, is_other):
        return None
    return Swapped(both, side, conditions)


def _doubled(
    ops: Sequence[Op], position: int, axis: str, extent: int, elements: int
) -> Doubled | None:
    op = ops[position]
    assert op.index is not None
    if not all(_is_alike(ops, arg, axis) for arg in op.args):
        return None
    side, place = op.index.offset % 2, variable(BOTH, 2 * extent)
    both = op.index.substitute({axis: floordiv(place, 2)}) + mod(place, 2) - side
    if both.step_of(BOTH) != 1:
        return None
    if not _is_there(ops, op, side, both, elements, lambda other: other.args == op.args):
        return None
    return Doubled(both, side)


def joined_stores(launch: Launch, axis: str) -> dict[str, Index]:
    """Buffers that two stores fill, of which each writes every second element; and where both write
    along `BOTH`. Of launches without loops, where what the first one stores is still there when
    the second one does."""
    loops = not (launch.persistent or launch.tiled) and any(s.columns != 1 for s in launch.stages)
    if loops or any(stage.serial != 1 for stage in launch.stages):
        return {}
    own = {local.name for local in launch.locals}
    touched: dict[str, list[tuple[Stage, Op]]] = {}
    for stage in launch.stages:
        for op in stage.ops:
            if op.name in ("load", "store") and op.buffer not in own:
                touched.setdefault(op.buffer, []).append((stage, op))
    found = {}
    for buffer, accesses in touched.items():
        both = _joined(accesses, axis) if len(accesses) == 2 else None
        if both is not None:
            found[buffer] = both
    return found


def _joined(accesses: Sequence[tuple[Stage, Op]], axis: str) -> Index | None:
    (stage, op), (second, other) = accesses
    if not all(each.name == "store" and each.imm == "set" for _, each in accesses):
        return None
    dtype = stage.ops[op.args[0]].dtype
    if stage.columns != second.columns or dtype is not second.ops[other.args[0]].dtype:
        return None
    if is_small(dtype) or dtype is torch.bool:
        return None
    assert op.index is not None and other.index is not None
    first = op.index if other.index == op.index + 1 else other.index
    extent = _extent_of(first, axis)
    if not extent or not _is_counted(first) or {op.index, other.index} != {first, first + 1}:
        return None
    place = variable(BOTH, 2 * extent)
    both = first.substitute({axis: floordiv(place, 2)}) + mod(place, 2)
    return both if first.step_of(axis) == 2 and both.step_of(BOTH) == 1 else None


def _is_there(
    ops: Sequence[Op], op: Op, side: int, both: Index, elements: int,
    is_alike: Callable[[Op], bool],
) -> bool:
    """Whether the other elements of the pairs are in the buffer: all places are, or they are loaded
    where these are. (They are read where the wanted ones would be, so that values are masked.)"""
    if type(elements) is not Extent and both.low >= 0 and both.high < elements:
        return True
    assert op.index is not None
    wanted = op.index + (1 if side == 0 else -1)
    return any(
        other.name == "load" and other.buffer == op.buffer and other.index == wanted
        and is_alike(other) for other in ops
    )  # fmt: skip


def _extent_of(index: Index, axis: str) -> int:
    """That of the loop, if it is a known one that the index depends on; else 0."""
    sizes = [var.size for var in index.variables() if var.name == axis]
    return sizes[0] if sizes and type(sizes[0]) is not Extent else 0


def _is_counted(index: Index) -> bool:
    return COUNTED.issuperset(var.name for var in index.variables())


def _halves(axis: str, extent: int) -> dict[str, Index]:
    return {axis: variable(NUMBER, extent // 2) * 2 + variable(SIDE, 2)}


def _kept_conditions(
    ops: Sequence[Op], op: Op, halves: Mapping[str, Index]
) -> tuple[int, ...] | None:
    """Conditions of a load without those that choose one of a pair; None where that is not all
    there is."""
    kept = []
    for position in _conditions(ops, op.args):
        sides = _sides(ops, position, halves)
        if sides is not None and any(sides):
            continue
        if not _is_same_in_pairs(ops, position, halves):
            return None
        kept.append(position)
    return tuple(kept)


def _conditions(ops: Sequence[Op], positions: Collection[int]) -> list[int]:
    """What all has to hold, without repeats."""
    found: dict[int, None] = {}
    for position in positions:
        op = ops[position]
        if op.name == "bitwise_and" and op.dtype is torch.bool:
            found |= dict.fromkeys(_conditions(ops, op.args))
        else:
            found[position] = None
    return list(found)


def _sides(
    ops: Sequence[Op], position: int, halves: Mapping[str, Index]
) -> tuple[bool, ...] | None:
    """For each of a pair whether the condition holds, if it depends on nothing else."""
    op = ops[position]
    if op.name not in COMPARISONS:
        return None
    left, right = (ops[arg] for arg in op.args)
    if left.name != "index_expr" or right.name != "constant" or type(right.imm) is not int:
        return None
    assert left.index is not None
    inner = left.index.substitute(halves)
    if {var.name for var in inner.variables()} != {SIDE}:
        return None
    compare = COMPARISONS[op.name]
    return tuple(compare(inner.evaluate({SIDE: n}), right.imm) for n in range(2))  # type: ignore[arg-type]


def _is_alike(ops: Sequence[Op], position: int, axis: str) -> bool:
    """Whether a value is the same along the whole axis."""
    op = ops[position]
    if op.name in NEITHER:
        return False
    if op.index is not None and (not _is_counted(op.index) or op.index.depends_on(axis)):
        return False
    return all(_is_alike(ops, arg, axis) for arg in op.args)


def _is_same_in_pairs(ops: Sequence[Op], position: int, halves: Mapping[str, Index]) -> bool:
    """Whether a value is the same for both of a pair."""
    op = ops[position]
    if op.name in NEITHER:
        return False
    if op.index is not None and (
        not _is_counted(op.index) or op.index.substitute(halves).depends_on(SIDE)
    ):
        return False
    return all(_is_same_in_pairs(ops, arg, halves) for arg in op.args)
