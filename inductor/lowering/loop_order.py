"""In which order a sum goes over what two dimensions of a program have become: one loop.

In: the body of a reduction whose one loop is divided by a number wherever it matters, as that of
`einsum` is over two axes that lie otherwise in one of its operands. Out: the same over two loops,
the quotient innermost, where more bytes are then read one after the other; else the body itself.

    for r0 < 262144: a[(r0 % 256) * 1024 + r0 // 256]        a is read in steps of 1024
    for r0 < 256, r1 < 1024: a[r0 * 1024 + r1]               as it lies
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from inductor.ir.body import OF_ROWS, LoopBody
from inductor.ir.index import Atom, FloorDiv, Index, Mod, variable

ORDERED = ("argmax", "argmin")  # of equal elements the first counts
LOOP = "r0"


def in_better_order(body: LoopBody, bytes_of: Mapping[str, int]) -> LoopBody:
    """See the top of the file. bytes_of: buffers that are read, by name."""
    if len(body.reduction_ranges) != 1 or type(body.reduction_ranges[0]) is not int:
        return body
    if any(op.name in OF_ROWS or op.imm in ORDERED for op in body.ops):
        return body
    (extent,) = body.reduction_ranges
    atoms = [atom for op in body.ops if op.index is not None for atom in _divided(op.index)]
    divisors = {atom.divisor for atom in atoms}
    if len(divisors) != 1 or any(repr(atom.base) != LOOP for atom in atoms):
        return body
    (divisor,) = divisors
    if type(divisor) is not int or extent % divisor or not 1 < divisor < extent:
        return body
    loops = variable("r1", extent // divisor), variable(LOOP, divisor)  # quotient, remainder
    ops = tuple(
        op if op.index is None else replace(
            op, index=op.index.substitute({LOOP: loops[0] * divisor + loops[1]}))
        for op in body.ops)
    found = LoopBody(body.ranges, (divisor, extent // divisor), ops)
    by_quotients, by_remainders = (_read_in_line(found, name, bytes_of) for name in ("r1", LOOP))
    return found if by_quotients > by_remainders else body


def _divided(index: Index) -> Iterator[FloorDiv | Mod]:
    """What is divided in an index and depends on the loop."""
    for atom, _ in index.terms:
        yield from _divided_in(atom)


def _divided_in(atom: Atom) -> Iterator[FloorDiv | Mod]:
    if isinstance(atom, FloorDiv | Mod) and atom.base.depends_on(LOOP):
        yield atom
        yield from _divided(atom.base)


def _read_in_line(body: LoopBody, name: str, bytes_of: Mapping[str, int]) -> int:
    """Bytes of the buffers in which neighbours along a loop are neighbours in memory."""
    read = {
        op.buffer for op in body.loads()
        if op.index is not None and op.index.stride_of(name) == 1
    }  # fmt: skip
    return sum(bytes_of.get(buffer, 0) for buffer in read)
