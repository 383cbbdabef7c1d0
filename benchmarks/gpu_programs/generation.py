"""What people write for generation: attention over caches of several kinds, sampling, adapters."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.gpu_programs.program import Compile, Place, Step, infer, program, train

GRAPHS = "reduce-overhead"


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Halves turned, as in Llama; of a part of the head if cos is narrower than it."""
    rotated, rest = x[..., : cos.shape[-1]], x[..., cos.shape[-1] :]
    left, right = rotated.chunk(2, dim=-1)
    turned = torch.cat([-right, left], dim=-1)
    return torch.cat([rotated * cos + turned * sin, rest], dim=-1)


def angles(place: Place, length: int, width: int, base: float = 10000.0) -> tuple[Tensor, Tensor]:
    steps = torch.arange(0, width, 2, device=place.device) / width
    turns = torch.outer(torch.arange(length, device=place.device).float(), base**-steps)
    turns = torch.cat([turns, turns], -1)
    return turns.cos().to(place.half), turns.sin().to(place.half)


class Block(nn.Module):
    """A block of a decoder with a cache that is written at a position; half of a head turns."""

    def __init__(
        self, place: Place, width: int, heads: int, groups: int, batch: int, most: int
    ) -> None:
        super().__init__()
        factory: dict[str, Any] = {"bias": False, "device": place.device, "dtype": place.half}
        self.heads, self.groups, self.head = heads, groups, width // heads
        self.qkv = nn.Linear(width, (heads + 2 * groups) * self.head, **factory)
        self.out = nn.Linear(width, width, **factory)
        self.up = nn.Linear(width, 4 * width, **factory)
        self.down = nn.Linear(4 * width, width, **factory)
        self.first = nn.RMSNorm(width, device=place.device, dtype=place.half)
        self.second = nn.RMSNorm(width, device=place.device, dtype=place.half)
        cache = torch.zeros_like(place.normal(2, batch, groups, most, self.head))
        self.register_buffer("cache", cache, persistent=False)

    def forward(self, x: Tensor, at: Tensor, mask: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.first(x)).view(batch, length, -1, self.head).transpose(1, 2).split(
            [self.heads, self.groups, self.groups], dim=1)  # fmt: skip
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        self.cache[0][:, :, at] = k
        self.cache[1][:, :, at] = v
        y = F.scaled_dot_product_attention(q, self.cache[0], self.cache[1], attn_mask=mask,
                                           enable_gqa=True)  # fmt: skip
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.relu(self.up(self.second(x))).square())


class Decoder(nn.Module):
    def __init__(self, place: Place, batch: int, depth: int, most: int) -> None:
        super().__init__()
        width, heads, groups, words = place.of((32, 4, 2, 101), (2048, 16, 4, 50304))
        self.table = nn.Embedding(words, width, device=place.device, dtype=place.half)
        self.blocks = nn.ModuleList(
            Block(place, width, heads, groups, batch, most) for _ in range(depth)
        )
        self.head = nn.Linear(width, words, bias=False, device=place.device, dtype=place.half)
        cos, sin = angles(place, most, width // heads // 2)
        self.register_buffer("cos", cos)
        self.register_buffer("sin", sin)
        seen = torch.ones(most, most, dtype=torch.bool, device=place.device).tril()
        self.register_buffer("seen", seen)

    def forward(self, ids: Tensor, at: Tensor) -> Tensor:
        x = self.table(ids)
        mask, cos, sin = self.seen[None, None, at], self.cos[at], self.sin[at]
        for block in self.blocks:
            x = block(x, at, mask, cos, sin)
        return self.head(F.rms_norm(x, (x.shape[-1],)))


@program
def hand_decode(compile: Compile, place: Place) -> Step:
    """gpt-fast's: one token in, the most probable word out, in a CUDA graph."""
    batch, depth, most = place.of((1, 2, 16), (1, 12, 1024))
    model = Decoder(place, batch, depth, most)
    at, ids = torch.tensor([most // 2], device=place.device), place.integers(100, batch, 1)
    return infer(compile, model, ids, at, mode=GRAPHS)


@program
def hand_speculative(compile: Compile, place: Place) -> Step:
    """Five drafted words verified in one pass: how many are accepted, and the word after them."""
    batch, depth, most = place.of((2, 2, 16), (4, 8, 1024))
    model = Decoder(place, batch, depth, most)
    at = torch.arange(most // 2, most // 2 + 6, device=place.device)
    ids = place.integers(100, batch, 6)
    drafted = place.normal(batch, 5, model.head.out_features).float().softmax(-1)
    noise = torch.rand(batch, 5, device=place.device)

    def verify(ids: Tensor, drafted: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        p = model(ids, at).float().softmax(-1)
        words = ids[:, 1:].unsqueeze(-1)
        ratio = p[:, :-1].gather(2, words) / drafted.gather(2, words).clamp(min=1e-9)
        accepted = (noise < ratio.squeeze(-1)).cumprod(dim=1)
        count = accepted.sum(1)
        rest = F.relu(p[:, :-1] - drafted)
        rest = torch.cat([rest / rest.sum(-1, keepdim=True), p[:, -1:]], dim=1)
        rows = torch.arange(batch, device=ids.device)
        return count, rest[rows, count].argmax(-1)

    return infer(compile, verify, ids, drafted, noise)


@program
def hand_chunked_prefill(compile: Compile, place: Place) -> Step:
    """A long prompt in chunks through one compiled function."""
    batch, depth, most, chunk = place.of((1, 2, 32, 8), (1, 8, 8192, 2048))
    model = Decoder(place, batch, depth, most).eval()
    ids, compiled = place.integers(100, batch, most), compile(model)

    @torch.no_grad()
    def step() -> Tensor:
        for start in range(0, most, chunk):
            at = torch.arange(start, start + chunk, device=place.device)
            logits = compiled(ids[:, start : start + chunk], at)
        return logits[:, -1].clone()

    return step


@program
def latent_attention_decode(compile: Compile, place: Place) -> Step:
    """DeepSeek's attention with the projections absorbed, over a cache of latents."""
    batch, heads, rank, rope, nope, most = place.of(
        (2, 2, 16, 8, 8, 16), (32, 64, 512, 64, 128, 4096)
    )
    width = heads * nope // 2
    q_in = place.normal(width, heads * (nope + rope)) * width**-0.5
    k_up, v_up = (place.normal(heads, rank, nope) * rank**-0.5 for _ in range(2))
    kv_in = place.normal(width, rank + rope) * width**-0.5
    out = place.normal(heads * nope, width) * (heads * nope) ** -0.5
    latents, keys = place.normal(batch, most, rank), place.normal(batch, most, rope)
    cos, sin = angles(place, most, rope)
    at = place.integers(most, batch)
    rows = torch.arange(batch, device=place.device)

    def attend(x: Tensor) -> Tensor:
        q, turned = (x @ q_in).view(batch, heads, nope + rope).split([nope, rope], dim=-1)
        turned = rotate(turned, cos[at].unsqueeze(1), sin[at].unsqueeze(1))
        latent, key = (x @ kv_in).split([rank, rope], dim=-1)
        latents[rows, at] = F.rms_norm(latent, (rank,))
        keys[rows, at] = rotate(key, cos[at], sin[at])
        absorbed = torch.einsum("bhn,hrn->bhr", q, k_up)
        scores = torch.einsum("bhr,btr->bht", absorbed, latents)
        scores = (scores + torch.einsum("bhp,btp->bht", turned, keys)) * (nope + rope) ** -0.5
        seen = torch.arange(most, device=x.device) <= at[:, None]
        p = scores.float().masked_fill(~seen.unsqueeze(1), float("-inf")).softmax(-1).to(x.dtype)
        read = torch.einsum("bht,btr->bhr", p, latents)
        return torch.einsum("bhr,hrn->bhn", read, v_up).flatten(1) @ out

    return infer(compile, attend, place.normal(batch, width))


@program
def paged_attention(compile: Compile, place: Place) -> Step:
    """Keys and values in pages, gathered through a table of each sequence; new ones scattered."""
    batch, heads, groups, head, page, pages = place.of(
        (3, 4, 2, 8, 4, 3), (32, 32, 8, 128, 16, 128)
    )
    k_pages, v_pages = (place.normal(batch * pages, page, groups, head) for _ in range(2))
    table = torch.randperm(batch * pages, device=place.device).view(batch, pages)
    lengths = 1 + place.integers(pages * page - 1, batch)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        of, slot = table.gather(1, (lengths // page)[:, None]).squeeze(1), lengths % page
        k_pages.index_put_((of, slot), k)
        v_pages.index_put_((of, slot), v)
        keys, values = (x[table].view(batch, -1, groups, head).transpose(1, 2)
                        for x in (k_pages, v_pages))  # fmt: skip
        seen = torch.arange(pages * page, device=q.device)[None] <= lengths[:, None]
        return F.scaled_dot_product_attention(q.unsqueeze(2), keys, values, enable_gqa=True,
                                              attn_mask=seen[:, None, None])  # fmt: skip

    new = [place.normal(batch, groups, head) for _ in range(2)]
    return infer(compile, attend, place.normal(batch, heads, head), *new)


@program
def sinks_ring_decode(compile: Compile, place: Place) -> Step:
    """StreamingLLM: four first tokens and a ring of the last, keys turned when they are read;
    a learned sink a head takes part in the softmax."""
    batch, heads, head, window = place.of((2, 4, 8, 12), (16, 32, 128, 2048))
    keys, values = (place.normal(batch, heads, window, head) for _ in range(2))
    sinks = place.normal(heads)
    cos, sin = angles(place, window, head)
    count = torch.tensor(window + 5, device=place.device)

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        slot = 4 + (count - 4) % (window - 4)
        keys.index_copy_(2, slot.view(1), k)
        values.index_copy_(2, slot.view(1), v)
        ring = torch.arange(window, device=q.device)
        age = torch.where(ring < 4, ring, 4 + (ring - slot - 1) % (window - 4))
        turned = rotate(keys, cos[age], sin[age])
        scores = rotate(q, cos[-1], sin[-1]) @ turned.transpose(-1, -2) * head**-0.5
        scores = torch.cat([scores, sinks.view(1, -1, 1, 1).expand(batch, -1, 1, 1)], dim=-1)
        scores = scores - scores.amax(-1, keepdim=True)
        return scores.softmax(-1)[..., :-1] @ values

    q, *new = (place.normal(batch, heads, 1, head) for _ in range(3))
    return infer(compile, attend, q, *new)


@program
def alibi_train(compile: Compile, place: Place) -> Step:
    """Attention with linear biases and a causal mask made on the way."""
    batch, heads, length, head = place.of((2, 4, 12, 8), (4, 16, 1024, 64))
    width = heads * head

    class Attend(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = nn.Linear(width, 3 * width, device=place.device, dtype=place.half)
            self.out = nn.Linear(width, width, device=place.device, dtype=place.half)
            slopes = 2.0 ** (-8.0 * torch.arange(1, heads + 1, device=place.device) / heads)
            self.register_buffer("slopes", slopes)

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = self.qkv(x).view(batch, length, 3, heads, head).permute(2, 0, 3, 1, 4)
            at = torch.arange(length, device=x.device)
            apart = (at[None] - at[:, None]).clamp(max=0)
            bias = (apart * self.slopes[:, None, None]).to(q.dtype)
            bias = bias.masked_fill(at[None] > at[:, None], torch.finfo(q.dtype).min)
            scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(head) + bias
            p = F.softmax(scores, dim=-1, dtype=torch.float32).to(q.dtype)
            return self.out((p @ v).transpose(1, 2).reshape(batch, length, width))

    return train(compile, Attend(), place.normal(batch, length, width))


@program
def packed_train(compile: Compile, place: Place) -> Step:
    """Documents in one row, kept apart by a mask of their numbers; positions begin anew."""
    heads, head, length, documents = place.of((4, 8, 24, 3), (16, 128, 4096, 12))
    width = heads * head
    ends = torch.randperm(length - 1, device=place.device)[: documents - 1].sort().values
    starts = torch.zeros(length, dtype=torch.long, device=place.device)
    starts[ends + 1] = 1
    cos, sin = angles(place, length, head)

    class Attend(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = nn.Linear(width, 3 * width, device=place.device, dtype=place.half)
            self.out = nn.Linear(width, width, device=place.device, dtype=place.half)

        def forward(self, x: Tensor, starts: Tensor) -> Tensor:
            document = starts.cumsum(0)
            at = torch.arange(length, device=x.device)
            first = torch.where(starts.bool(), at, 0).cummax(0).values
            position = at - first
            q, k, v = self.qkv(x).view(1, length, 3, heads, head).permute(2, 0, 3, 1, 4)
            q, k = (rotate(y, cos[position], sin[position]) for y in (q, k))
            mask = (document[:, None] == document[None]) & (at[:, None] >= at[None])
            y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
            return self.out(y.transpose(1, 2).reshape(1, length, width))

    return train(compile, Attend(), place.normal(1, length, width), starts)


def penalized(logits: Tensor, seen: Tensor, repetition: float, presence: float) -> Tensor:
    """Penalties on words that were said, by gather and scatter and by counts."""
    score = logits.gather(1, seen)
    score = torch.where(score < 0, score * repetition, score / repetition)
    logits = logits.scatter(1, seen, score)
    ones = torch.ones_like(seen, dtype=logits.dtype)
    counts = torch.zeros_like(logits).scatter_add_(1, seen, ones)
    return logits - presence * (counts > 0) - 0.1 * counts


@program
def sample_top_p(compile: Compile, place: Place) -> Step:
    """Penalties, temperature, top-k, top-p by sort and running sum, and the exponential race."""
    batch, words, length = place.of((3, 101, 6), (64, 128256, 512))
    seen = place.integers(words, batch, length)
    noise = torch.empty(batch, words, device=place.device).exponential_()

    def sample(logits: Tensor) -> tuple[Tensor, Tensor]:
        logits = penalized(logits.float(), seen, 1.1, 0.2) / 0.8
        least = torch.topk(logits, 50, dim=-1).values[:, -1:]
        logits = logits.masked_fill(logits < least, float("-inf"))
        ordered, order = logits.sort(descending=False, dim=-1)
        remove = ordered.softmax(-1).cumsum(-1) <= 1 - 0.95
        remove[..., -1:] = False
        removed = remove.scatter(1, order, remove)
        p = logits.masked_fill(removed, float("-inf")).softmax(-1)
        return (p / noise).argmax(-1), p

    return infer(compile, sample, place.normal(batch, words))


@program
def sample_min_p_typical(compile: Compile, place: Place) -> Step:
    """Min-p, locally typical words, a bias of words, forbidden ones, and the log probability."""
    batch, words = place.of((3, 101), (64, 151936))
    forbidden, wanted = place.integers(words, 20), place.integers(words, batch, 5)
    gumbel = -torch.empty(batch, words, device=place.device).exponential_().log()

    def sample(logits: Tensor) -> tuple[Tensor, Tensor]:
        logits = logits.float().index_fill(1, forbidden, float("-inf"))
        logits = logits.scatter_add(1, wanted, torch.full_like(wanted, 2.0, dtype=logits.dtype))
        logs = logits.log_softmax(-1)
        p = logs.exp()
        logs = logs.masked_fill(p < 0.05 * p.amax(-1, keepdim=True), float("-inf"))
        entropy = -(logs * logs.exp()).nansum(-1, keepdim=True)
        shifted, order = (-logs - entropy).abs().sort(dim=-1)
        mass = logs.gather(-1, order).softmax(-1).cumsum(-1)
        last = (mass < 0.9).sum(-1, keepdim=True).clamp(max=words - 1)
        unusual = shifted > shifted.gather(1, last)
        remove = unusual.scatter(1, order, unusual)
        logs = logs.masked_fill(remove, float("-inf"))
        word = (logs + gumbel).argmax(-1, keepdim=True)
        return word, logs.gather(1, word)

    return infer(compile, sample, place.normal(batch, words) * 3)


@program
def beam_step(compile: Compile, place: Place) -> Step:
    """Scores of all continuations, the best beams, and the caches in their new order."""
    batch, beams, words, layers, heads, length, head = place.of(
        (2, 3, 31, 2, 2, 6, 8), (8, 4, 50304, 8, 16, 512, 64))  # fmt: skip
    caches = [place.normal(batch * beams, heads, length, head) for _ in range(2 * layers)]
    scores, ids = place.normal(batch, beams).float(), place.integers(words, batch * beams, length)

    def step(logits: Tensor) -> tuple[Any, ...]:
        logs = logits.float().log_softmax(-1).view(batch, beams, words) + scores.unsqueeze(-1)
        best, flat = logs.flatten(1).topk(2 * beams, dim=1)
        beam, word = flat // words, flat % words
        ended = word == 2
        kept = best.masked_fill(ended, -1e9).topk(beams, dim=1).indices
        first = torch.arange(batch, device=beam.device)[:, None] * beams
        source = (beam.gather(1, kept) + first).view(-1)
        after = torch.cat([ids[source], word.gather(1, kept).view(-1, 1)], dim=1)
        return after, best.gather(1, kept), [cache.index_select(0, source) for cache in caches]

    return infer(compile, step, place.normal(batch * beams, words))


@program
def adapters_batch(compile: Compile, place: Place) -> Step:
    """Each sequence of a batch has its own LoRA, gathered by number (as punica and S-LoRA do)."""
    batch, length, width, rank, count = place.of((3, 4, 32, 4, 5), (32, 128, 4096, 16, 64))
    base = nn.Linear(width, width, device=place.device, dtype=place.half)
    a, b = place.normal(count, width, rank) * width**-0.5, place.normal(count, rank, width)
    which = place.integers(count + 1, batch) - 1  # -1 is none

    def forward(x: Tensor) -> Tensor:
        chosen = which.clamp(min=0)
        low = torch.bmm(x, a[chosen])
        more = torch.bmm(low, b[chosen]) * (which >= 0).view(-1, 1, 1)
        return F.silu(base(x) + 0.5 * more)

    return infer(compile, forward, place.normal(batch, length, width))


@program
def mamba_decode_step(compile: Compile, place: Place) -> Step:
    """A selective state space's step by hand: a rolling window of the convolution, a state."""
    batch, inner, state, kernel, rank = place.of((2, 32, 8, 4, 4), (64, 5120, 16, 4, 160))
    width = inner // 2
    factory: dict[str, Any] = {"device": place.device, "dtype": place.half}
    come = nn.Linear(width, 2 * inner, bias=False, **factory)
    project = nn.Linear(inner, rank + 2 * state, bias=False, **factory)
    spread, out = nn.Linear(rank, inner, **factory), nn.Linear(inner, width, bias=False, **factory)
    weight, window = place.normal(inner, kernel), place.normal(batch, inner, kernel)
    hidden = place.normal(batch, inner, state, dtype=torch.float32)
    log_a = torch.rand(inner, state, device=place.device)

    def token(x: Tensor) -> Tensor:
        y, z = come(x).chunk(2, dim=-1)
        window.copy_(torch.roll(window, shifts=-1, dims=-1))
        window[:, :, -1] = y
        y = F.silu((window * weight).sum(-1))
        step, b, c = project(y).split([rank, state, state], dim=-1)
        step = F.softplus(spread(step)).float()
        decay = torch.exp(-step.unsqueeze(-1) * log_a.exp())
        hidden.mul_(decay).add_(step.unsqueeze(-1) * b.unsqueeze(1) * y.unsqueeze(-1))
        y = (hidden * c.unsqueeze(1)).sum(-1).to(x.dtype) + y
        return out(y * F.silu(z))

    return infer(compile, token, place.normal(batch, width), mode=GRAPHS)
