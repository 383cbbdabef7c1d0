"""Half precision in strips: an innermost loop in pieces, and whole strips converted around it.

g++ vectorises the conversions of single float16 as a dozen integer operations, and loops over
16-bit and 32-bit elements with shuffles between them; over a strip a conversion is a few
instructions for a vector (`k_widen_strip`, `k_narrow_strip`), and the loop over the strip is
float32 only. In: the nest and the loop. Out: a nest of the same operations whose half-precision
loads and stores go to float32 arrays instead, and these arrays.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from inductor.codegen.cpp.collisions import may_collide
from inductor.codegen.cpp.nest import Nest, indirect_variables, stride_in
from inductor.codegen.cpp.scope import Scope
from inductor.codegen.cpp.types import BYTES, HALF
from inductor.codegen.cpp.work import MATH, weigh
from inductor.ir.body import IndirectVar, Op
from inductor.ir.extent import divides, hint_of
from inductor.ir.index import Index, variable
from inductor.ir.scalar_ops import STRUCTURAL

STRIP = 64  # elements, so few that g++ unrolls the loop and keeps them in registers
# Elements of a loop, and tensors in it, for which strips are worth it; chosen, not measured.
SHORTEST = 64
MOST_STRIPS = 12


@dataclass(frozen=True, slots=True)
class Strips:
    """nest: with float32 loads and stores of arrays called `h` and the position of the operation;
    loads, stores: positions of these."""

    nest: Nest
    loop: str
    loads: tuple[int, ...]
    stores: tuple[int, ...]

    def array(self, position: int) -> str:
        return f"h{position}"


def find_strips(scope: Scope, loop: str, extent: int) -> Strips | None:
    """What can be converted in strips along this loop; None if that is nothing."""
    nest = scope.nest
    if scope.guard or hint_of(extent) < SHORTEST or may_collide(nest):
        return None
    users = _users(nest)
    loads = [p for p in _candidates(scope, loop, "load") if _widens_only(nest, users[p])]
    stores = list(_candidates(scope, loop, "store"))
    narrowed = {nest.ops[p].args[0] for p in stores}
    narrowed = {p for p in narrowed if p not in scope.known and _narrows(nest, p)}
    narrowed = {p for p in narrowed if users[p] <= set(stores)}
    stores = [p for p in stores if nest.ops[p].args[0] in narrowed]
    if not 0 < len(loads) + len(stores) <= MOST_STRIPS:
        return None
    if _is_light(nest) and all(nest.ops[p].dtype is torch.bfloat16 for p in (*loads, *stores)):
        return None
    return Strips(_widened(nest, loads, stores), loop, tuple(loads), tuple(stores))


def narrow_loads(scope: Scope, loop: str, members: Iterable[int]) -> list[int]:
    """Loads among `members` of neighbouring halves or bytes, of which only float32 is made: those
    that may be converted in front of a loop over a few neighbours. With bytes in it g++ takes the
    loop 64 elements at a time, with shuffles, and leaves the sums in memory: weights in int8 came
    from memory at 10 GB/s, and at 22 to 30 with their conversion in front (one core with AVX-512).
    """
    nest, wanted = scope.nest, set(members)
    if scope.guard or may_collide(nest):
        return []
    users = _users(nest)
    found = [p for p in _candidates(scope, loop, "load", (*HALF, *BYTES))
             if p in wanted and _widens_only(nest, users[p]) and _is_placed(scope, p)]
    light = _is_light(nest) and all(nest.ops[p].dtype is torch.bfloat16 for p in found)
    return [] if light or len(found) > MOST_STRIPS else found


def _is_placed(scope: Scope, position: int) -> bool:
    """Whether all values in the index of an access have been printed."""
    index = scope.nest.ops[position].index
    assert index is not None
    names = {var.name for var in index.variables()}
    return all(
        n in scope.known for n, op in enumerate(scope.nest.ops)
        if isinstance(op.imm, IndirectVar) and op.imm.var.name in names
    )


def _is_light(nest: Nest) -> bool:
    """Whether the loop is no longer than the conversions of bfloat16, which are vectorised well."""
    return all(op.name in STRUCTURAL or weigh(op) < MATH for op in nest.ops)


def _candidates(
    scope: Scope, loop: str, name: str, dtypes: Sequence[torch.dtype] = HALF
) -> Iterator[int]:
    """Accesses to neighbours of these dtypes, which may move to the start or the end of a strip."""
    nest, indirect = scope.nest, indirect_variables(scope.nest)
    for position, op in enumerate(nest.ops):
        if op.name != name or op.dtype not in dtypes or op.index is None:
            continue
        if position in scope.known or stride_in(op.index, loop, indirect) != 1:
            continue
        names = {var.name for var in op.index.variables()}
        if names & (scope.empty_variables | scope.checked):
            continue
        if not scope.memory(op.buffer, op.index).endswith("]"):
            continue  # a local that is a variable
        if op.imm == "add" or len(op.args) != (name == "store"):
            continue  # or is masked
        if not _is_crossed(nest, position):
            yield position


def _is_crossed(nest: Nest, position: int) -> bool:
    """Whether another access to the buffer would be on the other side after the move."""
    op = nest.ops[position]
    if op.name == "load":
        others = (o for o in nest.ops[:position] if o.name == "store")
    else:
        others = (
            o for n, o in enumerate(nest.ops)
            if n != position and (o.name == "store" or (o.name == "load" and n > position))
        )  # fmt: skip
    return any(other.buffer == op.buffer for other in others)


def _users(nest: Nest) -> list[set[int]]:
    found: list[set[int]] = [set() for _ in nest.ops]
    for position, op in enumerate(nest.ops):
        for arg in op.args:
            found[arg].add(position)
    return found


def _widens_only(nest: Nest, users: set[int]) -> bool:
    ops = [nest.ops[user] for user in users]
    return all(op.name == "to_dtype" and op.dtype is torch.float32 for op in ops)


def _narrows(nest: Nest, position: int) -> bool:
    op = nest.ops[position]
    return op.name == "to_dtype" and nest.ops[op.args[0]].dtype is torch.float32


def _widened(nest: Nest, loads: list[int], stores: list[int]) -> Nest:
    ops: list[Op] = list(nest.ops)
    for position in (*loads, *stores):
        ops[position] = replace(ops[position], buffer=f"h{position}", dtype=torch.float32)
    for position in stores:
        value = ops[position].args[0]
        ops[value] = replace(ops[value], dtype=torch.float32)
    return replace(nest, ops=tuple(ops))


def print_strips(scope: Scope, strips: Strips, begin: str, end: str, pragma: str) -> None:
    """The loop from `begin` to `end` in strips. What is left over by whole ones is a loop of its
    own: one whose count g++ knows takes half of the time."""
    writer, name = scope.writer, strips.loop
    start = f"{name}_from"
    arrays = [strips.array(p) for p in (*strips.loads, *strips.stores)]
    extent = next(loop.extent for loop in scope.nest.loops if loop.name == name)
    at_start = variable(start, extent)

    def memory(buffer: str, index: Index) -> str:
        if buffer in arrays:
            return f"{buffer}[{name} - {start}]"
        return scope.memory(buffer, index)

    def place(position: int) -> str:
        op = scope.nest.ops[position]
        assert op.index is not None
        return "&" + scope.memory(op.buffer, op.index.substitute({name: at_start}))

    def print_strip(count: str) -> None:
        for position in strips.loads:
            writer.line(f"k_widen_strip({place(position)}, {strips.array(position)}, {count});")
        writer.line(pragma)
        with writer.block(f"for (i64 {name} = {start}; {name} < {start} + {count}; ++{name}) {{"):
            inner = scope.over(strips.nest, memory, name)
            inner.print_ready(range(len(strips.nest.ops)), stores=True)
        for position in strips.stores:
            writer.line(f"k_narrow_strip({strips.array(position)}, {place(position)}, {count});")

    with writer.block(f"for (i64 {start} = {begin}; {start} < {end}; {start} += {STRIP}) {{"):
        for array in arrays:
            writer.line(f"alignas(64) f32 {array}[{STRIP}];")
        if (begin, end) == ("0", str(extent)) and divides(STRIP, extent):
            print_strip(str(STRIP))
            return
        with writer.block(f"if ({end} - {start} >= {STRIP}) {{"):
            print_strip(str(STRIP))
        with writer.block("else {"):
            print_strip(f"({end} - {start})")
