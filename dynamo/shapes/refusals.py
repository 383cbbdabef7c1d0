"""What eager refuses of sizes and numbers although torch's shape rules let it pass.

An operation whose result nothing reads is left out of a graph, and with it the error that its
kernel would raise. So these are refused where the operation runs on fakes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from dynamo.shapes.fake_tensor import Fake
from dynamo.shapes.iteration import broadcast_sizes

aten = torch.ops.aten
Refusal = Callable[[Sequence[Any]], bool]


def _numbers(value: Any) -> list[Any]:
    """The numbers of a list that are known."""
    return [number for number in value or () if type(number) in (int, float)]


def _convolution(args: Sequence[Any]) -> bool:
    source, weight = args[:2]
    stride, padding, dilation = map(_numbers, args[3:6])
    if any(step <= 0 for step in (*stride, *dilation)) or any(width < 0 for width in padding):
        return True
    if source.dim() != weight.dim() or 0 in _numbers(weight.shape[2:]):
        return True
    if 0 in _numbers(source.shape[2:]):
        return True
    transposed, groups, bias = args[6], args[8], args[2]
    steps = zip(_numbers(args[7]), stride, dilation, strict=False)
    if transposed and any(more >= max(step, gap) for more, step, gap in steps):
        return True
    channels = (source.shape[1], *weight.shape[:2])
    if type(groups) is not int or any(type(count) is not int for count in channels):
        return False
    if groups <= 0 or weight.shape[0] < groups or weight.shape[0] % groups:
        return True
    made = weight.shape[1] * groups if transposed else weight.shape[0]
    if bias is not None and (bias.dim() != 1 or bias.shape[0] != made):
        return True
    taken = weight.shape[0] if transposed else weight.shape[1] * groups
    return bool(source.shape[1] != taken)


def _adaptive_pool(args: Sequence[Any]) -> bool:
    return 0 in _numbers(args[0].shape[1:])


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
    given: list[Any] = [*args, *[0, 0, 1][len(args) - 2 :]]
    target, source, offset, one, other = given
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


def _soft_margin(args: Sequence[Any]) -> bool:
    x, target = args[:2]
    return type(x) is Fake and broadcast_sizes([x.facts.size, target.facts.size]) != x.facts.size


def _transform(args: Sequence[Any]) -> bool:
    """Some libraries refuse to transform nothing; the one that eager calls says so."""
    return type(args[0]) is Fake and 0 in args[0].facts.size


# By operator: True for arguments that eager refuses, or may refuse where sizes are static: there
# the call is tried. The keywords of a call are not among them.
REFUSALS: dict[Any, Refusal] = {
    aten.convolution.default: _convolution,
    aten.huber_loss.default: _huber,
    aten.masked_fill.Scalar: _masked_fill, aten.masked_fill_.Scalar: _masked_fill,
    aten.diagonal_scatter.default: _diagonal_scatter,
    aten.addmv.default: _addmv, aten.soft_margin_loss.default: _soft_margin,
    aten._fft_c2c.default: _transform, aten._fft_r2c.default: _transform,
    aten._fft_c2r.default: _transform,
    aten._adaptive_avg_pool2d.default: _adaptive_pool,
    aten._adaptive_avg_pool3d.default: _adaptive_pool,
    aten.as_strided.default: _reaches_out(1), aten.as_strided_.default: _reaches_out(1),
    aten.as_strided_copy.default: _reaches_out(1), aten.as_strided_scatter.default: _reaches_out(2),
    **{getattr(aten, f"{kind}_pad{axes}d").default: _pad(axes)
       for kind in ("reflection", "replication") for axes in (1, 2, 3)},
}  # fmt: skip
