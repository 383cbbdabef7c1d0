"""Where a break ends the trace.

A frame is resumable when each frame above it waits at a plain call. The trace ends at the innermost
resumable frame: before its current instruction. When that instruction has already changed something
(a Var, the record of effects), the state before it is gone, and the whole trace starts again with
the order to break there.
"""

from __future__ import annotations

import os
import sysconfig
from types import CodeType
from typing import NoReturn

from dynamo.base.errors import Break, RestartTrace, Signal
from dynamo.base.user_lines import TORCH
from dynamo.symbolic.core.trace_result import BreakExit, FrameState
from dynamo.symbolic.machine.protocols import RunningFrame

BRANCHING = frozenset(
    """POP_JUMP_IF_TRUE POP_JUMP_IF_FALSE POP_JUMP_IF_NONE POP_JUMP_IF_NOT_NONE
    JUMP_IF_TRUE_OR_POP JUMP_IF_FALSE_OR_POP FOR_ITER""".split()
)


class EndTrace(Signal):
    """The trace is over; carries its exit."""

    def __init__(self, exit: BreakExit) -> None:
        super().__init__(exit)
        self.exit = exit


def end_trace(frame: RunningFrame, reason: Break) -> NoReturn:
    """Ends the trace because of a break in the frame's current instruction."""
    trace = frame.trace
    if frame not in trace.frames:
        try:
            raise reason
        finally:
            del reason
    reason.bare()
    last = innermost_resumable(trace.frames)
    target = trace.frames[last]
    instruction = target.current
    if reason.code == "trace_too_long" and 2 * target.step_at_start <= trace.context.max_steps:
        reason = Break("call_too_long", reason.detail)  # a continuation would get no further
    if instruction.part or trace.effects.clock != target.clock_at_start:
        raise RestartTrace(target.step_at_start - instruction.part, reason)
    trace.graph.rollback(target.mark_at_start)
    target.stack[:] = target.stack_at_start
    states = [state_of(item) for item in reversed(trace.frames[: last + 1])]
    raise EndTrace(BreakExit(reason, tuple(states), instruction.op in BRANCHING))


STDLIB = sysconfig.get_path("stdlib") + os.sep
SITE = (sysconfig.get_path("purelib") + os.sep, sysconfig.get_path("platlib") + os.sep)
# Of torch's own code only what is written like programs of users.
PROGRAMS = tuple(
    os.path.join(TORCH, name) + os.sep for name in ("nn", "optim", "utils", "distributions")
)


def is_standard_library(code: CodeType) -> bool:
    """True for Python's own library and its import system, and for torch's insides (torch.func,
    whose levels must not outlive a graph, serialization, ..): inlined, never cut."""
    name = code.co_filename
    if name.startswith(TORCH):
        return not name.startswith(PROGRAMS)
    return name.startswith("<frozen") or (name.startswith(STDLIB) and not name.startswith(SITE))


def innermost_resumable(frames: list[RunningFrame]) -> int:
    """Index of the innermost frame that a continuation can resume."""
    for index, frame in enumerate(frames):
        if frame.is_generator or (index and is_standard_library(frame.code)):
            return index - 1
        if not frame.awaiting:
            return index
    return len(frames) - 1


def state_of(frame: RunningFrame) -> FrameState:
    """A frame at the end of the trace."""
    return FrameState(
        code=frame.code,
        instruction=frame.current.index,
        stack=tuple(frame.stack),
        locals=dict(frame.locals),
        cells=dict(frame.cells),
        globals=frame.globals,
        line=frame.user_line(),
    )
