"""Which operations of a nest run before, inside of and after its reduction loops.

A reduction stage is walked in phases: `before` (needed inside, no r variable), then passes over the
r loops, then `after`. Usually there is one pass; an operation inside that uses the result of a
reduction needs another one, in which what it uses of the first pass is computed once more.
"""

from __future__ import annotations

from dataclasses import dataclass

from inductor.codegen.cpp.nest import Nest
from inductor.ir.body import IndirectVar


@dataclass(frozen=True, slots=True)
class Pass:
    """Positions computed inside of the r loops of one pass, and the reductions it ends with."""

    members: tuple[int, ...]
    reductions: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Phases:
    """Positions by phase; `before` are those that a pass uses."""

    before: tuple[int, ...]
    passes: tuple[Pass, ...]
    after: tuple[int, ...]


def split_phases(nest: Nest) -> Phases:
    """The phases of a nest with r loops."""
    inner = {loop.name for loop in nest.of_kind("r")}
    inside = [bool(depends & inner) for depends in nest.depends]
    number = _number_passes(nest)
    passes = []
    needed_before: set[int] = set()
    for count in range(max(number, default=0) + 1):
        reductions = [
            n for n, op in enumerate(nest.ops) if op.name == "reduction" and number[n] == count
        ]
        sinks = reductions + [
            n for n in range(len(nest.ops)) if inside[n] and number[n] == count and acts(nest, n)
        ]
        closure = close_over(nest, sinks)
        members = [n for n in closure if inside[n] and n not in reductions]
        passes.append(Pass(tuple(members), tuple(reductions)))
        needed_before |= {n for n in closure if not inside[n] and n not in reductions}
    sinks = [n for n in range(len(nest.ops)) if not inside[n] and acts(nest, n)]
    after = [
        n for n in close_over(nest, sinks)
        if not inside[n] and nest.ops[n].name != "reduction"
    ]
    return Phases(
        tuple(n for n in sorted(needed_before) if nest.ops[n].name != "reduction"),
        tuple(p for p in passes if p.members or p.reductions),
        tuple(after),
    )


def close_over(nest: Nest, sinks: list[int]) -> list[int]:
    """The sinks and all that they use: operands and indirect variables. Ends at reductions."""
    defined = {
        op.imm.var.name: n for n, op in enumerate(nest.ops) if isinstance(op.imm, IndirectVar)
    }
    found: set[int] = set()
    todo = list(sinks)
    while todo:
        position = todo.pop()
        if position in found:
            continue
        found.add(position)
        op = nest.ops[position]
        if op.name == "reduction" and position not in sinks:
            continue
        todo += op.args
        if op.index is not None:
            todo += [defined[v.name] for v in op.index.variables() if v.name in defined]
    return sorted(found)


def acts(nest: Nest, position: int) -> bool:
    """Whether an operation does more than compute a value."""
    op = nest.ops[position]
    return op.name == "store" or (isinstance(op.imm, IndirectVar) and op.imm.check)


def _number_passes(nest: Nest) -> list[int]:
    """In which pass an operation is computed; for those outside: after how many passes."""
    defined = {
        op.imm.var.name: n for n, op in enumerate(nest.ops) if isinstance(op.imm, IndirectVar)
    }
    number: list[int] = []
    for op in nest.ops:
        uses = list(op.args)
        if op.index is not None:
            uses += [defined[v.name] for v in op.index.variables() if v.name in defined]
        later = (number[use] + (nest.ops[use].name == "reduction") for use in uses)
        number.append(max(later, default=0))
    return number
