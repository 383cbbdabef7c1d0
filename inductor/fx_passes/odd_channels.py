"""Convolutions in half precision on a GPU whose channels are not made of whole words of 16 bytes.

The library's fast kernels read and write whole words of channels, which lie last. For others it has
slower ones: 64 channels to 12 over a long sequence take 64 us on an H200, to 16 they take 51. So
images, weights and gradients get channels of zeros, and parts of the results are used. What is
computed by kernels is padded where it is laid out.

Results are padded however few they are (128 to 3 channels: 103 us, 89; 320 to 4: 32, 23). A few
channels that are read stay, since the library has kernels for images of three (40 us, and 61 with
eight), and so do gradients of few channels, where both ways are the faster one for some sizes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from dynamo.aot.fakes import facts_of

aten = torch.ops.aten
WORD = 8  # channels
Cuts = dict[int, dict[int, int]]


def pad_channels(node: fx.Node, call: Callable[..., fx.Node]) -> Cuts | None:
    """Gives a convolution, forward or backward, operands of whole words of channels; None where it
    has them. Else which parts of the results are the old ones: for each result (forward has one)
    the extents along axes.

    node: its operands lie channels last. call: makes a node before it, (operator, *arguments).
    """
    is_backward = node.target is aten.convolution_backward.default
    first = 1 if is_backward else 0  # the gradient stands in front
    transposed, groups = node.args[6 + first], node.args[8 + first]
    weight: Any = node.args[1 + first]
    results, channels = facts_of(weight.meta["val"]).size[:2]
    more = _missing(results, of_few=not is_backward), _missing(channels, of_few=False)
    if transposed or groups != 1 or not any(more):
        return None

    def pad(position: int, along: tuple[int, ...]) -> None:
        """With so many more zeros along the first axes."""
        operand: Any = node.args[position]
        value = operand.meta["val"]
        ends = [0] * (value.dim() - len(along)) + [*reversed(along)]
        if any(along):
            steps = [number for end in ends for number in (0, end)]
            node.update_arg(position, call(aten.constant_pad_nd.default, operand, steps, 0.0))

    pad(first, (0, more[1]))
    pad(1 + first, more)
    if not is_backward:
        if node.args[2] is not None:
            pad(2, more[:1])
        return {0: {1: results}} if more[0] else {}
    pad(0, (0, more[0]))
    if node.args[3]:
        node.update_arg(3, [results + more[0]])
    return {0: {1: channels}, 1: {0: results, 1: channels}, 2: {0: results}}


def _missing(channels: Any, of_few: bool) -> int:
    """Up to whole words; of_few: also of less than one."""
    if type(channels) is not int or channels < WORD and not of_few:
        return 0
    return -channels % WORD
