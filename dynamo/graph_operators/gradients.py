"""Gradients as one operation of a captured graph.

Run on tensors it calls autograd's engine, as eager does; where a backend records the graph, the
operations of backward are recorded in its place.

While compiling, hooks that the caller has set on saved tensors see nothing.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import fx
from torch.autograd.graph import _engine_run_backward


@contextlib.contextmanager
def own_saved_tensor_hooks() -> Iterator[None]:
    """Keeps the caller's hooks on saved tensors away from what is computed to trace or to compile:
    a checkpoint around the compiled code counts what is saved."""
    if torch._C._autograd._top_saved_tensors_default_hooks(False) is None:
        yield
        return
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: tensor):
        yield


def gradients(
    outputs: Sequence[torch.Tensor], given: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor],
    retain_graph: bool, create_graph: bool, allow_unused: bool,
) -> Any:
    """In a graph: `torch.autograd.grad`. given: the gradients of the outputs."""
    return _engine_run_backward(
        outputs, given, retain_graph, create_graph, inputs, allow_unused, accumulate_grad=False
    )


def gradients_of_leaves(
    outputs: Sequence[torch.Tensor], given: Sequence[torch.Tensor], leaves: Sequence[torch.Tensor],
    retain_graph: bool, copies: bool,
) -> Any:
    """In a graph: what `backward` puts into `grad` of these leaves where that is None, laid out as
    it does, in memory of its own. None for a leaf that gets nothing.

    copies: functions of the program compute gradients, maybe in memory that is used elsewhere.
    """
    if torch._C._len_torch_dispatch_stack():
        found = gradients(outputs, given, leaves, retain_graph, False, True)
        shared = Counter(map(_storage, [*found, *given, *outputs, *leaves]))
        with torch.no_grad():
            return tuple(
                [_laid_out_as(grad, leaf, copies or shared[_storage(grad)] > 1)
                 for grad, leaf in zip(found, leaves, strict=True)]
            )  # fmt: skip
    before = [leaf.grad for leaf in leaves]
    try:
        for leaf in leaves:
            leaf.grad = None
        _engine_run_backward(
            outputs, given, retain_graph, False, leaves, True, accumulate_grad=True
        )
        return tuple([leaf.grad for leaf in leaves])
    finally:
        for leaf, grad in zip(leaves, before, strict=True):
            leaf.grad = grad


GRADIENTS = (gradients, gradients_of_leaves)


def has_gradients(gm: fx.GraphModule) -> bool:
    """True where a graph computes gradients."""
    return any(node.target in GRADIENTS for node in gm.graph.nodes)


def _storage(tensor: Any) -> Any:
    if tensor is None:
        return None
    key = getattr(tensor, "storage_key", None)  # of a fake
    return tensor.untyped_storage()._cdata if key is None else key


def _laid_out_as(
    grad: torch.Tensor | None, leaf: torch.Tensor, copies: bool
) -> torch.Tensor | None:
    """A gradient that is laid out as its leaf, where this has no gaps."""
    if grad is None:
        return None
    dense = _is_dense(leaf)
    if not copies and (grad.stride() == leaf.stride() if dense else grad.is_contiguous()):
        return grad
    if not dense:
        return grad.clone(memory_format=torch.contiguous_format)
    return copy_strided(grad, leaf)


def copy_strided(value: torch.Tensor, like: Any) -> torch.Tensor:
    """A copy with the strides of the other tensor, and so with its gaps."""
    made = torch.empty_strided(like.shape, like.stride(), dtype=value.dtype, device=value.device)
    return made.copy_(value)


def _is_dense(tensor: torch.Tensor) -> bool:
    """True where no two elements share a place, and no place between them is free."""
    step = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != step:
                return False
            step *= size
    return True
