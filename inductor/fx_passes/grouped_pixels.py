"""Grouped convolutions of single pixels in half precision on a GPU, as a GEMM for each group.

In: a functional ATen graph with fakes, laid out. Out: the same graph (changed in place), where
such a convolution of channels-last images (windows of 1 x 1, as aggregations of attention have
them), and its gradients, are batched GEMMs of the pixels' channels as they lie. The library cuts
the groups out, and has a convolution for each: 357 of the 490 us of EfficientViT-B0 on an H200.
Convolutions whose results each read one channel are not meant.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from dynamo.aot.fakes import facts_of
from inductor.fx_passes.calls_with_fakes import Calls
from inductor.fx_passes.convolution_rewrites import rewrite_convolutions
from inductor.fx_passes.layout_choice import groups_of_images, operands_of

aten = torch.ops.aten


def grouped_pixels_as_gemms(module: fx.GraphModule) -> fx.GraphModule:
    """See the top of the file."""
    return rewrite_convolutions(module, _is_meant, _forward, _backward)


def _is_meant(node: fx.Node) -> bool:
    if groups_of_images(node) == 1:
        return False
    args: Any = node.args
    stride, padding = args[3:5] if node.target is aten.convolution.default else args[4:6]
    window = tuple(operands_of(node)[1].meta["val"].shape[2:])
    return window == (1, 1) and {*stride} == {1} and not any(padding)


class _Groups:
    """Makes nodes before a convolution of this many groups."""

    def __init__(self, node: fx.Node, groups: int) -> None:
        self.call, self.groups = Calls(node), groups

    def of_pixels(self, images: fx.Node) -> fx.Node:
        """(groups, pixels, channels of one), a view."""
        rows = self.call(aten.permute.default, images, [0, 2, 3, 1])
        channels = facts_of(images.meta["val"]).size[1]
        rows = self.call.view(rows, -1, self.groups, channels // self.groups)
        return self.call(aten.permute.default, rows, [1, 0, 2])

    def of_weight(self, weight: fx.Node) -> fx.Node:
        """(groups, results of one, channels of one)."""
        results, channels = facts_of(weight.meta["val"]).size[:2]
        return self.call.view(weight, self.groups, results // self.groups, channels)

    def images(self, found: fx.Node, like: Any) -> fx.Node:
        """What `of_pixels` takes apart, channels last. like: a fake of these sizes."""
        batch, channels, *extents = facts_of(like).size
        rows = self.call(aten.permute.default, found, [1, 0, 2])
        rows = self.call.view(rows, batch, *extents, channels)
        return self.call(aten.permute.default, rows, [0, 3, 1, 2])


def _forward(node: fx.Node) -> bool:
    args: Any = node.args
    x, weight, bias = args[:3]
    of = _Groups(node, args[8])
    factor = of.call(aten.permute.default, of.of_weight(weight), [0, 2, 1])
    found = of.call(aten.bmm.default, of.of_pixels(x), factor)
    result = of.images(found, node.meta["val"])
    if bias is not None:
        result = of.call(aten.add.Tensor, result, of.call(aten.view.default, bias, [-1, 1, 1]))
    node.replace_all_uses_with(result)
    node.graph.erase_node(node)
    return True


def _backward(node: fx.Node) -> bool:
    args: Any = node.args
    grad, x, weight = args[:3]
    of, wanted = _Groups(node, args[9]), args[10]
    slopes = of.of_pixels(grad)
    found: list[fx.Node | None] = [None, None, None]
    if wanted[0]:
        product = of.call(aten.bmm.default, slopes, of.of_weight(weight))
        found[0] = of.images(product, x.meta["val"])
    if wanted[1]:
        turned = of.call(aten.permute.default, slopes, [0, 2, 1])
        product = of.call(aten.bmm.default, turned, of.of_pixels(x))
        results, channels = facts_of(weight.meta["val"]).size[:2]
        rows = of.call.view(product, results, 1, 1, channels)
        found[1] = of.call(aten.permute.default, rows, [0, 3, 1, 2])
    if wanted[2]:
        found[2] = of.call(aten.sum.dim_IntList, grad, [0, 2, 3])
    for item in list(node.users):
        assert item.target is operator.getitem
        own = found[item.args[1]]  # type: ignore[index, call-overload]
        assert own is not None
        item.replace_all_uses_with(own)
        node.graph.erase_node(item)
    node.graph.erase_node(node)
    return True
