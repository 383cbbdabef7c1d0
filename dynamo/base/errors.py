"""The exceptions of the compiler: what a user may see, and what the stages raise to each other.

`Break`, `RestartTrace` and `SkipFrame` are signals between stages and never reach a user.
`DynamoError` and its subclasses do; their message always has the same order: the user's line,
what happened, what to do.
"""

from __future__ import annotations

from dataclasses import dataclass


class DynamoError(RuntimeError):
    """Base of every error that the compiler reports to a user."""


class Unsupported(DynamoError):
    """`fullgraph=True` met a graph break."""


class BackendError(DynamoError):
    """A backend raised; the graph that it was compiling is attached as `.graph_module`."""

    graph_module: object = None


class InvalidBackend(DynamoError, ValueError):
    """`backend=` names no registered backend."""


class RecompileError(DynamoError):
    """`error_on_recompile` is set and a frame would be recompiled."""


class RecompileLimitExceeded(DynamoError):
    """`fail_on_recompile_limit_hit` is set and a frame reached its recompile limit; or the calls of
    a `nested_compile_region` are of more kinds than it may have."""


class InternalError(DynamoError):
    """A defect of the compiler itself; only raised when errors are not suppressed."""


class VerifyError(DynamoError):
    """A record failed the check of its own stage."""


class ConstraintViolation(DynamoError, ValueError):
    """A dimension that was declared dynamic is fixed by the program."""


class LoadError(DynamoError, ValueError):
    """A file of `aot_compile` is damaged, or was made for another machine, torch or module."""


class GuardFailed(DynamoError):
    """A loaded program is called with what it was not made for."""


class Signal(Exception):
    """Base of the signals that stages send to each other."""


@dataclass(eq=False)
class Break(Signal):
    """The evaluator can't model the current instruction: end the graph before it.

    code: key of `breaks.REASONS`, e.g. "call_of_unknown_function".
    detail: what exactly was met, for the sentence's placeholder `{detail}`.
    """

    code: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.code}: {self.detail}" if self.detail else self.code

    def bare(self) -> Break:
        """The break without the frames of the evaluator, which hold the program's values."""
        self.__traceback__ = self.__context__ = self.__cause__ = None
        return self


@dataclass(eq=False)
class RestartTrace(Signal):
    """Trace the root frame again from its start, with what was learned.

    step: number of the instruction (counted over all frames of the trace, inlined ones included)
        before which the new attempt must break, or None when another lesson was learned
        (already stored on the compile context).
    cause: the break that made it necessary.
    """

    step: int | None
    cause: Break | None = None


@dataclass(eq=False)
class SkipFrame(Signal):
    """This frame is not worth replacing, or must not be: run it as it is.

    forever: True marks the code object, False only this call.
    """

    reason: str
    forever: bool = True
