"""`python -m tests.gpu.run [--processes 12] [--seconds 480] [-k WORDS]`: the tests in processes of their own.

Each process takes its part of the tests; a table of the slowest and of what failed comes last.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def report(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        if row["outcome"] == "failed":
            print(f"--- {row['name']}\n{row['text']}")
    for row in sorted(rows, key=lambda row: -row["seconds"])[:12]:
        print(f"{row['seconds']:7.1f} s {row['name']}")
    by_file: dict[str, float] = {}
    for row in rows:
        name = row["name"].partition("::")[0]
        by_file[name] = by_file.get(name, 0.0) + row["seconds"]
    print(*[f"{seconds:7.1f} s {name}" for name, seconds in by_file.items()], sep="\n")
    for row in rows:
        if row["outcome"] == "failed":
            print(f"FAILED {row['name']}: {(row['text'].splitlines() or [''])[-1][:160]}")


def last_words(text: str) -> str:
    """Where a process died, if it said so; else its last lines."""
    at = text.find("Fatal Python error")
    return text[max(at - 500, 0) : at + 2500] if at >= 0 else text[-2000:]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--processes", type=int, default=max(1, (os.cpu_count() or 1) * 3 // 4))
    parser.add_argument("--seconds", type=float, default=480.0)
    parser.add_argument("-k", default="")
    options = parser.parse_args()
    start = time.monotonic()
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", "tests/gpu"]
    command += ["-k", options.k] if options.k else []
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{n}.jsonl" for n in range(options.processes)]
        running = []
        for n, path in enumerate(paths):
            env = os.environ | {"TEST_PART": f"{n}/{options.processes}", "TEST_RESULTS": str(path)}
            env.setdefault("OMP_NUM_THREADS", "2")
            output = open(path.with_suffix(".txt"), "w")
            running.append(subprocess.Popen(command, env=env, stdout=output, stderr=output))
        stopped = 0
        codes = []
        for process in running:
            try:
                codes.append(process.wait(max(0.1, start + options.seconds - time.monotonic())))
            except subprocess.TimeoutExpired:
                process.kill()
                stopped += 1
        rows = [row for path in paths for row in rows_of(path)]
        for path, code in zip(paths, codes):
            if code not in (0, 1, 5):  # 5: no test was its own
                print(f"--- rc {code}\n{last_words(path.with_suffix('.txt').read_text())}")
    report(rows)
    counts = {kind: sum(row["outcome"] == kind for row in rows) for kind in ("passed", "failed", "skipped")}
    print(f"{counts} in {time.monotonic() - start:.0f} s, {stopped} of {len(running)} processes stopped")
    return 0 if not stopped and not counts["failed"] and all(code in (0, 5) for code in codes) else 1


if __name__ == "__main__":
    sys.exit(main())
