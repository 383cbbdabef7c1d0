"""May operations of a loop be computed twice, and compared? See `dynamo/aot/repeats.py`."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from dynamo.aot.repeats import FUNCTIONS
from inductor.ir.body import DECIDES, LoopBody, Op

# Operations that decide by their operands.
DECIDING = frozenset(
    """eq ne lt le gt ge isnan isinf sign signbit floor ceil trunc round floordiv truncdiv
    remainder fmod copysign nextafter logical_not""".split()
)
PLACES = ("argmax", "argmin")


def is_exact(ops: Sequence[Op], position: int, unsure: Collection[str] = ()) -> bool:
    """Whether the value at a position has the same bits in each loop that computes it from the same
    loads. unsure: buffers of which a load has not."""
    for _, op in _chain(ops, position):
        if op.name in FUNCTIONS and op.dtype.is_floating_point:
            return False
        if op.name == "load" and op.buffer in unsure:
            return False
    return True


def _chain(ops: Sequence[Op], position: int) -> Iterator[tuple[int, Op]]:
    """The operations that a value is computed by."""
    needed = {position}
    for at in range(position, -1, -1):
        if at in needed:
            needed.update(ops[at].args)
            yield at, ops[at]


def finds_places(ops: Sequence[Op]) -> Iterator[int]:
    """Positions of the values of which argmax and argmin find the place."""
    return (op.args[0] for op in ops if op.name == "reduction" and op.imm in PLACES)


def decides_by_buffer(stages: Sequence[LoopBody], name: str) -> bool:
    """Whether these loops decide something by what they load from a buffer, or by what they make
    of it."""
    made = {name}
    for stage in stages:
        reached: set[int] = set()
        for at, op in enumerate(stage.ops):
            if reached.isdisjoint(op.args) and not (op.name == "load" and op.buffer in made):
                continue
            whole = op.name == "to_dtype" and not op.dtype.is_floating_point
            if whole or op.name in DECIDING or op.imm in (*PLACES, DECIDES):
                return True
            reached.add(at)
            if op.name == "store":
                made.add(op.buffer)
    return False
