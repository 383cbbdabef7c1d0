"""`pip install` in new environments: python -m tests.install.environments [--clang] [INTERPRETER ...] (this one).

In an empty environment of each interpreter this folder is installed with all that it needs; then, in its place, the
wheel, the source distribution and the repository, and the folder once more as clang++ builds it. After each, the doctor
has nothing to say and a model is compiled from an empty folder. It asks the package index, and takes minutes. `--clang`
runs the last step alone.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = {"dynamo", "inductor"}
OURS = ("PYTHONPATH", "DYNAMO_CACHE_DIR", "OMP_NUM_THREADS")  # what the one who runs the tests has set
PROGRAM = """
import sys, torch, dynamo
assert dynamo.__file__.startswith(sys.prefix), dynamo.__file__
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4))
x = torch.randn(3, 8)
torch.testing.assert_close(dynamo.compile(model)(x), model(x))
assert not dynamo.counters["not_compiled"], dynamo.counters
"""


def run(*command: str | Path, folder: Path, **variables: str) -> str:
    kept = {name: value for name, value in os.environ.items() if name not in OURS}
    done = subprocess.run(command, cwd=folder, env={**kept, **variables}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def only(folder: Path, *names: str) -> str:
    """A PATH with these programs alone."""
    folder.mkdir()
    for name in names:
        (folder / name).symlink_to(str(shutil.which(name)))
    return str(folder)


class Environment:
    """A new one, in `folder`."""

    def __init__(self, interpreter: str, folder: Path) -> None:
        self.folder, self.python = folder, folder / "venv" / "bin" / "python"
        run(interpreter, "-m", "venv", folder / "venv", folder=folder)
        self.version = run(self.python, "-V", folder=folder).strip()

    def installed(self) -> set[str]:
        [packages] = self.folder.glob("venv/lib/python*/site-packages")
        return {path.name for path in packages.iterdir() if path.suffix != ".dist-info"}

    def pip(self, *arguments: str | Path, **variables: str) -> None:
        run(self.python, "-m", "pip", *arguments, "-q", folder=self.folder, **variables)

    def replace(self, what: str | Path, **variables: str) -> None:
        """Installs ours, in the place of the one that may be there."""
        self.pip("uninstall", "-y", "dynamo-jit")
        self.pip("install", what, **variables)

    def check(self, **variables: str) -> None:
        with tempfile.TemporaryDirectory() as place:
            empty, cache = Path(place) / "empty", str(Path(place) / "cache")
            empty.mkdir()
            run(self.python, "-c", PROGRAM, folder=empty, DYNAMO_CACHE_DIR=cache, **variables)
            run(self.python, "-m", "dynamo.doctor", folder=empty, DYNAMO_CACHE_DIR=cache, **variables)

    def step(self, name: str, install: Callable[[], None], **variables: str) -> None:
        """Errors: AssertionError."""
        begin = time.perf_counter()
        install()
        seconds = time.perf_counter() - begin
        self.check(**variables)
        print(f"{self.version}  {name:22} {seconds:6.0f} s", flush=True)


def try_clang(one: Environment, clone: Path) -> None:
    """With no other compiler on PATH."""
    tools = only(one.folder / "tools", "clang++", "ld")
    one.step("clang++ alone", lambda: one.replace(clone, PATH=tools), PATH=tools)


def try_all(one: Environment, clone: Path) -> None:
    folder, replace = one.folder, one.replace

    def wheel() -> None:
        one.pip("wheel", "--no-deps", "-w", folder, clone)
        replace(next(folder.glob("*.whl")))

    def sources() -> None:
        one.pip("install", "build")
        run(one.python, "-m", "build", "-s", "-o", folder, clone, folder=folder)
        one.pip("uninstall", "-y", "build", "pyproject_hooks")
        replace(next(folder.glob("*.tar.gz")))

    one.step("pip install FOLDER", lambda: one.pip("install", clone))
    one.pip("uninstall", "-y", "dynamo-jit")
    needed = one.installed()
    one.step("a wheel", wheel)
    added = one.installed() - needed
    assert added == PACKAGES, added
    one.step("a source distribution", sources)
    one.step("git+file://", lambda: replace(f"git+file://{ROOT}"))
    if shutil.which("clang++"):
        try_clang(one, clone)
    else:
        print(f"{one.version}  there is no clang++", flush=True)


def main(words: list[str]) -> None:
    steps = try_clang if "--clang" in words else try_all
    for interpreter in [word for word in words if word != "--clang"] or [sys.executable]:
        with tempfile.TemporaryDirectory() as place:
            clone = Path(place) / "clone"
            run("git", "clone", "-q", ROOT, clone, folder=Path(place))
            steps(Environment(interpreter, Path(place)), clone)


if __name__ == "__main__":
    main(sys.argv[1:])
