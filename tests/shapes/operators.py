"""Operators on tensors of changing sizes: name -> function of a tensor (batch, 6), both may change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

OPERATORS: dict[str, Callable[[torch.Tensor], Any]] = {
    "add": lambda x: x + x.sum(0),
    "broadcast": lambda x: x[:, None] * x[None],
    "matmul": lambda x: x @ x.t(),
    "linear": lambda x: F.linear(x.t(), torch.ones(3, x.shape[0])),
    "bmm": lambda x: torch.bmm(x[None], x.t()[None]),
    "einsum": lambda x: torch.einsum("ij,kj->ik", x, x),
    "softmax": lambda x: x.softmax(-1),
    "log_softmax over rows": lambda x: F.log_softmax(x, 0),
    "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "mean": lambda x: x.mean(0),
    "var": lambda x: x.var(1),
    "std keepdim": lambda x: x.std(0, keepdim=True),
    "max": lambda x: x.max(1),
    "argmax": lambda x: x.argmax(0),
    "amin": lambda x: x.amin((0, 1)),
    "cumsum": lambda x: x.cumsum(0),
    "cumprod": lambda x: x.cumprod(-1),
    "sort": lambda x: x.sort(0),
    "topk": lambda x: x.topk(2, dim=0),
    "flip": lambda x: x.flip(0),
    "roll": lambda x: x.roll(1, 0),
    "view": lambda x: x.view(-1),
    "view rows": lambda x: x.view(x.shape[0], 2, -1),
    "reshape": lambda x: x.t().reshape(x.shape[0] * x.shape[1]),
    "flatten": lambda x: x[None].flatten(1),
    "unflatten": lambda x: x.unflatten(1, (3, 2)),
    "permute": lambda x: x.permute(1, 0).contiguous(),
    "expand": lambda x: x[:, None].expand(-1, 3, -1).sum(1),
    "repeat": lambda x: x.repeat(2, 1),
    "tile": lambda x: torch.tile(x, (1, 2)),
    "repeat_interleave": lambda x: x.repeat_interleave(2, 0),
    "cat": lambda x: torch.cat([x, x * 2]),
    "stack": lambda x: torch.stack([x, x], 1),
    "split": lambda x: x.split(2, 1),
    "chunk": lambda x: torch.cat(x.chunk(2, 0)[::-1]),
    "unbind": lambda x: x.unbind(1)[0],
    "slice": lambda x: x[1:],
    "slice from the end": lambda x: x[:-1] + x[1:],
    "slice by half": lambda x: x[: x.shape[0] // 2],
    "strided slice": lambda x: x[::2],
    "last row": lambda x: x[-1],
    "narrow": lambda x: x.narrow(0, 1, x.size(0) - 1),
    "index_select": lambda x: x.index_select(0, torch.arange(x.shape[0] - 1, -1, -1)),
    "gather": lambda x: x.gather(0, torch.zeros(1, x.shape[1], dtype=torch.long)),
    "scatter": lambda x: torch.zeros_like(x).scatter(0, torch.arange(x.shape[0])[:, None].expand(x.shape), x),
    "index by tensor": lambda x: x[torch.arange(x.shape[0])],
    "index_put": lambda x: x.clone().index_put((torch.tensor([0]),), torch.tensor(1.0)),
    "set rows": lambda x: set_rows(x.clone()),
    "embedding": lambda x: F.embedding(torch.arange(x.shape[0]) % 3, torch.ones(3, 4)),
    "one_hot": lambda x: F.one_hot(torch.arange(x.shape[0]) % 3, 3),
    "arange": lambda x: torch.arange(x.shape[0]) * 2,
    "zeros": lambda x: torch.zeros(x.shape[0], 2) + 1,
    "full": lambda x: torch.full((x.size(0),), float(x.size(0))),
    "new_ones": lambda x: x.new_ones(x.shape),
    "eye": lambda x: torch.eye(x.shape[0]),
    "causal mask": lambda x: torch.ones(x.shape[0], x.shape[0]).tril() @ x,
    "triu": lambda x: (x @ x.t()).triu(1),
    "masked_fill": lambda x: x.masked_fill(x > 0, -1.0),
    "where": lambda x: torch.where(x > 0, x, x.shape[0]),
    "pad": lambda x: F.pad(x, (1, 2, 0, 1)),
    "conv1d": lambda x: F.conv1d(x[None], torch.ones(2, x.shape[0], 3), padding=1),
    "conv over size": lambda x: F.conv1d(x.t()[None], torch.ones(2, x.shape[1], 2)),
    "avg_pool": lambda x: F.avg_pool1d(x[None], 2),
    "interpolate": lambda x: F.interpolate(x[None], scale_factor=2),
    "adaptive pool": lambda x: F.adaptive_avg_pool1d(x[None], 2),
    "attention": lambda x: F.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None]),
    "causal attention": lambda x: F.scaled_dot_product_attention(
        x[None, None], x[None, None], x[None, None], is_causal=True),
    "dropout off": lambda x: F.dropout(x, 0.5, training=False),
    "cross_entropy": lambda x: F.cross_entropy(x, torch.arange(x.shape[0]) % x.shape[1]),
    "mse": lambda x: F.mse_loss(x, x.flip(0)),
    "norm": lambda x: F.normalize(x, dim=0) + x.norm(),
    "cdist": lambda x: torch.cdist(x, x),
    "outer": lambda x: torch.outer(x[:, 0], x[:, 0]),
    "diagonal": lambda x: (x @ x.t()).diagonal(),
    "meshgrid": lambda x: torch.meshgrid(x[:, 0], x[0], indexing="ij"),
    "unfold": lambda x: x.unfold(0, 2, 1),
    "inverse": lambda x: torch.linalg.inv(x @ x.t() + 10 * torch.eye(x.shape[0])),
    "fft": lambda x: torch.fft.rfft(x, dim=0),
    "bool": lambda x: (x > 0).all(0) | (x < 1).any(0),
    "long": lambda x: x.long() // x.shape[0],
    "numel": lambda x: x / x.numel(),
    "shape arithmetic": lambda x: (x.shape[0] * 2 + 1, x.shape, x.numel() // 2, list(x.size())),
    "branch on size": lambda x: x * 2 if x.shape[0] > 5 else x * 3,
    "branch on parity": lambda x: x * 2 if x.shape[0] % 2 == 0 else x * 3,
    "loop over rows": lambda x: sum(row.sum() for row in x),
    "loop over range": lambda x: [x[i] for i in range(x.shape[0])][-1],
    "in place": lambda x: in_place(x.clone()),
    "transposed in place": lambda x: transposed(x.clone()),
    "text": lambda x: (x + 1, f"{x.shape[0]} rows"),
    "mean by hand": lambda x: x.sum(0) / x.shape[0],
    "root of size": lambda x: x / x.shape[1] ** 0.5,
    "max of sizes": lambda x: x.new_zeros(max(x.shape[0], 3), min(x.shape[1], 4)),
    "swapaxes": lambda x: x.swapaxes(0, 1).mul(2).movedim(0, 1),
    "len": lambda x: x * len(x),
}


def set_rows(x: torch.Tensor) -> torch.Tensor:
    x[1:] = 0
    x[0, : x.shape[1] // 2] += 1
    return x


def in_place(x: torch.Tensor) -> torch.Tensor:
    return x.add_(1).mul_(x.shape[0]).relu_()


def transposed(x: torch.Tensor) -> Any:
    before = x.shape[0]
    x.t_()
    return x * before, x.shape
