"""What programs are made of: functions of two tensors, a module and a nest of them, each of which reads some fact."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

Piece = Callable[[torch.Tensor, torch.Tensor, Any, Any], Any]


def without_grad(x):
    with torch.no_grad():
        return x * 2


def under_autocast(x, y):
    with torch.autocast("cpu", torch.bfloat16):
        return F.linear(x, y)


def into_out(x, y):
    if x.requires_grad or y.requires_grad:
        return x
    return torch.add(x, y, out=torch.empty(2, 2))


def around_a_break(x, y):
    z = x * 2
    torch._C._get_tracing_state()
    print(end="")
    x.add_(1)
    return z + y, x


def learned(x):
    z = x.detach().clone().requires_grad_()
    return (z * 2).sum(), z


def attributes(x, net):
    net.last = x * 2
    net.count = getattr(net, "count", 0) + 1
    return net.last, net.count


def walked(nest):
    found = []
    for key, value in nest.items():
        found += [item + 1 for item in (value if isinstance(value, list | tuple) else [value]) if isinstance(item, torch.Tensor)]
        found.append(key)
    return found


def momentum(x, net):
    with torch.no_grad():
        net.running.mul_(0.9).add_(x, alpha=0.1)
    return net.running


COMPUTED: dict[str, Piece] = {
    "sum": lambda x, y, net, nest: x + y,
    "views": lambda x, y, net, nest: (x[1:], y.t(), x.sum()),
    "product": lambda x, y, net, nest: ((x @ y).relu() @ x.t()).tanh(),
    "returned": lambda x, y, net, nest: (x, y, x * y),
    "detached": lambda x, y, net, nest: (x.detach() * 2, y.detach()),
    "without grad": lambda x, y, net, nest: (without_grad(x), x * y),
    "copies": lambda x, y, net, nest: (x.clone().mul_(2), y.contiguous()),
    "flat": lambda x, y, net, nest: (x.reshape(-1), y.flatten(), x.view(-1) * 2),
    "twice": lambda x, y, net, nest: (x + 1, x + 1, x[0], x[0], x.relu(), x.relu()),
    "same objects": lambda x, y, net, nest: (x.to(torch.float32), x.contiguous(), y.float(), y.expand_as(y)),
    "constants": lambda x, y, net, nest: (torch.zeros(2), torch.tensor([1.0, 2.0]), x * torch.ones(2), torch.arange(3)),
    "empties": lambda x, y, net, nest: (torch.zeros_like(x), torch.ones_like(y), x.new_zeros(2), x[:0]),
    "conjugates": lambda x, y, net, nest: (x.conj() + y, x.resolve_conj(), y.resolve_neg(), x.conj()),
    "real": lambda x, y, net, nest: (x.real, y.real * 2),
    "imaginary": lambda x, y, net, nest: (x.imag + 1, torch.view_as_real(x)),
    "strided": lambda x, y, net, nest: (x.as_strided((2,), (1,)), y.as_strided((1,), (1,), 1)),
    "reduced": lambda x, y, net, nest: (x.sum(0), y.mean(), x.amax(-1), (x * y).norm()),
    "cat": lambda x, y, net, nest: torch.cat([x, y, x]),
    "converted": lambda x, y, net, nest: (x.to(y.dtype), y.type_as(x), x.double()),
    "autocast inside": lambda x, y, net, nest: under_autocast(x, y),
    "learned": lambda x, y, net, nest: learned(x),
    "module": lambda x, y, net, nest: net(x),
    "weights": lambda x, y, net, nest: (x * net.weight, net.bias, net.weight.t(), net.weight.detach()),
    "part's weight": lambda x, y, net, nest: x @ net.part.weight + net.weight,
    "plain": lambda x, y, net, nest: (net.plain, net.plain + x, net.running + net.plain),
    "parameters": lambda x, y, net, nest: [p * 2 for p in net.parameters()],
    "named": lambda x, y, net, nest: {k: p.sum() for k, p in net.named_parameters(remove_duplicate=False)},
    "nest": lambda x, y, net, nest: walked(nest),
    "attributes": lambda x, y, net, nest: attributes(x, net),
    "squares": lambda x, y, net, nest: (x**2, y.pow(2), x.sigmoid(), torch.where(x > 0, x, y)),
}
ASKED: dict[str, Piece] = {
    "is_leaf": lambda x, y, net, nest: x + 1 if x.is_leaf else y,
    "grad_fn": lambda x, y, net, nest: x + 1 if x.grad_fn is None else y * 2,
    "_is_view": lambda x, y, net, nest: (x + 1 if x._is_view() else y * 2, y._is_view()),
    "_base": lambda x, y, net, nest: (x + 1 if x._base is None else y * 2, x._base is y),
    "_version": lambda x, y, net, nest: x + x._version,
    "is": lambda x, y, net, nest: x + 1 if x is y else y * 2,
    "is_inference": lambda x, y, net, nest: (x + 1 if x.is_inference() else y * 2, y.is_inference()),
    "grad": lambda x, y, net, nest: x * 2 if x.grad is None else x * x.grad,
    "requires_grad": lambda x, y, net, nest: x + 1 if x.requires_grad else y * 2,
    "contiguous": lambda x, y, net, nest: (x * 3 if x.is_contiguous() else x + 1, y.stride(), y.storage_offset()),
    "numbers": lambda x, y, net, nest: (x.shape, x.dtype, x.numel(), y.dim(), y.element_size(), y.itemsize),
    "bits": lambda x, y, net, nest: (x.is_conj(), y.is_neg(), x.is_complex(), x.is_floating_point()),
    "class": lambda x, y, net, nest: (isinstance(x, nn.Parameter), type(y) is torch.Tensor, isinstance(y, nn.Buffer)),
    "states": lambda x, y, net, nest: (torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), torch.is_inference_mode_enabled(), x + 1),
    "defaults": lambda x, y, net, nest: (torch.get_default_dtype(), torch.ones(2), x * 2.5),
    "weight is": lambda x, y, net, nest: (x is net.weight, y is net.running, net.weight is net.part.weight, net.bias is None),
    "one memory": lambda x, y, net, nest: (x.data_ptr() == y.data_ptr(), x.untyped_storage().data_ptr() == y.untyped_storage().data_ptr()),
    "set to": lambda x, y, net, nest: x.is_set_to(y),
    "in nest": lambda x, y, net, nest: (nest["x"] is x, any(item is y for item in nest["pair"]), len(nest)),
    "storage": lambda x, y, net, nest: (x.untyped_storage().nbytes(), x.nbytes),
    "retains": lambda x, y, net, nest: (x.retains_grad, y.output_nr),
    "values": lambda x, y, net, nest: (x.tolist(), bool((y > 0).all())),
}
WRITTEN: dict[str, Piece] = {
    "mul_": lambda x, y, net, nest: x.mul_(2) + y,
    "item mul_": lambda x, y, net, nest: (x[0].mul_(y[-1]), x),
    "both": lambda x, y, net, nest: (x.add_(1), y.mul_(3)),
    "copy_": lambda x, y, net, nest: x.copy_(y),
    "copy_ of itself": lambda x, y, net, nest: (x.copy_(x.t()), y),
    "data": lambda x, y, net, nest: (x.data.mul_(2), y + 1)[1],
    "detached write": lambda x, y, net, nest: (x.detach().add_(1), x * y),
    "flat zero_": lambda x, y, net, nest: (x.reshape(-1)[1:].zero_(), y)[1],
    "out": lambda x, y, net, nest: into_out(x, y),
    "out=y": lambda x, y, net, nest: torch.mul(x, 2, out=y),
    "first to last": lambda x, y, net, nest: (x[0].copy_(x[-1]), x + y)[1],
    "setitem": lambda x, y, net, nest: (x.__setitem__(0, 5), y.__setitem__(y > 0, 1), x * y),
    "running": lambda x, y, net, nest: momentum(x, net),
    "running in place": lambda x, y, net, nest: (net.running.add_(1), x + net.running),
    "new running": lambda x, y, net, nest: (setattr(net, "running", net.running + 1), net.running)[1],
    "weight": lambda x, y, net, nest: (net.weight.data.add_(1), x @ net.weight),
    "around a break": lambda x, y, net, nest: around_a_break(x, y),
    "requires_grad_": lambda x, y, net, nest: (x.requires_grad_(), x * 2),
    "detach_": lambda x, y, net, nest: (y.detach_(), x * y),
    "grad = None": lambda x, y, net, nest: (setattr(x, "grad", None), x * 2),
    "grad = y": lambda x, y, net, nest: (setattr(x, "grad", y.detach()), x * 2),
    "grad zero_": lambda x, y, net, nest: (x.grad.zero_() if x.grad is not None else None, x + y),
    "data =": lambda x, y, net, nest: (setattr(x, "data", y.detach() * 2), x + 1),
    "resize_": lambda x, y, net, nest: (x.resize_(0), y + 1)[1],
    "t_": lambda x, y, net, nest: (x.t_(), x + y),
    "unsqueeze_": lambda x, y, net, nest: (x.unsqueeze_(0), y * 2),
    "nest write": lambda x, y, net, nest: (nest["pair"][0].add_(1), nest.update(z=x), x * 2),
    "append": lambda x, y, net, nest: (nest["items"].append(x), nest["items"].append(x * 2), y)[2],
    "relu_": lambda x, y, net, nest: (F.relu(x, inplace=True), y.clamp_(max=1)),
    "backward": lambda x, y, net, nest: ((net.weight * 2).sum().backward(), x + 1)[1],
}
PIECES = {**COMPUTED, **ASKED, **WRITTEN}
