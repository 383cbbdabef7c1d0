"""Iteration domains: a body's loops in their shortest form, and the same body over other loops.

Loops of a body count, in row-major order, a flat position. Two bodies with equally many iterations
can share loops whenever one is rewritten in terms of the other's: each of its variables is
`flat // step % size`. Neighbouring loops that no access tells apart are merged first, so that a
contiguous body has one loop.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from inductor.ir.body import LoopBody, Op
from inductor.ir.extent import divides, hint_of
from inductor.ir.graph import ComputedBuffer
from inductor.ir.index import Index, constant, floordiv, mod, variable


def product(sizes: Sequence[int]) -> int:
    """Number of elements, or of iterations of nested loops."""
    total = 1
    for size in sizes:
        total *= size
    return total


def flat_position(names: Sequence[str], sizes: Sequence[int]) -> Index:
    """Row-major position of the variables."""
    total = constant(0)
    for name, size in zip(names, sizes, strict=True):
        total = total * size + variable(name, size)
    return total


def unflatten(flat: Index, names: Sequence[str], sizes: Sequence[int]) -> dict[str, Index]:
    """The value of each variable at a flat position."""
    values: dict[str, Index] = {}
    step = 1
    for name, size in reversed(list(zip(names, sizes, strict=True))):
        if size != 1:
            values[name] = mod(floordiv(flat, step), size)
        step *= size
    return values


def loop_names(prefix: str, sizes: Sequence[int]) -> list[str]:
    return [f"{prefix}{n}" for n in range(len(sizes))]


def substituted(body: LoopBody, values: Mapping[str, Index]) -> Iterator[Op]:
    """The ops of a body with other expressions for its loop variables."""
    for op in body.ops:
        if op.index is None or not op.index.terms:
            yield op
        else:
            yield replace(op, index=op.index.substitute(values))


def merged_loops(node: ComputedBuffer) -> ComputedBuffer:
    """The node with as few loops as its accesses allow."""
    body = node.body
    if 0 in body.ranges or 0 in body.reduction_ranges:
        return node
    plain = _merge_plan("i", body.ranges, body)
    reduced = _merge_plan("r", body.reduction_ranges, body)
    if plain == body.ranges and reduced == body.reduction_ranges:
        return node
    values: dict[str, Index] = {}
    for prefix, old, new in (("i", body.ranges, plain), ("r", body.reduction_ranges, reduced)):
        flat = flat_position(loop_names(prefix, new), new)
        values.update(unflatten(flat, loop_names(prefix, old), old))
    ops = tuple(substituted(body, values))
    if body.reduction_ranges and not reduced:
        return replace(node, body=LoopBody(plain, (), _reducing_one(ops)), kind="pointwise")
    return replace(node, body=LoopBody(plain, reduced, ops))


def _reducing_one(ops: Sequence[Op]) -> tuple[Op, ...]:
    """The same ops where every reduction is over one element: its value, or its position."""
    place: list[int] = []
    live: list[Op] = []
    for op in ops:
        args = tuple(place[arg] for arg in op.args)
        if op.name in ("reduction", "scan"):
            place.append(args[-1])
        elif op.name == "sort":
            place.append(len(live))
            live.append(Op("constant", (), op.dtype, imm=0))
        else:
            place.append(len(live))
            live.append(replace(op, args=args))
    return tuple(live)


def _merge_plan(prefix: str, sizes: tuple[int, ...], body: LoopBody) -> tuple[int, ...]:
    """Loop sizes after merging: size-1 loops go, neighbours go together where every access moves
    by `size of the inner * stride of the inner` with the outer."""
    loops = [(f"{prefix}{n}", size) for n, size in enumerate(sizes) if size != 1]
    if not loops:
        return ()
    indices = {op.index for op in body.ops if op.index is not None and op.index.terms}
    strides: dict[str, list[int | None]] = {
        name: [index.stride_of(name) for index in indices] for name, _ in loops
    }
    groups = [[loops[0]]]
    for name, size in loops[1:]:
        outer = groups[-1][-1][0]
        together = all(
            a is not None and b is not None and a == b * size
            for a, b in zip(strides[outer], strides[name], strict=True)
        )
        if together:
            groups[-1].append((name, size))
        else:
            groups.append([(name, size)])
    return tuple(product([size for _, size in group]) for group in groups)


def boundaries(sizes: Sequence[int]) -> list[int]:
    """Steps of the flat position at which a loop begins: products of the sizes of inner loops."""
    steps, step = [], 1
    for size in reversed(sizes):
        steps.append(step)
        step *= size
    return steps


def sizes_between(steps: Sequence[int], total: int) -> tuple[int, ...]:
    """Loop sizes for boundaries; those that would not divide one another are left out."""
    chain = [1]
    for step in sorted(set(steps), key=hint_of):
        if step not in (chain[-1], total) and divides(chain[-1], step) and divides(step, total):
            chain.append(step)
    chain.append(total)
    sizes = [outer // inner for inner, outer in zip(chain, chain[1:], strict=False)]
    return tuple(size for size in reversed(sizes) if size != 1)


def is_column(body: LoopBody) -> bool:
    """Whether neighbours in memory belong to different results of a reduction."""
    if not body.ranges:
        return False
    votes = 0
    inner, outer = f"r{len(body.reduction_ranges) - 1}", f"i{len(body.ranges) - 1}"
    for op in body.loads():
        assert op.index is not None
        along = op.index.stride_of(inner)
        if along == 1 and op.index.stride_of(outer) == 0:
            continue  # the same for all results: little
        if along == 1:
            votes -= 1
        elif op.index.stride_of(outer) == 1 and along != 0:
            votes += 1
    return votes > 0
