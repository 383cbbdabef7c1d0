"""Grouped convolutions of sequences in half precision on a GPU, as what the library is fast at.

In: a functional ATen graph with fakes. Out: the same graph (changed in place). cuDNN's forward
kernels of grouped convolutions of sequences are slow: 12.4 ms on an H200 for the one that gives
wav2vec 2.0 its positions (4 x 768 channels x 200, windows of 128, 16 groups). Two other forms of
the same sums:

    long windows    the windows side by side, and a GEMM for each group: 0.28 ms; the gradient of
                    the input, too. The windows lie in memory as often as they are long
    others          a transposed convolution with the window turned, which is the library's kernel
                    for gradients of inputs: 0.55 ms; 29 us instead of 153 for a window of five

Depthwise convolutions are not meant.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from dynamo.aot.fakes import facts_of
from inductor.fx_passes.calls_with_fakes import Calls
from inductor.fx_passes.convolution_rewrites import rewrite_convolutions
from inductor.fx_passes.fakes import on_gpu
from inductor.fx_passes.layout_choice import HALVES

aten = torch.ops.aten
# Measured with 31 and 128 places; up to how many bytes windows lie side by side is chosen.
LONG, MOST_BYTES = 64, 1 << 28


def without_slow_groups(module: fx.GraphModule) -> fx.GraphModule:
    """See the top of the file."""
    return rewrite_convolutions(module, _is_meant, _rewrite, _rewrite)


def _is_meant(node: fx.Node) -> bool:
    """Whether a convolution of sequences has groups, and moves by one place."""
    is_backward = node.target is aten.convolution_backward.default
    args: Any = node.args
    source, weight = (args[position + is_backward].meta["val"] for position in (0, 1))
    if not on_gpu(source.device) or source.dtype not in HALVES or source.dim() != 3:
        return False
    stride, _, dilation, transposed, _, groups = args[3 + is_backward : 9 + is_backward]
    numbers = (*facts_of(source).size, *facts_of(weight).size)
    if not all(type(number) is int and number > 0 for number in numbers):
        return False
    plain = [*stride] == [*dilation] == [1] and not transposed
    return plain and 1 < groups < source.shape[1] and torch.backends.cudnn.enabled


def _rewrite(node: fx.Node) -> bool:
    return _Rewriter(node).run()


class _Rewriter:
    """Of one convolution."""

    def __init__(self, node: fx.Node) -> None:
        self.node, self.graph = node, node.graph
        self.is_backward = node.target is aten.convolution_backward.default
        args: Any = node.args
        self.x, self.weight, self.bias = args[self.is_backward :][:3]
        self.padding: int = args[4 + self.is_backward][0]
        self.groups: int = args[8 + self.is_backward]
        self.call = Calls(node)

    def run(self) -> bool:
        if self.is_backward:
            return self._gradient_of_input()
        rest = facts_of(self.weight.meta["val"]).size[2] - 1 - self.padding
        if self._are_side_by_side(self.x, self.weight, self.padding):
            result = self._as_gemms(self.x, self.weight, self.padding)
        elif rest >= 0:
            result = self.call(
                aten.convolution.default, self.x, self._turned(), None, [1], [rest], [1],
                True, [0], self.groups)
        else:  # a transposed convolution leaves places away, and has none to add
            return False
        if self.bias is not None:
            column = self.call(aten.view.default, self.bias, [-1, 1])
            result = self.call(aten.add.Tensor, result, column)
        self.node.replace_all_uses_with(result)
        self.graph.erase_node(self.node)
        return True

    def _gradient_of_input(self) -> bool:
        """By itself where windows are long: of the gradient, with the window turned."""
        args: Any = self.node.args
        gradient, wanted = args[0], args[10]
        padding = facts_of(self.weight.meta["val"]).size[2] - 1 - self.padding
        if not wanted[0] or padding < 0:
            return False
        if not self._are_side_by_side(gradient, self.weight, padding):
            return False
        own = self._as_gemms(gradient, self._turned(), padding)
        rest = self.call(self.node.target, *args[:10], [False, *wanted[1:]])
        for item in list(self.node.users):
            position = item.args[1]
            part = own if position == 0 else Calls(item)(operator.getitem, rest, position)
            item.replace_all_uses_with(part)
            self.graph.erase_node(item)
        self.graph.erase_node(self.node)
        return True

    def _are_side_by_side(self, x: fx.Node, weight: fx.Node, padding: int) -> bool:
        """Whether windows are long, and not too many for memory."""
        facts, places = facts_of(x.meta["val"]), facts_of(weight.meta["val"]).size[2]
        batch, channels, length = facts.size
        results = length + 2 * padding - places + 1
        return places >= LONG and batch * channels * results * places * 2 <= MOST_BYTES

    def _turned(self) -> fx.Node:
        """The weight with its window turned and, in each group, inputs and outputs exchanged."""
        outputs, inputs, places = facts_of(self.weight.meta["val"]).size
        split = [self.groups, outputs // self.groups, inputs, places]
        parts = self.call(aten.view.default, self.weight, split)
        parts = self.call(aten.flip.default, parts, [3])
        parts = self.call(aten.permute.default, parts, [0, 2, 1, 3])
        return self.call.view(parts, self.groups * inputs, outputs // self.groups, places)

    def _as_gemms(self, x: fx.Node, weight: fx.Node, padding: int) -> fx.Node:
        """(batch, channels, length) with (outputs, channels of a group, places)."""
        groups, call = self.groups, self.call
        batch, channels, length = facts_of(x.meta["val"]).size
        outputs, inputs, places = facts_of(weight.meta["val"]).size
        results = length + 2 * padding - places + 1
        if padding:
            x = call(aten.constant_pad_nd.default, x, [padding, padding], 0.0)
        x = call.view(x, batch, groups, inputs, length + 2 * padding)
        windows = call(aten.unfold.default, x, 3, places, 1)
        windows = call(aten.permute.default, windows, [1, 0, 3, 4, 2])
        windows = call.view(windows, groups, batch * results, places * inputs)
        parts = call.view(weight, groups, outputs // groups, inputs, places)
        parts = call(aten.permute.default, parts, [0, 3, 2, 1])
        parts = call.view(parts, groups, places * inputs, outputs // groups)
        found = call(aten.bmm.default, windows, parts)
        found = call.view(found, groups, batch, results, outputs // groups)
        found = call(aten.permute.default, found, [1, 0, 3, 2])
        return call.view(found, batch, outputs, results)
