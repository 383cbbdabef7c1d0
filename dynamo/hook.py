"""The Python face of the frame hook in `dynamo._C`.

A `Region` is one configuration with a callback; `Compiled(region, fn)` calls fn with the region active in this thread.
Each fresh Python frame inside is checked against the entries of its code object; on a miss the
callback gets a `FrameState` and answers with an `Entry`, None (run this frame as it is, this time), SKIP (never
offer this code again) or SKIP_RECURSIVE (nor what it calls).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType, FunctionType
from typing import Any

from dynamo import _C

SKIP = _C.SKIP
SKIP_RECURSIVE = _C.SKIP_RECURSIVE
Entry = _C.Entry
GRAPH_INPUTS = "__graph_inputs"  # the fast local that takes the collected inputs


@dataclass(frozen=True, slots=True)
class FrameState:
    """A frame before its first instruction.

    locals: bound arguments by name. cells: the closure's cells by name of the free variable.
    """

    code: CodeType
    function: FunctionType
    globals: dict[str, Any]
    builtins: dict[str, Any]
    locals: dict[str, Any]
    cells: dict[str, Any]


class Region(_C.Region):  # type: ignore[misc]
    """One configuration of the compiler; `callback(frame: FrameState)` decides about new frames."""

    def __new__(cls, callback: Callable[[FrameState], Any]) -> Region:
        def ask(
            code: CodeType,
            function: FunctionType,
            globals_: dict[str, Any],
            builtins: dict[str, Any],
            locals_: dict[str, Any],
        ) -> Any:
            cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
            return callback(FrameState(code, function, globals_, builtins, locals_, cells))

        return super().__new__(cls, ask)


class Compiled(_C.Compiled):  # type: ignore[misc]
    """A callable like `function` that runs it under a region (None: under no region).

    Keeps name, docstring and signature; binds as a method; `__wrapped__` is the original.
    """

    def __new__(cls, region: Region | None, function: Callable[..., Any]) -> Compiled:
        self = super().__new__(cls, region, function)
        names = [n for n in functools.WRAPPER_ASSIGNMENTS if hasattr(function, n)]
        for name in names:
            self.__dict__[name] = getattr(function, name)
        for name, value in getattr(function, "__dict__", {}).items():
            self.__dict__.setdefault(name, value)
        return self

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self.__wrapped__)

    def __repr__(self) -> str:
        return f"<compiled {self.__wrapped__!r}>"

    def __reduce__(self) -> Any:
        return getattr(self.__wrapped__, "__qualname__", "compiled")


def entries(code: CodeType, region: Region) -> list[Any]:
    """The valid entries, the most recent hit first."""
    return _C.entries(code, region)


def forget(code: CodeType) -> None:
    """Drops all entries and marks of the code object."""
    _C.forget(code)


def skip(code: CodeType, region: Region) -> None:
    """Never offers frames of this code object to the region."""
    _C.set_skip(code, region, 1)


def active_region() -> Region | None:
    """The region of this thread's running compiled call."""
    return _C.active_region()
