"""What a frame that breaks carries over: the locals and cells that something may still need.

In: the frames of a break. Out: the same without what nobody can read, or notice the end of.
"""

from __future__ import annotations

import _weakrefset
import weakref
from collections.abc import Mapping
from typing import Any

from dynamo.symbolic.core.context import CodeCache
from dynamo.symbolic.core.trace_result import BreakExit, FrameState
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.machine.finalizers import holds_local_class, is_observed

RECEIVER = "__receiver"  # the first parameter of continuations whose own is a cell
# Functions that read all locals of the frame that calls them, dead ones too.
FRAME_READERS = frozenset({"locals", "eval", "exec", "vars", "dir", "_getframe"})
WEAKREF_FILES = (weakref.__file__, _weakrefset.__file__)
# Where a name of these stands, the program refers to objects weakly, or takes addresses.
TELLING_NAMES = frozenset({
    "weakref", *weakref.__all__, "data_ptr", "buffer_info", "ctypes", "addressof", "from_address",
    "__array_interface__", "__cuda_array_interface__",
})


def may_show_lifetimes(exit: BreakExit) -> bool:
    """True where what breaks may be about weak references, which tell what lives, or about
    addresses, which are good as long as what lies there."""
    return any(
        state.code.co_filename.endswith(WEAKREF_FILES)
        or not TELLING_NAMES.isdisjoint(state.code.co_names)
        for state in exit.frames
    )


def live_frames(
    exit: BreakExit, codes: CodeCache, real_values: Mapping[Var, Any], all_values: bool
) -> BreakExit:
    """The exit without locals and cells that nothing can read any more; with `all_values` nothing
    is left out."""
    frames = []
    for state in exit.frames:
        live = codes.liveness(state.code).at(state.instruction)
        if state is not exit.frames[0]:
            live = codes.liveness(state.code).at(state.instruction + 1) | _handler_names(
                state, codes
            )
        keep_all = (
            all_values
            or exit.reason.code == "frame_introspection"
            or not FRAME_READERS.isdisjoint(state.code.co_names)
        )
        first = state.code.co_varnames[:1] if "__class__" in state.code.co_freevars else ()
        receiver = receiver_of(state) if first else {}
        frames.append(
            FrameState(
                code=state.code,
                instruction=state.instruction,
                stack=state.stack,
                locals=receiver
                | {
                    name: var
                    for name, var in state.locals.items()
                    if keep_all or name in live or name in first
                    or is_observed(var, real_values) or holds_local_class(var, real_values)
                },
                cells={
                    name: var
                    for name, var in state.cells.items()
                    if keep_all or name in live or name == "__class__"
                },
                globals=state.globals,
                line=state.line,
            )
        )
    return BreakExit(exit.reason, tuple(frames), exit.branches, all_values)


def receiver_of(state: FrameState) -> dict[str, Var]:
    """What `super()` without arguments takes: the first argument, which may lie in a cell."""
    cell = state.cells.get(state.code.co_varnames[0])
    contents = () if cell is None else tuple(cell.children())
    return {RECEIVER: contents[0]} if contents else {}


def _handler_names(state: FrameState, codes: CodeCache) -> frozenset[str]:
    handler = codes.decode(state.code).handlers[state.instruction]
    if handler is None:
        return frozenset()
    return codes.liveness(state.code).at(handler.target)
