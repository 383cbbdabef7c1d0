"""`python -m tests.versions [PYTHON ...]`: a short selection of tests in each environment that is set up.

Those are `.venv*` here and the interpreters that are named; each prints a row of the table in docs/install.md.
"""

from __future__ import annotations

import glob
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
SELECTION = ("tests/test_tiny.py", "tests/test_torch_parts.py", "tests/bytecode/test_bytecode.py", "tests/hook",
             "tests/features/test_versions.py", "tests/features/test_lifetimes.py", "tests/symbolic/test_averaging.py",
             "tests/symbolic/test_functions_in_transforms.py", "tests/aot/test_training.py")
FACTS = "import platform, torch, dynamo.hook; print(platform.python_version(), torch.__version__)"
FOUND = ("/usr/bin/python3.1[1-9]", "/usr/local/bin/python3.1[1-9]", "~/.pyenv/versions/3.1[1-9].*/bin/python")


def row(python: str) -> tuple[str, bool]:
    """A line of the table, and whether all is well. An environment without torch or our build is told of alone."""
    facts = subprocess.run([python, "-c", FACTS], cwd=ROOT, capture_output=True, text=True)
    if facts.returncode:
        return f"{python}: {facts.stderr.strip().splitlines()[-1]}", True
    run = subprocess.run([python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *SELECTION], cwd=ROOT,
                         stdout=subprocess.PIPE, text=True)
    counts = dict((kind, n) for n, kind in re.findall(r"(\d+) (passed|failed|skipped)", run.stdout.splitlines()[-1]))
    cells = [*facts.stdout.split(), *(counts.get(kind, "0") for kind in ("passed", "failed", "skipped"))]
    return f"| {' | '.join(cells)} |", run.returncode == 0


def main(named: list[str]) -> int:
    pythons = [*sorted(glob.glob(str(ROOT / ".venv*/bin/python"))), *named]
    outcomes = []
    for python in pythons:
        text, well = row(python)
        outcomes.append(well)
        print(text, flush=True)
    others = [path for place in FOUND for path in sorted(glob.glob(str(Path(place).expanduser())))]
    print("to set up others: make setup PYTHON=PATH, with", ", ".join(others) or "no interpreter found")
    return 0 if all(outcomes) and outcomes else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
