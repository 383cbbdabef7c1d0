"""The libraries whose tests run: which, and where their sources are.

`libraries.txt`: `name==version tests..` a line, the tests as files or folders inside of the source.
"""

from __future__ import annotations

import functools
import subprocess
import sys
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.lists import lines

HERE = Path(__file__).parent
CACHE = (HERE.parents[1] / ".third_party").resolve()  # pytest names tests behind links
SITE = CACHE / "site"  # what the tests need, see the Makefile


@dataclass(frozen=True)
class Library:
    name: str
    version: str
    tests: tuple[str, ...]


@functools.cache
def libraries() -> dict[str, Library]:
    found = {}
    for line in lines("libraries.txt", HERE):
        requirement, *tests = line.split()
        name, _, version = requirement.partition("==")
        assert version and tests, line
        found[name] = Library(name, version, tuple(tests))
    return found


def unpacked(library: Library) -> Path:
    """The folder of its source, which pip downloads where it is not there yet."""
    folder = CACHE / f"{library.name}-{library.version}"
    if not folder.exists():
        CACHE.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as made:
            subprocess.run(
                [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary",
                 library.name, "--dest", made, f"{library.name}=={library.version}"], check=True)
            (archive,) = Path(made).iterdir()
            with tarfile.open(archive) as file:
                file.extractall(made, filter="data")
            archive.unlink()
            (source,) = Path(made).iterdir()
            source.rename(folder)
    return folder
