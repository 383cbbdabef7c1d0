"""Convolutions of sequences on a GPU, as those of images of one row.

In: a functional ATen graph with fakes. Out: the same graph (changed in place) where a convolution
of sequences (batch, channels, length) that matrix units compute, forward or backward, is one of
images (batch, channels, 1, length). ATen does the same inside, but of a contiguous copy; the
library's kernels read channels last, so it copies what they read, and what they give, once more. As
images, sequences may lie channels last from one convolution to the next (`layout.py`): 0.33 to 0.61
of the time on an H200 in half precision, 0.5 to 1 in TensorFloat-32.

Windows with gaps: every ninth element, say, becomes a column of an image with nine columns, along
which the window has no gaps. With gaps of nine, the library takes 82 us where it takes 52 without,
and for some sizes (256 channels x 16384) 33 ms, as it has no fast kernel there.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from dynamo.aot.fakes import facts_of
from inductor.fx_passes.calls_with_fakes import Calls
from inductor.fx_passes.fakes import on_gpu
from inductor.fx_passes.layout_choice import fast_dtypes, suits_matrix_units

aten = torch.ops.aten
ROW = 2  # the dimension of the one row
FEW = 8  # channels; the gradient of such a weight took up to 26 times as long channels last
SMALL_GAP = 3  # took as long as none


def sequences_as_images(module: fx.GraphModule) -> fx.GraphModule:
    """See the top of the file."""
    kinds = (aten.convolution.default, aten.convolution_backward.default)
    found = [
        node for kind in kinds
        for node in module.graph.find_nodes(op="call_function", target=kind)
        if _is_of_sequences(node)
    ]  # fmt: skip
    for node in found:
        _Rewriter(node).run()
    if found:
        module.recompile()
    return module


def _is_of_sequences(node: fx.Node) -> bool:
    source: Any = node.args[0].meta["val"]  # type: ignore[union-attr]
    if source.dim() != 3 or not on_gpu(source.device):
        return False
    if node.target is aten.convolution_backward.default:
        channels = node.args[1].meta["val"].shape[1]  # type: ignore[union-attr]
        if type(channels) is not int or channels < FEW:
            return False
    groups = node.args[-1] if node.target is aten.convolution.default else node.args[9]
    if groups != 1:  # channels last, the library cuts groups out of images
        return False
    suits = source.dtype in fast_dtypes(source.device) and suits_matrix_units(node)
    return suits and torch.backends.cudnn.enabled


class _Rewriter:
    """Of one convolution."""

    def __init__(self, node: fx.Node) -> None:
        self.node, self.graph = node, node.graph
        self.call = Calls(node)

    def run(self) -> None:
        if self.node.target is aten.convolution.default:
            self._forward()
        else:
            self._backward()

    def _forward(self) -> None:
        args: Any = self.node.args
        x, weight, bias, stride, padding, dilation, transposed, more, groups = args
        numbers = (*facts_of(x.meta["val"]).size, *facts_of(weight.meta["val"]).size)
        is_known = all(type(number) is int for number in numbers)
        if is_known and dilation[0] > SMALL_GAP and stride[0] == 1 and not transposed:
            sequence = self._in_columns(x, weight, bias, padding[0], dilation[0])
        else:
            image = self.call(
                aten.convolution.default, self._image(x), self._image(weight), bias,
                [1, *stride], [0, *padding], [1, *dilation], transposed, [0, *more], groups)
            sequence = self._sequence(image)
        self.node.replace_all_uses_with(sequence)
        self.graph.erase_node(self.node)

    def _in_columns(
        self, x: fx.Node, weight: fx.Node, bias: Any, padding: int, gap: int
    ) -> fx.Node:
        """A window with gaps, which moves by one place."""
        call = self.call
        batch, channels, length = facts_of(x.meta["val"]).size
        outputs, _, places = facts_of(weight.meta["val"]).size
        results = length + 2 * padding - gap * (places - 1)
        rows = -(-results // gap) + places - 1
        behind = rows * gap - length - padding
        padded = call(aten.constant_pad_nd.default, x, [padding, behind], 0.0)
        image = call.view(padded, batch, channels, rows, gap)
        window = call(aten.unsqueeze.default, weight, 3)
        image = call(
            aten.convolution.default, image, window, bias, [1, 1], [0, 0], [1, 1], False, [0, 0], 1)
        flat = call.view(image, batch, outputs, -1)
        return call.contiguous(call(aten.slice.Tensor, flat, 2, 0, results))

    def _backward(self) -> None:
        """Gradients of the input, the weight and the bias, which are taken out of the result."""
        args: Any = self.node.args
        gradient, x, weight, bias, stride, padding, dilation, transposed, more, *rest = args
        images = self.call(
            aten.convolution_backward.default, self._image(gradient), self._image(x),
            self._image(weight), bias, [1, *stride], [0, *padding], [1, *dilation], transposed,
            [0, *more], *rest)
        for item in list(self.node.users):
            position: Any = item.args[1]
            self.call = Calls(item)
            part = self.call(operator.getitem, images, position)
            if position != 2 and part.meta["val"] is not None:  # 2: the bias's
                part = self._sequence(part)
            item.replace_all_uses_with(part)
            self.graph.erase_node(item)
        self.graph.erase_node(self.node)

    def _image(self, sequence: Any) -> fx.Node:
        return self.call(aten.unsqueeze.default, sequence, ROW)

    def _sequence(self, image: fx.Node) -> fx.Node:
        """Row by row, as ATen gives sequences; images lie as what was convolved."""
        return self.call.contiguous(self.call(aten.squeeze.dim, image, ROW))
