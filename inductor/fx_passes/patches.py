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
from inductor.fx_passes.fakes import fake_runner
from inductor.fx_passes.layout import HALVES, on_gpu

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
    run_fake = fake_runner(x.meta["val"])

    def call(target: Any, *args: Any, **kwargs: Any) -> fx.Node:
        new = node.graph.call_function(target, args, kwargs)
        values = fx.map_arg(args, lambda one: one.meta["val"])
        with torch.no_grad():
            new.meta = {**node.meta, "val": run_fake(target, *values, **kwargs)}
        return new

    def stored(one: fx.Node, form: list[int]) -> fx.Node:
        """Row by row, and seen in another form."""
        if not one.meta["val"].is_contiguous():
            one = call(aten.clone.default, one, memory_format=torch.contiguous_format)
        return call(aten.view.default, one, form)

    batch, channels, *extents = facts_of(x.meta["val"]).size
    outputs, _, *window = facts_of(weight.meta["val"]).size
    counts = [extent // step for extent, step in zip(extents, window, strict=True)]
    with node.graph.inserting_before(node):
        for axis, (count, step) in enumerate(zip(counts, window, strict=True), 2):
            if count * step != extents[axis - 2]:
                x = call(aten.slice.Tensor, x, axis, 0, count * step)
        split = [n for pair in zip(counts, window, strict=True) for n in pair]
        rows = stored(x, [batch, channels, *split])
        rows = call(aten.permute.default, rows, [0, 2, 4, 6, 1, 3, 5, 7])
        terms = channels * window[0] * window[1] * window[2]
        rows = stored(rows, [-1, terms])
        factor = call(aten.permute.default, stored(weight, [outputs, terms]), [1, 0])
        found = call(aten.mm.default, rows, factor)
        if bias is not None:
            found = call(aten.add.Tensor, found, bias)
        found = call(aten.view.default, found, [batch, *counts, outputs])
        found = call(aten.permute.default, found, [0, 4, 1, 2, 3])
        if not node.meta["val"].is_contiguous(memory_format=torch.channels_last_3d):
            found = call(aten.clone.default, found, memory_format=torch.contiguous_format)
    node.replace_all_uses_with(found)
    node.graph.erase_node(node)
