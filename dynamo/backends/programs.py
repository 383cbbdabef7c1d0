"""The programs of `check.py`. They are compiled like those of users, though they lie here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from dynamo.api import graph_break


@dataclass(frozen=True)
class Program:
    """make: the function or module; calls: the arguments of each call, in order. trains: the sum of
    the results is differentiated."""

    name: str
    make: Callable[[], Any]
    calls: Callable[[], Sequence[tuple[Any, ...]]]
    trains: bool = False
    dynamic: bool | None = None


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.seen: Tensor
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.seen += x.sum()
        return x * self.seen


def layers() -> nn.Module:
    """A module with what most have."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 16, 20),
        nn.GELU(), nn.LayerNorm(20), nn.Linear(20, 5), nn.Softmax(-1))


def overwrite(x: Tensor, y: Tensor) -> Tensor:
    x.add_(1).mul_(y)
    x[0] = 3
    return x.sum() + y


def several_views(x: Tensor) -> Any:
    y = x * 2
    return x, x.view(-1), y, y[0], y.t(), y.detach()


def number_between(x: Tensor, n: int) -> Any:
    return x * n + torch.tensor([1.0, 2.0, 3.0]), n + 1, "text", [x.sum()]


def with_break(x: Tensor) -> Tensor:
    y = torch.relu(x)
    graph_break()
    return y.cos() @ y.t()


def random_numbers(x: Tensor) -> Tensor:
    return nn.functional.dropout(x, 0.5) + torch.rand_like(x)


def of_dtype(x: Tensor) -> Tensor:
    return x * 2 + x


def randn(*sizes: int) -> Tensor:
    return torch.randn(sizes)


DTYPES = (torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.uint8,
          torch.complex64)
ODD = [float("nan"), float("inf"), -float("inf"), -0.0, 0.0, 1e30, 1e-40, 1.0]
PROGRAMS = (
    Program("inference of a module", lambda: layers().eval(), lambda: [(randn(2, 3, 6, 6),)] * 3),
    Program("training of a module", lambda: layers(), lambda: [(randn(4, 3, 6, 6),)] * 3, True),
    Program("sizes that change", lambda: nn.Sequential(nn.Linear(4, 4), nn.Tanh()).eval(),
            lambda: [(randn(n, 4),) for n in (3, 5, 7, 1, 0)]),
    Program("dynamic=True", lambda: lambda x: (x.softmax(-1) * x.shape[0]).sum(0),
            lambda: [(randn(n, n + 1),) for n in (3, 5, 7)], dynamic=True),
    Program("dynamic=True in training", lambda: nn.Linear(4, 4),
            lambda: [(randn(n, 4),) for n in (3, 5, 7)], True, True),
    Program("writes into inputs", lambda: overwrite, lambda: [(randn(3, 4), randn(3, 4))] * 2),
    Program("writes into buffers", Counting, lambda: [(randn(3),)] * 3),
    Program("results that share memory", lambda: several_views, lambda: [(randn(3, 4),)] * 2),
    Program("inputs that share memory", lambda: overwrite, lambda: [(x := randn(4, 4), x)]),
    Program("no tensors", lambda: lambda n: n * 2 + 1, lambda: [(3,), (4,)]),
    Program("constants and numbers", lambda: number_between,
            lambda: [(randn(3), n) for n in (2, 3, 5)]),
    Program("a number that scales", lambda: lambda x, y, n: torch.add(x, y, alpha=n),
            lambda: [(randn(3), randn(3), n) for n in (2, 3, 5)]),
    Program("dynamic=True and numbers", lambda: lambda x, n, a: (x * n + a)[:n].reshape(-1),
            lambda: [(randn(m, 3), n, a) for m, n, a in ((4, 4, 0.5), (5, 4, 1.5), (6, 9, 2.5))],
            dynamic=True),
    Program("an input as the result", lambda: lambda x: x, lambda: [(randn(3),)]),
    Program("strides", lambda: lambda x: (x.t() + 1, x.t().relu()), lambda: [(randn(3, 4),)] * 2),
    Program("no elements", lambda: lambda x: (x.relu(), x.sum()), lambda: [(randn(0, 4),)]),
    Program("no dimensions", lambda: lambda x: x.exp() + 1, lambda: [(randn(),)]),
    Program("NaN and infinities", lambda: lambda x: (x + 1, x * 2, x.exp(), x == x),
            lambda: [(torch.tensor(ODD),)]),
    *[Program(str(dtype).removeprefix("torch."), lambda: of_dtype,
              lambda dtype=dtype: [((randn(3, 4) * 9).to(dtype),)]) for dtype in DTYPES],  # type: ignore[misc]
    Program("random numbers", lambda: random_numbers, lambda: [(randn(3, 4),)] * 2),
    Program("a graph break", lambda: with_break, lambda: [(randn(3, 4),)] * 2),
    Program("an index out of range", lambda: nn.Embedding(4, 3).eval(),
            lambda: [(torch.tensor([1, 3]),), (torch.tensor([1, 4]),)]),
    Program("sizes that do not fit", lambda: lambda x, y: (x @ y).relu(),
            lambda: [(randn(2, 3), randn(3, 2)), (randn(2, 3), randn(2, 3))]),
)  # fmt: skip
