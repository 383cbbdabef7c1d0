"""Batch norms of inference folded into the convolutions and linear layers before them.

In: a graph that `dynamo.export` made of a module in evaluation mode. Out: a new one with the same
arguments and results, in which such a batch norm is part of the layer's weight and bias
("torch.fx", section 6.2.2 of the paper). The folded weights are computed in float64 and are what
they were at that moment: later changes of the module's are not seen.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from torch import Tensor, fx
from torch.nn import functional as F

from dynamo.aot.folding import affine_of_norm
from dynamo.graphs.copies import copied
from dynamo.graphs.effects import finish

# Their weights have one row for each output channel.
LINEAR = (F.linear, torch._C._nn.linear)
LAYERS = (torch.conv1d, torch.conv2d, torch.conv3d, *LINEAR)
NORM = ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")


@dataclass(frozen=True, slots=True)
class Pair:
    """A layer's node and the batch norm that alone reads it; the norm's arguments by name."""

    layer: fx.Node
    norm: fx.Node
    given: dict[str, Any]


def fold_batch_norms(module: fx.GraphModule) -> fx.GraphModule:
    """A copy of the graph without the batch norms that can be folded.

    What stays: norms that use the batch's own statistics, whose layer has other readers, or whose
    weights are not attributes of the graph.

    >>> import dynamo
    >>> net = torch.nn.Sequential(torch.nn.Conv2d(1, 2, 1), torch.nn.BatchNorm2d(2)).eval()
    >>> graph, guards = dynamo.export(net, torch.ones(1, 1, 2, 2))
    >>> [node.name for node in fold_batch_norms(graph).graph.nodes if node.op == "call_function"]
    ['conv2d']
    """
    module = copied(module)
    for node in list(module.graph.nodes):
        pair = _pair(node)
        if pair is not None:
            _fold(module, pair)
    return finish(module)


def _pair(node: fx.Node) -> Pair | None:
    if node.op != "call_function" or node.target is not F.batch_norm:
        return None
    given: dict[str, Any] = {"weight": None, "bias": None, "training": False, "eps": 1e-5}
    given.update(zip(NORM, node.args, strict=False))
    given.update(node.kwargs)
    layer = given["input"]
    if given["training"] or not isinstance(layer, fx.Node) or layer.target not in LAYERS:
        return None
    weights = [given[name] for name in NORM[1:5]] + _weights_of(layer)
    if any(isinstance(each, fx.Node) and each.op != "get_attr" for each in weights):
        return None
    if weights[0] is None or weights[1] is None or list(layer.users) != [node] or layer.kwargs:
        return None
    if layer.target in LINEAR and _rank(layer) != 2:
        return None  # a batch norm's channels are the second dimension
    return Pair(layer, node, given)


def _rank(node: fx.Node) -> int:
    value = node.meta.get("example_value", node.meta.get("val"))
    return len(value.shape) if value is not None else 0


def _weights_of(layer: fx.Node) -> list[Any]:
    return [layer.args[1], layer.args[2] if len(layer.args) > 2 else None]


def _fold(module: fx.GraphModule, pair: Pair) -> None:
    def value(given: Any) -> Tensor | None:
        if given is None:
            return None
        owner: Any = module
        return reduce(getattr, given.target.split("."), owner)  # type: ignore[no-any-return]

    weight, bias = map(value, _weights_of(pair.layer))
    mean, var, scale, shift = (value(pair.given[name]) for name in NORM[1:5])
    assert weight is not None and mean is not None and var is not None
    with torch.no_grad():
        factor, offset = affine_of_norm(mean, var, pair.given["eps"], scale, shift, bias)
        shape = [-1] + [1] * (weight.dim() - 1)
        folded = (weight.double() * factor.view(shape)).to(weight.dtype)
    graph = module.graph
    with graph.inserting_before(pair.layer):
        nodes = [
            _constant(module, f"{pair.layer.name}_folded_{kind}", tensor)
            for kind, tensor in (("weight", folded), ("bias", offset.to(weight.dtype)))
        ]
    pair.layer.args = (pair.layer.args[0], *nodes, *pair.layer.args[3:])
    pair.norm.replace_all_uses_with(pair.layer)
    graph.erase_node(pair.norm)


def _constant(module: fx.GraphModule, name: str, value: Tensor) -> fx.Node:
    module.register_buffer(name, value)
    return module.graph.get_attr(name)
