"""Gradients of convolutions of images, on a GPU, whose channels are no multiple of 64.

In: a functional ATen graph with fakes, whose images lie channels last. Out: the same graph (changed
in place) where gradients for which the library chooses a slow kernel are computed with more
channels, of zeros, and are parts of what comes out. That of the weight and that of the images are
calls of their own then, as they are kernels of their own. Windows of 3 x 3 only; us on an H200,
bfloat16, 32 images of 64 x 64, in brackets with channels up to a multiple of 64:

- of a weight, by the channels of the images, for up to 64 results: 96 to 32 channels 522 (46), 160
  to 32 540 (94), 96 to 64 112 (45); 16 images: 52 (30), 64 (54), 68 (30). More results gain
  nothing, nor do windows of 5 x 5.
- of images, by the results: 96 to 96 channels 197 (60), 320 to 160 297 (223). Fewer channels than
  96, and 16 images of 32 x 32, gain nothing.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from dynamo.aot.fakes import facts_of
from inductor.config import config
from inductor.fx_passes.calls_with_fakes import Calls
from inductor.fx_passes.convolution_rewrites import rewrite_convolutions
from inductor.fx_passes.fakes import on_gpu
from inductor.fx_passes.layout_choice import HALVES, is_last

aten = torch.ops.aten
BACKWARD = aten.convolution_backward.default
# Of what was measured: the step of channels with fast kernels; results up to which others are slow;
# with fewer channels than these, what is gained is the time of a copy.
STEP, MOST_RESULTS, FEWEST_CHANNELS = 64, 64, 48
FEWEST_ELEMENTS = 1 << 20  # of the images; chosen, not measured
# The same for gradients of images: channels, and results of which some were measured; pixels.
MANY_CHANNELS, RESULTS, MANY_PIXELS = 96, range(65, 192), 1 << 17


def widen_channels(module: fx.GraphModule) -> fx.GraphModule:
    """See the top of the file. Nothing where templates of ours compete, which take channels as they
    are."""
    if config.max_autotune:
        return module
    return rewrite_convolutions(module, _is_meant, lambda node: False, _rewrite)


def _is_meant(node: fx.Node) -> bool:
    return node.target is BACKWARD and _is_of_windows(node) and (
        _has_slow_weight(node) or _has_slow_images(node))


def _is_of_windows(node: fx.Node) -> bool:
    """Whether it is of images of known sizes and windows as above."""
    given: tuple[Any, ...] = node.args
    stride, _, dilation, transposed, _, groups, _ = given[4:]
    values = [facts_of(each.meta["val"]) for each in given[:3]]
    _, images, weight = values
    numbers = (*images.size, *weight.size, *stride)
    if transposed or groups != 1 or len(images.size) != 4:
        return False
    if not on_gpu(images.device) or any(each.dtype not in HALVES for each in values):
        return False
    if any(type(number) is not int for number in numbers) or {*dilation} != {1}:
        return False
    return weight.size[2:] == (3, 3) and all(is_last(each.meta["val"]) for each in given[:2])


def _sizes(node: fx.Node) -> tuple[int, int, int]:
    """Results, channels, and pixels of all images."""
    images, weight = (facts_of(given.meta["val"]).size for given in node.args[1:3])  # type: ignore[union-attr]
    return weight[0], weight[1], images[0] * images[2] * images[3]


def _has_slow_weight(node: fx.Node) -> bool:
    results, channels, pixels = _sizes(node)
    wanted: Any = node.args[10]
    return bool(wanted[1]) and (
        results <= MOST_RESULTS and channels >= FEWEST_CHANNELS and channels % STEP != 0
        and pixels * channels >= FEWEST_ELEMENTS)


def _has_slow_images(node: fx.Node) -> bool:
    results, channels, pixels = _sizes(node)
    given: tuple[Any, ...] = node.args
    return bool(given[10][0]) and (
        {*given[4]} == {1} and results in RESULTS and results % STEP != 0
        and channels >= MANY_CHANNELS and pixels >= MANY_PIXELS)


def _rewrite(node: fx.Node) -> bool:
    parts = {user.args[1]: user for user in node.users if user.target is operator.getitem}
    if len(parts) != len(node.users):
        return False
    given: tuple[Any, ...] = node.args
    gradient, images, weight, *form = given
    of_images, of_weight, of_bias = form[-1]
    call, put = Calls(node), _Channels(Calls(node))
    _, channels, _ = _sizes(node)

    def computed(*operands: Any, wanted: list[bool]) -> fx.Node:
        sizes = [facts_of(operands[2].meta["val"]).size[0]] if form[0] else form[0]
        return call(BACKWARD, *operands, sizes, *form[1:-1], wanted)

    if of_weight or of_bias:
        operands = (gradient, images, weight)
        if _has_slow_weight(node):
            operands = (gradient, put.more(images, 1), put.like(weight, 1))
        rest = computed(*operands, wanted=[False, of_weight, of_bias])
        for position, is_wanted in ((1, of_weight), (2, of_bias)):
            if position in parts and is_wanted:
                found = put.part(_item(call, rest, position), channels, position == 1)
                parts[position].replace_all_uses_with(found)
    if of_images and 0 in parts:
        operands = (gradient, images, weight)
        if _has_slow_images(node):
            operands = (put.more(gradient, 1), images, put.more(weight, 0))
        first = computed(*operands, wanted=[True, False, False])
        parts[0].replace_all_uses_with(_item(call, first, 0))
    for part in parts.values():
        node.graph.erase_node(part)
    node.graph.erase_node(node)
    return True


class _Channels:
    """Puts channels of zeros behind those of a tensor, up to whole steps, and takes them away."""

    def __init__(self, call: Calls) -> None:
        self.call = call

    def last(self, value: fx.Node) -> fx.Node:
        if is_last(value.meta["val"]):
            return value
        return self.call(aten.clone.default, value, memory_format=torch.channels_last)

    def more(self, value: fx.Node, axis: int) -> fx.Node:
        missing = -facts_of(value.meta["val"]).size[axis] % STEP
        ends = [0] * (2 * (3 - axis)) + [0, missing]
        return self.last(self.call(aten.constant_pad_nd.default, value, ends, 0.0))

    def like(self, weight: fx.Node, axis: int) -> fx.Node:
        """Of a weight nothing but its form counts."""
        facts = facts_of(weight.meta["val"])
        size = [*facts.size]
        size[axis] += -size[axis] % STEP
        return self.call(
            aten.empty.memory_format, size, dtype=facts.dtype, device=facts.device,
            memory_format=torch.channels_last)

    def part(self, value: fx.Node, channels: int, is_weight: bool) -> fx.Node:
        if not is_weight or facts_of(value.meta["val"]).size[1] == channels:
            return value
        return self.last(self.call(aten.slice.Tensor, value, 1, 0, channels))


def _item(call: Calls, results: fx.Node, position: int) -> fx.Node:
    with call.before.graph.inserting_before(call.before):
        made = call.before.graph.call_function(operator.getitem, (results, position))
    made.meta = {**call.node.meta, "val": results.meta["val"][position]}
    return made
