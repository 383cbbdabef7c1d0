"""Programs with transformers: a cache of keys, experts chosen by top-k, adapters over quantised weights."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.models.research import Research, mlp

Cache = list[tuple[Tensor, Tensor]]


class Experts(nn.Module):
    """Top-2 routing: each expert takes its tokens by index and adds its share."""

    def __init__(self, width: int, count: int = 4) -> None:
        super().__init__()
        self.gate = nn.Linear(width, count, bias=False)
        self.experts = nn.ModuleList([mlp(width, 2 * width, width) for _ in range(count)])

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        flat = x.reshape(-1, x.shape[-1])
        probability = self.gate(flat).softmax(-1)
        share, chosen = probability.topk(2, -1)
        share = share / share.sum(-1, keepdim=True)
        result = torch.zeros_like(flat)
        for number, expert in enumerate(self.experts):
            token, place = torch.where(chosen == number)
            if token.numel() > 0:
                result.index_add_(0, token, expert(flat[token]) * share[token, place, None])
        used = F.one_hot(chosen, len(self.experts)).to(x.dtype).mean((0, 1))
        return result.view_as(x), (used * probability.mean(0)).sum() * len(self.experts)


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.norm, self.after = heads, nn.LayerNorm(width), nn.LayerNorm(width)
        self.three, self.out, self.experts = nn.Linear(width, 3 * width), nn.Linear(width, width), Experts(width)

    def forward(self, x: Tensor, before: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor, Any]:
        parts = self.three(self.norm(x)).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        if before is not None:
            k, v = torch.cat([before[0], k], 2), torch.cat([before[1], v], 2)
        h = F.scaled_dot_product_attention(q, k, v, is_causal=before is None)
        x = x + self.out(h.transpose(1, 2).flatten(2))
        moved, balance = self.experts(self.after(x))
        return x + moved, balance, (k, v)


class Writer(nn.Module):
    def __init__(self, words: int = 20, width: int = 16) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(16, width)
        self.blocks = nn.ModuleList([Block(width, 2) for _ in range(2)])

    def forward(self, text: Tensor, cache: Cache | None = None) -> tuple[Tensor, Tensor, Cache]:
        past = 0 if cache is None else cache[0][0].shape[2]
        x = self.words(text) + self.places(torch.arange(past, past + text.shape[1]))
        total, kept = x.new_zeros(()), []
        for number, block in enumerate(self.blocks):
            x, balance, pair = block(x, None if cache is None else cache[number])
            total = total + balance
            kept.append(pair)
        return x @ self.words.weight.t(), total, kept


class Mixture(Research):
    """A step of training with a balancing loss, then greedy text with a cache of keys and values."""


    def build(self) -> None:
        self.model = Writer()

    def prepare(self) -> None:
        self.optimizer = torch.optim.Adam(self.model.parameters(), 1e-3)

    def batch(self) -> tuple[Any, ...]:
        return (self.ints(20, 2, 7),)

    def step(self, text: Tensor) -> Any:
        scores, balance, _ = self.model(text[:, :-1])
        loss = F.cross_entropy(scores.flatten(0, 1), text[:, 1:].flatten()) + 0.01 * balance
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        with torch.no_grad():
            scores, _, cache = self.model(text[:1, :3])
            written = []
            for _ in range(3):
                word = scores[:, -1].argmax(-1, keepdim=True)
                written.append(word)
                scores, _, cache = self.model(word, cache)
        return loss.detach(), torch.cat(written, 1), cache[0][0].shape[2]


class Adapted(nn.Module):
    """A linear layer in int8 with scales, frozen, and a low-rank change that learns."""

    def __init__(self, inside: int, outside: int, rank: int = 2) -> None:
        super().__init__()
        weight = torch.randn(outside, inside)
        scale = weight.abs().amax(1, keepdim=True) / 127
        self.register_buffer("scale", scale)
        self.register_buffer("weight", (weight / scale).round().clamp(-128, 127).to(torch.int8))
        self.down = nn.Parameter(torch.randn(rank, inside) * 0.1)
        self.up = nn.Parameter(torch.zeros(outside, rank))

    def forward(self, x: Tensor) -> Tensor:
        whole = self.weight.to(x.dtype) * self.scale
        return F.linear(x, whole) + F.linear(F.linear(x, self.down), self.up) * 2.0


class Adapters(Research):
    """Low-rank adapters over quantised weights, two groups of parameters."""

    def build(self) -> None:
        self.model = nn.Sequential(Adapted(8, 16), nn.SiLU(), Adapted(16, 4))

    def prepare(self) -> None:
        named = dict(self.model.named_parameters())
        groups = [{"params": [p for n, p in named.items() if part in n], "lr": lr}
                  for part, lr in (("up", 1e-2), ("down", 1e-3))]
        self.optimizer = torch.optim.AdamW(groups)

    def batch(self) -> tuple[Any, ...]:
        return self.normal(5, 8), self.normal(5, 4)

    def step(self, x: Tensor, wanted: Tensor) -> Any:
        loss = F.huber_loss(self.model(x), wanted)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.detach()
