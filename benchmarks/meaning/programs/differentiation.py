"""Gradients: functions of the program's own, writes in place, checkpoints, gradients inside."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from benchmarks.meaning.engines import Engine
from benchmarks.meaning.program import gradients, program


@program("grad-of-writes", "torch.func.grad around writes into columns", 136662,
         "plain dynamic vmap")
def grad_of_writes(engine: Engine, variant: str) -> Any:
    def energy(x: torch.Tensor) -> torch.Tensor:
        buffer = torch.ones(x.shape[0], 3) + 0 * x[:, :1]  # under vmap with its dimension
        buffer[:, 0].copy_(x[:, 0] * 2)
        buffer[:, 1] = x[:, 1].sin()
        copy = buffer.clone()
        copy.select(1, 2).zero_()
        copy[0] += x[0].sum()
        return (copy * buffer).sum()

    if variant == "vmap":
        step = engine.compile(lambda x: torch.func.vmap(torch.func.grad(energy))(x))
        return [step(torch.randn(n, 4, 2)) for n in (2, 3)]
    step = engine.compile(
        lambda x: (torch.func.grad(energy)(x), torch.func.grad_and_value(energy)(x)[1]),
        dynamic=True if variant == "dynamic" else None)
    return [step(torch.randn(n, 3)) for n in (2, 5)]


class Weighted(torch.autograd.Function):
    """Gives each of its two inputs a gradient that is its own."""

    @staticmethod
    def forward(ctx: Any, a: torch.Tensor, b: torch.Tensor, k: float) -> torch.Tensor:
        ctx.save_for_backward(a, b)
        ctx.k = k
        return a * b * k

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        a, b = ctx.saved_tensors
        first = grad * b * ctx.k if ctx.needs_input_grad[0] else None
        return first, None if ctx.k > 2 else grad * a * 7, None


@program("one-tensor-twice", "one tensor passed to a custom function in two places", 181146,
         "same none view dynamic")
def one_tensor_twice(engine: Engine, variant: str) -> Any:
    k = 3.0 if variant == "none" else 2.0

    def loss(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = x * w
        first, second = (y.reshape(-1), y.view(-1)) if variant == "view" else (y, y)
        return Weighted.apply(first, second, k).sum() + Weighted.apply(x, x, k).sum()

    step = engine.compile(loss, dynamic=True if variant == "dynamic" else None)
    seen = []
    for n in (4, 4, 6):
        x = torch.randn(n, 3, requires_grad=True)
        w = torch.randn(3, requires_grad=True)
        value = step(x, w)
        value.backward()
        seen.append((value, x.grad, w.grad))
    return seen


class ScaleInPlace(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, k: float) -> torch.Tensor:
        ctx.k = k
        x.mul_(k)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return grad * ctx.k, None


@program("mark-dirty", "a custom function writes in place and its result is not used", 184113,
         "dropped used both view")
def mark_dirty(engine: Engine, variant: str) -> Any:
    def loss(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        y = x @ w
        if variant == "dropped":
            ScaleInPlace.apply(y, 3.0)
        elif variant == "used":
            y = ScaleInPlace.apply(y, 3.0)
        elif variant == "both":
            z = ScaleInPlace.apply(y, 3.0)
            y = y + z
        else:
            ScaleInPlace.apply(y[0], 3.0)
        return (y * y).sum()

    step = engine.compile(loss)
    seen = []
    for n in (3, 3, 5):
        w = torch.randn(4, 4, requires_grad=True)
        value = step(w, torch.ones(n, 4))
        value.backward()
        seen.append((value, w.grad))
    return seen


@program("checkpoint", "dropout inside of a checkpoint draws the same numbers again", 190758,
         "plain reentrant nested sequential inside")
def checkpoints(engine: Engine, variant: str) -> Any:
    net = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.GELU(), nn.Linear(8, 8),
                        nn.Dropout(0.3))

    def block(x: torch.Tensor) -> torch.Tensor:
        return net(x) * torch.rand(())

    def twice(x: torch.Tensor) -> torch.Tensor:
        return checkpoint(block, x, use_reentrant=False) * F.dropout(x, 0.2)

    def forward(x: torch.Tensor) -> torch.Tensor:
        if variant in ("plain", "reentrant"):
            return checkpoint(block, x, use_reentrant=variant == "reentrant") + x
        if variant == "nested":
            return checkpoint(twice, x, use_reentrant=False)
        if variant == "sequential":
            return checkpoint_sequential(net, 2, x, use_reentrant=False)
        return block(x)

    compiled = engine.compile(forward)
    seen = []
    for seed in (10, 11, 12):
        torch.manual_seed(seed)
        net.zero_grad()
        x = torch.randn(3, 8, requires_grad=True)
        y = checkpoint(compiled, x, use_reentrant=False) if variant == "inside" else compiled(x)
        (y**2).sum().backward()
        seen.append((y, x.grad, gradients(net), torch.rand(1)))
    return seen


@program("forces", "a force field: autograd.grad(create_graph=True) inside, atoms come and go",
         172822, "step model dynamic")
def forces(engine: Engine, variant: str) -> Any:
    net = nn.Sequential(nn.Linear(3, 16), nn.LayerNorm(16), nn.SiLU(), nn.Linear(16, 1)).double()

    def field(r: torch.Tensor) -> Any:
        r = r if r.requires_grad else r.requires_grad_()
        energy = net(r).sum()
        slope, = torch.autograd.grad(energy, r, create_graph=True)
        return energy, -slope

    def step(r: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        energy, force = field(r)
        loss = ((force - target) ** 2).mean() + energy**2
        loss.backward()
        return loss

    dynamic = True if variant == "dynamic" else None
    whole, model = engine.compile(step, dynamic=dynamic), engine.compile(field, dynamic=dynamic)
    seen = []
    for atoms in (4, 5, 1, 2, 7):
        net.zero_grad()
        r = torch.randn(atoms, 3, dtype=torch.float64)
        if variant == "step":
            loss = whole(r, torch.ones_like(r))
        else:
            energy, force = model(r)
            loss = ((force - 1) ** 2).mean() + energy**2
            loss.backward()
        seen.append((loss, gradients(net)))
    return seen


@program("history-in-place", "detach_, requires_grad_, .data and retain_grad on made tensors",
         176854, "detach requires_grad data retain")
def history_in_place(engine: Engine, variant: str) -> Any:
    def forward(x: torch.Tensor, w: torch.Tensor) -> Any:
        h = x * w
        out = (h * 2).sum()
        if variant == "detach":
            h.detach_()
            return out + (h * w).sum(), h.requires_grad, h.is_leaf
        if variant == "requires_grad":
            d = h.detach().requires_grad_()
            slope, = torch.autograd.grad((d * w).sum(), d, create_graph=True)
            return out + (slope * w).sum(), d.is_leaf, slope.requires_grad
        if variant == "data":
            h.data.mul_(3)
            return (h * w).sum() + out, h.requires_grad, None
        h.retain_grad()
        return (h * w).sum() + out, h.retains_grad, h

    compiled = engine.compile(forward)
    seen = []
    for n in (2, 2, 3):
        x, w = torch.randn(n, requires_grad=True), torch.randn(n, requires_grad=True)
        value, fact, third = compiled(x, w)
        value.backward()
        seen.append((value, fact, x.grad, w.grad, third.grad if variant == "retain" else third))
    return seen


@program("writes-without-grad", "writes into parameters, columns and layouts under no_grad", 158561)
def writes_without_grad(engine: Engine, variant: str) -> Any:
    layer = nn.Linear(3, 3)

    def forward(x: torch.Tensor, y: torch.Tensor) -> Any:
        with torch.no_grad():
            layer.weight.mul_(0.9)
            layer.bias[1:].add_(x.sum())
            y[:, 0] = layer(x)[:, 0]
            x.t_()
            x.squeeze_()
        return x + 1, y.transpose(0, 1)

    compiled = engine.compile(forward)
    seen = []
    for n in (3, 3, 4):
        x, y = torch.randn(n, 3), torch.zeros(n, 3)
        first, second = compiled(x, y)
        seen.append((first, second, x, y, dict(layer.named_parameters()), second._base is y))
    return seen


@program("extremum-gradient", "the gradient of the largest of computed values (found here)",
         "https://docs.pytorch.org/docs/stable/generated/torch.amax.html", "cos mix bfloat16 mask")
def extremum_gradient(engine: Engine, variant: str) -> Any:
    def loss(x: torch.Tensor) -> torch.Tensor:
        v = x * 0.7 + x * x - 0.3 if variant in ("mix", "bfloat16") else x.cos()
        top = v.amax(1, keepdim=True)
        return (v * (v == top)).sum(1) if variant == "mask" else top.squeeze(1)

    compiled = engine.compile(loss)
    seen = []
    for _ in range(3):
        dtype = torch.bfloat16 if variant == "bfloat16" else torch.float32
        x = torch.randn(64, 300).to(dtype).requires_grad_()
        value = compiled(x)
        value.float().sum().backward()
        assert x.grad is not None
        seen.append([value, (x.grad != 0).any(1)])  # which of equal ones wins may differ
    return seen
