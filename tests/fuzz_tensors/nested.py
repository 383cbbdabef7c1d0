"""More rows for random tensor programs: calls that run functions, change modes, write buffers or given outputs.

The holes are those of `operations`. The functions here are in the programs' scope.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

Function = Callable[..., Tensor]


def batch_normed(x: Tensor, momentum: float | None, affine: bool) -> tuple[Tensor, ...]:
    """A batch norm in training and its running statistics."""
    mean, var = x.new_zeros(x.shape[1]), x.new_ones(x.shape[1])
    weight = torch.linspace(0.5, 1.5, x.shape[1]).to(x.dtype) if affine else None
    return F.batch_norm(x, mean, var, weight, training=True, momentum=0.1 if momentum is None else momentum), mean, var


def gradient(function: Function, x: Tensor, twice: bool = False) -> Tensor:
    """The gradient of a function, twice that of the gradient, in a graph of its own."""
    with torch.enable_grad():
        x = x.detach().requires_grad_()
        (found,) = torch.autograd.grad(function(x).sum(), x, create_graph=twice)
        return torch.autograd.grad(found.sum(), x)[0] if twice else found


def slope(y: Tensor, x: Tensor) -> Tensor:
    """The gradient of a value of the program, whose graph stays."""
    return torch.autograd.grad(y.sum(), x, retain_graph=True, create_graph=True)[0]


def saved_little(function: Function, *args: Any) -> Tensor:
    return checkpoint(function, *args, use_reentrant=False)


def frozen(function: Function, *args: Any) -> Tensor:
    with torch.no_grad():
        return function(*args)


def lowered(function: Function, *args: Any) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        return function(*args)


def channels_last(x: Tensor) -> Tensor:
    return x.reshape(-1, *x.shape[-2:])[None].to(memory_format=torch.channels_last)


def into(function: Function, out: Tensor, *args: Any) -> tuple[Tensor, Tensor]:
    """What a call with `out=` gives, and the tensor that it was given."""
    return function(*args, out=out), out


HELPERS = (batch_normed, gradient, slope, saved_little, frozen, lowered, channels_last, into)

TRANSFORMS = """
torch.func.grad(lambda t: t.sin().sum())({f})
torch.func.grad(lambda t: (t * {y}).sum())({f})
torch.func.grad(lambda t, u: (t * u).exp().sum(), argnums=1)({f}, {y})
torch.func.grad(torch.func.grad(lambda t: t ** 3))({f}.sum())
torch.func.vmap(lambda t: t.sum())({x})
torch.func.vmap(lambda t: t * 2 + {s})({x})
torch.func.vmap(lambda t, u: t * u, in_dims=(0, None))({x}, {y})
torch.func.vmap(lambda t: t.cumsum(0), in_dims={d}, out_dims=-1)({x})
torch.func.vmap(lambda t: t.flip(0).amax(-1))({x})
torch.func.vmap(lambda t: t + torch.randn_like(t), randomness='different')({f})
torch.func.vmap(lambda t: torch.where(t > 0, t, -t).max(-1)[0])({x})
torch.func.vmap(lambda t, u: torch.matmul(t, u.mT), in_dims=(0, None))({f}, {y})
torch.func.vmap(torch.func.grad(lambda t: t.tanh().sum()))({f})
torch.func.vmap(lambda t: t.sort(-1)[1])({x})
torch.func.vmap(lambda t: t.clone().add_({s}))({x})
torch.func.jvp(lambda t: t.tanh() * 2, ({f},), ({f},))[1]
torch.func.jvp(lambda t: t.softmax(-1), ({f},), (torch.ones_like({f}),))[1]
torch.func.vjp(lambda t: t.sigmoid(), {f})[1]({f} * 2)[0]
torch.func.jacrev(lambda t: t.sin() * t.sum())({f}.flatten()[:4])
torch.func.jacfwd(lambda t: t.exp().cumsum(0))({f}.flatten()[:4])
torch.func.hessian(lambda t: (t ** 3).sum())({f}.flatten()[:3])
torch.func.linearize(lambda t: t.cos(), {f})[1]({f})
""".strip().splitlines()

MODES = """
gradient(lambda t: t.sin() * t, {f})
gradient(lambda t: t.exp() * {y}, {f})
gradient(lambda t: t.tanh() ** 2, {f}, True)
gradient(lambda t: F.layer_norm(t, t.shape[-1:]), {f})
gradient(lambda t: t.clone().mul_(t).view(-1)[1:], {f})
slope({f}, {x})
slope({f}.sin() * 2, {f})
slope({f} * {y}, {f})
saved_little(lambda t: t.sin().exp(), {f})
saved_little(lambda t: F.dropout(t, 0.5), {f})
saved_little(lambda t, u: (t * u).sum(-1), {f}, {y})
saved_little(lambda t: t.softmax(-1) * {y}, {f})
saved_little(lambda t: t.mul_(2).sin(), {f})
frozen(lambda t: t.sin(), {x})
frozen(lambda t: t.mul_(2), {x})
frozen(lambda t: t.view(-1), {x})
frozen(lambda t: t.view(-1)[1:].add_({s}), {x})
frozen(lambda t: t.copy_({y}), {x})
frozen(lambda t: t.detach().requires_grad_() * 2, {f})
lowered(lambda t: t @ t.mT, {f})
lowered(lambda t: F.linear(t, t).exp(), {f})
lowered(lambda t, u: torch.cat([t @ t.mT, u]), {f}, {y})
{f}.detach().requires_grad_().mul(2)
{f}.detach().clone().requires_grad_(False).mul_({s})
{x}.detach().view(-1).add_({s})
{x}.data.copy_({y})
F.group_norm({f}[None], {f}.shape[0])
F.group_norm({f}, {p})
F.group_norm({f}[None], {f}.shape[0], torch.ones({f}.shape[0]), torch.zeros({f}.shape[0]))
F.instance_norm({f}[None], torch.zeros({f}.shape[0]), torch.ones({f}.shape[0]), momentum=0.3)
F.dropout({f}, 0.0)
F.dropout({f}, 1.0)
F.alpha_dropout({f}, 0.3)
F.dropout2d({f}[None], 0.5)
F.dropout1d({f}, 0.5)
torch.nn.Dropout(0.0)({f})
channels_last({f}).sin()
channels_last({f}).sum(1)
channels_last({f}) + {y}
channels_last({f}).clone().view(-1)
channels_last({f}).flatten(1)
channels_last({x}).contiguous().add_({s})
F.conv2d(channels_last({f}), torch.ones(2, channels_last({f}).shape[1], 1, 2).to({f}.dtype))
F.max_pool2d(channels_last({f}), 2, 1)
F.avg_pool2d(channels_last({f}), 2, 1, 1)
F.batch_norm(channels_last({f}), None, None, training=True)
F.group_norm(channels_last({f}), 1)
F.interpolate(channels_last({f}), scale_factor=2.0, mode='bilinear')
F.pad(channels_last({x}), (1, 1))
torch.cat([channels_last({x}), channels_last({y})], 1)
torch.empty_like(channels_last({x})).copy_({y})
torch.zeros_like(channels_last({x})).transpose(1, -1).add_({s})
{x}.view(-1)[1:].view(-1)[::2].mul_({s})
{x}[1:].t().add_({y})
{x}.t()[0].unsqueeze(0).copy_({y})
{x}.unsqueeze(0).expand(1, *{x}.shape)[0][..., :1].neg_()
{x}.transpose({d}, {e})[:1].select({d}, 0).fill_({s})
{x}.flatten()[1:].reshape(-1).zero_()
{x}.detach()[0].t().mul_({n})
{x}.view(-1).view({t}).zero_()
{x}.diagonal()[1:].copy_({y})
{x}.chunk(2, {d})[-1].mul_({x}.chunk(2, {d})[0])
{x}.as_strided((2, 2), (1, 1)).t().add_(1)
{c}.real.mul_({s})
torch.view_as_real({c})[..., 0].add_({y})
""".strip().splitlines()

OUT = """
torch.add({x}, {y}, out={z})
torch.mul({x}, {y}, out={z})
torch.add({x}, {y}, out={z}[:1])
torch.sub({x}, {s}, out={z}.t())
torch.where({b}, {y}, {z}, out={y})
torch.sin({f}, out={y})
torch.exp({x}, out=torch.empty(0, dtype=torch.float64))
torch.abs({x}, out={x})
torch.neg({x}, out={x}.t())
torch.mm({f}, {f}.t(), out={z})
torch.sum({x}, {d}, out={z})
torch.amax({x}, {d}, out={z})
torch.cumsum({x}, {d}, out={x})
torch.cat([{x}, {y}], {d}, out={z})
torch.cat([{x}, {x}], {d}, out=torch.empty(0))
torch.stack([{x}, {y}], out=torch.empty(2, dtype={t}))
torch.index_select({x}, {d}, torch.tensor([0, 0]), out={z})
torch.gather({x}, {d}, {x}.argmax({d}, keepdim=True), out={z})
torch.clamp({x}, {s}, {s2}, out={z})
torch.eq({x}, {y}, out={z})
torch.arange({p}, out={x})
torch.softmax({f}, {d}, out={y})
torch.tril({x}, out={z})
torch.argmax({x}, {d}, out={i})
torch.pow({x}, {n}, out={z})
""".strip().splitlines()

PAIRS = """
into(torch.add, torch.empty(0, dtype={t}), {x}, {y})
into(torch.mul, {z}, {x}, {y})
into(torch.sum, {z}[:1], {x}, {d})
into(torch.sub, {z}.view(-1)[1:], {x}, {y})
torch.max({x}, {d}, out=(torch.empty_like({x}), torch.empty(0, dtype=torch.int64)))
torch.sort({x}, {d}, out=(torch.empty_like({x}), torch.empty_like({x}, dtype=torch.int64)))
torch.func.grad_and_value(lambda t: t.sin().sum())({f})
torch.func.jvp(lambda t: t.exp(), ({f},), ({f},))
torch.func.vmap(lambda t: (t.sum(), t * 2))({x})
torch.func.vmap(lambda t: t.sort(0))({x})
torch.func.vmap(lambda t: (t, t.amax()), out_dims=(-1, 0))({x})
batch_normed({f}, None, {k})[:2]
batch_normed({f}[None], 0.5, {k})[::2]
batch_normed(channels_last({f}), 0.9, {k})[1:]
""".strip().splitlines()

# As `operations.TABLE`.
NESTED = ((TRANSFORMS, 8, 1), (MODES, 16, 1), (OUT, 7, 1), (PAIRS, 5, 2))
