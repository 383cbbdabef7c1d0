"""Which locals and cells an instruction and what may follow it can still read.

A local that nobody can read any more is not carried over a break.
"""

from __future__ import annotations

from dynamo.bytecode.decode import Decoded, Instruction

READS = frozenset(("LOAD_FAST", "DELETE_FAST", "LOAD_FAST_AND_CLEAR"))
WRITES = frozenset(("STORE_FAST", "DELETE_FAST", "LOAD_FAST_AND_CLEAR"))
CELL_OPS = frozenset(
    """LOAD_CLOSURE STORE_CLOSURE LOAD_DEREF STORE_DEREF DELETE_DEREF LOAD_CLASSDEREF
    LOAD_FROM_DICT_OR_DEREF MAKE_CELL""".split()
)
ENDS = frozenset(("RETURN_VALUE", "RERAISE", "RAISE_VARARGS", "JUMP"))


class Liveness:
    """Live names before each instruction of one code object."""

    def __init__(self, decoded: Decoded) -> None:
        names = sorted(
            {str(item.arg) for item in decoded.instructions if item.op in READS | WRITES | CELL_OPS}
        )
        self._bits = {name: 1 << number for number, name in enumerate(names)}
        self._live = _solve(decoded, self._bits)

    def at(self, index: int) -> frozenset[str]:
        """Names that may be read at or after the instruction."""
        live = self._live[index]
        return frozenset(name for name, bit in self._bits.items() if live & bit)


def _solve(decoded: Decoded, bits: dict[str, int]) -> list[int]:
    instructions, handlers = decoded.instructions, decoded.handlers
    live = [0] * (len(instructions) + 1)
    effects = [_effect(item, bits) for item in instructions]
    changed = True
    while changed:
        changed = False
        for index in range(len(instructions) - 1, -1, -1):
            item, handler = instructions[index], handlers[index]
            out = 0 if item.op in ENDS else live[index + 1]
            if item.target >= 0:
                out |= live[item.target]
            reads, writes = effects[index]
            value = out & ~writes | reads
            if handler is not None:
                value |= live[handler.target]
            if value != live[index]:
                live[index] = value
                changed = True
    return live


def _effect(item: Instruction, bits: dict[str, int]) -> tuple[int, int]:
    """(read, written) bits; cells count as read wherever they are mentioned."""
    bit = bits.get(item.arg, 0) if isinstance(item.arg, str) else 0
    if item.op in CELL_OPS:
        return bit, 0
    return (bit if item.op in READS else 0), (bit if item.op in WRITES else 0)
