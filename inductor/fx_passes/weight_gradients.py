"""Gradients of weights of images, on a GPU, of channels that are no multiple of 64.

In: a functional ATen graph with fakes, whose images lie channels last. Out: the same graph (changed
in place) where the gradient of such a weight is computed of images with more channels, of zeros,
and is a part of what comes out; that of the images is another call, as it is another kernel. For
windows of 3 x 3 and up to 64 results the library's choice is a slow kernel otherwise. us on an
H200, bfloat16, 32 images of 64 x 64, in brackets with channels up to a multiple of 64: 96 to 32
channels 522 (46), 160 to 32 540 (94), 96 to 64 112 (45); 16 images: 52 (30), 64 (54), 68 (30).
Larger windows gain nothing, nor do more results.
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


def widen_images(module: fx.GraphModule) -> fx.GraphModule:
    """See the top of the file. Nothing where templates of ours compete, which take channels as they
    are."""
    if config.max_autotune:
        return module
    return rewrite_convolutions(module, _is_meant, lambda node: False, _rewrite)


def _is_meant(node: fx.Node) -> bool:
    if node.target is not BACKWARD:
        return False
    form: Any = node.args[4:]
    stride, _, dilation, transposed, _, groups, wanted = form
    values = [facts_of(given.meta["val"]) for given in node.args[:3]]  # type: ignore[union-attr]
    _, images, weight = values
    numbers = (*images.size, *weight.size, *stride)
    if not wanted[1] or transposed or groups != 1 or len(images.size) != 4:
        return False
    if not on_gpu(images.device) or any(each.dtype not in HALVES for each in values):
        return False
    if any(type(number) is not int for number in numbers) or {*dilation} != {1}:
        return False
    results, channels, *window = weight.size
    large = images.size[0] * channels * images.size[2] * images.size[3] >= FEWEST_ELEMENTS
    return (
        large and window == [3, 3] and results <= MOST_RESULTS and channels >= FEWEST_CHANNELS
        and channels % STEP != 0 and is_last(node.args[0].meta["val"])  # type: ignore[union-attr]
        and is_last(node.args[1].meta["val"]))  # type: ignore[union-attr]


def _rewrite(node: fx.Node) -> bool:
    parts = {user.args[1]: user for user in node.users if user.target is operator.getitem}
    if 1 not in parts or len(parts) != len(node.users):
        return False
    given: tuple[Any, ...] = node.args
    gradient, images, weight, *form = given
    of_images, _, of_bias = form[-1]
    facts = facts_of(weight.meta["val"])
    channels = facts.size[1]
    size = [facts.size[0], channels + -channels % STEP, *facts.size[2:]]
    call = Calls(node)

    def last(value: fx.Node) -> fx.Node:
        if is_last(value.meta["val"]):
            return value
        return call(aten.clone.default, value, memory_format=torch.channels_last)

    more = [0, 0, 0, 0, 0, size[1] - channels]
    wide = last(call(aten.constant_pad_nd.default, images, more, 0.0))
    # Of the weight nothing but its form counts.
    form_of_weight = call(
        aten.empty.memory_format, size, dtype=facts.dtype, device=facts.device,
        memory_format=torch.channels_last)
    found = call(BACKWARD, gradient, wide, form_of_weight, *form[:-1], [False, True, of_bias])
    narrow = call(aten.slice.Tensor, _item(call, found, 1), 1, 0, channels)
    parts[1].replace_all_uses_with(last(narrow))
    if 2 in parts:
        parts[2].replace_all_uses_with(_item(call, found, 2))
    if of_images and 0 in parts:
        rest = call(BACKWARD, gradient, images, weight, *form[:-1], [True, False, False])
        parts[0].replace_all_uses_with(_item(call, rest, 0))
    for part in parts.values():
        node.graph.erase_node(part)
    node.graph.erase_node(node)
    return True


def _item(call: Calls, results: fx.Node, position: int) -> fx.Node:
    with call.before.graph.inserting_before(call.before):
        made = call.before.graph.call_function(operator.getitem, (results, position))
    made.meta = {**call.node.meta, "val": results.meta["val"][position]}
    return made
