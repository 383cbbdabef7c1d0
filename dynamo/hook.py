"""The frame hook's Python face: regions, entries, and callables that enter or leave regions.

In: a callback that compiles frames. Out: calls whose frames run compiled code where guards hold.

    region = Region(callback)               # callback(frame: FrameState) -> Entry | None | SKIP ...
    fast = Compiled(region, f)              # callable, binds as a method, about 20 ns on top of f
    with region: f(x)                       # the same by hand; nests
    with disabled(): f(x)                   # no hook inside
    plain = Disabled(f)                     # the same as a callable; also Compiled(None, f)

The callback gets every plain function frame (not generators, coroutines, class or module bodies)
that starts inside the region and for which no entry's guards hold. It runs with the hook off. It
returns an `Entry` (added to the frame's code object and run at once; its guards are checked on the
same frame first, because that collects the graph inputs), `None` (run this frame as it is, this
time), `KNOWN_ONLY` (the same, and what it calls is not offered: it runs entries that are there),
`SKIP` (never look at this code again in this region), or `SKIP_RECURSIVE` (the same, and
whatever it calls runs without the hook too). An exception of the callback is the frame's; with
`Region(callback, on_error=function)` the frame gives what `function(frame, exception)` gives.

`FrameState`: `code`, `function`, `globals`, `builtins`, `locals` (arguments by name: at its start a
frame has nothing else; an argument that is also a cell variable is still the plain value) and
`cells` (free variables only: name -> cell object; cell variables do not exist yet).

`Entry(code, program, keepalive=None, note=None, direct=None)`: `code` keeps argument names and
counts, flags and free variables of the original and may have more locals, cells, stack. If the
program collects inputs, `code` must have a plain local named `__graph_inputs`; the hook stores the
tuple of collected values in it before the first instruction. What the code calls belongs in its
constants. Frames of entries' codes are never offered; functions that it calls are (wrap what must
not be in `Disabled`).
`direct` is (function, results, picks) where all that the code does is to call the function with the
collected values and to return of its results the one at `picks`, or a tuple of those at `picks`: it
is called with the hook off and without the frame, unless somebody watches frames.

While a Python trace function is active (debugger, coverage), frames run unmodified.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import CodeType
from typing import Any

from dynamo._C import (
    KNOWN_ONLY,
    SKIP,
    SKIP_RECURSIVE,
    Compiled,
    Disabled,
    Entry,
    FrameState,
    Region,
    call_last,
    call_moving,
    counters,
    current_region,
    enter_disabled,
    entry_count,
    forget,
    leave,
    mark_compiled,
    pass_on,
    set_all_eager,
    set_skip,
    traceback,
)

# Of an instruction: its code, globals (None: those of the new code), offset and line.
Place = tuple[CodeType, dict[str, Any] | None, int, int]
GRAPH_INPUTS = "__graph_inputs"  # the fast local that takes the collected inputs

__all__ = [
    "GRAPH_INPUTS",
    "KNOWN_ONLY",
    "SKIP",
    "SKIP_RECURSIVE",
    "Compiled",
    "Disabled",
    "Entry",
    "FrameState",
    "Place",
    "Region",
    "active_region",
    "call_last",
    "call_moving",
    "counters",
    "disabled",
    "entries",
    "entry_count",
    "forget",
    "mark_compiled",
    "pass_on",
    "reset",
    "set_all_eager",
    "skip",
    "traceback",
]


@contextmanager
def disabled() -> Iterator[None]:
    """Turns the hook off in this thread."""
    enter_disabled()
    try:
        yield
    finally:
        leave()


def entries(code: CodeType, region: Region) -> list[Entry]:
    """The entries of a code object in a region, most recent hit first."""
    return region.entries(code)


def reset(*regions: Region) -> None:
    """Forgets all entries and skip marks of the regions. Calls in progress go on."""
    for region in regions:
        region.reset()


def skip(code: CodeType, region: Region) -> None:
    """Never offers frames of this code object to the region."""
    set_skip(code, region, 1)


def active_region() -> Region | None:
    """The region of this thread's running compiled call."""
    return current_region()
