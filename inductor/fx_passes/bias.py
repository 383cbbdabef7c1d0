"""Biases of GEMMs and convolutions on a GPU: added by the kernel that reads the result anyway.

In: a functional ATen graph with fakes. Out: the same graph (changed in place) where a float32
`addmm` is an `mm` and an `add`, if all its readers become generated kernels. The library's GEMM
with a bias is never faster than the one without and, for some shapes, a third slower; the addition
costs nothing where the result is read once more. Half precision stays: there `addmm` rounds once.

A convolution with a bias is one without and an `add`, whatever its dtype: ATen, too, adds the bias
to the finished result, in a kernel of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx

from inductor.fx_passes.calls_with_fakes import Calls

aten = torch.ops.aten


def unfuse_biases(
    module: fx.GraphModule, is_computed: Callable[[torch._ops.OpOverload], bool]
) -> fx.GraphModule:
    """See the top of the file. is_computed: whether an operator becomes part of a kernel."""
    found = [node for node in module.graph.nodes if _has_plain_bias(node)]
    changed = [node for node in found if _is_read_by_kernels(node, is_computed)]
    for node in changed:
        bias, *factors = node.args
        call = Calls(node)
        total = call(aten.add.Tensor, call(aten.mm.default, *factors), bias)
        total.meta["val"] = node.meta["val"]
        node.replace_all_uses_with(total)
        module.graph.erase_node(node)
    if changed:
        module.recompile()
    return module


def unfuse_convolution_biases(module: fx.GraphModule) -> fx.GraphModule:
    """See the top of the file."""
    convolutions = module.graph.find_nodes(op="call_function", target=aten.convolution.default)
    found = [node for node in convolutions if _has_bias_on_gpu(node)]
    for node in found:
        bias = node.args[2]
        call = Calls(node, node.next)
        shape = [bias.meta["val"].shape[0], *[1] * (node.meta["val"].dim() - 2)]
        column = call(aten.view.default, bias, shape)
        total = call(aten.add.Tensor, node, column)
        total.meta["val"] = node.meta["val"]
        node.replace_all_uses_with(total, delete_user_cb=lambda user: user is not total)  # noqa: B023
        node.update_arg(2, None)
        # The one that it has had is the total's.
        node.meta["val"] = call.run(aten.clone.default, node.meta["val"])
    if found:
        module.recompile()
    return module


def _has_bias_on_gpu(node: fx.Node) -> bool:
    bias: Any = node.args[2]
    if bias is None or node.meta["val"].device.type != "cuda":
        return False
    return type(bias.meta["val"].shape[0]) is int


def _has_plain_bias(node: fx.Node) -> bool:
    if node.target is not aten.addmm.default or node.kwargs:
        return False
    result, bias = node.meta["val"], node.args[0].meta["val"]  # type: ignore[union-attr]
    return (
        result.device.type == "cuda"
        and result.dtype is torch.float32
        and bias.dtype is torch.float32
        and all(type(size) is int for size in (*bias.shape, *result.shape[-1:]))
        and tuple(bias.shape) == tuple(result.shape[-1:])
    )


def _is_read_by_kernels(
    node: fx.Node, is_computed: Callable[[torch._ops.OpOverload], bool]
) -> bool:
    """Whether all readers, also those of views, are operators that become part of kernels."""
    for user in node.users:
        if not isinstance(user.target, torch._ops.OpOverload) or not is_computed(user.target):
            return False
        if user.target.is_view and not _is_read_by_kernels(user, is_computed):
            return False
    return bool(node.users)
