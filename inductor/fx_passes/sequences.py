"""Convolutions of sequences on a GPU, as those of images of one row.

In: a functional ATen graph with fakes. Out: the same graph (changed in place) where a convolution
of sequences (batch, channels, length) that matrix units compute, forward or backward, is one of
images (batch, channels, 1, length). ATen does the same inside, but of a contiguous copy; the
library's kernels read channels last, so it copies what they read, and what they give, once more. As
images, sequences may lie channels last from one convolution to the next (`layout.py`): 0.33 to 0.61
of the time on an H200 in half precision, 0.5 to 1 in TensorFloat-32.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from inductor.fx_passes.fakes import fake_runner
from inductor.fx_passes.layout import fast_dtypes, on_gpu, suits_matrix_units

aten = torch.ops.aten
ROW = 2  # the dimension of the one row
FEW = 8  # channels; the gradient of such a weight took up to 26 times as long channels last


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
    suits = source.dtype in fast_dtypes(source.device) and suits_matrix_units(node)
    return suits and torch.backends.cudnn.enabled


class _Rewriter:
    """Of one convolution."""

    def __init__(self, node: fx.Node) -> None:
        self.node, self.graph = node, node.graph
        self.run_fake = fake_runner(node.args[0].meta["val"])  # type: ignore[union-attr]

    def run(self) -> None:
        if self.node.target is aten.convolution.default:
            self._forward()
        else:
            self._backward()

    def _forward(self) -> None:
        args: Any = self.node.args
        x, weight, bias, stride, padding, dilation, transposed, more, groups = args
        with self.graph.inserting_before(self.node):
            image = self._call(
                aten.convolution.default, self._image(x), self._image(weight), bias, [1, *stride],
                [0, *padding], [1, *dilation], transposed, [0, *more], groups)
            sequence = self._call(aten.squeeze.dim, image, ROW)
        self.node.replace_all_uses_with(sequence)
        self.graph.erase_node(self.node)

    def _backward(self) -> None:
        """Gradients of the input, the weight and the bias, which are taken out of the result."""
        args: Any = self.node.args
        gradient, x, weight, bias, stride, padding, dilation, transposed, more, *rest = args
        with self.graph.inserting_before(self.node):
            images = self._call(
                aten.convolution_backward.default, self._image(gradient), self._image(x),
                self._image(weight), bias, [1, *stride], [0, *padding], [1, *dilation], transposed,
                [0, *more], *rest)
        for item in list(self.node.users):
            position: Any = item.args[1]
            with self.graph.inserting_before(item):
                part = self.graph.call_function(operator.getitem, (images, position))
                part.meta = {**item.meta, "val": images.meta["val"][position]}
                if position != 2 and part.meta["val"] is not None:  # 2: the bias's
                    part = self._call(aten.squeeze.dim, part, ROW)
            item.replace_all_uses_with(part)
            self.graph.erase_node(item)
        self.graph.erase_node(self.node)

    def _image(self, sequence: Any) -> fx.Node:
        return self._call(aten.unsqueeze.default, sequence, ROW)

    def _call(self, target: Any, *args: Any) -> fx.Node:
        new = self.graph.call_function(target, args)
        values = fx.map_arg(args, lambda node: node.meta["val"])
        with torch.no_grad():
            new.meta = {**self.node.meta, "val": self.run_fake(target, *values)}
        return new
