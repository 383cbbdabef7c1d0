"""Programs of routing and sampling whose operators have loops of ours on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

INF, NAN = float("inf"), float("nan")
EXPERTS = 24


def logits(dtype: torch.dtype = torch.float32, rows: int = 37) -> Tensor:
    """Rows with NaN, infinities and zeros of both signs; no two others are equal."""
    count = rows * EXPERTS
    x = ((torch.randperm(count) - count // 2) / 16).reshape(rows, EXPERTS).to(torch.float32)
    x[0, 3], x[1, 5], x[2, 0], x[2, 1], x[3, 4], x[3, 5] = NAN, INF, -INF, NAN, 0.0, -0.0
    return x.to(dtype)


def equal_logits(dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randint(-3, 3, (37, EXPERTS)).to(dtype)


def ids(count: int = 1000) -> Tensor:
    return torch.randint(EXPERTS, (count,))


def route(x: Tensor) -> Any:
    order = torch.sort(F.softmax(x, -1), stable=True, descending=True)
    weights, chosen = order.values[:, :4], order.indices[:, :4]
    weights = weights / weights.sum(-1, keepdim=True)
    counts = torch.histc(chosen.float(), EXPERTS, 0, EXPERTS - 1)
    return weights, chosen, counts, counts.cumsum(0)


def places_in_experts(x: Tensor) -> Any:
    """As routers with a capacity count them: the tokens before each that chose its expert."""
    mask = (x[:, None] == torch.arange(EXPERTS)).long()
    place = mask.cumsum(0) * mask
    return place.sum(-1), (place < 20).sum(0)


Program = tuple[Callable[..., Any], Callable[[], list[Tensor]]]
PROGRAMS: dict[str, Program] = {
    "route": (route, lambda: [torch.randn(50, EXPERTS)]),
    "places": (places_in_experts, lambda: [ids(100)]),
    "long places": (places_in_experts, lambda: [ids(300)]),
    "sort": (lambda x: torch.sort(x, stable=True), lambda: [logits()]),
    "values": (lambda x: (torch.sort(x)[0], x.sort(0, True)[0], torch.msort(x)), lambda: [equal_logits()]),
    "down": (lambda x: torch.sort(x, descending=True, stable=True), lambda: [logits(torch.bfloat16)]),
    "equal": (lambda x: (torch.sort(x, dim=0, stable=True), torch.argsort(x, descending=True, stable=True)), lambda: [equal_logits()]),
    "sums": (lambda x: (x.cumsum(-1), x.cumsum(0), x.cumprod(1), x[:, 1].cumsum(0)), lambda: [torch.randn(40, EXPERTS)]),
    "sums of halves": (lambda x: (x.cumsum(-1), x.float().cumsum(0).half()), lambda: [torch.rand(40, EXPERTS).half()]),
    "long sums": (lambda x: (x.cumsum(1), x.exp().cumprod(1)), lambda: [torch.randn(1, 270, 2) / 30]),
    "sums of booleans": (lambda x: ((x > 0).cumsum(0), x.int().cumsum(1)), lambda: [torch.randn(300, 3) * 5]),
    "exponentials": (lambda x: torch.logcumsumexp(x, 1), lambda: [logits()]),
    "counts of one": (lambda x: torch.histc(x.sin(), 4, -1, 1).sum(), lambda: [torch.tensor(0.3)]),
    "counts": (lambda x: torch.histc(x.clone(), 10, -0.5, 1.5), lambda: [torch.randn(900)]),
    "search": (lambda r, x: (torch.searchsorted(r, x), torch.searchsorted(r, x, right=True), torch.bucketize(x, r[0], out_int32=True)),
               lambda: [torch.tensor([[-2.0, 0, 0, 1, INF, NAN], [-INF, -1, 0, 2, NAN, NAN]]), torch.tensor([[-INF, 0.0, 3, INF, NAN]] * 2)]),
    "search of sums": (lambda x, u: torch.searchsorted(x.softmax(-1).cumsum(-1), u), lambda: [torch.randn(5, 200), torch.rand(5, 1)]),
}  # fmt: skip


def assert_same(found: Any, expected: Any) -> None:
    """Equal but for rounding, with the strides of eager."""
    for one, other in zip(*(torch.utils._pytree.tree_leaves(each) for each in (found, expected)), strict=True):
        near = {torch.float16: 4e-3, torch.bfloat16: 2e-2}.get(other.dtype, 1e-5)
        torch.testing.assert_close(one, other, rtol=near, atol=near, equal_nan=True)
        assert one.stride() == other.stride()
