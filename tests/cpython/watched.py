"""Runs a module in a process of its own, which is ended where it hangs, and goes on behind that."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
LIMIT = 120.0  # seconds that one method may take
LIMIT_OF_START = 600.0  # and the start of a process


@dataclass
class Report:
    """What came of one module. passed: how many methods are alike; plain_failures: those that do
    not pass as they are, and why; skipped: why it did not run."""

    passed: int = 0
    plain_failures: dict[str, str] = field(default_factory=dict)
    different: dict[str, str] = field(default_factory=dict)
    skipped: str = ""


def run_module(name: str, folder: Path) -> Report:
    report, start, parts = Report(), 0, 0
    while start >= 0:
        parts += 1
        start = _part(name, start, folder / f"{name}-{parts}", report)
    return report


def _part(name: str, start: int, folder: Path, report: Report) -> int:
    """One process. Gives the place behind the method that it did not survive, or -1."""
    folder.mkdir()
    results, errors = folder / "results", folder / "errors"
    results.touch()
    command = [sys.executable, "-W", "ignore", "-X", "faulthandler", "-m", "tests.cpython.inlined",
               name, "--start", str(start), "--results", str(results)]
    with open(errors, "w") as output:
        process = subprocess.Popen(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)},
                                   stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                                   start_new_session=True)
        hangs = _wait(process, results)
    told = [json.loads(line) for line in results.read_text().splitlines()]
    for fact in told:
        _note(fact, report)
    last: dict[str, Any] = told[-1] if told else {"what": "nothing"}
    if last["what"] in ("done", "skip"):
        return -1
    text = errors.read_text(errors="replace")[-2000:]
    if last["what"] != "begin":
        raise RuntimeError(f"{name} ended behind {last}: {text}")
    found = report.different if last["kind"] == "compiled" else report.plain_failures
    found[last["name"]] = f"more than {LIMIT:g} s" if hangs else f"it died: {text}"
    return int(last["place"]) + 1


def _wait(process: subprocess.Popen[bytes], results: Path) -> bool:
    """Waits for the end; True where nothing was told for too long."""
    size, since = 0, time.monotonic()
    try:
        while process.poll() is None:
            time.sleep(0.05)
            if results.stat().st_size != size:
                size, since = results.stat().st_size, time.monotonic()
            if time.monotonic() - since > (LIMIT if size else LIMIT_OF_START):
                return True
        return False
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()


def _note(fact: dict[str, Any], report: Report) -> None:
    if fact["what"] == "skip":
        report.skipped = fact["text"]
    elif fact["what"] == "end" and fact["kind"] == "compiled":
        if fact["outcome"] == "fail":
            report.different[fact["name"]] = fact["text"]
        elif fact["outcome"] == "pass":
            report.passed += 1
    elif fact["what"] == "end" and fact["outcome"] == "fail":
        report.plain_failures[fact["name"]] = fact["text"]
