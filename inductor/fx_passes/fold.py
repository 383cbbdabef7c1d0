"""Batch norms of inference become part of the frozen convolution before them.

In: a functional ATen graph with fakes, and the positions of its frozen inputs. Out: a graph where
such a convolution reads two further inputs, a weight and a bias that hold the batch norm too, and
what these hold. The values are those of eager up to rounding.

And arithmetic on constant numbers is done while compiling: `fold_constants`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor, fx

from dynamo.aot.folding import affine_of_norm
from dynamo.aot.graphs import LITERAL, LazyGraph, is_literal
from dynamo.base.graph_copies import copy_graph
from dynamo.graph_operators.operator_effects import freedom_of
from inductor.fx_passes.places import device_kind
from inductor.ir.graph import Prepared

aten = torch.ops.aten
# Elements of a weight that are multiplied at once.
MOST_SCALED = 1 << 17


def fold_batch_norms(
    module: fx.GraphModule, frozen: Collection[int]
) -> tuple[fx.GraphModule, tuple[Prepared, ...]]:
    """See the top of the file; the module itself is left as it is."""
    if not module.graph.find_nodes(op="call_function", target=aten.native_batch_norm.default):
        return module, ()
    folded = LazyGraph(module, copy_graph(module.graph))
    prepared = _fold_all(folded, frozen)
    return (folded, prepared) if prepared else (module, ())


def _fold_all(module: fx.GraphModule, frozen: Collection[int]) -> tuple[Prepared, ...]:
    places = [node for node in module.graph.nodes if node.op == "placeholder"]
    constants = {node: place for place, node in enumerate(places) if place in frozen}
    if any(device_kind(node) not in ("cpu", "") for node in places):
        return ()
    written = {node.args[0] for node in module.graph.nodes if node.target is aten.copy_.default}
    for node in written & constants.keys():
        del constants[node]
    prepared: list[Prepared] = []
    for norm in module.graph.find_nodes(op="call_function", target=aten.native_batch_norm.default):
        if _can_fold(norm, constants):
            prepared += _fold(module.graph, norm, constants)
    if prepared:
        module.graph.lint()
        module.recompile()
    return tuple(prepared)


def _can_fold(norm: fx.Node, constants: Collection[fx.Node]) -> bool:
    args: tuple[Any, ...] = norm.args
    source, scale, shift, mean, variance, training = args[:6]
    if training or not isinstance(source, fx.Node):
        return False
    if source.target is not aten.convolution.default or len(source.users) != 1 or source.args[6]:
        return False
    if any(user.args[1] for user in norm.users):  # its statistics are read
        return False
    given: tuple[Any, ...] = source.args
    weight, bias = given[1:3]
    tensors = (weight, bias, scale, shift, mean, variance)
    if any(node is not None and node not in constants for node in tensors):
        return False
    if weight is None or mean is None or variance is None:
        return False
    values: list[Any] = [node.meta["val"] for node in tensors if node is not None]
    return len({v.dtype for v in values}) == 1 and all(v.is_contiguous() for v in values)


def _fold(graph: fx.Graph, norm: fx.Node, constants: dict[fx.Node, int]) -> list[Prepared]:
    args: Any = norm.args
    convolution, scale, shift, mean, variance = args[:5]
    weight, bias = convolution.args[1:3]
    tensors = (weight, bias, scale, shift, mean, variance)
    present = tuple(node is not None for node in tensors)
    positions = tuple(constants[node] for node in tensors if node is not None)
    make = functools.partial(_folded, present, args[7])
    *_, last = (node for node in graph.nodes if node.op == "placeholder")
    new = []
    for name, like in ((f"{norm.name}_weight", weight), (f"{norm.name}_bias", mean)):
        with graph.inserting_after(last):
            last = graph.placeholder(name)
        last.meta = dict(like.meta)
        new.append(last)
    convolution.args = (convolution.args[0], *new, *convolution.args[3:])
    for user in list(norm.users):
        user.replace_all_uses_with(convolution)
        graph.erase_node(user)
    graph.erase_node(norm)
    statistics = (constants[mean], constants[variance])
    return [Prepared(positions, functools.partial(make, number), statistics) for number in (0, 1)]


def _folded(present: tuple[bool, ...], epsilon: float, number: int, *given: Tensor) -> Tensor:
    """The weight (number 0) or the bias (1) of convolution and batch norm together."""
    rest = iter(given)
    weight, bias, scale, shift, mean, variance = (next(rest) if here else None for here in present)
    assert weight is not None and mean is not None and variance is not None
    factor, offset = affine_of_norm(mean, variance, epsilon, scale, shift, bias)
    if number == 0:
        return _scaled(weight, factor.view(-1, *[1] * (weight.dim() - 1)))
    return offset.to(mean.dtype)


def _scaled(weight: Tensor, factor: Tensor) -> Tensor:
    """weight * factor (float64, one for each output channel), some channels at a time: the products
    take more memory than the result."""
    made = torch.empty_like(weight)
    channels = max(1, MOST_SCALED // max(1, math.prod(weight.shape[1:])))
    parts = (each.split(channels) for each in (made, weight, factor))
    for to, part, by in zip(*parts, strict=True):
        to.copy_(part * by)
    return made


# -- constant numbers ------------------------------------------------------------------------------

# Elementwise operations without torch's tag.
OTHERS = (aten._to_copy.default, aten.clone.default, aten.where.self, aten.lift_fresh_copy.default)


def fold_constants(module: fx.GraphModule) -> fx.GraphModule:
    """The graph, changed in place, where an elementwise operation of tensors of one number each,
    all constants of the graph, is a constant itself. Else `x / torch.sqrt(torch.tensor(64.0))`
    with x on a GPU would wait for kernels of the CPU. One that moves to another device is made
    there."""
    known: dict[fx.Node, torch.Tensor] = {}
    graph, folded = module.graph, False
    for node in list(graph.nodes):
        if node.target is aten._to_copy.default and node.args[0] in known:
            if _made_there(graph, node, known[node.args[0]]):
                folded = True
                continue
        value = _constant(module, node) if node.op == "get_attr" else _computed(node, known)
        if value is None or value.dim() or value.device.type != "cpu":
            continue
        known[node] = value
        if node.op == "get_attr":
            continue
        name = f"{LITERAL}folded_{len(known)}"
        setattr(module, name, value)
        with graph.inserting_before(node):
            constant = graph.create_node("get_attr", name)
        constant.meta["val"] = node.meta["val"]
        known[constant] = value
        node.replace_all_uses_with(constant)
        graph.erase_node(node)
        folded = True
    if folded:
        for node in reversed(list(graph.nodes)):
            if node.op == "get_attr" and not node.users:
                graph.erase_node(node)
        module.recompile()
    return module


def _made_there(graph: fx.Graph, node: fx.Node, value: torch.Tensor) -> bool:
    """Whether a copy to another device than the CPU now is made there of the number itself."""
    fake: Any = node.meta["val"]
    whole = not (fake.dtype.is_floating_point or fake.dtype.is_complex)
    if fake.device.type in ("cpu", "meta") or whole and not value.isfinite().all():
        return False
    with graph.inserting_before(node):
        made = graph.call_function(
            aten.full.default, ([], value.to(fake.dtype).item()),
            {"dtype": fake.dtype, "device": fake.device},
        )  # fmt: skip
    made.meta.update(node.meta)
    node.replace_all_uses_with(made)
    graph.erase_node(node)
    return True


def _constant(module: fx.GraphModule, node: fx.Node) -> torch.Tensor | None:
    if not is_literal(node):
        return None
    value: Any = module
    for part in str(node.target).split("."):
        value = getattr(value, part)
    return value if type(value) is torch.Tensor else None


def _computed(node: fx.Node, known: dict[fx.Node, torch.Tensor]) -> torch.Tensor | None:
    """The value of an operation on known numbers alone; None where it is no such operation, where
    it raises, or where that is not what the fake says."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload) or not node.all_input_nodes:
        return None
    if torch.Tag.pointwise not in target.tags and target not in OTHERS:
        return None
    if not freedom_of(target).repeat:
        return None
    if any(given not in known for given in node.all_input_nodes):
        return None
    args, kwargs = fx.map_arg((node.args, node.kwargs), known.__getitem__)
    try:
        value = target(*args, **kwargs)
    except RuntimeError:
        return None
    fake = node.meta["val"]
    if type(value) is not torch.Tensor or value.dtype is not fake.dtype:
        return None
    return value if value.shape == fake.shape and value.device == fake.device else None
