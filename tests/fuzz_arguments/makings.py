"""Ways to make an argument. In: a plain tensor of the wanted values, the other argument, the world. Out: a tensor.

A making that can't be had (a transpose of one dimension, a leaf of integers) raises, in both worlds alike.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from tests.fuzz_arguments.world import World

Making = Callable[[torch.Tensor, "torch.Tensor | None", World], torch.Tensor]


def inside(v: torch.Tensor, before: int = 3) -> torch.Tensor:
    """`v` as a part of a longer storage."""
    storage = torch.cat([v.new_zeros(before), v.flatten(), v.new_zeros(2)])
    return storage[before : before + v.numel()].view(v.shape)


def leaf(v: torch.Tensor) -> torch.Tensor:
    return v.requires_grad_()


def view_without_grad(v: torch.Tensor) -> torch.Tensor:
    base = torch.stack([v, v]).requires_grad_()
    with torch.no_grad():
        return base[0]


def inference(v: torch.Tensor, view: bool = False) -> torch.Tensor:
    with torch.inference_mode():
        return v.clone()[...] if view else v.clone()


def with_gradient(v: torch.Tensor) -> torch.Tensor:
    (leaf(v) * 3).abs().sum().backward()
    return v


def resized(v: torch.Tensor) -> torch.Tensor:
    large = torch.cat([v.flatten(), v.new_ones(9)])
    return large.resize_(v.shape)


def swapped(v: torch.Tensor) -> torch.Tensor:
    x = leaf(torch.zeros(5, dtype=v.dtype))
    x.data = v
    return x


def written(v: torch.Tensor) -> torch.Tensor:
    """A tensor with history, whose part was written since."""
    x = leaf(v) * 1
    x[..., :1].mul_(2)
    return x


def other(y: torch.Tensor | None) -> torch.Tensor:
    if y is None:
        raise ValueError("no other argument")
    return y


MAKINGS: dict[str, Making] = {
    "fresh": lambda v, o, w: v,
    "leaf": lambda v, o, w: leaf(v),
    "with history": lambda v, o, w: leaf(v) * 1,
    "inside": lambda v, o, w: inside(v),
    "inside elsewhere": lambda v, o, w: inside(v, 1),
    "inside with history": lambda v, o, w: inside(leaf(v) * 1),
    "view of no grad": lambda v, o, w: view_without_grad(v),
    "inference": lambda v, o, w: inference(v),
    "inference view": lambda v, o, w: inference(v, view=True),
    "detached": lambda v, o, w: (leaf(v) * 1).detach(),
    "parameter": lambda v, o, w: nn.Parameter(v),
    "frozen parameter": lambda v, o, w: nn.Parameter(v, requires_grad=False),
    "buffer": lambda v, o, w: nn.Buffer(v),
    "transposed": lambda v, o, w: v.t().contiguous().t(),
    "spread": lambda v, o, w: torch.stack([v, v], -1)[..., 0],
    "expanded": lambda v, o, w: v[:1].expand(v.shape),
    "expanded leaf": lambda v, o, w: leaf(v[:1].clone()).expand(v.shape),
    "of a number": lambda v, o, w: v.flatten()[0].expand(v.shape),
    "overlapping": lambda v, o, w: torch.cat([v.flatten()] * 2).as_strided(v.shape, (1,) * v.dim()),
    "with gradient": lambda v, o, w: with_gradient(v),
    "resized": lambda v, o, w: resized(v),
    "swapped data": lambda v, o, w: swapped(v),
    "written": lambda v, o, w: written(v),
    "conjugate": lambda v, o, w: v.to(torch.complex64).conj(),
    "negative bit": lambda v, o, w: v.to(torch.complex64).conj().imag,
    "complex": lambda v, o, w: torch.complex(v.float(), v.float() * 2),
    "double": lambda v, o, w: v.double(),
    "half": lambda v, o, w: v.bfloat16(),
    "integers": lambda v, o, w: (v * 3).long(),
    "bools": lambda v, o, w: v > 0,
    "channels last": lambda v, o, w: v[None, None].contiguous(memory_format=torch.channels_last)[0, 0],
    "the weight": lambda v, o, w: w.net.weight,
    "data of the weight": lambda v, o, w: w.net.weight.data,
    "transpose of the weight": lambda v, o, w: w.net.weight.t(),
    "the running buffer": lambda v, o, w: w.net.running,
    "view of the running buffer": lambda v, o, w: w.net.running.view(-1),
    "the weight's gradient": lambda v, o, w: other(w.net.weight.grad),
    "a former result": lambda v, o, w: w.former[0],
    "another former result": lambda v, o, w: w.former[-1],
    "part of a former result": lambda v, o, w: w.former[0][:1],
    "kept": lambda v, o, w: w.kept.setdefault("kept", v),
    "kept leaf": lambda v, o, w: w.kept.setdefault("leaf", leaf(v)),
    "part of kept": lambda v, o, w: w.kept.setdefault("kept", v)[:1],
}
OTHER: dict[str, Making] = {
    "the other": lambda v, o, w: other(o),
    "view of the other": lambda v, o, w: other(o).view(v.shape),
    "transpose of the other": lambda v, o, w: other(o).t(),
    "data of the other": lambda v, o, w: other(o).data,
    "detached other": lambda v, o, w: other(o).detach(),
    "part of the other": lambda v, o, w: other(o)[1:],
    "first of the other": lambda v, o, w: other(o)[0],
    "base of the other": lambda v, o, w: other(other(o)._base),
    "alias of the other": lambda v, o, w: other(o)[...],
    "gradient of the other": lambda v, o, w: other(other(o).grad),
    "conjugate of the other": lambda v, o, w: other(o).conj(),
    "real part of the other": lambda v, o, w: other(o).real,
    "bits of the other": lambda v, o, w: other(o).view(torch.int32),
}
SECOND = {**MAKINGS, **OTHER}
