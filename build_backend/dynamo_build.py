"""How pip and others make wheels of this folder (PEP 517): setuptools' way, with torch if need be.

The extensions are for one version of torch. pip's isolation hides the torch of the environment into
which it installs: its headers are found there nevertheless, without importing it. Where there is
none, torch is a requirement of the build: pip takes the version that it will install, too.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from packaging.requirements import Requirement
from setuptools import build_meta

PROJECT = Path(__file__).parent.parent / "pyproject.toml"
# Without the isolation's PYTHONPATH, an interpreter looks where programs of its environment do.
ASK = """
import importlib.util
found = importlib.util.find_spec("torch")
print(found.origin if found and found.origin else "")
"""


class Torch(NamedTuple):
    """Where it lies, and its version."""

    folder: Path
    version: str


def find_torch() -> Torch | None:
    """The torch to build against: that of this process, else that of its interpreter's environment;
    None where there is none, or one that is not supported."""
    spec = importlib.util.find_spec("torch")
    origin = spec.origin if spec is not None else None
    if origin is None:
        command = [sys.executable, "-E", "-P", "-c", ASK]
        origin = subprocess.run(command, capture_output=True, text=True).stdout.strip()
    if not origin:
        return None
    folder = Path(origin).parent
    known = re.search(r"^__version__ = '([^']+)'", (folder / "version.py").read_text(), re.M)
    fits = known is not None and required().specifier.contains(known[1], prereleases=True)
    return Torch(folder, known[1]) if known is not None and fits else None


def required() -> Requirement:
    """What the project says of torch."""
    every = map(Requirement, tomllib.loads(PROJECT.read_text())["project"]["dependencies"])
    return next(one for one in every if one.name == "torch")


def _with_torch(ask: Callable[..., list[str]]) -> Callable[..., list[str]]:
    def requires(config_settings: Any = None) -> list[str]:
        found = list(ask(config_settings))
        return found if find_torch() is not None else [*found, str(required())]

    return requires


get_requires_for_build_wheel = _with_torch(build_meta.get_requires_for_build_wheel)
get_requires_for_build_editable = _with_torch(build_meta.get_requires_for_build_editable)
get_requires_for_build_sdist = build_meta.get_requires_for_build_sdist
prepare_metadata_for_build_wheel = build_meta.prepare_metadata_for_build_wheel
prepare_metadata_for_build_editable = build_meta.prepare_metadata_for_build_editable
build_sdist, build_wheel = build_meta.build_sdist, build_meta.build_wheel
build_editable = build_meta.build_editable
