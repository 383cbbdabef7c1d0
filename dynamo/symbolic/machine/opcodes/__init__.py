"""What each normalised opcode does to a symbolic frame: one short function per opcode."""

from __future__ import annotations

from dynamo.symbolic.machine.opcodes import (
    calls,
    containers,
    exception_blocks,
    jumps,
    matching,
    names,
    operators,
    suspensions,
)
from dynamo.symbolic.machine.opcodes.table import HANDLERS

FAMILIES = (
    calls, containers, exception_blocks, jumps, matching, names, operators, suspensions
)

__all__ = ["FAMILIES", "HANDLERS"]
