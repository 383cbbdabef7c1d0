"""Collectives that write into a tensor of the program, as calls of a graph.

In: the tensor, plain values, and the group's name. Each is the functional operator, its wait, and a
write: what stages behind know how to order.
"""

from __future__ import annotations

from typing import Any

import torch

operators: Any = torch.ops._c10d_functional


def all_reduce_(tensor: torch.Tensor, op: str, group: str) -> None:
    """`dist.all_reduce(tensor)`."""
    tensor.copy_(operators.wait_tensor(operators.all_reduce(tensor, op, group)))


def broadcast_(tensor: torch.Tensor, source: int, group: str) -> None:
    """`dist.broadcast(tensor, source)`; source: a rank of the group."""
    tensor.copy_(operators.wait_tensor(operators.broadcast(tensor, source, group)))


def all_gather_into_(output: torch.Tensor, tensor: torch.Tensor, size: int, group: str) -> None:
    """`dist.all_gather_into_tensor(output, tensor)`; size: of the group."""
    gathered = operators.wait_tensor(operators.all_gather_into_tensor(tensor, size, group))
    output.copy_(gathered.view(output.shape))


def reduce_scatter_into_(
    output: torch.Tensor, tensor: torch.Tensor, op: str, size: int, group: str
) -> None:
    """`dist.reduce_scatter_tensor(output, tensor)`; tensor: one part of `output` for each rank,
    stacked or behind one another."""
    parts = tensor.reshape(-1, *output.shape[1:]) if output.dim() else tensor.reshape(-1)
    made = operators.wait_tensor(operators.reduce_scatter_tensor(parts, op, size, group))
    output.copy_(made.view(output.shape))


def all_to_all_into_(
    output: torch.Tensor, tensor: torch.Tensor, received: list[int], sent: list[int], group: str
) -> None:
    """`dist.all_to_all_single(output, tensor)`; received, sent: rows from and to each rank."""
    made = operators.all_to_all_single(tensor, received, sent, group)
    output.copy_(operators.wait_tensor(made))
