"""Which iterations of a nest may store into one element.

Where two iterations may, their order counts: it decides which value stays, or how a float sum is
rounded. Iterations that differ in a loop "apart" from the others never do, whatever the indirect
variables are: such a loop may be shared among threads and be vectorised.
"""

from __future__ import annotations

from inductor.codegen.cpp.nest import Loop, Nest, indirect_variables
from inductor.ir.body import Op
from inductor.ir.extent import common_factor, surely_less
from inductor.ir.index import Index, Var


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
    missing = {loop.name for loop in nest.loops if loop.extent != 1} - names
    return bool(missing) or any(op.index.stride_of(name) is None for name in names)


def is_apart(nest: Nest, name: str) -> bool:
    """Whether iterations that differ in this loop never store into one element."""
    if not may_collide(nest):
        return True
    return any(loop.name == name for loop in apart_loops(nest))


def apart_loops(nest: Nest) -> tuple[Loop, ...]:
    """The plain loops whose value can be told from the place of each colliding store."""
    places = [
        op.index
        for op in nest.ops
        if op.name == "store" and op.index is not None and store_collides(nest, op)
    ]
    return tuple(
        loop for loop in nest.of_kind("i") if all(_tells(index, loop) for index in places)
    )


def _tells(index: Index, loop: Loop) -> bool:
    """Whether index = high + step * loop + low with low < step, and `high` in steps of at least
    the range of the rest."""
    step = index.stride_of(loop.name)
    if step is None or not surely_less(0, step) or loop.extent in (0, 1):
        return False
    span, unit = 0, 0
    for atom, factor in index.terms:
        if not isinstance(atom, Var) or not surely_less(-1, factor):
            return False
        if atom.name == loop.name:
            continue
        if surely_less(factor, step):
            span += factor * atom.high
        elif surely_less(step - 1, factor):
            unit = factor if unit == 0 else common_factor(unit, factor)
        else:
            return False
    last = step * (loop.extent - 1) + span
    return surely_less(span, step) and (unit == 0 or surely_less(last, unit))
