"""Sums along an axis on which at most one element is not zero.

In: a tensor that is `where(position == place, value, 0)` along the axis, as the gradient of a loss
over classes is. Out: `value` where the place lies on the axis, and 0 elsewhere: no loop is needed.
"""

from __future__ import annotations

from collections.abc import Iterator

from inductor.ir.body import IndirectVar, Op, Ops, Value, loop_variables
from inductor.ir.graph import Layout
from inductor.ir.index import constant, variable
from inductor.lowering.builder import Builder
from inductor.lowering.tensor import Indices, Tensor

HIT = "hit"  # the variable of the axis
CARRIES_ZERO = ("neg", "to_dtype")  # of 0 they make 0


def sum_of_one_hot(
    builder: Builder, layout: Layout, source: Tensor, axis: int
) -> Tensor | None:
    """The sum along the axis; None where more than one element may count."""
    lazy = _as_computed(builder, source)
    if lazy is None:
        return None
    source, size = lazy, lazy.size[axis]

    def at(ops: Ops, i: Indices) -> Value | None:
        kept = i if len(i) != len(source.size) else (*i[:axis], *i[axis + 1 :])
        hit = HIT  # another one where this is read in such a sum along another axis
        while any(var.name == hit for index in kept for var in index.variables()):
            hit += HIT
        value = source.load(ops, (*kept[:axis], variable(hit, size), *kept[axis:]))
        return _only_hit(ops, value.position, hit, size)

    if at(Ops(), loop_variables(layout.size)) is None:
        return None

    def compute(ops: Ops, i: Indices) -> Value:
        value = at(ops, i)
        assert value is not None
        return value

    return builder.computed(layout, [source], 2, compute)


def _as_computed(builder: Builder, source: Tensor) -> Tensor | None:
    """The tensor as it is computed, though it may have been stored since."""
    if source.view is None:
        return source
    if source.recipe is None:
        return None
    compute, reads = source.recipe
    for node in builder.nodes:
        written = getattr(node, "mutates", ())
        if not reads.isdisjoint((written,) if isinstance(written, str) else written):
            return None
    return Tensor(
        source.layout, builder, compute=compute, cost=4, reads=reads, origins=source.origins
    )


def _only_hit(ops: Ops, position: int, hit: str, size: int) -> Value | None:
    """The one element that may be other than zero."""
    recorded = ops.recorded
    moving = _moving(recorded, hit)
    if recorded[position].name in CARRIES_ZERO:
        op = recorded[position]
        inner = _only_hit(ops, op.args[0], hit, size)
        if inner is None:
            return None
        return ops.neg(inner) if op.name == "neg" else ops.to_dtype(inner, op.dtype)
    if recorded[position].name != "where":
        return None
    test, value, other = recorded[position].args
    tests = list(_conjuncts(recorded, test))
    hits = [each for each in tests if moving[each]]
    if moving[value] or not _is_zero(recorded, other) or len(hits) != 1:
        return None
    place = _place(recorded, moving, hits[0], hit)
    if place is None:
        return None
    start, target = place
    found = ops.bitwise_and(
        ops.ge(target, ops.constant(start, target.dtype)),
        ops.lt(target, ops.constant(start + size, target.dtype)),
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
    while op.name in CARRIES_ZERO:
        op = recorded[op.args[0]]
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
