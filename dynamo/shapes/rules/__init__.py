"""Shape rules: outcomes of frequent operations, computed without their meta kernels.

torch's meta kernels of pointwise operations and reductions are Python programs, 0.1 to 1 ms each,
that import SymPy (half a second) or a whole compiler (two seconds) on first use. A rule takes the
arguments (fake tensors carry `.facts`) and gives an `Outcome`, or None for "not mine": the meta
kernel then decides, which also covers every argument that eager would refuse.
"""

from __future__ import annotations

from dynamo.shapes.rules import (
    attention,
    factories,
    indexing,
    losses,
    matmuls,
    measured,
    normalization,
    pointwise,
    reductions,
    windows,
)
from dynamo.shapes.rules.pointwise import pointwise_outcome
from dynamo.shapes.rules.table import SHAPE_RULES

__all__ = [
    "SHAPE_RULES", "attention", "factories", "indexing", "losses", "measured", "normalization",
    "pointwise", "pointwise_outcome", "matmuls", "reductions", "windows",
]  # fmt: skip
