"""Convolutions of films over patches that lie side by side, on a GPU, as GEMMs.

In: a functional ATen graph with fakes. Out: the same graph (changed in place), where such a
convolution in half precision is a product of the patches, laid out row by row by one kernel, with
the weight. Transformers of films begin so. The library has only a slow kernel for the few channels
that a compressed film has: 757 us of the 1,552 that a small one took on an H200.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from dynamo.aot.fakes import facts_of
from inductor.fx_passes.calls_with_fakes import Calls
from inductor.fx_passes.fakes import on_gpu
from inductor.fx_passes.layout_choice import HALVES

aten = torch.ops.aten
FEW = 64  # channels: more were not measured


def patches_as_gemms(module: fx.GraphModule) -> fx.GraphModule:
    """See the top of the file."""
    nodes = module.graph.find_nodes(op="call_function", target=aten.convolution.default)
    found = [node for node in nodes if _is_of_patches(node)]
    for node in found:
        _rewrite(node)
    if found:
        module.recompile()
    return module


def _is_of_patches(node: fx.Node) -> bool:
    args: Any = node.args
    source, weight = (args[position].meta["val"] for position in (0, 1))
    if not on_gpu(source.device) or source.dtype not in HALVES or source.dim() != 5:
        return False
    numbers = (*facts_of(source).size, *facts_of(weight).size)
    if not all(type(number) is int and number > 0 for number in numbers):
        return False
    stride, padding, dilation, transposed, _, groups = args[3:9]
    window = tuple(weight.shape[2:])
    plain = not any(padding) and not transposed and groups == 1 and {*dilation} == {1}
    return plain and tuple(stride) == window != (1, 1, 1) and source.shape[1] <= FEW


def _rewrite(node: fx.Node) -> None:
    args: Any = node.args
    x, weight, bias = args[:3]
    call = Calls(node)
    batch, channels, *extents = facts_of(x.meta["val"]).size
    outputs, _, *window = facts_of(weight.meta["val"]).size
    counts = [extent // step for extent, step in zip(extents, window, strict=True)]
    for axis, (count, step) in enumerate(zip(counts, window, strict=True), 2):
        if count * step != extents[axis - 2]:
            x = call(aten.slice.Tensor, x, axis, 0, count * step)
    split = [n for pair in zip(counts, window, strict=True) for n in pair]
    rows = call.view(x, batch, channels, *split)
    rows = call(aten.permute.default, rows, [0, 2, 4, 6, 1, 3, 5, 7])
    terms = channels * window[0] * window[1] * window[2]
    rows = call.view(rows, -1, terms)
    factor = call(aten.permute.default, call.view(weight, outputs, terms), [1, 0])
    found = call(aten.mm.default, rows, factor)
    if bias is not None:
        found = call(aten.add.Tensor, found, bias)
    found = call.view(found, batch, *counts, outputs)
    found = call(aten.permute.default, found, [0, 4, 1, 2, 3])
    if not node.meta["val"].is_contiguous(memory_format=torch.channels_last_3d):
        found = call.copy(found)
    node.replace_all_uses_with(found)
    node.graph.erase_node(node)
