"""Which tests that others wrote do not run, and why.

`exclusions.txt` of a folder of tests: `module name: reason` a line, with the wildcards of `fnmatch` in
the name.
"""

from __future__ import annotations

import fnmatch
import functools
import re
from pathlib import Path

EXCLUSION = re.compile(r"(\S+) (\S+): (\S.*)")


def lines(name: str, folder: Path) -> list[str]:
    text = (folder / name).read_text().splitlines()
    return [line for line in text if line and not line.startswith("#")]


@functools.cache
def exclusions(folder: Path) -> dict[str, list[tuple[str, str]]]:
    """For each module, patterns and reasons."""
    found: dict[str, list[tuple[str, str]]] = {}
    for line in lines("exclusions.txt", folder):
        match = EXCLUSION.fullmatch(line)
        assert match is not None, line
        module, pattern, reason = match.groups()
        found.setdefault(module, []).append((pattern, reason))
    return found


def is_excluded(module: str, name: str, folder: Path) -> bool:
    patterns = exclusions(folder).get(module, ())
    return any(fnmatch.fnmatchcase(name, pattern) for pattern, _ in patterns)
