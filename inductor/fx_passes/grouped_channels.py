"""Grouped convolutions of images in half precision on a GPU, with groups of 4, 8, 16, 32 or 64
channels, or of whole words of wide ones.

In: a functional ATen graph with fakes, laid out. Out: the same graph (changed in place), where
such a convolution of channels-last images, and its gradients, have zeros behind the channels of
each group, up to the next of these numbers. For others the library copies three times: 16 images
of 192 x 28 x 28 in groups of 24 take 94 us on an H200, in groups of 32 with a third more channels
15 (the gradients 90 and 97, 16 and 22); 384 x 28 x 28 in groups of 48 take 150. The zeros are
written where images are computed, and left away where results are read. Wide groups forward are
a template's, which takes 48 channels as they are (`ir/wide_groups.py`).

Zeros are multiplied with zeros only, as far as results are kept: infinities stay where they were.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from dynamo.aot.fakes import facts_of
from inductor.config import is_enabled
from inductor.fx_passes.calls_with_fakes import Calls
from inductor.fx_passes.convolution_rewrites import rewrite_convolutions
from inductor.fx_passes.layout_choice import groups_of_images, operands_of
from inductor.ir.wide_groups import are_wide, padded_width

aten = torch.ops.aten
MOST = 64  # channels of a group for the library: wider ones were not measured


def pad_groups(module: fx.GraphModule) -> fx.GraphModule:
    """See the top of the file."""
    return rewrite_convolutions(module, _is_meant, _forward, _backward)


def _whole(channels: int) -> int:
    """The next power of two, for so few; 1 as it is."""
    return channels if channels > MOST else 1 << (channels - 1).bit_length()


def _is_meant(node: fx.Node) -> bool:
    groups = groups_of_images(node)
    return groups > 1 and any(width != whole for width, whole in _widths(node, groups))


def _widths(node: fx.Node, groups: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Channels and results of a group, each as they are and with zeros behind them."""
    results, channels = facts_of(operands_of(node)[1].meta["val"]).size[:2]
    results //= groups
    forward = node.target is aten.convolution.default
    ours = forward and are_wide(channels, results) and is_enabled("templates")
    whole = padded_width if ours else _whole
    return (channels, whole(channels)), (results, whole(results))


class _Padding:
    """Makes nodes before a convolution. inputs, results: channels of a group and, behind it, with
    zeros."""

    def __init__(self, node: fx.Node, weight: fx.Node, groups: int) -> None:
        self.call, self.groups = Calls(node), groups
        self.window = facts_of(weight.meta["val"]).size[2:]
        self.inputs, self.results = _widths(node, groups)

    def images(self, node: fx.Node, widths: tuple[int, int]) -> fx.Node:
        """Channels last, with zeros."""
        width, whole = widths
        if width == whole:
            return node
        batch, _, *extents = facts_of(node.meta["val"]).size
        rows = self.call(aten.permute.default, node, [0, 2, 3, 1])
        rows = self.call.view(rows, batch, *extents, self.groups, width)
        rows = self.call(aten.constant_pad_nd.default, rows, [0, whole - width], 0.0)
        rows = self.call.view(rows, batch, *extents, self.groups * whole)
        return self.call(aten.permute.default, rows, [0, 3, 1, 2])

    def cut_images(self, node: fx.Node, widths: tuple[int, int]) -> fx.Node:
        """Channels last, without."""
        width, whole = widths
        if width == whole:
            return node
        batch, _, *extents = facts_of(node.meta["val"]).size
        rows = self.call(aten.permute.default, node, [0, 2, 3, 1])
        rows = self.call.view(rows, batch, *extents, self.groups, whole)
        rows = self.call(aten.slice.Tensor, rows, 4, 0, width)
        rows = self.call.view(rows, batch, *extents, self.groups * width)
        return self.call(aten.permute.default, rows, [0, 3, 1, 2])

    def weight(self, node: fx.Node) -> fx.Node:
        (width, whole), (results, all_results) = self.inputs, self.results
        parts = self.call.view(node, self.groups, results, width, *self.window)
        ends = [0, 0, 0, 0, 0, whole - width, 0, all_results - results]
        parts = self.call(aten.constant_pad_nd.default, parts, ends, 0.0)
        parts = self.call.view(parts, self.groups * all_results, whole, *self.window)
        return self.call(aten.clone.default, parts, memory_format=torch.channels_last)

    def cut_weight(self, node: fx.Node) -> fx.Node:
        """Channels last, too, as the gradient of such a weight lies."""
        (width, whole), (results, all_results) = self.inputs, self.results
        rows = self.call(aten.permute.default, node, [0, 2, 3, 1])
        rows = self.call.view(rows, self.groups, all_results, *self.window, whole)
        rows = self.call(aten.slice.Tensor, rows, 1, 0, results)
        rows = self.call(aten.slice.Tensor, rows, 4, 0, width)
        rows = self.call.view(rows, self.groups * results, *self.window, width)
        return self.call(aten.permute.default, rows, [0, 3, 1, 2])

    def vector(self, node: fx.Node) -> fx.Node:
        """A bias, with zeros."""
        results, whole = self.results
        parts = self.call.view(node, self.groups, results)
        parts = self.call(aten.constant_pad_nd.default, parts, [0, whole - results], 0.0)
        return self.call.view(parts, self.groups * whole)

    def cut_vector(self, node: fx.Node) -> fx.Node:
        results, whole = self.results
        parts = self.call.view(node, self.groups, whole)
        parts = self.call(aten.slice.Tensor, parts, 1, 0, results)
        return self.call.view(parts, self.groups * results)


def _forward(node: fx.Node) -> bool:
    args: Any = node.args
    x, weight, bias, *form = args
    pad = _Padding(node, weight, args[8])
    result = pad.call(
        node.target, pad.images(x, pad.inputs), pad.weight(weight),
        None if bias is None else pad.vector(bias), *form)
    node.replace_all_uses_with(pad.cut_images(result, pad.results))
    node.graph.erase_node(node)
    return True


def _backward(node: fx.Node) -> bool:
    args: Any = node.args
    grad, x, weight, sizes, *form = args
    pad = _Padding(node, weight, args[9])
    found = pad.call(
        node.target, pad.images(grad, pad.results), pad.images(x, pad.inputs), pad.weight(weight),
        [pad.groups * pad.results[1]] if sizes else sizes, *form)
    cuts = (
        lambda part: pad.cut_images(part, pad.inputs), pad.cut_weight, pad.cut_vector,
    )  # fmt: skip
    for item in list(node.users):
        assert item.target is operator.getitem
        position: Any = item.args[1]
        part = pad.call(operator.getitem, found, position)
        item.replace_all_uses_with(cuts[position](part))
        node.graph.erase_node(item)
    node.graph.erase_node(node)
    return True
