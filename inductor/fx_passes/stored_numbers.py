"""How packed numbers are stored, in terms that kernels compute with.

In: a functional ATen graph of known sizes with fakes. Out: the same graph (changed in place), where

- bytes that are seen as signed or unsigned ones, and then computed with, are converted. ATen's view
  would be a buffer of its own, which is not known to be the same memory;
- rows or columns that are picked in an order that the graph itself counts out (AWQ puts eight
  numbers of a word in the order 0, 4, 1, 5, 2, 6, 3, 7) are turned axes: `[.., A, B]` read as
  `[.., B, A]`. Where each lies is then known to a kernel, which need not look it up.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import fx

from inductor.fx_passes.calls_with_fakes import Calls
from inductor.fx_passes.known_values import KnownValues
from inductor.fx_passes.places import is_view

aten = torch.ops.aten
BYTES = {torch.int8, torch.uint8}
INDICES = {torch.int32, torch.int64}
MOST_COUNTED = 1 << 18  # numbers, which are computed while compiling
LONGEST_PERIOD = 64  # of an order that repeats


def name_stored_numbers(module: fx.GraphModule) -> fx.GraphModule:
    """See the top of the file."""
    graph = module.graph
    views = [n for n in graph.find_nodes(op="call_function", target=aten.view.dtype)
             if _is_of_bytes(n) and _is_computed_with(n)]
    for node in views:
        _replace(node, [(aten._to_copy.default, (), {"dtype": node.meta["val"].dtype})])
    counted = KnownValues(module, _is_counted)
    changed = bool(views)
    for node in graph.find_nodes(op="call_function", target=aten.index.Tensor):
        changed |= _turn(node, counted)
    if changed:
        graph.eliminate_dead_code()
        module.recompile()
    return module


def _is_of_bytes(node: fx.Node) -> bool:
    source: Any = node.args[0]
    return {source.meta["val"].dtype, node.meta["val"].dtype} == BYTES


def _is_computed_with(node: fx.Node) -> bool:
    """Whether a view, and views of it, are read by operations that make tensors of their own: it
    is neither written nor a result of the graph."""
    for user in node.users:
        if user.op != "call_function" or not isinstance(user.target, torch._ops.OpOverload):
            return False
        if is_view(user):
            if not _is_computed_with(user):
                return False
        elif any(arg.alias_info is not None for arg in user.target._schema.arguments):
            return False
    return True


def _replace(node: fx.Node, steps: list[tuple[Any, tuple[Any, ...], dict[str, Any]]]) -> None:
    """Puts these operations, one after the other, in the place of one of the same argument."""
    made: Any = node.args[0]
    call = Calls(node)
    for target, args, kwargs in steps:
        made = call(target, made, *args, **kwargs)
    node.replace_all_uses_with(made)
    node.graph.erase_node(node)


def _is_counted(facts: Any) -> bool:
    return facts.dtype in INDICES and math.prod(facts.size) <= MOST_COUNTED


def _turn(node: fx.Node, counted: KnownValues) -> bool:
    """Whether a read in such an order is turned axes now."""
    source, indices = node.args[:2]
    assert isinstance(source, fx.Node) and isinstance(indices, list | tuple)
    *before, last = indices
    if any(each is not None for each in before) or not isinstance(last, fx.Node):
        return False
    value, made, axis = source.meta["val"], node.meta["val"], len(before)
    if value.shape != made.shape or last.meta["val"].dim() != 1 or not value.numel():
        return False
    if not (value.is_contiguous() and made.is_contiguous()):
        return False
    order = counted.value_of(last)
    found = None if order is None else _turned_sizes(order)
    if found is None:
        return False
    size = [*value.shape]
    split = [*size[:axis], size[axis] // math.prod(found), *found, *size[axis + 1 :]]
    _replace(node, [
        (aten.view.default, (split,), {}),
        (aten.transpose.int, (axis + 1, axis + 2), {}),
        (aten.clone.default, (), {"memory_format": torch.contiguous_format}),
        (aten.view.default, (size,), {}),
    ])
    return True


def _turned_sizes(order: torch.Tensor) -> tuple[int, int] | None:
    """A, B where `order` is that of numbers [.., A, B] read as [.., B, A]; None where there are no
    such.

    >>> _turned_sizes(torch.tensor([0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15]))
    (2, 4)
    """
    count = len(order)
    if count < 2:
        return None
    step = int(order[1])
    for length in range(2, min(count, LONGEST_PERIOD) + 1):
        if count % length or step < 1 or length % step:
            continue
        turned = torch.arange(count).view(-1, length // step, step).transpose(1, 2).flatten()
        if torch.equal(turned, order.long()):
            return length // step, step
    return None
