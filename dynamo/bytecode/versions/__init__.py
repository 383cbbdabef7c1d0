"""What differs between Python versions, as data: one module per version, chosen once here."""

from __future__ import annotations

import sys

from dynamo.bytecode.versions import py311, py312, py313
from dynamo.bytecode.versions.facts import VersionFacts

KNOWN: dict[tuple[int, int], VersionFacts] = {
    (3, 11): py311.FACTS,
    (3, 12): py312.FACTS,
    (3, 13): py313.FACTS,
}

VERSION: VersionFacts = KNOWN.get(sys.version_info[:2], py313.FACTS)
