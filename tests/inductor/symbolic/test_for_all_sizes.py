"""Programs compiled once and run at many sizes, against eager."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from for_all_sizes import check

Program = tuple[Callable[..., Any], Callable[[int], list[Any]]]


def together(programs: dict[str, Program]) -> list[Any]:
    """Rows of a parameter: three programs as one, since a library costs most by being one."""
    names = list(programs)
    return [pytest.param([programs[name] for name in names[at : at + 3]], id=", ".join(names[at : at + 3]))
            for at in range(0, len(names), 3)]


def check_all(programs: list[Program]) -> None:
    counts = [len(make(2)) for _, make in programs]

    def results(*inputs: Any) -> list[Any]:
        found, left = [], list(inputs)
        for (program, _), count in zip(programs, counts, strict=True):
            given, left = left[:count], left[count:]
            value = program(*given)
            found += value if isinstance(value, (list, tuple)) else [value]
        return found

    check(results, lambda n: [x for _, make in programs for x in make(n)])


def randn(*size: int) -> torch.Tensor:
    return torch.randn(*size)


POINTWISE: dict[str, Program] = {
    "scale": (lambda x: x * 2 + 1, lambda n: [randn(n)]),
    "unary": (lambda x: torch.exp(x).sin() + x.abs().sqrt(), lambda n: [randn(n, 5)]),
    "broadcast": (lambda x, y: x + y, lambda n: [randn(n, 8), randn(8)]),
    "outer": (lambda x, y: x[:, None] * y[None, :], lambda n: [randn(n), randn(n + 3)]),
    "two sizes": (lambda x, y: (x + 1) * y, lambda n: [randn(n, 2 * n), randn(2 * n)]),
    "where": (lambda x, y: torch.where(x > y, x, y * 2), lambda n: [randn(n, 3), randn(n, 3)]),
    "transposed": (lambda x: x.t() + 1, lambda n: [randn(n, 6)]),
    "both layouts": (lambda x, y: x.t() + y, lambda n: [randn(n, 40), randn(40, n)]),
    "bfloat16": (lambda x: x * 3 + 1, lambda n: [randn(n, 4).bfloat16()]),
    "integers": (lambda x: (x * 3 + 7) % 5 // 2, lambda n: [torch.arange(n * 2)]),
    "size as number": (lambda x: x * x.shape[0] + x.shape[1], lambda n: [randn(n, 4)]),
    "several": (lambda x: (x + 1, x * 2, (x + 1) * (x * 2)), lambda n: [randn(n, 4, 2)]),
}


@pytest.mark.parametrize("programs", together(POINTWISE))
def test_pointwise(programs: list[Program]) -> None:
    check_all(programs)


REDUCTIONS: dict[str, Program] = {
    "sum of all": (lambda x: x.sum(), lambda n: [randn(n, 33)]),
    "sum of rows": (lambda x: x.sum(-1), lambda n: [randn(3, n)]),
    "sum of many rows": (lambda x: x.sum(-1), lambda n: [randn(n, 70)]),
    "sum of columns": (lambda x: x.sum(0), lambda n: [randn(n, 70)]),
    "columns of any width": (lambda x: x.sum(0), lambda n: [randn(40, n)]),
    "both": (lambda x: x.sum(1), lambda n: [randn(n, n + 1)]),
    "middle": (lambda x: x.mean(1), lambda n: [randn(4, n, 6)]),
    "mean of all": (lambda x: x.mean(), lambda n: [randn(n)]),
    "max": (lambda x: x.amax(-1), lambda n: [randn(5, n)]),
    "max and where": (lambda x: torch.max(x, 1), lambda n: [randn(5, n)]),
    "argmax": (lambda x: x.argmax(0), lambda n: [randn(n, 5)]),
    "any": (lambda x: (x > 2).any(1), lambda n: [randn(n, n)]),
    "product": (lambda x: (1 + x / 100).prod(-1), lambda n: [randn(3, n)]),
    "variance": (lambda x: x.var(-1), lambda n: [randn(4, n)]),
    "deviation of all": (lambda x: x.std(), lambda n: [randn(4, n)]),
    "softmax": (lambda x: F.softmax(x, -1), lambda n: [randn(4, n)]),
    "softmax of rows": (lambda x: F.softmax(x, -1), lambda n: [randn(n, 32)]),
    "softmax of columns": (lambda x: F.softmax(x, 0), lambda n: [randn(n, 20)]),
    "softmax of both": (lambda x: F.softmax(x * 2, -1), lambda n: [randn(2, n, n)]),
    "log softmax": (lambda x: F.log_softmax(x, -1), lambda n: [randn(n, n + 5)]),
    "layer norm": (
        lambda x, w, b: F.layer_norm(x, (48,), w, b), lambda n: [randn(2, n, 48), randn(48), randn(48)],
    ),
    "layer norm of a size": (lambda x: F.layer_norm(x, x.shape[-1:]), lambda n: [randn(3, n)]),
    "rms norm": (
        lambda x, w: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w,
        lambda n: [randn(2, n, 32), randn(32)],
    ),
    "normalised": (lambda x: (x - x.mean(0)) / (x.std(0) + 1), lambda n: [randn(n, 9)]),
    "cross entropy": (
        lambda x, y: F.cross_entropy(x, y), lambda n: [randn(n, 10), torch.arange(n) % 10],
    ),
    "norm": (lambda x: x.norm(dim=1), lambda n: [randn(n, n)]),
    "large sum": (lambda x: x.double().sum(), lambda n: [randn(n, 1024)]),
}


@pytest.mark.parametrize("programs", together(REDUCTIONS))
def test_reductions(programs: list[Program]) -> None:
    check_all(programs)


VIEWS: dict[str, Program] = {
    "flatten": (lambda x: (x + 1).reshape(-1) * 2, lambda n: [randn(n, 6)]),
    "split heads": (
        lambda x: (x * 2).view(x.shape[0], x.shape[1], 4, 8).transpose(1, 2) + 1,
        lambda n: [randn(2, n, 32)],
    ),
    "merge heads": (
        lambda x: (x + 1).transpose(1, 2).reshape(x.shape[0], x.shape[2], -1) * 2,
        lambda n: [randn(2, 4, n, 8)],
    ),
    "merge two sizes": (lambda x: x.reshape(-1, 8).sum(0), lambda n: [randn(n, n + 2, 8)]),
    "split a size": (lambda x: x.view(-1, 4).sum(1), lambda n: [randn(4 * n)]),
    "pairs": (lambda x: x.view(-1, 2).flip(1).reshape(-1) + 1, lambda n: [randn(2 * n)]),
    "rounded quotients": (
        lambda x: (x.new_zeros(math.ceil(x.shape[0] / 32) * 32) + x[0, 0], x.new_ones(math.floor(x.shape[0] / 2)) * 2),
        lambda n: [randn(n, 6)],
    ),
    "slice": (lambda x: x[1:] * 2, lambda n: [randn(n, 3)]),
    "last": (lambda x: x[:, -1] + 1, lambda n: [randn(4, n, 3)]),
    "shifted": (lambda x: x[:, 1:] - x[:, :-1], lambda n: [randn(4, n)]),
    "halves": (
        lambda x: torch.cat((-x[..., x.shape[-1] // 2 :], x[..., : x.shape[-1] // 2]), -1),
        lambda n: [randn(2, 2 * n)],
    ),
    "flip": (lambda x: x.flip(0) + 1, lambda n: [randn(n, 3)]),
    "expand": (lambda x: x.expand(3, -1, 4).sum(1), lambda n: [randn(n, 1)]),
    "repeat": (lambda x: x.repeat(2, 3) + 1, lambda n: [randn(n, 5)]),
    "chunk": (lambda x: x.chunk(2, 1)[0] * x.chunk(2, 1)[1].sigmoid(), lambda n: [randn(n, 8)]),
    "unbind": (lambda x: x.unbind(1)[0] + x.unbind(1)[2], lambda n: [randn(n, 3)]),
    "stride": (lambda x: x[:, ::2] + 1, lambda n: [randn(n, 9)]),
    "permuted": (lambda x: x.permute(2, 0, 1).contiguous(), lambda n: [randn(n, 5, 40)]),
}


@pytest.mark.parametrize("programs", together(VIEWS))
def test_views(programs: list[Program]) -> None:
    check_all(programs)


JOINED: dict[str, Program] = {
    "cat": (lambda x, y: torch.cat((x, y), 0) + 1, lambda n: [randn(n, 4), randn(n + 2, 4)]),
    "cat inside": (lambda x, y: torch.cat((x, y), 1), lambda n: [randn(3, n), randn(3, 5)]),
    "cat of many": (lambda x: torch.cat([x + k for k in range(6)], 0), lambda n: [randn(n, 4)]),
    "cache": (
        lambda c, x: torch.cat((c, x * 2), 2).transpose(2, 3), lambda n: [randn(1, 2, n, 8), randn(1, 2, 1, 8)],
    ),
    "pad": (lambda x: F.pad(x, (1, 2)) * 2, lambda n: [randn(3, n)]),
    "stack": (lambda x: torch.stack((x, x + 1)), lambda n: [randn(n)]),
    "embedding": (
        lambda w, i: F.embedding(i, w) * 2, lambda n: [randn(50, 16), torch.arange(n).view(1, n) % 50],
    ),
    "embedding of a size": (lambda w, i: F.embedding(i, w), lambda n: [randn(n, 8), torch.tensor([0, 1, -1 % n])]),
    "positions": (
        lambda w, x: w[: x.shape[1]] + x, lambda n: [randn(1024, 4), randn(2, n, 4)],
    ),
    "gather": (lambda x, i: x.gather(1, i), lambda n: [randn(4, n), torch.randint(n, (4, 3))]),
    "index": (lambda x, i: x[i] + 1, lambda n: [randn(n, 4), torch.randint(-n, n, (7,))]),
    "arange": (lambda x: x + torch.arange(x.shape[0]), lambda n: [randn(n)]),
    "causal": (
        lambda x: x.masked_fill(torch.ones(x.shape[-1], x.shape[-1]).tril() == 0, -1e9).softmax(-1),
        lambda n: [randn(2, n, n)],
    ),
    "triangle": (lambda x: x.triu(1) + 1, lambda n: [randn(n, n)]),
    "full": (lambda x: torch.full((x.shape[0], 3), 2.5) + x[:, :1], lambda n: [randn(n, 2)]),
}


@pytest.mark.parametrize("programs", together(JOINED))
def test_joined_and_indexed(programs: list[Program]) -> None:
    check_all(programs)


CALLS: dict[str, Program] = {
    "product": (lambda x, w: (x @ w).relu(), lambda n: [randn(n, 16), randn(16, 24)]),
    "linear": (
        lambda x, w, b: F.gelu(F.linear(x, w, b)) + 1, lambda n: [randn(2, n, 16), randn(24, 16), randn(24)],
    ),
    "attention": (
        lambda q, k, v: F.softmax(q @ k.transpose(-1, -2) / 4, -1) @ v,
        lambda n: [randn(2, 3, n, 16), randn(2, 3, n, 16), randn(2, 3, n, 16)],
    ),
    "fused attention": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v) + 1,
        lambda n: [randn(2, 3, n, 16), randn(2, 3, n, 16), randn(2, 3, n, 16)],
    ),
    "convolution": (
        lambda x, w: F.relu(F.conv1d(x, w, padding=1)), lambda n: [randn(2, 3, n + 2), randn(5, 3, 3)],
    ),
    "cumulative": (lambda x: x.cumsum(0) + 1, lambda n: [randn(n, 3)]),
    "sort": (lambda x: x.sort(-1)[0] * 2, lambda n: [randn(3, n)]),
    "argument": (lambda x: torch.roll(x, x.shape[0] // 2, 0) + 1, lambda n: [randn(n, 3)]),
}


@pytest.mark.parametrize("programs", together(CALLS))
def test_calls_into_the_library(programs: list[Program]) -> None:
    check_all(programs)
