"""Sums along an axis on which at most one element is not zero.

In: a tensor that is `where(position == place, value, 0)` along the axis, as the gradient of a loss
over classes is, or that and an addend which is the same along the axis, as it is with smoothed
labels. Out: `value` where the place lies on the axis, and 0 elsewhere, and the addend times the
number of elements: no loop is needed.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from inductor.ir.body import IndirectVar, Op, Ops, Value, loop_variables
from inductor.ir.graph import Layout, joined_origins
from inductor.ir.index import constant, flatten, variable
from inductor.lowering.builder import Builder
from inductor.lowering.tensor import Indices, Tensor

ADDENDS = (torch.float32, torch.float64)
HIT = "hit"  # the variable of the axis


def sum_of_one_hot(
    builder: Builder, layout: Layout, source: Tensor, axis: int
) -> Tensor | None:
    """The sum along the axis; None where more than one element may count."""
    size = source.size[axis]

    def search(ops: Ops, i: Indices) -> tuple[_Search, Value | None]:
        places = i if len(i) != len(source.size) else (*i[:axis], *i[axis + 1 :])
        hit = HIT  # another one where this is read in such a sum along another axis
        while any(var.name == hit for index in places for var in index.variables()):
            hit += HIT
        where = (*places[:axis], variable(hit, size), *places[axis:])
        searching = _Search(builder, ops, where, hit, size)
        return searching, searching.total(source.load(ops, where).position)

    searched, found = search(Ops(), loop_variables(layout.size))
    if found is None:
        return None

    def compute(ops: Ops, i: Indices) -> Value:
        value = search(ops, i)[1]
        assert value is not None
        return value

    reads = source.reads | searched.reads
    return Tensor(
        layout, builder, compute=compute, cost=source.cost + 4, reads=reads,
        origins=joined_origins([source.origins, builder.origins]),
    )


class _Search:
    """The search for the one element that may be other than zero, at `where`, in recorded ops.

    reads: what tensors read that are recomputed, though they have been stored since.
    """

    def __init__(
        self, builder: Builder, ops: Ops, where: Indices, hit: str, size: int
    ) -> None:
        self.builder = builder
        self.ops = ops
        self.where = where
        self.hit = hit
        self.size = size
        self.reads: frozenset[str] = frozenset()

    def total(self, position: int) -> Value | None:
        """The sum; an addend is a float32 or a float64, of which no part is rounded in between."""
        op = self.ops.recorded[position]
        if op.name == "load" and op.dtype in ADDENDS:
            inner = self._computed(op)
            return None if inner is None else self.total(inner)
        if op.name != "add" or op.dtype not in ADDENDS:
            return self.only_hit(position)
        moving = _moving(self.ops.recorded, self.hit)
        for one, other in (op.args, op.args[::-1]):
            hit = None if moving[one] else self.only_hit(other)
            if hit is not None:
                count = self.ops.constant(self.size, op.dtype)
                return self.ops.add(self.ops.mul(Value(one, op.dtype), count), hit)
        return None

    def only_hit(self, position: int) -> Value | None:
        ops = self.ops
        op = ops.recorded[position]
        if op.name == "where":
            return self._chosen(op)
        if op.name not in ("load", "neg", "to_dtype"):  # of 0, the latter two make 0
            return None
        inner = self._computed(op) if op.name == "load" else op.args[0]
        value = None if inner is None else self.only_hit(inner)
        if value is None:
            return None
        return ops.neg(value) if op.name == "neg" else ops.to_dtype(value, op.dtype)

    def _computed(self, op: Op) -> int | None:
        """What a buffer holds here, recomputed."""
        recipe = self.builder.recipes.get(op.buffer)
        if recipe is None or op.args:
            return None
        layout, compute, reads = recipe
        if len(layout.size) != len(self.where) or op.index != flatten(self.where, layout.stride):
            return None
        for node in self.builder.nodes:
            written = getattr(node, "mutates", ())
            touched = (written,) if isinstance(written, str) else written
            if op.buffer in touched or not reads.isdisjoint(touched):
                return None
        self.reads |= reads
        return compute(self.ops, self.where).position

    def _chosen(self, op: Op) -> Value | None:
        """Of `where(position == place, value, 0)`."""
        ops, recorded = self.ops, self.ops.recorded
        moving = _moving(recorded, self.hit)
        test, value, other = op.args
        tests = list(_conjuncts(recorded, test))
        hits = [each for each in tests if moving[each]]
        if moving[value] or not _is_zero(recorded, other) or len(hits) != 1:
            return None
        place = _place(recorded, moving, hits[0], self.hit)
        if place is None:
            return None
        start, target = place
        found = ops.bitwise_and(
            ops.ge(target, ops.constant(start, target.dtype)),
            ops.lt(target, ops.constant(start + self.size, target.dtype)),
        )
        for each in tests:
            if each != hits[0]:
                found = ops.bitwise_and(found, Value(each, recorded[each].dtype))
        of = recorded[value].dtype
        return ops.where(found, Value(value, of), ops.constant(0, of))


def _moving(recorded: list[Op], hit: str) -> list[bool]:
    """For each op, whether it depends on the variable of the axis."""
    moving: list[bool] = []
    names = {hit}
    for op in recorded:
        moves = any(moving[arg] for arg in op.args)
        if op.index is not None:
            moves = moves or any(var.name in names for var in op.index.variables())
        if moves and isinstance(op.imm, IndirectVar):
            names.add(op.imm.var.name)
        moving.append(moves)
    return moving


def _conjuncts(recorded: list[Op], position: int) -> Iterator[int]:
    op = recorded[position]
    if op.name == "bitwise_and":
        for arg in op.args:
            yield from _conjuncts(recorded, arg)
    else:
        yield position


def _is_zero(recorded: list[Op], position: int) -> bool:
    op = recorded[position]
    if op.name == "to_dtype":
        return _is_zero(recorded, op.args[0])
    return op.name == "constant" and op.imm == 0


def _place(
    recorded: list[Op], moving: list[bool], test: int, hit: str
) -> tuple[int, Value] | None:
    """Of `position on the axis + start == place`: start and place."""
    if recorded[test].name != "eq":
        return None
    for one, other in (recorded[test].args, recorded[test].args[::-1]):
        op = recorded[one]
        if moving[other] or op.name != "index_expr" or op.index is None:
            continue
        start = op.index.substitute({hit: constant(0)})
        if start.is_constant and op.index.stride_of(hit) == 1:
            return start.offset, Value(other, recorded[other].dtype)
    return None
