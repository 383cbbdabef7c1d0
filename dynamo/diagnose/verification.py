"""`verify(f, *args)`: eager, eager in double precision and compiled, side by side.

Each run begins from the same state: arguments are copied, what the function reaches otherwise
(parameters, closures, globals that it names) is put back behind it, random numbers are the same.
"""

from __future__ import annotations

import inspect
import types
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from dynamo import hook
from dynamo.base.config import config
from dynamo.base.counters import counters
from dynamo.base.errors import VerifyError
from dynamo.diagnose.compare import Difference, compare
from dynamo.diagnose.culprit import GUARDS, Culprit, Runs, find_culprit
from dynamo.diagnose.graphs import Tap
from dynamo.diagnose.outcome import Outcome, run_once
from dynamo.options import CompileOptions

SHOWN = 5
# While code is compared: what hides a failure would hide it here, too, and nothing else is written.
ALONE = {"suppress_errors": False, "repro": "", "debug_dir": ""}
RAISED = ("call it with arguments that eager takes; all keywords of verify go to the function (to "
          "verify another backend: verify(dynamo.compile(f, backend=...), ...)).")
NO_GRAPH = ("DYNAMO_LOGS=frames,graph_breaks says why; dynamo.config.disable, a stance, "
            "dynamo.disable and the recompile limit leave functions in eager, too.")
GRAPH_NAME = "__compiled_fn_"
Compile = Callable[[CompileOptions], Callable[..., Any]]


@dataclass(frozen=True)
class Verification:
    """What the comparison has found. place: the function; differences: of compiled from eager;
    culprit: None where there is no difference; wide: whether double precision could run; compared:
    how many values were looked at; raised: what both have raised, so that there is no value to
    compare; gradients: the same of the backward; graphs: that the compiled code calls;
    not_compiled: what of them the backend has not compiled, and why."""

    place: str
    differences: tuple[Difference, ...]
    culprit: Culprit | None
    wide: str
    compared: int
    backend: str
    raised: str = ""
    gradients: str = ""
    graphs: int = 0
    not_compiled: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Values of compiled code were compared, and none differs."""
        return bool(self.graphs and not self.raised and not self.differences)

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
            return "\n  ".join([self.place, *self._without_difference()])
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

    def _without_difference(self) -> list[str]:
        if self.raised:
            return [f"Nothing was compared: {self.raised}.", f"What to do: {RAISED}"]
        if not self.graphs:
            return ["Nothing of it was compiled: no graph was made, so eager was compared with "
                    "itself.", f"What to do: {NO_GRAPH}"]
        lines = [f"The compiled program does what eager does: {self.compared} values, gradients "
                 "and effects compared."]
        if self.gradients:
            lines.append(f"Gradients were not compared: {self.gradients}.")
        lines += [f"Not compiled, so that the same operators run: {text}"
                  for text in self.not_compiled]
        return [*lines, self.wide]

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
            with config.patch(**ALONE):
                return run(self.compile(options))

        before = len(tap.modules) if tap is not None else 0
        captured = Counter(counters["not_compiled"])
        right = run(self.function)
        with config.patch(**ALONE):
            other = run(compiled)
        captured = counters["not_compiled"] - captured
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
            len(right.leaves) + len(right.gradients), self.settings.backend_name,
            raised_by_both(right.error, other.error),
            raised_by_both(right.gradient_error, other.gradient_error),
            graphs_of(compiled), tuple(captured))

    def require(
        self, compiled: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], tap: Tap
    ) -> None:
        """Errors: VerifyError where the call would differ from eager."""
        found = self.check(compiled, args, kwargs, tap)
        if found.differences:
            raise VerifyError(str(found))


def raised_by_both(eager: BaseException | None, other: BaseException | None) -> str:
    """What both say where both have raised; "" else."""
    if eager is None or other is None:
        return ""
    if type(eager) is type(other) and str(eager) == str(other):
        return f"both raise {type(eager).__name__}: {first_line(eager)}"
    return (f"eager raises {type(eager).__name__}: {first_line(eager)}; compiled "
            f"{type(other).__name__}: {first_line(other)}")


def graphs_of(compiled: Any) -> int:
    """How many graphs the new code of a compiled function or module calls."""
    policy = getattr(type(compiled), "_policy", None) or getattr(compiled, "_policy", None)
    region = None if policy is None else policy.region
    if region is None:
        return 0
    codes = [entry.code for code in region.codes() for entry in hook.entries(code, region)]
    return sum(str(getattr(value, "__name__", "")).startswith(GRAPH_NAME)
               for code in codes for value in code.co_consts)


def first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0]


def _within(mode: TorchFunctionMode, call: Callable[..., Any]) -> Callable[..., Any]:
    def inside(*args: Any, **kwargs: Any) -> Any:
        with mode:
            return call(*args, **kwargs)

    return inside


def _words_of_wide(wide: Outcome) -> str:
    if wide.error is None:
        return "Rounding was judged by the same program in float64."
    text = first_line(wide.error)
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
