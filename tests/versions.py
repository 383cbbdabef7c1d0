"""`python -m tests.versions [PYTHON|DEBIAN ...]`: a short selection of tests in each environment that is set up.

Those are `.venv*` here and the interpreters that are named; each prints a row of the table in docs/install.md. An
environment whose torch is not the one that the extensions here are for gets a copy of this folder, and builds them there.
A folder that tests/python314.sh has made is one of Python 3.14. Then it names those of the pairs to run that no environment had.
"""

from __future__ import annotations

import glob
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
SELECTION = ("tests/test_tiny.py", "tests/test_torch_parts.py", "tests/bytecode/test_bytecode.py", "tests/hook",
             "tests/features/test_versions.py", "tests/features/test_lifetimes.py", "tests/symbolic/test_averaging.py",
             "tests/symbolic/test_functions_in_transforms.py", "tests/aot/test_training.py")
PAIRS = (("3.11", "2.13"), ("3.12", "2.14"), ("3.13", "2.14"), ("3.14", "2.14"))
FACTS = "import platform, torch, setuptools, pytest; print(platform.python_version(), torch.__version__)"
FOUND = ("/usr/bin/python3.1[1-9]", "/usr/local/bin/python3.1[1-9]", "~/.pyenv/versions/3.1[1-9].*/bin/python")


def run(*command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


def built_copy(python: str, folder: Path) -> str:
    """Makes in a folder what `python` needs; what went wrong, or nothing."""
    names = run("git", "ls-files", folder=ROOT).stdout
    subprocess.run(["tar", "-cf", str(folder / "all.tar"), "-T", "-"], cwd=ROOT, input=names, text=True, check=True)
    run("tar", "-xf", "all.tar", folder=folder)
    return run(python, "setup.py", "-q", "build_ext", "--inplace", folder=folder).stderr.strip()


def row(python: str, folder: Path) -> tuple[str, bool]:
    """A line of the table, and whether all is well. An environment without torch or pytest is told of alone."""
    facts = run(python, "-c", FACTS, folder=ROOT)
    if facts.returncode:
        return f"{python}: {facts.stderr.strip().splitlines()[-1]}", True
    place = ROOT
    if run(python, "-c", "import dynamo.hook, inductor, dynamo.lazy", folder=ROOT).returncode:
        place = folder
        wrong = built_copy(python, place)
        if run(python, "-c", "import dynamo.hook", folder=place).returncode:
            return f"{python}: the extensions were not built: {wrong[-2000:]}", False
    return outcome(facts.stdout, run(python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *SELECTION, folder=place))


def row_of_debian(folder: str) -> tuple[str, bool]:
    python = run("chroot", folder, "python3.14", "-V", folder=ROOT).stdout.split()[-1]
    [version] = Path(folder).glob("opt/venv/lib/python3.14/site-packages/torch/version.py")
    [torch] = re.findall(r"__version__ = '(.+)'", version.read_text())
    return outcome(f"{python} {torch}", run("tests/python314.sh", folder, *SELECTION, folder=ROOT))


def outcome(facts: str, tests: subprocess.CompletedProcess[str]) -> tuple[str, bool]:
    """What stands in the table; the end of what the tests print is above it where not all passed."""
    counts = dict((kind, n) for n, kind in re.findall(r"(\d+) (passed|failed|skipped)", tests.stdout))
    cells = [*facts.split(), *(counts.get(kind, "0") for kind in ("passed", "failed", "skipped"))]
    text = f"| {' | '.join(cells)} |"
    if tests.returncode:
        text = f"{tests.stdout[-5000:]}{tests.stderr[-2000:]}\n{text}"
    return text, tests.returncode == 0


def missing(rows: list[str]) -> list[str]:
    """Pairs to run that no row of the table is about."""
    return [f"{python} with torch {torch}" for python, torch in PAIRS
            if not any(re.search(rf"\| {python}\.\d+\S* \| {torch}\.", text) for text in rows)]


def main(named: list[str]) -> int:
    pythons = [*sorted(glob.glob(str(ROOT / ".venv*/bin/python"))), *named]
    outcomes = []
    for python in pythons:
        with tempfile.TemporaryDirectory() as folder:
            outcomes.append(row_of_debian(python) if Path(python).is_dir() else row(python, Path(folder)))
        print(outcomes[-1][0], flush=True)
    print("did not run:", ", ".join(missing([text for text, _ in outcomes])) or "none of the pairs")
    others = [path for place in FOUND for path in sorted(glob.glob(str(Path(place).expanduser())))]
    print("to set up others: make environment PYTHON=PATH TORCH=2.14.1, with", ", ".join(others) or "no interpreter found")
    return 0 if outcomes and all(well for _, well in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
