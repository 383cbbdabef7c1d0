"""Which modules of CPython's tests run, and which of their methods do not, and why.

`modules.txt`: a name a line. `exclusions.txt`: `module Class.method: reason` a line, with the
wildcards of `fnmatch`.
"""

from __future__ import annotations

import fnmatch
import functools
import re
from pathlib import Path

HERE = Path(__file__).parent
EXCLUSION = re.compile(r"(\S+) (\S+): (\S.*)")


def lines(name: str) -> list[str]:
    text = (HERE / name).read_text().splitlines()
    return [line for line in text if line and not line.startswith("#")]


@functools.cache
def exclusions() -> dict[str, list[tuple[str, str]]]:
    """For each module, patterns and reasons."""
    found: dict[str, list[tuple[str, str]]] = {}
    for line in lines("exclusions.txt"):
        match = EXCLUSION.fullmatch(line)
        assert match is not None, line
        module, pattern, reason = match.groups()
        found.setdefault(module, []).append((pattern, reason))
    return found


def is_excluded(module: str, name: str) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern, _ in exclusions().get(module, ()))
