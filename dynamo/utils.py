"""Names that users of torch.compile know as its `utils`: counters, times, comparison, compiles.

    >>> import torch, dynamo
    >>> _ = dynamo.compile(lambda x: x.sin() + 1, backend="eager")(torch.ones(2))
    >>> get_compilation_metrics()[-1].graph_op_count
    2
"""

from __future__ import annotations

from dataclasses import dataclass

from dynamo.base import events
from dynamo.base.counters import compile_times, counters
from dynamo.testing import same

__all__ = ["CompilationMetrics", "clear_compilation_metrics", "compile_times", "counters",
           "get_compilation_metrics", "same"]  # fmt: skip


@dataclass(frozen=True, slots=True)
class CompilationMetrics:
    """What tracing one frame has found. compile_id: `frame/attempt`; co_*: of its code; start_time:
    seconds since the epoch, at its end. break_reason: why the graph ends before the frame does."""

    compile_id: str
    co_name: str
    co_filename: str
    co_firstlineno: int
    graph_op_count: int
    start_time: float
    break_reason: str | None = None


def get_compilation_metrics() -> list[CompilationMetrics]:
    """Of the last compiles in this process, the oldest first (see `dynamo.base.events`)."""
    return [_metrics_of(event) for event in events.events("frame")]


def clear_compilation_metrics() -> None:
    """Forgets all events."""
    events.clear()


def _metrics_of(event: events.Event) -> CompilationMetrics:
    data = event.data
    ended = data.get("break")
    return CompilationMetrics(
        event.compile_id, data["frame"], data["file"], data["line"], data["operations"],
        event.time, ended["reason"] if ended else None,
    )  # fmt: skip
