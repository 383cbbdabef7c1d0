"""One stage of a kernel as a nest of named loops, before a strategy is chosen for it.

In: a `LoopBody` and the outer loops around it. Out: `Nest`, the same operations with simpler loops:
loops are split where that takes away divisions, neighbouring loops that every index walks through
as one are merged, loops of one iteration are gone. `depends` says for each op which loops its value
depends on.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from inductor.ir.body import IndirectVar, LoopBody, Op
from inductor.ir.extent import divides, hint_of
from inductor.ir.index import FloorDiv, Index, Mod, Var, variable

SHORTEST_PIECE = 16  # iterations: a vector of float32 with AVX-512; chosen, not measured


@dataclass(frozen=True, slots=True)
class Loop:
    """`for (name = 0; name < extent; ++name)`; kind: "o", "i" or "r"."""

    name: str
    extent: int
    kind: str


@dataclass(frozen=True, slots=True)
class Nest:
    """Loops from the outermost to the innermost, and the operations inside of them."""

    loops: tuple[Loop, ...]
    ops: tuple[Op, ...]
    depends: tuple[frozenset[str], ...]

    def of_kind(self, kinds: str) -> tuple[Loop, ...]:
        return tuple(loop for loop in self.loops if loop.kind in kinds)


def make_nest(stage: LoopBody, outer: tuple[int, ...], fold_outer: bool) -> Nest:
    """The nest of a stage; `fold_outer`: the outer loops become `i` loops of it."""
    loops = [Loop(f"o{n}", size, "i") for n, size in enumerate(outer) if fold_outer]
    loops += [Loop(f"i{n}", size, "i") for n, size in enumerate(stage.ranges)]
    loops += [Loop(f"r{n}", size, "r") for n, size in enumerate(stage.reduction_ranges)]
    long_loops = tuple(loop for loop in loops if loop.extent != 1)
    return merge_loops(split_loops(Nest(long_loops, stage.ops, find_dependences(stage.ops))))


def find_dependences(ops: tuple[Op, ...]) -> tuple[frozenset[str], ...]:
    """Loops that each op depends on; indirect variables are followed to what they came from."""
    found: list[frozenset[str]] = []
    indirect: dict[str, frozenset[str]] = {}
    for op in ops:
        names: set[str] = set()
        for arg in op.args:
            names |= found[arg]
        if op.index is not None:
            for var in op.index.variables():
                names |= indirect.get(var.name, {var.name})
        if op.name == "reduction":
            names = {name for name in names if not name.startswith("r")}
        if isinstance(op.imm, IndirectVar):
            indirect[op.imm.var.name] = frozenset(names)
        found.append(frozenset(names))
    return tuple(found)


def split_loops(nest: Nest) -> Nest:
    """Split loops at the divisors of `loop // n` and `loop % n`, so that both become loops."""
    for loop in nest.loops:
        for divisor in _divisors(nest.ops, loop):
            name = re.sub(r"\W+", "_", f"{loop.name}_{divisor}")
            high = Loop(name, loop.extent // divisor, loop.kind)
            low = replace(loop, extent=divisor)
            whole = variable(high.name, high.extent) * divisor + variable(low.name, divisor)
            ops = tuple(_substituted(op, {loop.name: whole}) for op in nest.ops)
            if _count_divisions(ops) < _count_divisions(nest.ops):
                at = nest.loops.index(loop)
                loops = (*nest.loops[:at], high, low, *nest.loops[at + 1 :])
                return split_loops(Nest(loops, ops, find_dependences(ops)))
    return nest


def _substituted(op: Op, values: dict[str, Index]) -> Op:
    return op if op.index is None else replace(op, index=op.index.substitute(values))


def _divisors(ops: tuple[Op, ...], loop: Loop) -> list[int]:
    """n of all `loop // n` and `loop % n` that divide the loop into pieces long enough."""
    found: dict[int, None] = {}
    for op in ops:
        for atom, _ in op.index.terms if op.index is not None else ():
            if isinstance(atom, FloorDiv | Mod) and atom.base == variable(loop.name, loop.extent):
                found[atom.divisor] = None
    return [n for n in found if hint_of(n) >= SHORTEST_PIECE and divides(n, loop.extent)]


def _count_divisions(ops: tuple[Op, ...]) -> int:
    return sum(
        not isinstance(atom, Var)
        for op in ops
        for atom, _ in (op.index.terms if op.index is not None else ())
    )


def merge_loops(nest: Nest) -> Nest:
    """Merge neighbouring loops of one kind where each index moves through both as through one."""
    loops = list(nest.loops)
    ops = nest.ops
    position = len(loops) - 2
    while position >= 0:
        slow, fast = loops[position], loops[position + 1]
        if slow.kind == fast.kind and _can_merge(ops, slow, fast):
            merged = Loop(slow.name, slow.extent * fast.extent, slow.kind)
            ops = tuple(_replace_pair(op, slow, fast, merged) for op in ops)
            loops[position : position + 2] = [merged]
        position -= 1
    if len(loops) == len(nest.loops):
        return nest
    return Nest(tuple(loops), ops, find_dependences(ops))


def _can_merge(ops: tuple[Op, ...], slow: Loop, fast: Loop) -> bool:
    for op in ops:
        if op.index is None:
            continue
        low, high = op.index.stride_of(fast.name), op.index.stride_of(slow.name)
        if low is None or high is None or high != low * fast.extent:
            return False
    return 0 not in (slow.extent, fast.extent)


def _replace_pair(op: Op, slow: Loop, fast: Loop, merged: Loop) -> Op:
    if op.index is None:
        return op
    stride = op.index.stride_of(fast.name) or 0
    rest = op.index.substitute({slow.name: 0, fast.name: 0})
    index = rest + variable(merged.name, merged.extent) * stride
    return replace(op, index=index)


def stride_in(index: Index, name: str, depends: dict[str, frozenset[str]]) -> int | None:
    """How far one step of a loop moves an index; None if that is not one number.

    depends: the loops behind each indirect variable.
    """
    for var in index.variables():
        if name in depends.get(var.name, ()):
            return None
    return index.stride_of(name)


def indirect_variables(nest: Nest) -> dict[str, frozenset[str]]:
    """Indirect variables and the loops that they depend on."""
    return {
        op.imm.var.name: depends
        for op, depends in zip(nest.ops, nest.depends, strict=True)
        if isinstance(op.imm, IndirectVar)
    }
