"""Stages without reduction: every operation once for each combination of the loops."""

from __future__ import annotations

from collections.abc import Sequence

from inductor.codegen.cpp.nest import Loop, Nest, indirect_variables, stride_in
from inductor.codegen.cpp.scope import Scope, checked_ops, error_name
from inductor.ir.body import Op

BAD_STRIDE = 3


def order_loops(nest: Nest) -> tuple[Loop, ...]:
    """The loops with the best one innermost; as they are where stores may collide."""
    loops = nest.of_kind("i")
    if len(loops) < 2 or may_collide(nest):
        return loops
    best = max(loops, key=lambda loop: (-access_cost(nest, loop), loops.index(loop)))
    return (*(loop for loop in loops if loop is not best), best)


def access_cost(nest: Nest, loop: Loop) -> int:
    """How dear the accesses are when this loop is the innermost one."""
    indirect = indirect_variables(nest)
    cost = 0
    for op in nest.ops:
        if op.name in ("load", "store") and op.index is not None:
            step = stride_in(op.index, loop.name, indirect)
            if step is None or abs(step) > 1:
                cost += BAD_STRIDE * (2 if op.name == "store" else 1)
            elif step == 0 and op.name == "store":
                cost += BAD_STRIDE
    return cost


def may_collide(nest: Nest) -> bool:
    """Whether two iterations may store into one element (then their order counts)."""
    return any(op.name == "store" and store_collides(nest, op) for op in nest.ops)


def store_collides(nest: Nest, op: Op) -> bool:
    """Whether the places of a store are not known to differ for all its iterations."""
    assert op.index is not None
    indirect = indirect_variables(nest)
    names = {var.name for var in op.index.variables()}
    if names & indirect.keys():
        return True
    if op.imm != "add":
        return False
    missing = {loop.name for loop in nest.loops if loop.extent > 1} - names
    return bool(missing) or any(op.index.stride_of(name) is None for name in names)


def print_pointwise(
    scope: Scope, loops: Sequence[Loop], bounds: dict[str, tuple[str, str]]
) -> None:
    """Loops in the given order around all operations; bounds: begin and end of some loops."""
    nest, writer = scope.nest, scope.writer
    everything = range(len(nest.ops))
    scope.print_ready(everything, stores=not loops)
    if not loops:
        return
    loop, *rest = loops
    begin, end = bounds.get(loop.name, ("0", str(loop.extent)))
    if not rest and not may_collide(nest):
        writer.line(simd_pragma(nest))
    with writer.block(f"for (i64 {loop.name} = {begin}; {loop.name} < {end}; ++{loop.name}) {{"):
        with scope.nested(loop.name):
            print_pointwise(scope, rest, bounds)


def simd_pragma(nest: Nest, extra: str = "") -> str:
    """The pragma of an innermost loop; errors of checked indices are collected by it."""
    names = ", ".join(error_name(op) for op in checked_ops(nest))
    clause = f" reduction(max:{names})" if names else ""
    return f"#pragma omp simd{clause}{extra}"
