"""torch.func around compiled functions and inside of them."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.meaning.engines import Engine
from benchmarks.meaning.program import program


def _slope(x: torch.Tensor) -> torch.Tensor:
    return (x.sin() * x[..., :1]).sum()


@program("around", "vmap, jvp and grad around a compiled function", 151196,
         "vmap jvp grad batched")
def around(engine: Engine, variant: str) -> Any:
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    if variant == "vmap":
        compiled = engine.compile(lambda x: x.sin().sum(0) + 1)
        return [torch.func.vmap(compiled)(torch.randn(n, 3)) for n in (2, 4)]
    if variant == "jvp":
        compiled = engine.compile(
            lambda t: torch.func.jvp(lambda p: p.sin() * p, (torch.ones(3),), (t,))[1])
        return torch.func.vmap(compiled)(torch.eye(3)), compiled(torch.ones(3))
    if variant == "grad":
        first = torch.func.grad(engine.compile(_slope))(torch.randn(3))
        return first, torch.func.jacrev(engine.compile(net))(torch.randn(3))
    x = torch.randn(3, requires_grad=True)
    return torch.autograd.grad(engine.compile(net)(x), x, torch.eye(2), is_grads_batched=True)[0]


@program("inside", "jacfwd, hessian, ensembles and gradients of samples in a compiled function",
         151196, "jacfwd hessian ensemble samples")
def inside(engine: Engine, variant: str) -> Any:
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    if variant == "jacfwd":
        def field(t: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
            return net(x) * t.cos() + t**2

        compiled = engine.compile(torch.func.vmap(torch.func.jacfwd(field)))
        return [compiled(torch.randn(n), torch.randn(n, 3)) for n in (2, 5)]
    if variant == "hessian":
        compiled = engine.compile(lambda x: torch.func.hessian(_slope)(x))
        return compiled(torch.randn(3)), compiled(torch.randn(4))
    if variant == "ensemble":
        return _ensemble(engine)
    parameters = dict(net.named_parameters())

    def loss(p: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.mse_loss(torch.func.functional_call(net, p, (x[None],)), y[None])

    compiled = engine.compile(torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0, 0),
                                              randomness="different"))
    return [compiled(parameters, torch.randn(n, 3), torch.randn(n, 2)) for n in (2, 3)]


def _ensemble(engine: Engine) -> Any:
    parameters, _ = torch.func.stack_module_state([nn.Linear(3, 2) for _ in range(3)])
    base = nn.Linear(3, 2)

    def all_of_them(p: Any, x: torch.Tensor) -> torch.Tensor:
        def one(q: Any, y: torch.Tensor) -> torch.Tensor:
            return torch.func.functional_call(base, q, (y,))

        return torch.func.vmap(one, in_dims=(0, None))(p, x)

    compiled = engine.compile(all_of_them)
    out = compiled(parameters, torch.randn(4, 3))
    out.sum().backward()
    slopes = {name: value.grad for name, value in parameters.items()}
    return out, slopes, compiled(parameters, torch.randn(6, 3))


@program("convolution-slopes", "the gradient of a gradient of a transposed convolution", 181305)
def convolution_slopes(engine: Engine, variant: str) -> Any:
    net = nn.Sequential(nn.ConvTranspose2d(2, 3, 3, 2, 1), nn.Softplus())

    def inner(x: torch.Tensor) -> torch.Tensor:
        return net(x).pow(2).sum()

    def outer(x: torch.Tensor) -> torch.Tensor:
        return torch.func.grad(inner)(x).pow(2).sum()

    compiled = engine.compile(lambda x: torch.func.grad(outer)(x), dynamic=True)
    return [compiled(torch.randn(n, 2, 4, 5)) for n in (2, 3, 1)]
