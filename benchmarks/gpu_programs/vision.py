"""Vision: encoders with windows, detection and its losses, flow, depth and augmentation."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.gpu_programs.program import Compile, Place, Step, infer, program, train


def descend(compile: Compile, loss: Callable[..., Any], *args: Tensor) -> Step:
    """A compiled loss and the gradients of those arguments that ask for one."""
    compiled = compile(loss)
    learned = [a for a in args if a.requires_grad]

    def step() -> Any:
        value = compiled(*args)
        return value.detach(), torch.autograd.grad(value, learned)

    return step


def windows(x: Tensor, size: int) -> Tensor:
    """(N, H, W, C) as (N * windows, size * size, C)."""
    n, h, w, c = x.shape
    x = x.view(n, h // size, size, w // size, size, c)
    return x.permute(0, 1, 3, 2, 4, 5).reshape(-1, size * size, c)


def unwindowed(x: Tensor, size: int, h: int, w: int) -> Tensor:
    x = x.view(-1, h // size, w // size, size, size, x.shape[-1])
    return x.permute(0, 1, 3, 2, 4, 5).reshape(-1, h, w, x.shape[-1])


class Decomposed(nn.Module):
    """Attention of SAM's encoder: a bias of rows and one of columns, both made of the query."""

    def __init__(self, width: int, heads: int, size: int) -> None:
        super().__init__()
        self.heads, self.size = heads, size
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.rows = nn.Parameter(torch.randn(2 * size - 1, width // heads) * 0.1)
        self.columns = nn.Parameter(torch.randn(2 * size - 1, width // heads) * 0.1)

    def forward(self, x: Tensor) -> Tensor:
        n, h, w, _ = x.shape
        qkv = self.qkv(x).reshape(n, h * w, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.reshape(3, n * self.heads, h * w, -1).unbind(0)
        scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)
        line = torch.arange(self.size, device=x.device)
        apart = line[:, None] - line[None, :] + self.size - 1
        grid = q.view(-1, h, w, q.shape[-1])
        rows = torch.einsum("bhwc,hkc->bhwk", grid, self.rows[apart])
        columns = torch.einsum("bhwc,wkc->bhwk", grid, self.columns[apart])
        bias = rows[..., :, None] + columns[..., None, :]
        scores = scores.view(-1, h, w, h, w) + bias
        mixed = scores.view(-1, h * w, h * w).softmax(-1) @ v
        mixed = mixed.view(n, self.heads, h, w, -1).permute(0, 2, 3, 1, 4)
        return self.out(mixed.reshape(n, h, w, -1))


class WindowBlock(nn.Module):
    def __init__(self, width: int, heads: int, window: int, size: int) -> None:
        super().__init__()
        self.window = window
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Decomposed(width, heads, window or size)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        kept, (h, w) = x, x.shape[1:3]
        x = self.norm1(x)
        if self.window:
            more = (-h % self.window, -w % self.window)
            x = F.pad(x, (0, 0, 0, more[1], 0, more[0]))
            high, wide = h + more[0], w + more[1]
            x = windows(x, self.window).view(-1, self.window, self.window, x.shape[-1])
            x = self.attention(x).flatten(1, 2)
            x = unwindowed(x, self.window, high, wide)[:, :h, :w]
        else:
            x = self.attention(x)
        x = kept + x
        return x + self.mlp(self.norm2(x))


@program
def sam_encoder(compile: Compile, place: Place) -> Step:
    """SAM's encoder: windows of 14 with padding, every fourth block over all."""
    width, heads, size, window = place.of((32, 2, 10, 4), (768, 12, 64, 14))
    blocks = [WindowBlock(width, heads, 0 if n % 4 == 3 else window, size) for n in range(4)]
    model = nn.Sequential(*blocks).to(place.device, place.half)
    return infer(compile, model, place.normal(1, size, size, width))


class Shifted(nn.Module):
    """Swin's attention: a table of biases read by index, a mask where the shift wraps."""

    def __init__(self, width: int, heads: int, window: int, size: int, shift: int) -> None:
        super().__init__()
        self.heads, self.window, self.shift = heads, window, shift
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.table = nn.Parameter(torch.randn((2 * window - 1) ** 2, heads) * 0.02)
        line = torch.arange(window)
        places = torch.stack(torch.meshgrid(line, line, indexing="ij")).flatten(1)
        apart = places[:, :, None] - places[:, None, :] + window - 1
        self.register_buffer("index", apart[0] * (2 * window - 1) + apart[1])
        regions = torch.zeros(1, size, size, 1)
        cuts = (slice(-window), slice(-window, -shift or None), slice(-shift, None))
        for number, (a, b) in enumerate((a, b) for a in cuts for b in cuts):
            regions[:, a, b] = number
        marks = windows(regions, window)[..., 0]
        differ = marks[:, None, :] != marks[:, :, None]
        self.register_buffer("mask", torch.where(differ, -100.0, 0.0) if shift else None)

    def forward(self, x: Tensor) -> Tensor:
        kept, (h, w) = x, x.shape[1:3]
        x = self.norm1(x)
        if self.shift:
            x = x.roll((-self.shift, -self.shift), (1, 2))
        x = windows(x, self.window)
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        bias = self.table[self.index].permute(2, 0, 1)[None]
        if self.mask is not None:
            count = x.shape[0] // self.mask.shape[0]
            bias = bias + self.mask.to(x.dtype)[:, None].repeat(count, 1, 1, 1)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=bias.expand(len(q), -1, -1, -1))
        x = unwindowed(self.out(mixed.transpose(1, 2).flatten(2)), self.window, h, w)
        if self.shift:
            x = x.roll((self.shift, self.shift), (1, 2))
        x = kept + x
        return x + self.mlp(self.norm2(x))


@program
def swin_train(compile: Compile, place: Place) -> Step:
    """Shifted windows over a large map, as in detectors and restoration, trained."""
    width, heads, size, window = place.of((32, 2, 8, 4), (192, 6, 112, 7))
    blocks = [Shifted(width, heads, window, size, n % 2 * (window // 2)) for n in range(4)]
    model = nn.Sequential(*blocks).to(place.device, place.half)
    return train(compile, model, place.normal(place.of(2, 8), size, size, width))


class Deformable(nn.Module):
    """Attention at sampled places of several maps, by grid_sample."""

    def __init__(self, width: int, heads: int, levels: int, points: int) -> None:
        super().__init__()
        self.heads, self.levels, self.points = heads, levels, points
        self.offsets = nn.Linear(width, heads * levels * points * 2)
        self.weights = nn.Linear(width, heads * levels * points)
        self.value, self.out = nn.Linear(width, width), nn.Linear(width, width)

    def forward(
        self, query: Tensor, where: Tensor, maps: Tensor, shapes: list[list[int]]
    ) -> Tensor:
        n, count, _ = query.shape
        value = self.value(maps).unflatten(-1, (self.heads, -1))
        kinds = (n, count, self.heads, self.levels, self.points)
        offsets = self.offsets(query).view(*kinds, 2)
        weights = self.weights(query).view(n, count, self.heads, -1).softmax(-1)
        scale = query.new_tensor([[w, h] for h, w in shapes])
        grids = 2 * (where[:, :, None, None, None] + offsets / scale[:, None]) - 1
        sampled = []
        pieces = value.split([h * w for h, w in shapes], dim=1)
        for level, (piece, (h, w)) in enumerate(zip(pieces, shapes, strict=True)):
            image = piece.flatten(2).transpose(1, 2).reshape(n * self.heads, -1, h, w)
            grid = grids[:, :, :, level].transpose(1, 2).flatten(0, 1)
            sampled.append(F.grid_sample(image, grid.to(image.dtype), align_corners=False))
        stacked = torch.stack(sampled, dim=-2).flatten(-2)
        weights = weights.transpose(1, 2).reshape(n * self.heads, 1, count, -1)
        mixed = (stacked * weights).sum(-1).view(n, -1, count)
        return self.out(mixed.transpose(1, 2))


class Decoder(nn.Module):
    """Layers of a DETR with boxes that each layer refines."""

    def __init__(self, width: int, heads: int, layers: int, classes: int) -> None:
        super().__init__()
        self.own = nn.ModuleList(nn.MultiheadAttention(width, heads, batch_first=True)
                                 for _ in range(layers))  # fmt: skip
        self.cross = nn.ModuleList(Deformable(width, heads, 3, 4) for _ in range(layers))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * layers))
        self.boxes = nn.ModuleList(nn.Linear(width, 4) for _ in range(layers))
        self.classes = nn.Linear(width, classes)
        self.select = nn.Linear(width, classes)
        self.place = nn.Linear(4, width)

    def forward(self, maps: Tensor, shapes: list[list[int]]) -> Any:
        best = self.select(maps).max(-1).values.topk(place_count(maps), dim=1).indices
        query = maps.gather(1, best[..., None].expand(-1, -1, maps.shape[-1])).detach()
        box, found = query[..., :4].sigmoid(), []
        for number, (own, cross) in enumerate(zip(self.own, self.cross, strict=True)):
            key = query + self.place(box)
            query = self.norms[2 * number](query + own(key, key, query, need_weights=False)[0])
            seen = cross(query + self.place(box), box[..., :2], maps, shapes)
            query = self.norms[2 * number + 1](query + seen)
            box = (self.boxes[number](query) + box.logit(eps=1e-3)).sigmoid()
            found.append(box)
            box = box.detach()
        return self.classes(query), torch.stack(found)


def place_count(maps: Tensor) -> int:
    return min(300, maps.shape[1] // 4)


@program
def detr_decoder_train(compile: Compile, place: Place) -> Step:
    """Queries chosen by topk, six layers of deformable attention, boxes refined, trained."""
    width, heads, size, classes = place.of((32, 2, 8, 5), (256, 8, 80, 80))
    shapes = [[size, size], [size // 2, size // 2], [size // 4, size // 4]]
    model = Decoder(width, heads, place.of(2, 6), classes).to(place.device, place.half)
    maps = place.normal(place.of(2, 16), sum(h * w for h, w in shapes), width)
    return train(compile, model, maps, shapes)


def corners(boxes: Tensor) -> Tensor:
    center, size = boxes[..., :2], boxes[..., 2:]
    return torch.cat([center - size / 2, center + size / 2], dim=-1)


def overlap(a: Tensor, b: Tensor, generalized: bool = False) -> Tensor:
    """Intersection over union of boxes by corners, broadcast; or GIoU."""

    def area(box: Tensor) -> Tensor:
        return (box[..., 2:] - box[..., :2]).clamp(min=0).prod(-1)

    low, high = torch.maximum(a[..., :2], b[..., :2]), torch.minimum(a[..., 2:], b[..., 2:])
    both = (high - low).clamp(min=0).prod(-1)
    union = area(a) + area(b) - both
    iou = both / union.clamp(min=1e-7)
    if not generalized:
        return iou
    least, most = torch.minimum(a[..., :2], b[..., :2]), torch.maximum(a[..., 2:], b[..., 2:])
    hull = (most - least).clamp(min=0).prod(-1).clamp(min=1e-7)
    return iou - (hull - union) / hull


@program
def task_aligned_loss_train(compile: Compile, place: Place) -> Step:
    """The assigner of recent YOLOs (topk of score times overlap), GIoU, and a focal loss."""
    count, anchors, truths, classes = place.of((2, 60, 4, 5), (16, 8400, 40, 80))
    points = torch.rand(anchors, 2, device=place.device)
    truth = torch.rand(count, truths, 4, device=place.device) * 0.4 + 0.2
    kinds, exists = place.integers(classes, count, truths), torch.rand(count, truths) < 0.7
    exists = exists.to(place.device)
    scores = place.normal(count, anchors, classes, dtype=torch.float32, grad=True)
    deltas = (place.normal(count, anchors, 4, dtype=torch.float32) * 0.1).requires_grad_()

    def assign(scores: Tensor, boxes: Tensor, truth: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        ious = overlap(truth[:, :, None], boxes[:, None])
        picked = scores.sigmoid().gather(2, kinds[:, None].expand(-1, anchors, -1)).transpose(1, 2)
        inside = torch.cat([points - truth[..., None, :2], truth[..., None, 2:] - points], -1)
        allowed = (inside.amin(-1) > 0) & exists[..., None]
        aligned = picked.sqrt() * ious**6 * allowed
        best = aligned.topk(13, dim=-1).indices
        chosen = torch.zeros_like(aligned).scatter_(-1, best, 1.0) * allowed
        several = chosen.sum(1, keepdim=True) > 1
        sole = F.one_hot(ious.argmax(1), truths).transpose(1, 2).to(chosen.dtype)
        chosen = torch.where(several, sole * chosen, chosen)
        weight = aligned * chosen
        weight = (
            weight / (weight.amax(-1, keepdim=True) + 1e-9) * (ious * chosen).amax(-1, keepdim=True)
        )
        return chosen.argmax(1), chosen.sum(1) > 0, weight.amax(1)

    def loss(scores: Tensor, deltas: Tensor, truth: Tensor) -> Tensor:
        boxes = corners(torch.cat([points + deltas[..., :2], deltas[..., 2:].exp() * 0.2], -1))
        truth = corners(truth)
        with torch.no_grad():
            index, positive, weight = assign(scores, boxes, truth)
        target = truth.gather(1, index[..., None].expand(-1, -1, 4))
        kind = F.one_hot(kinds.gather(1, index), classes) * (weight * positive)[..., None]
        total = kind.sum().clamp(min=1)
        odds = F.binary_cross_entropy_with_logits(scores, kind, reduction="none")
        focus = torch.where(kind > 0, kind, 0.75 * scores.sigmoid().square())
        near = (1 - overlap(boxes, target, generalized=True)) * weight * positive
        return (odds * focus.detach()).sum() / total + 2.5 * near.sum() / total

    return descend(compile, loss, scores, deltas, truth)


@program
def detections_postprocess(compile: Compile, place: Place) -> Step:
    """What follows a detector without suppression: expectation over bins, topk, gather."""
    count, anchors, classes = place.of((2, 80, 5), (256, 8400, 80))
    points = torch.rand(anchors, 2, device=place.device) * 640
    strides = torch.tensor([8.0, 16.0, 32.0], device=place.device)[place.integers(3, anchors)]

    def post(raw: Tensor, scores: Tensor) -> tuple[Tensor, ...]:
        bins = raw.view(count, anchors, 4, 16).float().softmax(-1)
        sides = (bins * torch.arange(16, device=raw.device)).sum(-1) * strides[:, None]
        boxes = torch.cat([points - sides[..., :2], points + sides[..., 2:]], -1).clamp(0, 640)
        first = scores.amax(-1).topk(place.of(20, 300)).indices
        boxes = boxes.gather(1, first[..., None].expand(-1, -1, 4))
        scores = scores.gather(1, first[..., None].expand(-1, -1, classes)).float().sigmoid()
        value, flat = scores.flatten(1).topk(place.of(20, 300))
        boxes = boxes.gather(1, (flat // classes)[..., None].expand(-1, -1, 4))
        return boxes, value, flat % classes, value > 0.25

    return infer(
        compile, post, place.normal(count, anchors, 64), place.normal(count, anchors, classes)
    )


def looked_up(pyramid: list[Tensor], places: Tensor, radius: int) -> Tensor:
    """RAFT's correlations around each place, at each level."""
    line = torch.arange(-radius, radius + 1, device=places.device, dtype=places.dtype)
    window = torch.stack(torch.meshgrid(line, line, indexing="ij"), -1)
    n, _, h, w = places.shape
    found = []
    for level, image in enumerate(pyramid):
        middle = places.permute(0, 2, 3, 1).reshape(n * h * w, 1, 1, 2) / 2**level
        grid = middle + window
        size = grid.new_tensor([image.shape[-1] - 1, image.shape[-2] - 1])
        sampled = F.grid_sample(image, 2 * grid / size - 1, align_corners=True)
        found.append(sampled.view(n, h, w, -1))
    return torch.cat(found, -1).permute(0, 3, 1, 2)


class Update(nn.Module):
    """A convolutional GRU, and what it adds to the flow."""

    def __init__(self, width: int, seen: int) -> None:
        super().__init__()
        self.motion = nn.Conv2d(seen + 2, width, 3, padding=1)
        self.gates = nn.Conv2d(2 * width, 2 * width, 3, padding=1)
        self.new = nn.Conv2d(2 * width, width, 3, padding=1)
        self.flow = nn.Conv2d(width, 2, 3, padding=1)

    def forward(self, state: Tensor, correlation: Tensor, flow: Tensor) -> tuple[Tensor, Tensor]:
        motion = F.relu(self.motion(torch.cat([correlation, flow], 1)))
        z, r = self.gates(torch.cat([state, motion], 1)).sigmoid().chunk(2, 1)
        state = (1 - z) * state + z * self.new(torch.cat([r * state, motion], 1)).tanh()
        return state, self.flow(state)


@program
def raft_flow_train(compile: Compile, place: Place) -> Step:
    """All pairs' correlations, a pyramid, six updates that look it up; the sequence loss."""
    count, width, (h, w), radius = place.of((1, 16, (16, 16), 1), (4, 128, (46, 62), 4))
    update = Update(width, 2 * (2 * radius + 1) ** 2).to(place.device)
    first, second, state = (place.normal(count, width, h, w, dtype=torch.float32, grad=True)
                            for _ in range(3))  # fmt: skip
    truth = place.normal(count, 2, h, w, dtype=torch.float32)

    def loss(first: Tensor, second: Tensor, state: Tensor, truth: Tensor) -> Tensor:
        volume = torch.einsum("nchw,ncij->nhwij", first, second) / math.sqrt(width)
        image = volume.reshape(count * h * w, 1, h, w)
        pyramid = [image, F.avg_pool2d(image, 2, stride=2)]
        line = torch.arange(h, device=first.device), torch.arange(w, device=first.device)
        rows, columns = torch.meshgrid(*line, indexing="ij")
        origin = torch.stack([columns, rows])[None].float().expand(count, -1, -1, -1)
        places, total = origin, first.new_zeros(())
        for number in range(6):
            places = places.detach()
            state, delta = update(state, looked_up(pyramid, places, radius), places - origin)
            places = places + delta
            total = total + 0.8 ** (5 - number) * (places - origin - truth).abs().mean()
        return total

    return descend(compile, loss, first, second, state, truth)
