"""`verify(f, *args)`: eager, eager in double precision and compiled, side by side.

Each run begins from the same state: arguments are copied, what the function reaches otherwise
(parameters, closures, globals that it names) is put back behind it, random numbers are the same.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from dynamo.base.config import config
from dynamo.base.errors import VerifyError
from dynamo.diagnose.compare import Difference, compare
from dynamo.diagnose.culprit import GUARDS, Culprit, Runs, find_culprit
from dynamo.diagnose.graphs import Tap
from dynamo.diagnose.outcome import Outcome, run_once
from dynamo.options import CompileOptions

SHOWN = 5
Compile = Callable[[CompileOptions], Callable[..., Any]]


@dataclass(frozen=True)
class Verification:
    """What the comparison has found. place: the function; differences: of compiled from eager;
    culprit: None where there is no difference; wide: whether double precision could run; compared:
    how many values were looked at."""

    place: str
    differences: tuple[Difference, ...]
    culprit: Culprit | None
    wide: str
    compared: int
    backend: str

    @property
    def ok(self) -> bool:
        return not self.differences

    @property
    def operator(self) -> str:
        """The first operator that differs, "" for none."""
        return "" if self.culprit is None else self.culprit.operator

    @property
    def line(self) -> str:
        """The user's line of that operator: file, line, function and text."""
        return "" if self.culprit is None else self.culprit.line

    def __str__(self) -> str:
        if self.culprit is None:
            return (f"{self.place}\n  The compiled program does what eager does: {self.compared} "
                    f"values, gradients and effects compared.\n  {self.wide}")
        shown = [f"    {difference}" for difference in self.differences[:SHOWN]]
        if len(self.differences) > SHOWN:
            shown.append(f"    and {len(self.differences) - SHOWN} more")
        lines = [
            self.culprit.line or self.place,
            f"  The compiled program differs from eager: {self.culprit.sentence()}.",
            *shown,
        ]
        behind = [d for d in self.culprit.differences if d not in self.differences][:SHOWN]
        if self.culprit.operator and behind:
            lines += ["  Right behind that operator:", *(f"    {d}" for d in behind)]
        return "\n".join([*lines, f"  {self.wide}", f"  What to do: {self._advice()}"])

    def _advice(self) -> str:
        assert self.culprit is not None
        if self.culprit.stage == GUARDS:
            return ("call dynamo.reset() after changing such values, and report this; "
                    "DYNAMO_LOGS=guards shows what was assumed.")
        if self.culprit.stage == "inductor":
            return ('backend="aot_eager" is right for this function; DYNAMO_REPRO=accuracy writes '
                    "the smallest graph that shows the defect as a script, worth a report.")
        if self.culprit.stage == "aot_eager":
            return ('backend="eager" is right for this function; DYNAMO_REPRO=accuracy writes '
                    "the smallest graph that shows the defect as a script, worth a report.")
        if self.culprit.stage == "capture":
            return "keep that line out of compiled code (dynamo.disable), and report it."
        return f"the defect is the backend's ({self.culprit.stage}); compile by another one."


class Verifier:
    """Compares calls of one function. compile: the function by other options, anew."""

    def __init__(
        self, function: Callable[..., Any], original: Any, compile: Compile,
        settings: CompileOptions,
    ) -> None:
        self.function, self.original = function, original
        self.compile, self.settings = compile, settings
        self.names = _names_of(original)

    def check(
        self, compiled: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any],
        tap: Tap | None = None,
    ) -> Verification:
        """tap: keeps the graphs of `compiled` where that lives longer than this call."""

        def run(
            call: Callable[..., Any], wide: bool = False, mode: TorchFunctionMode | None = None
        ) -> Outcome:
            return run_once(
                call if mode is None else _within(mode, call), args, kwargs,
                [("self", self.original)], self.names, wide)

        def run_compiled(tap: Tap) -> Outcome:
            name = getattr(tap.backend, "__name__", "backend")
            options = replace(self.settings, backend=tap, backend_name=name, mode=None, options={})
            with config.patch(suppress_errors=False):
                return run(self.compile(options))

        before = len(tap.modules) if tap is not None else 0
        right = run(self.function)
        with config.patch(suppress_errors=False):  # what hides a failure would hide it here, too
            other = run(compiled)
        wide = run(self.function, wide=True)
        found = compare(right, other, wide)
        culprit = None
        if found:
            extra: dict[str, Any] = {}
            if self.settings.mode is not None:
                extra["mode"] = self.settings.mode
            if self.settings.options:
                extra["options"] = dict(self.settings.options)
            runs = Runs(lambda mode: run(self.function, mode=mode), run_compiled,
                        self.settings.backend, self.settings.backend_name, extra)
            stale = tap.modules[:before] if tap is not None else None
            culprit = find_culprit(runs, right, wide, stale)
        return Verification(
            _place_of(self.original), found, culprit, _words_of_wide(wide),
            len(right.leaves) + len(right.gradients), self.settings.backend_name)

    def require(
        self, compiled: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], tap: Tap
    ) -> None:
        """Errors: VerifyError where the call would differ from eager."""
        found = self.check(compiled, args, kwargs, tap)
        if not found.ok:
            raise VerifyError(str(found))


def _within(mode: TorchFunctionMode, call: Callable[..., Any]) -> Callable[..., Any]:
    def inside(*args: Any, **kwargs: Any) -> Any:
        with mode:
            return call(*args, **kwargs)

    return inside


def _words_of_wide(wide: Outcome) -> str:
    if wide.error is None:
        return "Rounding was judged by the same program in float64."
    text = str(wide.error).strip().partition("\n")[0]
    return ("Rounding was judged by fixed tolerances: the program does not run in float64 "
            f"({type(wide.error).__name__}: {text}).")


def _names_of(original: Any) -> tuple[str, ...]:
    target = original.forward if isinstance(original, torch.nn.Module) else original
    try:
        return tuple(inspect.signature(target).parameters)
    except (TypeError, ValueError):
        return ()


def _place_of(original: Any) -> str:
    target = original.forward if isinstance(original, torch.nn.Module) else original
    target = getattr(target, "func", target)
    code = getattr(target, "__code__", None)
    if not isinstance(code, types.CodeType):
        return repr(original)
    return f"{code.co_filename}:{code.co_firstlineno} in {code.co_name}"
