"""Where in the user's program a trace is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dynamo.base.user_lines import TORCH
from dynamo.guards.records import UserLine


def user_stack(frames: Sequence[Any]) -> tuple[UserLine, ...]:
    """The user's lines, outermost first. frames: those of the trace, the root first."""
    return tuple(frame.user_line() for frame in frames)


def user_line(frames: Sequence[Any]) -> UserLine | None:
    """Of the innermost frame that is not torch's own, which the user can't change."""
    own = (f for f in reversed(frames) if not f.code.co_filename.startswith(TORCH))
    frame = next(own, frames[-1] if frames else None)
    return None if frame is None else frame.user_line()  # type: ignore[no-any-return]
