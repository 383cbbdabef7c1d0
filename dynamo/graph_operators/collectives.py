"""Collectives that write into a tensor of the program, as calls of a graph.

In: the tensor, plain values, and the group's name. Each is the functional operator, its wait, and a
write: what stages behind know how to order. Autograd does not see them, as in eager.

`gather`, `scatter`, `reduce` and `reduce_scatter` of a list have no functional form in torch. They
are operators of our own, which do what eager does: a rank that runs eagerly meets the same calls.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

operators: Any = torch.ops._c10d_functional


@torch.no_grad()
def all_reduce_(tensor: torch.Tensor, op: str, group: str) -> None:
    """`dist.all_reduce(tensor)`."""
    tensor.copy_(operators.wait_tensor(operators.all_reduce(tensor, op, group)))


@torch.no_grad()
def broadcast_(tensor: torch.Tensor, source: int, group: str) -> None:
    """`dist.broadcast(tensor, source)`; source: a rank of the group."""
    tensor.copy_(operators.wait_tensor(operators.broadcast(tensor, source, group)))


@torch.no_grad()
def all_gather_(outputs: list[torch.Tensor], tensor: torch.Tensor, group: str) -> None:
    """`dist.all_gather(outputs, tensor)`; all outputs are like the tensor."""
    made = operators.all_gather_into_tensor(tensor.reshape(-1), len(outputs), group)
    copy_parts(outputs, operators.wait_tensor(made))


def copy_parts(outputs: list[torch.Tensor], flat: torch.Tensor) -> None:
    """Writes what lies one behind the other into tensors."""
    for output, part in zip(outputs, flat.split([one.numel() for one in outputs]), strict=True):
        output.copy_(part.view(output.shape))


@torch.no_grad()
def all_gather_into_(output: torch.Tensor, tensor: torch.Tensor, size: int, group: str) -> None:
    """`dist.all_gather_into_tensor(output, tensor)`; size: of the group."""
    gathered = operators.wait_tensor(operators.all_gather_into_tensor(tensor, size, group))
    output.copy_(gathered.view(output.shape))


@torch.no_grad()
def reduce_scatter_into_(
    output: torch.Tensor, tensor: torch.Tensor, op: str, size: int, group: str
) -> None:
    """`dist.reduce_scatter_tensor(output, tensor)`; tensor: one part of `output` for each rank,
    stacked or behind one another."""
    parts = tensor.reshape(-1, *output.shape[1:]) if output.dim() else tensor.reshape(-1)
    made = operators.wait_tensor(operators.reduce_scatter_tensor(parts, op, size, group))
    output.copy_(made.view(output.shape))


@torch.no_grad()
def all_to_all_into_(
    output: torch.Tensor, tensor: torch.Tensor, received: list[int], sent: list[int], group: str
) -> None:
    """`dist.all_to_all_single(output, tensor)`; received, sent: rows from and to each rank."""
    made = operators.all_to_all_single(tensor, received, sent, group)
    output.copy_(operators.wait_tensor(made))


@torch.no_grad()
def all_to_all_(outputs: list[torch.Tensor], tensors: list[torch.Tensor], group: str) -> None:
    """`dist.all_to_all(outputs, tensors)`; a tensor for each rank and from each."""
    sent = torch.cat([one.reshape(-1) for one in tensors])
    sizes = [one.numel() for one in outputs], [one.numel() for one in tensors]
    made = operators.all_to_all_single(sent, *sizes, group)
    copy_parts(outputs, operators.wait_tensor(made))


# -- without a functional form in torch --------------------------------------------------------

LIBRARY = torch.library.Library("dynamo_collectives", "DEF")
own: Any = torch.ops.dynamo_collectives


def define(schema: str, fake: Callable[..., torch.Tensor]) -> Callable[[Any], Any]:
    """Registers an operator; fake: what it gives for fake tensors."""
    def register(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        LIBRARY.define(schema)
        name = schema.partition("(")[0]
        LIBRARY.impl(name, function, "CompositeExplicitAutograd")
        torch.library.register_fake(f"dynamo_collectives::{name}", fake, lib=LIBRARY)
        return function

    return register


def group_named(name: str) -> Any:
    return dist.distributed_c10d._resolve_process_group(name)  # type: ignore[arg-type]


def reduction_named(name: str) -> Any:
    return getattr(dist.ReduceOp, name.upper())


def stack_of(tensor: torch.Tensor, target: int, group: str) -> torch.Tensor:
    """Room for what all ranks send, on the one that gets it."""
    real = group_named(group)
    return tensor.new_empty(real.size() if real.rank() == target else 0, *tensor.shape)


@define("gather(Tensor tensor, int target, str group) -> Tensor", stack_of)
def gather(tensor: torch.Tensor, target: int, group: str) -> torch.Tensor:
    room = stack_of(tensor, target, group)
    dist.gather(tensor.contiguous(), list(room) or None, group=group_named(group), group_dst=target)
    return room


@define("scatter(Tensor like, Tensor[] tensors, int source, str group) -> Tensor",
        lambda like, *_: torch.empty(like.shape, dtype=like.dtype, device=like.device))
def scatter(
    like: torch.Tensor, tensors: list[torch.Tensor], source: int, group: str
) -> torch.Tensor:
    room = torch.empty(like.shape, dtype=like.dtype, device=like.device)
    sent = [one.contiguous() for one in tensors] or None
    dist.scatter(room, sent, group=group_named(group), group_src=source)
    return room


@define("reduce(Tensor tensor, int target, str op, str group) -> Tensor",
        lambda tensor, *_: tensor.new_empty(tensor.shape))
def reduce(tensor: torch.Tensor, target: int, op: str, group: str) -> torch.Tensor:
    room = tensor.clone(memory_format=torch.contiguous_format)
    dist.reduce(room, op=reduction_named(op), group=group_named(group), group_dst=target)
    return room


@define("reduce_scatter(Tensor[] tensors, str op, str group) -> Tensor",
        lambda tensors, *_: tensors[0].new_empty(tensors[0].shape))
def reduce_scatter(tensors: list[torch.Tensor], op: str, group: str) -> torch.Tensor:
    room = torch.empty(tensors[0].shape, dtype=tensors[0].dtype, device=tensors[0].device)
    sent = [one.contiguous() for one in tensors]
    dist.reduce_scatter(room, sent, op=reduction_named(op), group=group_named(group))
    return room


@torch.no_grad()
def gather_(outputs: list[torch.Tensor], tensor: torch.Tensor, target: int, group: str) -> None:
    """`dist.gather(tensor, outputs, target)`; without outputs where this rank isn't the target."""
    made = own.gather(tensor, target, group)
    if outputs:
        copy_parts(outputs, made.view(-1))


@torch.no_grad()
def scatter_(output: torch.Tensor, tensors: list[torch.Tensor], source: int, group: str) -> None:
    """`dist.scatter(output, tensors, source)`."""
    output.copy_(own.scatter(output, tensors, source, group))


@torch.no_grad()
def reduce_(tensor: torch.Tensor, target: int, op: str, group: str) -> None:
    """`dist.reduce(tensor, target)`."""
    tensor.copy_(own.reduce(tensor, target, op, group))


@torch.no_grad()
def reduce_scatter_(
    output: torch.Tensor, tensors: list[torch.Tensor], op: str, group: str
) -> None:
    """`dist.reduce_scatter(output, tensors)`; all tensors are like the output."""
    output.copy_(own.reduce_scatter(tensors, op, group))
