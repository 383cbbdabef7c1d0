"""`F.interpolate` over symbolic sizes, in the steps that ATen takes.

In: the arguments of `F.interpolate`. Out: its result. torch's C++ function makes constants of the
sizes, and its Python versions are other formulas; the operators that eager ends in take symbols.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.nn import functional

aten = torch.ops.aten
# By mode and the number of axes.
OPERATORS: dict[tuple[str, int], Any] = {
    ("nearest", 1): aten.upsample_nearest1d.default,
    ("nearest", 2): aten.upsample_nearest2d.default,
    ("nearest", 3): aten.upsample_nearest3d.default,
    ("nearest-exact", 1): aten._upsample_nearest_exact1d.default,
    ("nearest-exact", 2): aten._upsample_nearest_exact2d.default,
    ("nearest-exact", 3): aten._upsample_nearest_exact3d.default,
    ("linear", 1): aten.upsample_linear1d.default,
    ("bilinear", 2): aten.upsample_bilinear2d.default,
    ("trilinear", 3): aten.upsample_trilinear3d.default,
    ("bicubic", 2): aten.upsample_bicubic2d.default,
}
ANTIALIASED: dict[tuple[str, int], Any] = {
    ("bilinear", 2): aten._upsample_bilinear2d_aa.default,
    ("bicubic", 2): aten._upsample_bicubic2d_aa.default,
}
# Those for whose backward torch has nothing that takes symbols.
NO_SYMBOLIC_BACKWARD = frozenset((
    *(operator for (mode, _), operator in OPERATORS.items() if not mode.startswith("nearest")),
    *ANTIALIASED.values(),
))  # fmt: skip


def interpolate(
    input: torch.Tensor,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
    *,
    operators: Mapping[tuple[str, int], Any] = OPERATORS,
    only_sizes: bool = False,
) -> torch.Tensor:
    """`F.interpolate`; what has no symbols, and what it refuses, is left to it.

    only_sizes: what the result looks like is wanted, not its values.
    """
    rank = input.dim() - 2
    operator = (ANTIALIASED if antialias else operators).get((mode, rank))
    if input.requires_grad and operator in NO_SYMBOLIC_BACKWARD:
        operator = None
    sizes = size if isinstance(size, (tuple, list)) else [size] * rank
    is_symbolic = any(type(number) is torch.SymInt for number in (*input.shape, *sizes))
    factors = _factors(scale_factor, rank)
    nearest = mode.startswith("nearest")
    refused = nearest and align_corners is not None or bool(recompute_scale_factor and size)
    plain = (size is None) != (factors is None) and len(sizes) == rank and not refused
    by_sizes = mode == "area" or only_sizes  # factors change nothing else, then
    if not is_symbolic or not plain or operator is None and not (by_sizes and factors):
        return functional.interpolate(
            input, size, scale_factor, mode, align_corners, recompute_scale_factor, antialias)
    if any(type(extent) is int and extent == 0 for extent in input.shape[1:]):
        found = list(input.shape)  # torch's Python version of the operator asks no such thing
        raise RuntimeError(f"Non-empty {rank + 2}D data tensor expected but got sizes {found}")
    if factors is not None:
        sizes = [_scaled(n, f) for n, f in zip(input.shape[2:], factors, strict=True)]
    if operator is None:
        return functional.interpolate(input, sizes, None, mode, align_corners, None, antialias)
    scales = factors if factors and not recompute_scale_factor else [None] * rank
    corners = () if nearest else (bool(align_corners),)
    result: torch.Tensor = operator(input, sizes, *corners, *scales)
    return result


def _factors(scale_factor: Any, rank: int) -> Sequence[float] | None:
    """One for each axis; None without, or for others than plain numbers."""
    factors = scale_factor if isinstance(scale_factor, (tuple, list)) else [scale_factor] * rank
    if len(factors) != rank or any(type(factor) not in (int, float) for factor in factors):
        return None
    return [float(factor) for factor in factors]


def _scaled(extent: Any, factor: float) -> Any:
    """`int(extent * factor)`; by integers, which guards can compute, where that is the same."""
    above, below = factor.as_integer_ratio()
    if 0 < above < 1 << 20 and below < 1 << 20:
        return extent * above // below
    return torch.sym_int(extent * factor)
