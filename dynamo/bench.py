"""`python -m dynamo.bench script.py [args]`: a script in eager and compiled, side by side.

The script runs twice, each time in a process of its own and unchanged. A call of an nn.Module that
no other module makes is a step; in the second run such modules are compiled at their first call.
Timed are each call, and the time from one call to the next of the same module, in which backward
and the optimizer lie. In: a script. Out: a table.
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch

from dynamo.api import compile, run

WARM_UP = 3  # calls whose time is not steady yet


class Steps:
    """Times outermost calls of modules. compiled: they are compiled."""

    def __init__(self, compiled: bool) -> None:
        self.compiled = compiled
        self.calls: dict[str, list[tuple[float, float]]] = {}
        self._twins: dict[int, tuple[torch.nn.Module, torch.nn.Module]] = {}
        self._original: Any = torch.nn.Module.__call__

    def install(self) -> None:
        """From now on modules are timed."""
        original, steps = self._original, self

        def timed(module: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            torch.nn.Module.__call__ = original  # type: ignore[method-assign]
            try:
                return steps.call(module, args, kwargs)
            finally:
                torch.nn.Module.__call__ = timed  # type: ignore[method-assign]

        torch.nn.Module.__call__ = timed  # type: ignore[method-assign]

    def call(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        name = f"{type(module).__module__}.{type(module).__qualname__}".removeprefix("__main__.")
        called: Callable[..., Any] = module
        start = time.perf_counter()
        if self.compiled:
            module = run(module)
            if id(module) not in self._twins:
                self._twins[id(module)] = module, compile(module)
            called = self._twins[id(module)][1]
        result = called(*args, **kwargs)
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
        self.calls.setdefault(name, []).append((start, time.perf_counter()))
        return result


def run_script(script: str, arguments: list[str], compiled: bool, report: Path) -> None:
    """Runs the script in this process and writes the times."""
    sys.argv = [script, *arguments]
    sys.path.insert(0, os.path.dirname(os.path.abspath(script)))
    steps = Steps(compiled)
    steps.install()
    start = time.perf_counter()
    try:
        runpy.run_path(script, run_name="__main__")
    finally:
        report.write_text(json.dumps(
            {"seconds": time.perf_counter() - start, "calls": steps.calls}))


def table_of(eager: dict[str, Any], compiled: dict[str, Any]) -> str:
    """The two runs as text."""
    lines = [f"{'':32} {'eager':>12} {'compiled':>12} {'speedup':>8}"]

    def row(name: str, one: float, two: float, unit: str) -> None:
        ratio = f"{one / two:8.2f}" if two else f"{'':8}"
        lines.append(f"{name:32} {one:9.3f} {unit:2} {two:9.3f} {unit:2} {ratio}")

    row("whole script", eager["seconds"], compiled["seconds"], "s")
    for name, calls in eager["calls"].items():
        other = compiled["calls"].get(name, [])
        if not other:
            continue
        lines.append(f"{name}: {len(calls)} calls")
        row("  first call", _seconds(calls[0]), _seconds(other[0]), "s")
        if min(len(calls), len(other)) > WARM_UP + 1:
            steady, later = calls[WARM_UP:], other[WARM_UP:]
            row("  call (median)", median(map(_seconds, steady)) * 1e3,
                median(map(_seconds, later)) * 1e3, "ms")
            row("  call to call (median)", _between(steady) * 1e3, _between(later) * 1e3, "ms")
        else:
            lines.append(f"  fewer than {WARM_UP + 2} calls: nothing is steady yet")
    if not eager["calls"]:
        lines.append("no nn.Module was called: compile functions by hand (dynamo.compile)")
    return "\n".join(lines)


def _seconds(call: list[float] | tuple[float, float]) -> float:
    return call[1] - call[0]


def _between(calls: list[Any]) -> float:
    return median(two[0] - one[0] for one, two in zip(calls, calls[1:], strict=False))


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m dynamo.bench", description=__doc__)
    parser.add_argument("--child", choices=["eager", "compiled"], help=argparse.SUPPRESS)
    parser.add_argument("--report", help=argparse.SUPPRESS)
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    if given.child:
        run_script(given.script, given.arguments, given.child == "compiled", Path(given.report))
        return 0
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("eager", "compiled"):
            report = Path(folder, f"{kind}.json")
            command = [sys.executable, "-m", "dynamo.bench", "--child", kind, "--report",
                       str(report), given.script, *given.arguments]
            print(f"--- {kind}", flush=True)
            done = subprocess.run(command, check=False)
            if done.returncode or not report.exists():
                print(f"the {kind} run ended with {done.returncode}", file=sys.stderr)
                return done.returncode or 1
            found.append(json.loads(report.read_text()))
    print(table_of(*found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
