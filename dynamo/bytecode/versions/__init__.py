"""What differs between Python versions, as data: one module per version, chosen once here."""

from __future__ import annotations

import sys
import sysconfig

from dynamo.bytecode.versions import py311, py312, py313, py314
from dynamo.bytecode.versions.facts import VersionFacts

KNOWN: dict[tuple[int, int], VersionFacts] = {
    (3, 11): py311.FACTS,
    (3, 12): py312.FACTS,
    (3, 13): py313.FACTS,
    (3, 14): py314.FACTS,
}


def choose(version: tuple[int, int], free_threaded: bool) -> VersionFacts:
    """The facts of a Python; an ImportError where it is none of ours."""
    first, last = (".".join(map(str, found)) for found in (min(KNOWN), max(KNOWN)))
    if version not in KNOWN:
        raise ImportError(
            f"dynamo runs on Python {first} to {last}, not on {version[0]}.{version[1]}.")
    if free_threaded:
        raise ImportError("dynamo needs a Python with a global interpreter lock, not a "
                          "free-threaded build.")
    return KNOWN[version]


VERSION = choose(sys.version_info[:2], bool(sysconfig.get_config_var("Py_GIL_DISABLED")))
