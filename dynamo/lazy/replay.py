"""Steps that were seen before: followed in C++ (`dynamo.lazy._C`), call by call, without Python.

The first time, calls come to `lazy.record`, and what each of them did to the trace goes to C++
(`tell`), which makes a tree of it. From then on, a call that fits the tree returns lazy tensors of
the known sizes at once; Python gets the next one that does not, after `lazy.recorder` has put what
was followed into its trace. LazyTensor paper, section 6: what recording costs is what limits lazy
tensors, and a training loop records the same trace again and again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from dynamo.lazy import _C
from dynamo.lazy.graph import numbering
from dynamo.lazy.program import Program
from dynamo.lazy.rules import Number, Rule
from dynamo.lazy.trace import Trace
from dynamo.shapes.facts import Facts

# What a call does, as in `csrc/replay.h`: one operation of the trace; another tensor of a value; it
# runs at once, outside of the trace; it draws numbers into a value; it draws a new one; it leaves
# the trace as it is; it makes a tensor of the trace a view of what it was.
RECORD, ALIAS, OUTSIDE, FILL, LIKE, SKIP, MOVE = range(7)
MOST_STEPS = 200_000


@dataclass(slots=True)
class Said:
    """What the recorder says of the call that it records. records: how many operations it is."""

    deed: int | None = None
    records: int = 0
    payload: Any = None
    operands: tuple[int, ...] = ()
    made: tuple[int, ...] = ()
    lifted: tuple[int, ...] = ()
    drawn: Any = None

    def forget(self) -> None:
        """The next call."""
        self.deed = self.payload = self.drawn = None
        self.records = 0
        self.operands = self.made = self.lifted = ()


SAID = Said()


def recorded(
    rule: Rule | None, trace: Trace, inputs: int, operands: list[int], made: list[Any]
) -> None:
    """One operation was recorded. inputs: how many the trace had before; rule: None where the
    operation makes nothing and writes nothing."""
    SAID.deed = RECORD
    SAID.records += 1
    if rule is None:
        return
    SAID.operands = tuple(operands)
    SAID.made = tuple(value.index for value in made)
    SAID.lifted = _lifted(rule) if rule.numbers else ()
    SAID.payload = (rule, SAID.operands, len(trace.inputs) - inputs, trace.writes_ordinary,
                    trace.dtype)  # fmt: skip


def aliased(index: int | None) -> None:
    """Another tensor of that value of the trace; None: of one outside of it."""
    SAID.deed = ALIAS
    if index is not None:
        SAID.operands = SAID.made = (index,)


def moved() -> None:
    """The operation that was recorded is a view, which its operand becomes. Nothing is followed
    where it is no view, or where more than one operation was recorded."""
    is_view = SAID.deed == RECORD and SAID.records == 1 and bool(SAID.payload)
    rule = SAID.payload[0] if is_view else None
    is_view = rule is not None and rule.single and rule.shares == (0,) and not rule.writes
    SAID.deed = MOVE if is_view else None


def call_was(deed: int, drawn: Any = None) -> None:
    """What the call does after all."""
    SAID.deed, SAID.drawn = deed, drawn


def tell(trace: Trace) -> None:
    """Hands over what was said of the call; nothing where it is not to be followed."""
    if SAID.deed is None or SAID.records > 1:
        return
    _C.note(SAID.deed, SAID.payload, SAID.operands, SAID.made, SAID.lifted, SAID.drawn,
            trace.writes, trace.writes_ordinary)  # fmt: skip


def _lifted(rule: Rule) -> tuple[int, ...]:
    """Pairs: the place of an argument in the schema, and in its list or -1, of each number that is
    an input."""
    names = [argument.name for argument in rule.func._schema.arguments]
    places = [*enumerate(rule.args), *((names.index(n), arg) for n, arg in rule.kwargs.items())]
    found: list[int] = []
    for place, arg in places:
        if type(arg) is Number:
            found += (place, -1)
        elif isinstance(arg, (list, tuple)):
            for item, part in enumerate(arg):
                if type(part) is Number:
                    found += (place, item)
    return tuple(found)


@dataclass(slots=True)
class Ended:
    """What a followed trace runs at its end. made: facts by the number of a tensor. roots: the
    input whose memory a tensor has, or -1. operations: how many it has."""

    program: Program
    made: dict[int, Facts]
    roots: list[int]
    places: tuple[int, ...]
    operations: int
    writes: bool
    dtype: torch.dtype


def ended(trace: Trace, program: Program) -> Ended:
    """The end of a trace that was recorded."""
    made: dict[int, Facts] = {}
    for rule, _, numbers in numbering(trace.rules, trace.wires, trace.places):
        made.update(zip(numbers, rule.made, strict=True))
    return Ended(program, made, trace.roots, tuple(trace.places), len(trace.rules), trace.writes,
                 trace.dtype)  # fmt: skip
