"""Series, tables and clicks: forecasts, tabular models, recommenders."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.gpu_programs.program import Compile, Place, Step, built, infer, program, train


class Patches(nn.Module):
    """PatchTST: series are normalized each, cut into patches, and mixed channel by channel."""

    def __init__(self, length: int, horizon: int, patch: int, width: int, layers: int) -> None:
        super().__init__()
        self.patch, self.stride = patch, patch // 2
        count = (length - patch) // self.stride + 2
        self.embed = nn.Linear(patch, width)
        self.place = nn.Parameter(torch.randn(count, width) * 0.02)
        layer = nn.TransformerEncoderLayer(
            width, 8, 2 * width, activation="gelu", batch_first=True, dropout=0.0)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(count * width, horizon)

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(1, keepdim=True).detach()
        scale = torch.sqrt(x.var(1, keepdim=True, unbiased=False) + 1e-5).detach()
        z = ((x - mean) / scale).transpose(1, 2)
        z = F.pad(z, (0, self.stride), mode="replicate")
        z = z.unfold(-1, self.patch, self.stride)
        batch, channels = z.shape[:2]
        z = self.encoder((self.embed(z) + self.place).flatten(0, 1))
        y = self.head(z.reshape(batch, channels, -1)).transpose(1, 2)
        return y * scale + mean


@program
def series_patches_train(compile: Compile, place: Place) -> Step:
    batch, length, channels = place.of((2, 32, 3), (64, 512, 21))
    model = built(place, Patches, length, place.of(8, 96), place.of(8, 16), place.of(16, 128), 3)
    return train(compile, model, place.normal(batch, length, channels))


class Correlations(nn.Module):
    """Autoformer's block: the likeliest delays by FFT, values rolled by them, trends taken off by
    moving averages."""

    def __init__(self, width: int, heads: int, window: int) -> None:
        super().__init__()
        self.heads, self.window = heads, window
        self.q, self.k, self.v, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def correlate(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (f(x).view(batch, length, self.heads, -1) for f in (self.q, self.k, self.v))
        q, k, v = (each.permute(0, 2, 3, 1) for each in (q, k, v))
        seen = torch.fft.rfft(q.float(), dim=-1) * torch.fft.rfft(k.float(), dim=-1).conj()
        corr = torch.fft.irfft(seen, n=length, dim=-1).mean((1, 2))
        weights, delays = torch.topk(corr, int(2 * math.log(length)), dim=-1)
        weights = weights.softmax(-1).to(v.dtype)
        twice = v.repeat(1, 1, 1, 2)
        start = torch.arange(length, device=x.device)
        total = torch.zeros_like(v)
        for i in range(weights.shape[1]):
            at = (start + delays[:, i, None, None, None]).expand_as(v)
            total = total + twice.gather(-1, at) * weights[:, i, None, None, None]
        return self.out(total.permute(0, 3, 1, 2).reshape(batch, length, width))

    def split(self, x: Tensor) -> tuple[Tensor, Tensor]:
        side = (self.window - 1) // 2
        padded = torch.cat([x[:, :1].repeat(1, side, 1), x, x[:, -1:].repeat(1, side, 1)], 1)
        trend = F.avg_pool1d(padded.transpose(1, 2), self.window, 1).transpose(1, 2)
        return x - trend, trend

    def forward(self, x: Tensor) -> Tensor:
        x, first = self.split(x + self.correlate(x))
        x, second = self.split(x + self.down(F.gelu(self.up(x))))
        return x + first + second


@program
def series_autocorrelation_train(compile: Compile, place: Place) -> Step:
    batch, length, width = place.of((2, 24, 16), (32, 336, 512))
    make = lambda: nn.Sequential(*(Correlations(width, 8, place.of(5, 25)) for _ in range(2)))  # noqa: E731
    return train(compile, built(place, make), place.normal(batch, length, width))


class Basis(nn.Module):
    """A block of N-BEATS: its share of past and future, in a basis of waves or powers."""

    def __init__(self, past: int, future: int, width: int, waves: bool) -> None:
        super().__init__()
        grid = torch.arange(-past, future) / future
        terms = [grid**n for n in range(4)]
        if waves:
            terms = [f(2 * math.pi * n * grid) for n in range(1, 9) for f in (torch.cos, torch.sin)]
        self.register_buffer("basis", torch.stack(terms))
        steps = [(nn.Linear(past if n == 0 else width, width), nn.ReLU()) for n in range(4)]
        self.stack = nn.Sequential(*(each for step in steps for each in step))
        self.theta = nn.Linear(width, 2 * len(terms))
        self.past = past

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        back, ahead = self.theta(self.stack(x)).chunk(2, -1)
        return back @ self.basis[:, : self.past], ahead @ self.basis[:, self.past :]


class Blocks(nn.Module):
    def __init__(self, past: int, future: int, width: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Basis(past, future, width, n > 2) for n in range(6))

    def forward(self, x: Tensor) -> Tensor:
        total: Tensor | float = 0.0
        for block in self.blocks:
            back, ahead = block(x)
            x, total = x - back, total + ahead
        return total  # type: ignore[return-value]


@program
def series_basis_train(compile: Compile, place: Place) -> Step:
    rows, past, future, width = place.of((3, 16, 4, 16), (8192, 240, 48, 512))
    return train(compile, built(place, Blocks, past, future, width), place.normal(rows, past))


class TableTransformer(nn.Module):
    """FT-Transformer: each column is a token."""

    def __init__(self, numbers: int, kinds: list[int], width: int, layers: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(numbers, width) * 0.1)
        self.bias = nn.Parameter(torch.zeros(numbers + len(kinds), width))
        self.table = nn.Embedding(sum(kinds), width)
        starts = torch.tensor([0, *kinds[:-1]]).cumsum(0)
        self.register_buffer("starts", starts)
        self.first = nn.Parameter(torch.randn(width) * 0.1)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * layers))
        self.mixes = nn.ModuleList(
            nn.MultiheadAttention(width, 8, batch_first=True) for _ in range(layers))
        self.ups = nn.ModuleList(nn.Linear(width, 4 * width) for _ in range(layers))
        self.downs = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(layers))
        self.head = nn.Linear(width, 1)

    def forward(self, numbers: Tensor, kinds: Tensor) -> Tensor:
        x = torch.cat([numbers[..., None] * self.weight, self.table(kinds + self.starts)], 1)
        x = torch.cat([self.first.expand(len(x), 1, -1), x + self.bias], 1)
        for n, mix in enumerate(self.mixes):
            z = self.norms[2 * n](x)
            x = x + mix(z, z, z, need_weights=False)[0]
            gate, value = self.ups[n](self.norms[2 * n + 1](x)).chunk(2, -1)
            x = x + self.downs[n](value * F.relu(gate))
        return self.head(F.relu(x[:, 0]))


@program
def table_columns_train(compile: Compile, place: Place) -> Step:
    rows, numbers, kinds = place.of((4, 3, [4, 5]), (4096, 24, [64, 1000, 12, 7, 300, 50, 9, 2]))
    model = built(place, TableTransformer, numbers, kinds, place.of(16, 192), 3)
    model.starts = model.starts.long()
    chosen = torch.stack([place.integers(kind, rows) for kind in kinds], 1)
    return train(compile, model, place.normal(rows, numbers), chosen)


class Crosses(nn.Module):
    """DCN v2 with low-rank experts, beside factorization machines and a perceptron (DeepFM)."""

    def __init__(self, fields: int, words: int, width: int) -> None:
        super().__init__()
        self.table, self.line = nn.Embedding(words, width), nn.Embedding(words, 1)
        full, rank = fields * width, 64
        self.down = nn.Parameter(torch.randn(3, 4, full, rank) * full**-0.5)
        self.inner = nn.Parameter(torch.randn(3, 4, rank, rank) * rank**-0.5)
        self.up = nn.Parameter(torch.randn(3, 4, rank, full) * rank**-0.5)
        self.gates = nn.ModuleList(nn.Linear(full, 4) for _ in range(3))
        self.deep = nn.Sequential(
            nn.Linear(full, 512), nn.BatchNorm1d(512), nn.PReLU(), nn.Linear(512, 256), nn.PReLU())
        self.head = nn.Linear(256 + full, 1)

    def forward(self, clicks: Tensor) -> Tensor:
        each = self.table(clicks)
        second = 0.5 * (each.sum(1).square() - each.square().sum(1)).sum(-1, keepdim=True)
        start = each.flatten(1)
        x = start
        for n, gate in enumerate(self.gates):
            low = torch.tanh(torch.einsum("bf,efr->ber", x, self.down[n]))
            low = torch.tanh(torch.einsum("ber,ers->bes", low, self.inner[n]))
            high = torch.einsum("ber,erf->bef", low, self.up[n]) * start[:, None]
            x = x + (high * gate(x).softmax(-1)[..., None]).sum(1)
        joined = self.head(torch.cat([x, self.deep(start)], -1))
        return joined + second + self.line(clicks).sum(1)


@program
def clicks_crosses_train(compile: Compile, place: Place) -> Step:
    rows, fields, words, width = place.of((4, 3, 20, 4), (8192, 26, 200000, 16))
    model = built(place, Crosses, fields, words, width).float()
    return train(compile, model, place.integers(words, rows, fields))


class Recommender(nn.Module):
    """HSTU: attention without a softmax, biased by time and place, gated after a norm."""

    def __init__(self, words: int, length: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.heads = heads
        self.enter = nn.ModuleList(nn.Linear(width, 4 * width) for _ in range(layers))
        self.leave = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * layers))
        self.times = nn.Parameter(torch.randn(layers, 128) * 0.02)
        self.spots = nn.Parameter(torch.randn(layers, 2 * length - 1) * 0.02)

    def forward(self, items: Tensor, times: Tensor, length: Tensor) -> Tensor:
        batch, size = items.shape
        at = torch.arange(size, device=items.device)
        x = self.words(items) * self.words.embedding_dim**0.5 + self.places(at)
        apart = (times[:, :, None] - times[:, None, :]).abs().clamp(min=1).float()
        bucket = (apart.log() / 0.301).long().clamp(0, 127)
        seen = (at[:, None] >= at) & (at[None, None, :] < length[:, None, None])
        for n in range(len(self.enter)):
            mixed = F.silu(self.enter[n](self.norms[2 * n](x)))
            u, v, q, k = (part.view(batch, size, self.heads, -1) for part in mixed.chunk(4, -1))
            score = torch.einsum("bqhd,bkhd->bhqk", q, k)
            bias = self.times[n][bucket] + self.spots[n][at[:, None] - at + size - 1]
            weight = F.silu(score + bias[:, None]) / size * seen[:, None]
            found = torch.einsum("bhqk,bkhd->bqhd", weight, v).flatten(2)
            x = x + self.leave[n](self.norms[2 * n + 1](found) * u.flatten(2))
        return x


@program
def clicks_history_train(compile: Compile, place: Place) -> Step:
    """HSTU trained by a softmax over sampled negatives."""
    batch, size, words, width = place.of((2, 8, 30, 16), (64, 200, 100000, 256))
    model = built(place, Recommender, words, size, width, place.of(2, 8), place.of(2, 4))
    items = place.integers(words, batch, size)
    times = place.integers(100000, batch, size).sort(1).values
    length = 1 + place.integers(size, batch)
    negatives = place.integers(words, 512 if not place.small else 8)

    def criterion(x: Tensor) -> Tensor:
        x = F.normalize(x[:, :-1].float(), dim=-1)
        targets = F.normalize(model.words(items[:, 1:]).float(), dim=-1)
        others = F.normalize(model.words(negatives).float(), dim=-1)
        right, wrong = (x * targets).sum(-1, keepdim=True), x @ others.t()
        wrong = wrong.masked_fill(negatives == items[:, 1:, None], -5e4)
        logits = torch.cat([right, wrong], -1) / 0.05
        weight = (torch.arange(size - 1, device=x.device) < length[:, None] - 1).float()
        losses = -F.log_softmax(logits, -1)[..., 0]
        return (losses * weight).sum() / weight.sum().clamp(min=1)

    whole = nn.ModuleDict({"model": model})
    whole.forward = lambda *args: criterion(model(*args))  # type: ignore[assignment]
    return train(compile, whole, items, times, length)


@program
def clicks_towers_serve(compile: Compile, place: Place) -> Step:
    """Two towers: bags of words of several fields, scores of all items, the best of them."""
    users, words, width, count = place.of((3, 50, 8, 40), (512, 500000, 64, 200000))

    class Towers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bags = nn.ModuleList(nn.EmbeddingBag(words, width, mode="mean") for _ in range(4))
            self.user = nn.Sequential(nn.Linear(4 * width, 256), nn.ReLU(), nn.Linear(256, width))
            self.register_buffer("items", F.normalize(torch.randn(count, width), dim=-1))
            self.register_buffer("banned", torch.rand(count) < 0.01)

        def forward(self, fields: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
            x = torch.cat([bag(field) for bag, field in zip(self.bags, fields, strict=False)], -1)
            x = F.normalize(self.user(x), dim=-1)
            scores = (x @ self.items.t()).float().masked_fill(self.banned.bool(), -math.inf)
            scores = scores.scatter(1, seen, -math.inf)
            best = scores.topk(place.of(5, 100), dim=-1)
            return best.values.softmax(-1), best.indices

    model = built(place, Towers)
    fields = place.integers(words, 4, users, 20)
    return infer(compile, model, fields, place.integers(count, users, place.of(3, 50)))
