"""Whether a frame is traced, and whether what was traced is worth having.

In: a frame, later what its trace has found. Out: a reason to run the frame as it is, or none.
"""

from __future__ import annotations

from types import CodeType, FunctionType

import torch
import torch.utils.checkpoint

from dynamo.base.decisions import decisions
from dynamo.base.errors import SkipFrame
from dynamo.codegen.continuation import Continuations
from dynamo.codegen.generate import is_resumed
from dynamo.frames.callers import is_caller
from dynamo.frames.libraries import OWN, library_of
from dynamo.frames.worth import mentions_tensors
from dynamo.hook import FrameState
from dynamo.symbolic.core.context import CodeCache
from dynamo.symbolic.core.lookup import find_in_mro
from dynamo.symbolic.core.trace_result import BreakExit, ReturnExit, TraceResult
from dynamo.symbolic.machine.inline import spreads_work
from dynamo.symbolic.tensors.modules import shards_work

CALL = torch.nn.Module._call_impl.__code__
CALLS = (CALL, torch.nn.Module.__call__.__code__)
# What a call runs where there are hooks.
HOOKED = next(code for code in CALL.co_consts if getattr(code, "co_name", None) == "inner")
SHARDED = "its hooks gather its parameters around its forward, which is compiled"


def forward_code(cls: type) -> CodeType | None:
    """The code of a module class's `forward`, None where that is no plain function."""
    forward = find_in_mro(cls, "forward")
    return forward.__code__ if isinstance(forward, FunctionType) else None


def skip_reason(
    frame: FrameState, continuations: Continuations, requested: CodeType | None
) -> str | None:
    """Why frames of this code are run as they are, None where they are traced. asked: the code that
    the user compiles."""
    if continuations.is_continuation(frame.code):
        return None
    if decisions.has("skipped", frame.code):
        return "the user skips it"
    if frame.code is torch.nn.Module._call_impl.__code__:
        forward = forward_code(type(frame.locals["self"]))
        if forward is not None and spreads_work(forward):
            return "the module spreads the work of the one inside it, which is compiled"
    if frame.code in CALLS and shards_work(frame.locals["self"]):
        return SHARDED
    if frame.code is HOOKED and shards_work(frame.cells["self"].cell_contents):
        return SHARDED
    reason = library_of(frame.code, frame.globals)
    by_user = frame.code is requested and not spreads_work(frame.code)
    if by_user and (reason != OWN or is_caller(frame.code)):
        return None
    return reason


def check_worth(
    frame: FrameState, result: TraceResult, continuations: Continuations, codes: CodeCache
) -> None:
    """A frame that breaks before any tensor was met gains nothing from being replaced. Errors:
    SkipFrame, for ever where its code has a loop that need not end."""
    if result.graph is not None or isinstance(result.exit, ReturnExit):
        return
    introspects = result.exit.reason.code == "frame_introspection"
    if introspects and len(result.exit.frames) == 1 and not result.effects:
        raise SkipFrame("it looks at its local variables as a whole")
    if continuations.is_continuation(frame.code):
        check_progress(result.exit, result.steps, continuations, codes)
        return
    if any(guard.kind == "TENSOR" for guard in result.guards):
        return
    if mentions_tensors(frame):
        return
    raise SkipFrame("no tensor before the first break", forever=codes.is_endless(frame.code))


def check_progress(
    exit: BreakExit, steps: int, continuations: Continuations, codes: CodeCache
) -> None:
    """A continuation that would go on where it begins would be made again, without end. Errors:
    SkipFrame."""
    state = exit.frames[-1]
    if len(exit.frames) > 1 or continuations.has_begun(state.code, steps):
        return
    if is_resumed(exit, codes.decode(state.code).instructions[state.instruction]):
        raise SkipFrame("it breaks where it begins")
