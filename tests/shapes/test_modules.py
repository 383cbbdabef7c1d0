"""Modules and torch's constructs on batches of changing sizes: eager's results, few compiles."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import dynamo
from dynamo.testing import CompileCounter

MODULES: dict[str, tuple[Callable[[], nn.Module], Callable[[int], torch.Tensor]]] = {
    "mlp": (lambda: nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 2)),
            lambda n: torch.randn(n, 6)),
    "convolutions": (lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(),
                                           nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 3)),
                     lambda n: torch.randn(n, 2, 8, 8)),
    "image size": (lambda: nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.AdaptiveAvgPool2d(1)),
                   lambda n: torch.randn(2, 2, n + 4, n + 4)),
    "attention": (lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True),
                  lambda n: torch.randn(2, n, 8)),
    "embedding": (lambda: nn.Sequential(nn.Embedding(10, 4), nn.Flatten(0, 1), nn.Linear(4, 3)),
                  lambda n: torch.randint(0, 10, (n, 3))),
    "norms": (lambda: nn.Sequential(nn.GroupNorm(2, 4), nn.InstanceNorm1d(4), nn.Dropout(0.3)),
              lambda n: torch.randn(n, 4, 5)),
    "instance size": (lambda: nn.InstanceNorm1d(4), lambda n: torch.randn(2, 4, n)),
    "upsample": (lambda: nn.Upsample(scale_factor=2, mode="bilinear"), lambda n: torch.randn(1, 2, n, 4)),
    "bilinear": (lambda: nn.Bilinear(4, 4, 3), lambda n: torch.randn(n, 4)),
}


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("name", MODULES)
def test_module(name: str, training: bool) -> None:
    make, sample = MODULES[name]
    model = make().train(training)
    if name == "attention":
        model.dropout.p = model.dropout1.p = model.dropout2.p = model.self_attn.dropout = 0.0
    twin, counter = copy.deepcopy(model), CompileCounter()
    compiled = dynamo.compile(model, backend=counter)
    for size in (3, 4, 5, 6, 4, 9):
        x = sample(size)
        arguments = (x, x) if name == "bilinear" else (x,)
        torch.manual_seed(size)
        found = compiled(*arguments)
        torch.manual_seed(size)
        wanted = twin(*arguments)
        torch.testing.assert_close(found, wanted)
        assert found.stride() == wanted.stride()
        if training and wanted.requires_grad:
            found.square().sum().backward()
            wanted.square().sum().backward()
            grads = zip(model.parameters(), twin.parameters(), strict=True)
            assert all(torch.allclose(a.grad, b.grad, atol=1e-5) for a, b in grads)
    assert counter.frame_count <= 2


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * x.shape[0]

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return grad * x.shape[0]


def looping(x: torch.Tensor) -> Any:
    total = x.new_zeros(())
    for part in x.split(2):
        total = total + part.sum() * part.shape[0]
    return total


CONSTRUCTS: dict[str, Callable[[torch.Tensor], Any]] = {
    "checkpoint": lambda x: checkpoint(lambda y: y.sin().view(-1) * y.shape[0], x, use_reentrant=False),
    "autograd function": lambda x: Scaled.apply(x) + 1,
    "cond": lambda x: torch.cond(x.sum() > 0, lambda y: y * y.shape[0], lambda y: y.cos(), (x,)),
    "vmap": lambda x: torch.vmap(lambda row: row * row.sum())(x) + x.shape[0],
    "grad transform": lambda x: torch.func.grad(lambda y: (y * y).sum())(x),
    "no grad": lambda x: no_grad(x),
    "autocast": lambda x: autocast(x),
    "detach": lambda x: x.detach().mul(2).requires_grad,
    "loop over parts": looping,
    "list of views": lambda x: [x[i : i + 1] * len(x) for i in range(min(len(x), 2))],
    "sizes in a dict": lambda x: {"rows": x.shape[0], "x": x * 2, "half": x[: len(x) // 2]},
    "try": lambda x: tried(x),
    "dropout": lambda x: F.dropout(x, 0.5),
    "random": lambda x: torch.rand_like(x) + torch.randn(x.shape[0], 1) + torch.randperm(x.shape[0])[:, None],
    "empty": lambda x: x[:0] * 2,
    "nested sizes": lambda x: x.view(x.shape).reshape(*x.shape[::-1]).view(torch.Size([*x.shape])),
    "size to float": lambda x: x * float(x.shape[0]) ** -0.5,
    "item": lambda x: x * x.sum().item() + x.shape[0],
    "nonzero": lambda x: (x > 0).nonzero().shape[0] + x.shape[0],
    "generator": lambda x: sum(x.shape[i] * 2 for i in range(x.dim())) + x,
}


def no_grad(x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        y = x * x.shape[0]
    return y + x


def autocast(x: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return x @ x.t()


def tried(x: torch.Tensor) -> torch.Tensor:
    try:
        return x.view(2, -1, 3)
    except RuntimeError:
        return x * 2


@pytest.mark.parametrize("name", CONSTRUCTS)
@pytest.mark.parametrize("dynamic", [None, True])
def test_construct(name: str, dynamic: bool | None) -> None:
    program = CONSTRUCTS[name]
    compiled = dynamo.compile(program, backend="eager", dynamic=dynamic)
    for rows in (3, 4, 5, 6, 8, 1, 2):
        x = torch.randn(rows, 4, dtype=torch.float64, requires_grad=True)
        y = x.detach().clone().requires_grad_()
        torch.manual_seed(rows)
        found = compiled(x)
        torch.manual_seed(rows)
        wanted = program(y)
        torch.testing.assert_close(found, wanted)
        for result in (found, wanted):
            if isinstance(result, torch.Tensor) and result.requires_grad:
                result.sum().backward()
        torch.testing.assert_close(x.grad, y.grad)
