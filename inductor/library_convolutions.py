"""Which library computes a convolution of inference, and its weight as that wants it.

In: the convolutions of a loop graph, the frozen ones with a `Preparer`. Out: the same, by oneDNN
with a packed weight where it can; else by ATen, which takes a channels-last weight as it is.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import torch

from inductor.ir.graph import ExternKernel, Layout, ViewRef
from inductor.preparation import Preparer, contiguous

aten = torch.ops.aten


def with_prepared_weight(preparer: Preparer, node: ExternKernel) -> ExternKernel:
    """A channels-last convolution of a frozen weight reads that as the library wants it."""
    if node.target is not aten.convolution.default:
        return node
    x, weight, *rest = node.args
    if not isinstance(x, ViewRef) or not isinstance(weight, ViewRef) or node.args[6]:
        return node
    if weight.buffer not in preparer.frozen or len(x.size) != 4 or x.stride != _last(x.size):
        return node
    if not preparer.has_room(weight):
        return node
    if _can_pack(node, x, weight):
        return _packed_convolution(preparer, node, x, weight)
    stride = _last(weight.size)
    layout = Layout(preparer.graph.device, weight.dtype, weight.size, stride)
    name = preparer.prepare("channels_last", weight, layout, _in_last_format)
    return replace(node, args=(x, replace(weight, buffer=name, stride=stride, offset=0), *rest))


def has_onednn(*operators: str) -> bool:
    """Whether torch has oneDNN, switched on, with these operators."""
    if not torch.backends.mkldnn.is_available() or not torch._C._get_mkldnn_enabled():
        return False
    return all(hasattr(torch.ops.mkldnn, name) for name in operators)


def _can_pack(node: ExternKernel, x: ViewRef, weight: ViewRef) -> bool:
    """Whether it is one of float32 that oneDNN computes from channels last to channels last."""
    _, _, bias, *sizes, groups = node.args
    if not has_onednn("_convolution_pointwise", "_reorder_convolution_weight"):
        return False
    if any(view.dtype is not torch.float32 for view in (x, weight)) or node.kwargs:
        return False
    if not isinstance(bias, ViewRef | None) or node.layout is None or 0 in node.layout.size:
        return False
    lengths = [len(each) if isinstance(each, tuple) else 0 for each in sizes[:3]]
    is_last = node.layout.stride == _last(node.layout.size)
    return lengths == [2, 2, 2] and is_last and 0 not in x.size


def _packed_convolution(
    preparer: Preparer, node: ExternKernel, x: ViewRef, weight: ViewRef
) -> ExternKernel:
    _, _, bias, stride, padding, dilation, _, _, groups = node.args
    how: tuple[Any, ...] = (padding, stride, dilation, groups, x.size)
    name = preparer.prepare(
        "packed", weight, preparer.as_it_is(weight), functools.partial(_packed, *how), how
    )
    read = replace(weight, buffer=name, stride=contiguous(weight.size), offset=0)
    args = (x, read, bias, padding, stride, dilation, groups, "none", (), "")
    return replace(node, target=torch.ops.mkldnn._convolution_pointwise.default, args=args)


def _packed(
    padding: Any, stride: Any, dilation: Any, groups: int, size: Any, weight: torch.Tensor
) -> torch.Tensor:
    reorder = torch.ops.mkldnn._reorder_convolution_weight
    made: torch.Tensor = reorder(weight.contiguous(), padding, stride, dilation, groups, size)
    return made


def _last(size: tuple[int, ...]) -> tuple[int, ...]:
    """Strides of a dense channels-last tensor."""
    _, channels, height, width = size
    return (channels * height * width, 1, width * channels, channels)


def _in_last_format(value: torch.Tensor) -> torch.Tensor:
    made = torch.empty_strided(value.shape, _last(tuple(value.shape)), dtype=value.dtype)
    return made.copy_(value)
