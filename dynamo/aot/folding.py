"""A batch norm of inference as what it does to each channel: for those who put it into weights."""

from __future__ import annotations

from torch import Tensor


def affine_of_norm(
    mean: Tensor, variance: Tensor, epsilon: float, scale: Tensor | None, shift: Tensor | None,
    bias: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """(factor, offset) in float64: of a layer with that bias, the norm makes y * factor + offset,
    where y is what the layer gives without the bias.

    >>> from torch import ones
    >>> factor, offset = affine_of_norm(ones(1), 3 * ones(1), 1.0, None, ones(1), 3 * ones(1))
    >>> factor.item(), offset.item()
    (0.5, 2.0)
    """
    factor = 1 / (variance.double() + epsilon).sqrt()
    if scale is not None:
        factor = factor * scale
    start = -mean.double() if bias is None else bias.double() - mean
    return factor, start * factor if shift is None else start * factor + shift
