"""Programs with numbers and sizes that depend on data: (function of x [7, 3] and the ints t).

x requires gradients. What is returned: tensors and numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

Program = Callable[[torch.Tensor, torch.Tensor], Any]
PROGRAMS: dict[str, Program] = {}
LAYER = torch.nn.Linear(3, 4, dtype=torch.float64)


def program(function: Program) -> Program:
    PROGRAMS[function.__name__] = function
    return function


def small(name: str, function: Program) -> None:
    PROGRAMS[name] = function


small("scale", lambda x, t: x.sin() * t.item() + 1)
small("float scale", lambda x, t: (x.cos() * x.detach().sum().item()).sum())
small("float compares", lambda x, t: torch.where(x > x.detach().mean().item(), x * 2, x.sin()))
small("bool", lambda x, t: (x.sin() * (t > 2).item(), (t > 2).item()))
small("head", lambda x, t: x[: t.item()].sin() * 2)
small("tail", lambda x, t: (x.cos()[t.item() :] * 3).sum(0))
small("both ends", lambda x, t: x[1 : t.item()].exp() + 1)
small("from the end", lambda x, t: x[-t.item() :].exp() + 1)
small("index", lambda x, t: x.sin()[t.item()] * 2)
small("index twice", lambda x, t: x[t.item(), 1].sin() + x[0].cos().sum())
small("select", lambda x, t: x.select(0, t.item()).tanh() * 2)
small("narrow", lambda x, t: x.narrow(0, 0, t.item()).sigmoid().sum(1))
small("zeros", lambda x, t: (x.new_zeros(t.item(), 3).cos() + x[0]).sum(0))
small("arange", lambda x, t: torch.arange(t.item()).to(x.dtype).sin() * x.sum())
small("full", lambda x, t: x.new_full((2, t.item()), 3.0).exp() * x.sum())
small("softmax of a head", lambda x, t: x.t()[:, : t.item()].softmax(-1))
small("product", lambda x, t: (x[: t.item()] @ x.t()).relu() + 1)
small("largest", lambda x, t: x[: t.item()].amax(0) * 2)
small("mean", lambda x, t: x[: t.item()].mean(0).sin())
small("normed", lambda x, t: F.layer_norm(x[: t.item()].exp(), (3,)) * 2)
small("mask", lambda x, t: x[x > 0].sin() * 2)
small("mask and sum", lambda x, t: x[x > 0].exp().sum())
small("rows", lambda x, t: (x[x[:, 0] > 0].sin() @ x.new_ones(3, 2)).relu())
small("masked select", lambda x, t: x.masked_select(x < 0).cos() + 1)
small("positions", lambda x, t: x[x[:, 1].nonzero()[:, 0]].sin().sum(0))
small("nonzero", lambda x, t: ((x > 0).nonzero() * 2 + 1, x.sin()))
small("argwhere", lambda x, t: torch.argwhere(x > 0.5).to(x.dtype).exp() * x.sum())
small("unique", lambda x, t: (torch.unique(x.detach().round()).sin() * 2, x.cos()))
small("repeats", lambda x, t: x.repeat_interleave((x[:, 0] > 0).long() + 1, 0).sin() * 2)
small("columns", lambda x, t: x[:, x.detach().sum(0) > 0].t().sin() + 1)
small("reshaped", lambda x, t: x[x[:, 0] > 0].t().reshape(-1).sin() * 2)
small("joined", lambda x, t: torch.cat([x[x[:, 0] > 0], x * 2]).sin().sum(1))
small("padded", lambda x, t: F.pad(x[x[:, 0] > 0].sin(), (0, 1, 1, 0)) * 2)
small("embedding", lambda x, t: F.embedding(torch.arange(t.item()) % 7, x).tanh() + 1)
small("expanded", lambda x, t: x[0].expand(t.item(), 3).sin() * x[1])
small("sorted", lambda x, t: x[x[:, 0] > 0].sort(0).values.cumsum(0).sin())
small("layer", lambda x, t: F.gelu(LAYER(x[x[:, 0] > 0])).sum(1))


@program
def checked(x: torch.Tensor, t: torch.Tensor) -> Any:
    n = t.item()
    torch._check(n > 0, lambda: "none at all")
    torch._check(n <= x.size(0))
    return x[:n].sin() + 1, n + 1


@program
def viewed(x: torch.Tensor, t: torch.Tensor) -> Any:
    n = t.item()
    torch._check(n > 0)
    return x.sin().view(n, -1).sum(0) * 2


@program
def constrained(x: torch.Tensor, t: torch.Tensor) -> Any:
    n = t.item()
    torch._constrain_as_size(n, 1, 5)
    return (x.new_ones(n, 3).cos() * x.sum(0)).sum(0), n * 2


@program
def computed(x: torch.Tensor, t: torch.Tensor) -> Any:
    n = t.item()
    y = x.sin() * 2
    return y[: n // 2].cos() + 1, y[:n].numel() + 3, (n * 2, n / 2, n == 3)


@program
def listed(x: torch.Tensor, t: torch.Tensor) -> Any:
    first, second = torch.stack([t, t + 2]).tolist()
    return x[first:second].sin() * 2, first + second


@program
def twice(x: torch.Tensor, t: torch.Tensor) -> Any:
    y = x[x[:, 0] > 0].sin() * 2
    z = y[y[:, 1] > 0].cos() + 1
    return y, z, y.shape[0] - z.shape[0]


@program
def written_back(x: torch.Tensor, t: torch.Tensor) -> Any:
    mask = x[:, 0] > 0
    out = torch.zeros_like(x)
    out[mask] = x[mask].sin() * 2
    return out + 1


@program
def experts(x: torch.Tensor, t: torch.Tensor) -> Any:
    out = torch.zeros_like(x)
    choice = x.detach().argmax(1)
    for expert in range(3):
        at = (choice == expert).nonzero()[:, 0]
        out.index_add_(0, at, (x[at] * (expert + 1)).tanh() * 2)
    return out


@program
def in_place(x: torch.Tensor, t: torch.Tensor) -> Any:
    y = x.sin()
    rows = y[y[:, 0] > 0]
    rows.mul_(2).add_(1)
    y[t.item() :].mul_(3)
    return y * 2, rows


@program
def without_gradients(x: torch.Tensor, t: torch.Tensor) -> Any:
    with torch.no_grad():
        weights = x[x > 0].exp() + 1
    return weights * 2, x.sin() * t.item()


@program
def same_memory(x: torch.Tensor, t: torch.Tensor) -> Any:
    y = x.detach()[x[:, 0] > 0]
    z = y.t().reshape(-1)  # a view of one row, else a copy
    z.add_(1)
    return y * 2, z + 1


@program
def longer(x: torch.Tensor, t: torch.Tensor) -> Any:
    n = t.item()
    y = torch.cat([x.new_ones(n, 3), x])
    at = (y[:, 0] > 0).nonzero()[:, 0]
    return (y * n).sin() + 1, y[at].cos() * n


@program
def edges(x: torch.Tensor, t: torch.Tensor) -> Any:
    """One mask for two tensors, of which both have the same unknown size, and then count equal ones."""
    ok = x[:, 0] > 0
    here = torch.arange(x.shape[0], device=x.device)
    begin, end = here[ok], here.flip(0)[ok]
    sums = torch.zeros_like(x).index_add(0, end, x[begin] * 2)
    keys, places, counts = torch.unique(begin * 10 + end, return_inverse=True, return_counts=True)
    weights = torch.zeros(keys.shape[0], dtype=x.dtype, device=x.device)
    return sums.sin(), weights.scatter_add(0, places, torch.ones_like(places, dtype=x.dtype)), counts
