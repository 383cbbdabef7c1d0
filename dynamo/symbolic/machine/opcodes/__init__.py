"""What each normalised opcode does to a symbolic frame: one short function per opcode."""

from __future__ import annotations

from dynamo.symbolic.machine.opcodes import (
    calls,
    containers,
    exceptions,
    generators,
    jumps,
    names,
    operators,
)
from dynamo.symbolic.machine.opcodes.table import HANDLERS

FAMILIES = (
    calls, containers, exceptions, generators, jumps, names, operators
)

__all__ = ["FAMILIES", "HANDLERS"]
