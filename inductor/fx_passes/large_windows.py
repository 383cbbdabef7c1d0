"""Depthwise convolutions with large windows on a GPU, as a kernel of our own: SSIM's, for one.

In: a functional ATen graph of known sizes, with fakes. Out: the same graph (changed in place) with
`dynamo_jit::window_sums` in the place of such convolutions of images and of the gradients of their
inputs. A library reads each pixel for each place of each window: 11 x 11 places in float32, 4
images of 3 x 512 x 512, take 195 us on an H200, the kernel 57 (docs/gpu_models.md).
"""

from __future__ import annotations

import math
import operator
from typing import Any

import torch
from torch import fx

import inductor.operators.window_ops  # noqa: F401  (defines the operator)
from dynamo.aot.fakes import facts_of
from inductor.config import is_enabled
from inductor.fx_passes.calls_with_fakes import Calls
from inductor.fx_passes.convolution_rewrites import rewrite_convolutions
from inductor.fx_passes.fakes import on_gpu
from inductor.fx_passes.layout_choice import operands_of
from inductor.kernels.gpu.windows import DTYPES, MOST_PLACE, MOST_PROGRAMS, result_form
from inductor.lowering.depthwise import MOST_PLACES

aten = torch.ops.aten


def sum_large_windows(module: fx.GraphModule) -> fx.GraphModule:
    """See the top of the file. Nothing where convolutions are to be the library's."""
    if not is_enabled("templates"):
        return module
    return rewrite_convolutions(module, _is_meant, _forward, _backward)


def _is_meant(node: fx.Node) -> bool:
    """Whether it is a depthwise convolution of images, as the kernel computes it, or its backward.
    """
    first = node.target is aten.convolution_backward.default
    x, weight = (facts_of(each.meta["val"]) for each in operands_of(node))
    if not on_gpu(x.device) or x.dtype not in DTYPES or weight.dtype is not x.dtype:
        return False
    form: Any = node.args[3 + first :]
    stride, padding, dilation, transposed, _, groups = form[:6]
    numbers = (*x.size, *weight.size, *stride, *padding, *dilation)
    if len(x.size) != 4 or len(padding) != 2 or transposed:
        return False
    if any(type(number) is not int for number in numbers) or 0 in (*x.size, *weight.size):
        return False
    if {*stride, *dilation} != {1} or math.prod(weight.size[2:]) <= MOST_PLACES:
        return False
    if not groups == x.size[1] == weight.size[0] or weight.size[1] != 1:
        return False
    if max(x.size[:2]) >= MOST_PROGRAMS or _reach(x, weight) > MOST_PLACE:
        return False
    pairs = zip(padding, weight.size[2:], strict=True)
    return all(0 <= pad < size for pad, size in pairs)


def _reach(x: Any, weight: Any) -> int:
    """How far one image goes in memory, at most, and what is computed of it."""
    read = sum((size - 1) * step for size, step in zip(x.size[1:], x.stride[1:], strict=True))
    sides = zip(x.size[2:], weight.size[2:], strict=True)
    return max(read, x.size[1] * math.prod(size + 2 * window for size, window in sides))


def _forward(node: fx.Node) -> bool:
    args: Any = node.args
    x, weight, bias, _, padding, *_ = args
    if not _keeps_strides(x, weight, padding, node.meta["val"]):
        return False
    call = Calls(node)
    found = call(torch.ops.dynamo_jit.window_sums.default, x, weight, padding, False)
    if bias is not None:
        found = call(aten.add.Tensor, found, call.view(bias, -1, 1, 1))
    node.replace_all_uses_with(found)
    node.graph.erase_node(node)
    return True


def _backward(node: fx.Node) -> bool:
    """The gradient of the input; those of weight and bias stay the library's, if they are wanted.
    """
    args: Any = node.args
    grad, x, weight, sizes, stride, padding, *form, wanted = args
    parts = [user for user in node.users if user.args[1] == 0]
    if not wanted[0] or not parts:
        return False
    turned = [size - 1 - pad for size, pad in zip(_size(weight)[2:], padding, strict=True)]
    if not _keeps_strides(grad, weight, turned, parts[0].meta["val"]):
        return False
    call = Calls(parts[0], node)
    found = call(torch.ops.dynamo_jit.window_sums.default, grad, weight, turned, True)
    for part in parts:
        assert part.target is operator.getitem
        part.replace_all_uses_with(found)
        node.graph.erase_node(part)
    rest = [False, *wanted[1:]]
    if node.users:
        node.args = (grad, x, weight, sizes, stride, padding, *form, rest)
        node.meta["val"] = (None, *node.meta["val"][1:])
    else:
        node.graph.erase_node(node)
    return True


def _size(node: fx.Node) -> Any:
    return facts_of(node.meta["val"]).size


def _keeps_strides(x: Any, weight: Any, padding: Any, value: Any) -> bool:
    """Whether the kernel's result lies as the one in the graph does."""
    facts = facts_of(value)
    size, strides = result_form(x.meta["val"], weight.meta["val"], (padding[0], padding[1]))
    return facts.size == size and all(
        extent == 1 or one == other
        for extent, one, other in zip(size, facts.stride, strides, strict=True)
    )
