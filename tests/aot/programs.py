"""Programs for the tests of dynamo.aot: a function and a maker of fresh inputs each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx

import dynamo

R = torch.randn


def captured(function: Callable[..., Any], *inputs: Any) -> tuple[fx.GraphModule, list[Any]]:
    """The one graph of a function, and what it is called with."""
    found = []

    def keep(gm: fx.GraphModule, examples: list[Any]) -> Callable[..., Any]:
        found.append((gm, list(examples)))
        return gm.forward

    dynamo.compile(function, backend=keep, fullgraph=True)(*inputs)
    assert len(found) == 1
    return found[0]


def traced(function: Callable[..., Any]) -> fx.GraphModule:
    """For programs that need no more than torch.fx can follow; placeholders are the arguments."""
    return fx.symbolic_trace(function)


def setitems(x: Any, y: Any) -> Any:
    z = x * 2
    torch.select(z, 0, 0).copy_(y)
    torch.narrow(z, 1, 1, 1).fill_(3)
    return z


def in_place_on_views(x: Any, y: Any) -> Any:
    z = x.sin()
    z.t().add_(y)
    z[0].mul_(2)
    return z + z.t(), z


def mutates_through_view(x: Any, y: Any) -> Any:
    x.t()[1].mul_(y[0])
    return x.sum()


def returns_input(x: Any, y: Any) -> Any:
    return x, x.add_(1), y, x + y


def mutates_and_views(x: Any, y: Any) -> Any:
    row = x[0]
    x.mul_(2)
    return row, x.t(), row + 1, y.detach(), y.detach()[0], x.view(-1)


def shared_views(x: Any, y: Any) -> Any:
    z = x @ y
    a = z.t()
    return a, z[0], a, z.view(-1)[1:4], z


def hidden_base(x: Any, y: Any) -> Any:
    z = x @ y
    z.add_(1)
    return z[0], z[1], z.t()


def same_twice(x: Any, y: Any) -> Any:
    z = x + y
    return z, z, [z, {"a": z.t()}], 3, None


def single_view(x: Any, y: Any) -> Any:
    return (x + y).t(), (x * y)[:, ::2], (x - y).expand(2, 4, 4)


def no_grad_region(x: Any, y: Any) -> Any:
    with torch.no_grad():
        z = x.sin()
    return z * 2, y.detach() * 2


def autocast_region(x: Any, y: Any) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        z = x @ y
        w = F.softmax(z, -1)
    return z, w, x @ y


def random_ops(x: Any, y: Any) -> Any:
    noise = torch.rand_like(x)
    dropped = F.dropout(y, 0.5, True)
    torch.rand_like(x)
    return noise + dropped, torch.bernoulli(torch.sigmoid(x)), torch.empty_like(y).normal_()


def draws_in_memory_order(x: Any, y: Any) -> Any:
    noise = torch.empty_like(x)
    drawn = torch.bernoulli(y, 0.3)
    return noise.bernoulli_(0.4), drawn, F.dropout(x.t() * 2, 0.5, True), x.exponential_()


def attention(x: Any, y: Any) -> Any:
    q = x.view(1, 2, 2, 4)
    return F.scaled_dot_product_attention(q, q, y.view(1, 2, 2, 4), is_causal=True)


def several_outputs(x: Any, y: Any) -> Any:
    values, indices = torch.topk(x, 2)
    return values, indices, torch.split(y, 2), torch.max(x, 0).values


def chain_of_writes(x: Any, y: Any) -> Any:
    out = x.new_zeros(4, 4)
    for i in range(4):
        out[i].copy_(x[i] * i)
    return out, out[2] + y


def copies_between(x: Any, y: Any) -> Any:
    x.copy_(y)
    y.zero_()
    return x * 2


def norm_layers(x: Any, y: Any) -> Any:
    return F.layer_norm(x, (4,)), F.gelu(y), F.hardtanh(x), F.group_norm(x.view(1, 4, 4), 2)


def data_attribute(x: Any, y: Any) -> Any:
    x.data.add_(1)
    return x * y


def squares() -> tuple[torch.Tensor, ...]:
    return R(4, 4), R(4, 4)


def square_and_row() -> tuple[torch.Tensor, ...]:
    return R(4, 4), R(4)


def transposed() -> tuple[torch.Tensor, ...]:
    return R(4, 4).t(), R(4, 4)


def offset() -> tuple[torch.Tensor, ...]:
    return R(20)[4:].view(4, 4), R(4, 4)


def slices_of_one() -> tuple[torch.Tensor, ...]:
    both = R(8, 4)
    return both[:4], both[4:]


PROGRAMS: list[tuple[Callable[..., Any], Callable[[], tuple[Any, ...]]]] = [
    (setitems, square_and_row),
    (in_place_on_views, squares),
    (in_place_on_views, transposed),
    (mutates_through_view, squares),
    (mutates_through_view, transposed),
    (mutates_through_view, offset),
    (returns_input, squares),
    (returns_input, slices_of_one),
    (mutates_and_views, squares),
    (mutates_and_views, offset),
    (shared_views, squares),
    (shared_views, transposed),
    (hidden_base, squares),
    (same_twice, squares),
    (random_ops, squares),
    (random_ops, transposed),
    (draws_in_memory_order, transposed),
    (attention, squares),
    (several_outputs, squares),
    (chain_of_writes, squares),
    (copies_between, squares),
    (norm_layers, squares),
]
