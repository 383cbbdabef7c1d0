"""Sizes that change, and sizes that only the values tell."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.meaning.engines import Engine
from benchmarks.meaning.program import gradients, program


@program("attention-sizes", "nn.MultiheadAttention with sizes that change", 181305, "plain masked")
def attention_sizes(engine: Engine, variant: str) -> Any:
    net = nn.MultiheadAttention(8, 2, dropout=0.1, batch_first=True)
    compiled, seen = engine.compile(net, dynamic=True), []
    for batch, length in ((2, 4), (3, 5), (1, 6), (4, 1)):
        x = torch.randn(batch, length, 8, requires_grad=True)
        masks: dict[str, Any] = {}
        if variant == "masked":
            ends = torch.arange(1, batch + 1)[:, None]
            masks = {"key_padding_mask": torch.arange(length)[None] >= ends,
                     "attn_mask": torch.ones(length, length).triu(1).bool(),
                     "average_attn_weights": False}
        net.train(batch != 3)
        torch.manual_seed(5)
        y, weights = compiled(x, x, x, **masks)
        net.zero_grad()
        y.sum().backward()
        seen.append((y, weights, x.grad, gradients(net)))
    return seen


@program("recurrent-sizes", "a bidirectional GRU with sizes that change", 181305)
def recurrent_sizes(engine: Engine, variant: str) -> Any:
    net = nn.GRU(4, 6, 2, batch_first=True, bidirectional=True)
    compiled, seen = engine.compile(net, dynamic=True), []
    for batch, length in ((2, 3), (1, 4), (3, 1)):
        x = torch.randn(batch, length, 4, requires_grad=True)
        y, h = compiled(x)
        net.zero_grad()
        (y.sum() + h.sum()).backward()
        seen.append((y, h, x.grad, gradients(net)))
    return seen


@program("masked", "training on the rows that a mask selects: none, one, all of them", 193693,
         "boolean nonzero unique loss fullgraph")
def masked(engine: Engine, variant: str) -> Any:
    layer = nn.Linear(4, 4)

    def loss(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        h = layer(x)
        if variant == "boolean":
            rows = h[mask]
            y = torch.zeros_like(h)
            y[mask] = rows * 2
            return y.sum() + rows.shape[0]
        if variant == "nonzero":
            at = mask.nonzero().squeeze(1)
            rows = h.index_select(0, at)
            return (rows.softmax(0) * rows).sum() + at.numel()
        if variant == "unique":
            values, places, counts = torch.unique(mask.long(), return_inverse=True,
                                                  return_counts=True)
            sums = torch.zeros(values.shape[0], 4).index_add(0, places, h)
            return (sums / counts[:, None]).sum()
        rows = torch.masked_select(h, mask[:, None]).view(-1, 4)
        return F.mse_loss(rows, torch.ones_like(rows), reduction="sum") / max(rows.size(0), 1)

    whole = {"fullgraph": True} if variant == "fullgraph" and engine.name != "eager" else {}
    compiled, seen = engine.compile(loss, **whole), []
    for bits in ([1, 0, 1, 1], [0, 0, 0, 0], [0, 1, 0, 0], [1, 1, 1, 1], [1, 0, 0, 1, 1]):
        layer.zero_grad()
        mask = torch.tensor(bits).bool()
        value = compiled(torch.randn(len(bits), 4), mask)
        value.backward()
        seen.append((value, gradients(layer)))
    return seen


@program("batch-of-one", "one compile for all batches, of one and of none too",
         "https://github.com/vllm-project/vllm/pull/38933", "automatic marked unbacked")
def batch_of_one(engine: Engine, variant: str) -> Any:
    compiled = engine.compile(lambda x, k: (x > x.gather(1, k)).sum(-1) + 1)
    seen = []
    for batch in (3, 1, 2, 0, 5):
        x, k = torch.randn(batch, 6), torch.randint(0, 6, (batch, 1))
        mark = {"marked": engine.mark_dynamic, "unbacked": engine.mark_unbacked}.get(variant)
        if mark is not None and (batch > 1 or variant == "unbacked"):
            mark(x, 0)
            mark(k, 0)
        seen.append(compiled(x, k))
    return seen


@program("experts", "a mixture of experts that counts its rows by tolist()",
         "https://github.com/pytorch/pytorch/issues?q=moe+tolist", "loop train split")
def experts(engine: Engine, variant: str) -> Any:
    layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(4))
    gate = nn.Linear(6, 4)

    def forward(x: torch.Tensor) -> torch.Tensor:
        weights, chosen = gate(x).softmax(-1).topk(2, -1)
        flat = chosen.flatten()
        order = flat.argsort(stable=True)
        counts = torch.bincount(flat, minlength=4).tolist()
        rows = x.repeat_interleave(2, 0)[order]
        if variant == "split":
            parts = [layer(part) for layer, part in zip(layers, rows.split(counts), strict=True)]
        else:
            parts, start = [], 0
            for at, count in enumerate(counts):
                if count:
                    parts.append(layers[at](rows[start : start + count]))
                start += count
        joined = torch.cat(parts)
        back = torch.empty_like(joined)
        back[order] = joined
        return (back.view(x.shape[0], 2, -1) * weights[..., None]).sum(1)

    compiled, seen = engine.compile(forward), []
    for n in (5, 5, 8, 3, 1):
        layers.zero_grad()
        gate.zero_grad()
        with torch.set_grad_enabled(variant != "loop"):
            y = compiled(torch.randn(n, 6))
        if variant != "loop":
            y.pow(2).sum().backward()
        seen.append((y, gradients(layers), gradients(gate)))
    return seen
