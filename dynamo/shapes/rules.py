"""Shape rules: outcomes of frequent operations, computed without their meta kernels.

torch's meta kernels of pointwise operations and reductions are Python programs that take 0.1 to 1 ms
and import SymPy (half a second) or torch._dynamo (two seconds) on first use. A rule takes the facts
of the arguments and gives an `Outcome`, or None for "not mine": then the meta kernel decides.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dynamo.shapes.facts import OpCache, Outcome

Rule = Callable[[OpCache, tuple[Any, ...], dict[str, Any]], Outcome | None]

SHAPE_RULES: dict[Any, Rule] = {}


def pointwise_outcome(func: Any) -> Rule | None:
    return None
