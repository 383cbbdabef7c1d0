"""Own decompositions of gradients of padding by reflection and by repeated edges.

In: eager's arguments. Out: the gradient as a sum of the slice behind the padding and of the
padding's own parts, turned over or summed, one axis after the other: loads with a mask to a loop
compiler, where eager adds element by element. It is row-major, as torch's meta functions say and
its GPU kernels do; those on a CPU keep channels last. Its sums come in another order, in the dtype
of the gradient; half precision is added in float32 here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

aten = torch.ops.aten
Tensor = torch.Tensor
Turned = Callable[[Tensor, int], Tensor]


def reflection_pad_backward(gradient: Tensor, x: Tensor, padding: Sequence[int]) -> Any:
    """gradient: of x padded by `padding`, two numbers for each axis, the last axis first."""
    return _unpadded(gradient, x, padding, 1, lambda part, axis: torch.flip(part, [axis]))


def replication_pad_backward(gradient: Tensor, x: Tensor, padding: Sequence[int]) -> Any:
    """The same where the padding repeats the first and the last element."""
    return _unpadded(gradient, x, padding, 0, lambda part, axis: torch.sum(part, axis, True))


def _unpadded(
    gradient: Tensor, x: Tensor, padding: Sequence[int], edge: int, folded: Turned
) -> Any:
    """edge: how many elements at the edge have no copy in the padding. folded: what a part of the
    padding adds to the elements that it was made of."""
    plain = x.dtype.is_floating_point and all(type(count) is int for count in padding)
    if not plain or x.numel() == 0 or min(padding) < 0:
        return NotImplemented
    half = x.dtype in (torch.float16, torch.bfloat16)
    result = gradient.to(torch.float32) if half else gradient
    for number in range(len(padding) // 2):
        axis = x.dim() - 1 - number
        before, after = padding[2 * number : 2 * number + 2]
        result = _without(result, axis, x.shape[axis], before, after, edge, folded)
    result = result.to(x.dtype) if half else result
    return result.contiguous()


def _without(
    gradient: Tensor, axis: int, extent: Any, before: int, after: int, edge: int, folded: Turned
) -> Tensor:
    result = aten.slice.Tensor(gradient, axis, before, before + extent)
    behind = [0, 0] * (gradient.dim() - 1 - axis)  # axes that are not padded
    if before:
        part = folded(aten.slice.Tensor(gradient, axis, 0, before), axis)
        rest = extent - edge - part.shape[axis]
        result = result + aten.constant_pad_nd(part, [*behind, edge, rest])
    if after:
        start = before + extent
        part = folded(aten.slice.Tensor(gradient, axis, start, start + after), axis)
        rest = extent - edge - part.shape[axis]
        result = result + aten.constant_pad_nd(part, [*behind, rest, edge])
    return result


PADDING: dict[str, Callable[..., Any]] = {
    f"{kind}_pad{rank}d_backward.default": function
    for kind, function in (
        ("reflection", reflection_pad_backward), ("replication", replication_pad_backward))
    for rank in (1, 2, 3)
}  # fmt: skip
