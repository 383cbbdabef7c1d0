"""Which operators are taken apart before lowering."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from dynamo.aot.decompositions import PARTIAL, default_decompositions
from inductor.config import is_enabled
from inductor.lowering.registry import LOWERINGS


def decompositions() -> Mapping[Any, Any]:
    """What is taken apart before lowering: all that has no lowering, or one for some arguments."""
    return _all_decompositions() if is_enabled("decompositions") else {}


@functools.cache
def _all_decompositions() -> Mapping[Any, Any]:
    table = default_decompositions()
    return {op: rule for op, rule in table.items() if op not in LOWERINGS} | PARTIAL
