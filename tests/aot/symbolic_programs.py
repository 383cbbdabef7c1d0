"""Programs for the tests of symbolic sizes: a function, and a maker of inputs for sizes (b, n)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

R = torch.randn
# Sizes of globals are constants.
FILTERS = R(4, 3, 3, 3)
GATES = R(12, 6), R(12, 4)
Make = Callable[[int, int], tuple[Any, ...]]


def one(b: int, n: int) -> tuple[Any, ...]:
    return (R(b, n),)


def two(b: int, n: int) -> tuple[Any, ...]:
    return R(b, n), R(b, n)


def wide(b: int, n: int) -> tuple[Any, ...]:
    return (R(b, n, 8),)


def even(b: int, n: int) -> tuple[Any, ...]:
    return (R(b, 2 * n),)


def image(b: int, n: int) -> tuple[Any, ...]:
    return (R(b, 3, 8, 8),)


def area(b: int, n: int) -> tuple[Any, ...]:
    return (R(2, 3, b + 3, n + 3),)


def tokens(b: int, n: int) -> tuple[Any, ...]:
    return torch.randint(11, (b, n)), R(11, 6)


def heads(b: int, n: int) -> tuple[Any, ...]:
    return R(b, 2, n, 4), R(b, 2, n, 4), R(b, 2, n, 4)


def attend(q: Any, k: Any, v: Any) -> Any:
    scores = q @ k.transpose(-2, -1) / 2.0
    return F.softmax(scores, dim=-1) @ v


def attend_causal(q: Any, k: Any, v: Any) -> Any:
    n = q.size(2)
    mask = torch.ones(n, n, dtype=torch.bool).tril()
    scores = (q @ k.transpose(-2, -1)).masked_fill(~mask, float("-inf"))
    return F.softmax(scores, dim=-1) @ v


def self_attention(x: Any, w: Any) -> Any:
    b, n, _ = x.shape
    q, k, v = (x @ w).view(b, n, 3, 2, 4).permute(2, 0, 3, 1, 4).unbind(0)
    y = F.scaled_dot_product_attention(q, k, v)
    return y.transpose(1, 2).reshape(b, n, 8)


def merge(x: Any) -> Any:
    b, n, _ = x.shape
    return x.reshape(b * n, 8).softmax(0).view(b, n, 8).flatten(1)


def rotate(x: Any) -> Any:
    half = x.size(-1) // 2
    return torch.cat((-x[..., half:], x[..., :half]), dim=-1)


def positions(ids: Any, table: Any) -> Any:
    at = torch.arange(ids.size(1), device=ids.device)
    return F.embedding(ids, table) + at[:, None] * 0.1


def in_place(x: Any, y: Any) -> Any:
    z = x * 2
    z[1:].add_(y[1:])
    z[:, 0] = 3.0
    return z, z.t()


def scatter_rows(x: Any, y: Any) -> Any:
    z = x.new_zeros(x.size(0) + 1, x.size(1))
    z[:-1] = x
    return z + z.mean(0)


def shift(x: Any, y: Any) -> Any:
    return torch.roll(x, 1, 1) + torch.flip(y, [0])


def classify(ids: Any, table: Any) -> Any:
    logits = F.embedding(ids, table) @ table.t()
    return F.cross_entropy(logits.view(-1, 11), ids.view(-1))


def normalise(x: Any) -> Any:
    mean = x.mean(-1, keepdim=True)
    return (x - mean) / (x.var(-1, keepdim=True, unbiased=False) + 1e-5).sqrt()


def count_scaled(x: Any) -> Any:
    return x.sum() / x.numel() + x.size(0), x * x.size(1)


def add_steps(x: Any, y: Any) -> Any:
    steps = torch.arange(0, x.size(0), dtype=x.dtype)
    return x + steps[:, None] + torch.full((x.size(1),), 2.0) * y


def triangle(x: Any) -> Any:
    n = x.size(1)
    mask = torch.full((n, n), float("-inf")).triu(1)
    return (x.unsqueeze(1) + mask).softmax(-1)


def mixed(x: Any, y: Any) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        z = x @ y.t()
    return z.float() * x.sum()


def pool(x: Any) -> Any:
    return F.max_pool2d(F.conv2d(x, FILTERS, padding=1).relu(), 2).flatten(1)


def batch_norm(x: Any) -> Any:
    y = F.conv2d(x, FILTERS)
    return F.batch_norm(y, None, None, training=True).relu().mean((2, 3))


PROGRAMS: dict[str, tuple[Callable[..., Any], Make]] = {
    "pointwise": (lambda x, y: torch.sin(x) * y + x.exp().clamp(max=2.0), two),
    "broadcast": (lambda x, y: x.unsqueeze(1) + y.unsqueeze(0), lambda b, n: (R(b, 3), R(n, 3))),
    "where": (lambda x, y: torch.where(x > y, x, y * 2).abs(), two),
    "gelu": (lambda x: F.gelu(x) + F.silu(x) + torch.tanh(x), one),
    "sum": (lambda x: (x.sum(), x.sum(0), x.mean(1, keepdim=True)), one),
    "max": (lambda x: (x.amax(1), x.argmax(0), x.max()), one),
    "softmax": (lambda x: (x.softmax(-1), x.log_softmax(0)), one),
    "logsumexp": (lambda x: x.logsumexp(1), one),
    "layer_norm": (lambda x: F.layer_norm(x, (8,)), wide),
    "layer_norm_symbolic": (lambda x: F.layer_norm(x, (x.size(-1),)), one),
    "normalise": (normalise, one),
    "rms": (lambda x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6), one),
    "var": (lambda x: (x.var(0), x.std(1)), one),
    "cumsum": (lambda x: x.cumsum(0), one),
    "merge": (merge, wide),
    "flatten": (lambda x: x.flatten().sin(), one),
    "split_dim": (lambda x: x.view(x.size(0), -1, 2).sum(-1), even),
    "transpose": (lambda x: x.t().contiguous() * 2, one),
    "permute": (lambda x: x.permute(2, 0, 1).reshape(8, -1).sum(0), wide),
    "cat": (lambda x, y: torch.cat((x, y, x), 0), two),
    "stack": (lambda x, y: torch.stack((x, y), 1).sum(2), two),
    "chunk": (lambda x: x.chunk(2, 1)[0] * x.chunk(2, 1)[1], even),
    "split": (lambda x: [part * 2 for part in x.split(4, -1)], wide),
    "glu": (lambda x: F.glu(x, -1), even),
    "rotate": (rotate, even),
    "matmul": (lambda x, y: x @ y.t(), two),
    "linear": (lambda x, w, c: F.linear(x, w, c), lambda b, n: (R(b, n, 8), R(5, 8), R(5))),
    "bmm": (lambda x, y: x @ y.transpose(1, 2), lambda b, n: (R(b, n, 3), R(b, n + 1, 3))),
    "einsum": (lambda x, y: torch.einsum("bnd,bmd->bnm", x, y), lambda b, n: (R(b, n, 3),) * 2),
    "attend": (attend, heads),
    "attend_causal": (attend_causal, heads),
    "sdpa": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True), heads),
    "self_attention": (self_attention, lambda b, n: (R(b, n, 8), R(8, 24))),
    "embedding": (lambda ids, table: F.embedding(ids, table).sum(1), tokens),
    "positions": (positions, tokens),
    "gather": (lambda x, i: x.gather(1, i), lambda b, n: (R(b, n), torch.randint(n, (b, 2)))),
    "index": (lambda x, i: x[i] * 2, lambda b, n: (R(b, 4), torch.randint(b, (n,)))),
    "index_select": (lambda x: x.index_select(1, torch.tensor([1, 0])), one),
    "slices": (lambda x: x[1:, :-1] + x[:-1, 1:], one),
    "last": (lambda x: x[:, -1] * x[0, 0], wide),
    "pad": (lambda x: F.pad(x, (1, 2), value=3.0), one),
    "pad_reflect": (lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect"), area),
    "conv2d": (lambda x: F.conv2d(x, FILTERS, padding=1).relu(), image),
    "conv1d": (lambda x, w: F.conv1d(x, w, padding=1), lambda b, n: (R(b, 3, n), R(4, 3, 3))),
    "pool": (pool, image),
    "batch_norm": (batch_norm, image),
    "group_norm": (lambda x: F.group_norm(x, 4), lambda b, n: (R(b, 8, n),)),
    "adaptive_pool": (lambda x: F.adaptive_avg_pool2d(x, 1).flatten(1), area),
    "gru": (lambda x, h: torch.gru_cell(x, h, *GATES), lambda b, n: (R(b, 6), R(b, 4))),
    "interpolate": (lambda x: F.interpolate(x, scale_factor=2, mode="nearest"), area),
    "bilinear": (lambda x: F.interpolate(x, scale_factor=2, mode="bilinear"), area),
    "arange": (add_steps, two),
    "new_zeros": (scatter_rows, two),
    "triangle": (triangle, one),
    "in_place": (in_place, two),
    "mutates": (lambda x, y: x.add_(y).sum(), two),
    "mutates_view": (lambda x, y: (x[1:].mul_(2), x.t())[1] + y.t(), two),
    "views": (lambda x: (x.t(), x[1:], x.unsqueeze(0), x.sin().t()), one),
    "roll": (shift, two),
    "repeat": (lambda x: x.repeat(2, 3), one),
    "expand": (lambda x: x.unsqueeze(1).expand(-1, x.size(1), -1).sin(), one),
    "sort": (lambda x: x.sort(1), one),
    "topk": (lambda x: x.topk(2, 1)[0], one),
    "classify": (classify, tokens),
    "numel": (count_scaled, one),
    "number": (lambda x, k: x.new_ones(k, x.size(1)) * k + x[:1], lambda b, n: (R(b, n), b + 5)),
    "dropout": (lambda x: F.dropout(x, 0.5) * 2, one),
    "bernoulli": (lambda x, y: torch.bernoulli(x.sigmoid()) + torch.rand_like(y), two),
    "double": (lambda x: x.double().sum(1).float() + x.half().float().sum(1), one),
    "complex": (lambda x: torch.fft.rfft(x).abs(), one),
    "autocast": (mixed, two),
    "norm": (lambda x: x.norm(dim=1) + torch.linalg.vector_norm(x, dim=1, ord=1), one),
}  # fmt: skip
