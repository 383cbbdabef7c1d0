"""What eager refuses of sizes and numbers although torch's shape rules let it pass.

An operation whose result nobody reads is left out of a graph, and with it the error that its kernel
would raise. So these are refused where the operation runs on fakes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from dynamo.shapes.fake_tensor import Fake

aten = torch.ops.aten
Refusal = Callable[[Sequence[Any]], bool]


def _numbers(value: Any) -> list[Any]:
    """The numbers of a list that are known."""
    return [number for number in value or () if type(number) in (int, float)]


def _convolution(args: Sequence[Any]) -> bool:
    stride, padding, dilation = map(_numbers, args[3:6])
    groups = args[8]
    return (
        any(step <= 0 for step in (*stride, *dilation)) or any(width < 0 for width in padding)
        or type(groups) is int and groups <= 0
    )


def _pad(axes: int) -> Refusal:
    def refuses(args: Sequence[Any]) -> bool:
        return args[0].dim() not in (axes + 1, axes + 2) or len(args[1]) != 2 * axes

    return refuses


def _huber(args: Sequence[Any]) -> bool:
    delta = args[3] if len(args) > 3 else 1.0
    return type(delta) in (int, float) and delta <= 0


def _masked_fill(args: Sequence[Any]) -> bool:
    value = args[2]
    if args[0].dtype.is_complex or type(value) not in (int, float):
        return type(value) is complex and not args[0].dtype.is_complex
    try:
        torch.full((), value, dtype=args[0].dtype, device="cpu")
    except RuntimeError:
        return True
    return False


def _diagonal_scatter(args: Sequence[Any]) -> bool:
    target, source, offset, one, other = (*args, *(0, 0, 1)[len(args) - 2 :])
    rank = target.dim()
    if not -rank <= one < rank or not -rank <= other < rank:
        return True
    rows, columns = target.shape[one], target.shape[other]
    ends = (rows, columns - offset) if offset >= 0 else (rows + offset, columns)
    rest = [n for axis, n in enumerate(target.shape) if axis not in (one % rank, other % rank)]
    return list(source.shape) != [*rest, torch.sym_max(torch.sym_min(*ends), 0)]


def _addmv(args: Sequence[Any]) -> bool:
    return args[0].dim() > 1


def _reaches_out(places: int) -> Refusal:
    """Whether elements lie behind the end of the storage. places: arguments before the sizes."""

    def refuses(args: Sequence[Any]) -> bool:
        source, (size, stride, *offset) = args[0], args[places : places + 3]
        if type(source) is not Fake or 0 in size or len(size) != len(stride):
            return False
        first = offset[0] if offset and offset[0] is not None else source.facts.offset
        last = first + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
        return bool((last + 1) * source.dtype.itemsize > source.token.nbytes)

    return refuses


def refused(func: Any) -> RuntimeError:
    """The error where eager's own text is not to be had."""
    return RuntimeError(f"{func}: sizes or numbers that do not fit")


# By operator: True for arguments that eager refuses. The keywords of a call are not among them.
REFUSALS: dict[Any, Refusal] = {
    aten.convolution.default: _convolution,
    aten.huber_loss.default: _huber,
    aten.masked_fill.Scalar: _masked_fill, aten.masked_fill_.Scalar: _masked_fill,
    aten.diagonal_scatter.default: _diagonal_scatter,
    aten.addmv.default: _addmv,
    aten.as_strided.default: _reaches_out(1), aten.as_strided_.default: _reaches_out(1),
    aten.as_strided_copy.default: _reaches_out(1), aten.as_strided_scatter.default: _reaches_out(2),
    **{getattr(aten, f"{kind}_pad{axes}d").default: _pad(axes)
       for kind in ("reflection", "replication") for axes in (1, 2, 3)},
}  # fmt: skip
