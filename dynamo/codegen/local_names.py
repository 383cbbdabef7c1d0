"""Where a frame breaks, temporaries of the new code that hold its locals are called like these.

In: the code, and what the frame's locals are at the break. Out: the same code, whose frame a
debugger (`breakpoint()`, `sys._getframe`) shows with the program's names.
"""

from __future__ import annotations

from collections.abc import Mapping

from dynamo.bytecode.raw import RawCode
from dynamo.symbolic.core.var import Var

TEMPORARY = "__"


def name_locals(
    raw: RawCode, locals_: Mapping[str, Var], places: Mapping[Var, str]
) -> None:
    """locals_: of the frame, by name. places: the temporaries that hold values. Of two names of one
    value the first is shown; names of the code's own are left alone."""
    renamed: dict[str, str] = {}
    used = {slot for instruction in raw.instructions for slot in instruction.slots}
    taken = {*used, *raw.varnames[:raw.parameters], *raw.cellvars, *raw.freevars}
    for name, var in locals_.items():
        place = places.get(var, "")
        if place.startswith(TEMPORARY) and place not in renamed and name not in taken:
            renamed[place] = name
    if not renamed:
        return
    free = set(renamed.values())
    raw.varnames[:] = [renamed.get(name, name) for name in raw.varnames if name not in free]
    for instruction in raw.instructions:
        if instruction.slots:
            instruction.slots = tuple([renamed.get(slot, slot) for slot in instruction.slots])
