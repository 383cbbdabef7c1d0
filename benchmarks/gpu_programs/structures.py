"""Molecules of life, long sequences, scenes: triangles, long convolutions, fields, points."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.gpu_programs.program import Compile, Place, Step, built, program, train


class Pairs(nn.Module):
    """A block over pairs of residues (AlphaFold 2): triangles by products and by attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(5))
        self.gates = nn.ModuleList(nn.Linear(width, 5 * width) for _ in range(2))
        self.after = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.outs = nn.ModuleList(nn.Linear(width, width) for _ in range(4))
        self.qkvg = nn.ModuleList(nn.Linear(width, 4 * width, bias=False) for _ in range(2))
        self.bias = nn.ModuleList(nn.Linear(width, heads, bias=False) for _ in range(2))
        self.step = nn.Sequential(
            nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width))

    def products(self, z: Tensor, mask: Tensor, n: int) -> Tensor:
        a, b, left, right, gate = self.gates[n](self.norms[n](z)).chunk(5, -1)
        a, b = (a * left.sigmoid() * mask[..., None], b * right.sigmoid() * mask[..., None])
        rule = "bikc,bjkc->bijc" if n == 0 else "bkic,bkjc->bijc"
        return self.outs[n](self.after[n](torch.einsum(rule, a, b))) * gate.sigmoid()

    def attention(self, z: Tensor, mask: Tensor, n: int) -> Tensor:
        z = z.transpose(1, 2) if n else z
        mask = mask.transpose(1, 2) if n else mask
        z = self.norms[2 + n](z)
        q, k, v, gate = (
            part.unflatten(-1, (self.heads, -1)).transpose(2, 3)
            for part in self.qkvg[n](z).chunk(4, -1))  # fmt: skip
        bias = self.bias[n](z).permute(0, 3, 1, 2)[:, None]
        score = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5 + bias
        score = score.masked_fill(mask[:, :, None, None] == 0, -1e9)
        mixed = (score.float().softmax(-1).to(v.dtype) @ v) * gate.sigmoid()
        found = self.outs[2 + n](mixed.transpose(2, 3).flatten(3))
        return found.transpose(1, 2) if n else found

    def forward(self, z: Tensor, mask: Tensor) -> Tensor:
        z = z + self.products(z, mask, 0)
        z = z + self.products(z, mask, 1)
        z = z + self.attention(z, mask, 0)
        z = z + self.attention(z, mask, 1)
        return z + self.step(self.norms[4](z))


class Residues(nn.Module):
    def __init__(self, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Pairs(width, heads) for _ in range(layers))

    def forward(self, z: Tensor, mask: Tensor) -> Tensor:
        for block in self.blocks:
            z = block(z, mask)
        return z


@program
def protein_pairs_train(compile: Compile, place: Place) -> Step:
    size, width, layers = place.of((6, 8, 1), (192, 128, 2))
    mask = torch.ones(1, size, size, device=place.device)
    mask[:, -2:] = 0
    model = built(place, Residues, width, 4, layers)
    return train(compile, model, place.normal(1, size, size, width), mask.to(place.half))


class Hyena(nn.Module):
    """Hyena: long convolutions by FFT with filters of a small network, gated, after short ones."""

    def __init__(self, width: int, length: int) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.short = nn.Conv1d(3 * width, 3 * width, 3, padding=2, groups=3 * width)
        self.filter = nn.Sequential(nn.Linear(33, 64), nn.SiLU(), nn.Linear(64, 64), nn.SiLU(),
                                    nn.Linear(64, width, bias=False))  # fmt: skip
        t = torch.linspace(0, 1, length)[:, None]
        waves = torch.linspace(1e-4, 15, 16) * 2 * math.pi * t
        self.register_buffer("z", torch.cat([t, waves.cos(), waves.sin()], -1))
        self.register_buffer("decay", torch.linspace(1.5, 15, width)[None] * t)
        self.skip = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        length = x.shape[1]
        mixed = self.short(self.enter(x).transpose(1, 2))[..., :length]
        first, second, v = mixed.chunk(3, 1)
        v = v * first
        kernel = (self.filter(self.z) * (-self.decay).exp()).t().float()
        seen = torch.fft.rfft(v.float(), n=2 * length)
        found = torch.fft.irfft(seen * torch.fft.rfft(kernel, n=2 * length), n=2 * length)
        y = found[..., :length].to(x.dtype) + v * self.skip[:, None]
        return self.leave((y * second).transpose(1, 2))


@program
def hyena_train(compile: Compile, place: Place) -> Step:
    """Hyena's blocks over a long sequence, trained."""
    batch, length, width = place.of((2, 16, 8), (8, 8192, 256))

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mixers = nn.ModuleList(Hyena(width, length) for _ in range(2))
            self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))

        def forward(self, x: Tensor) -> Tensor:
            for mixer, norm in zip(self.mixers, self.norms, strict=False):
                x = x + mixer(norm(x))
            return x

    return train(compile, built(place, Net), place.normal(batch, length, width))


class HashField(nn.Module):
    """Instant NGP: tables of corners by a hash on each level, blended, and small networks."""

    def __init__(self, levels: int, rows: int) -> None:
        super().__init__()
        self.rows = rows
        self.tables = nn.Parameter((torch.rand(levels, rows, 2) - 0.5) * 1e-1)
        sizes = [int(16 * 1.4**n) for n in range(levels)]
        self.register_buffer("sizes", torch.tensor(sizes))
        corners = [[n >> axis & 1 for axis in range(3)] for n in range(8)]
        self.register_buffer("corners", torch.tensor(corners))
        self.register_buffer("primes", torch.tensor([1, 2654435761, 805459861]))
        self.density = nn.Sequential(nn.Linear(2 * levels, 64), nn.ReLU(), nn.Linear(64, 16))
        self.colour = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(),
                                    nn.Linear(64, 3))  # fmt: skip

    def encode(self, x: Tensor) -> Tensor:
        scaled = x[:, None] * self.sizes[:, None]
        low = scaled.floor()
        part = scaled - low
        corner = low.long()[:, :, None] + self.corners
        mixed = corner * self.primes
        at = (mixed[..., 0] ^ mixed[..., 1] ^ mixed[..., 2]) % self.rows
        level = torch.arange(len(self.sizes), device=x.device)[None, :, None]
        found = self.tables[level, at]
        near = torch.where(self.corners.bool(), part[:, :, None], 1 - part[:, :, None])
        return (found * near.prod(-1, keepdim=True)).sum(2).flatten(1)

    def forward(self, x: Tensor, towards: Tensor) -> tuple[Tensor, Tensor]:
        h = self.density(self.encode(x))
        a, b, c = towards.unbind(-1)
        waves = torch.stack([
            torch.full_like(a, 0.282), -0.489 * b, 0.489 * c, -0.489 * a, 1.093 * a * b,
            -1.093 * b * c, 0.946 * c * c - 0.315, -1.093 * a * c, 0.546 * (a * a - b * b),
            0.59 * b * (b * b - 3 * a * a), 2.89 * a * b * c, 0.457 * b * (1 - 5 * c * c),
            0.373 * c * (5 * c * c - 3), 0.457 * a * (1 - 5 * c * c), 1.445 * c * (a * a - b * b),
            0.59 * a * (3 * b * b - a * a)], -1)  # fmt: skip
        return F.softplus(h[:, 0] - 1), self.colour(torch.cat([h, waves], -1)).sigmoid()


@program
def radiance_hash_train(compile: Compile, place: Place) -> Step:
    """Rays through a field of hashed corners: densities, transmittance, colours, a loss."""
    rays, steps, levels, rows = place.of((3, 5, 3, 64), (4096, 64, 16, 1 << 19))
    field = built(place, HashField, levels, rows)
    field.float()
    for name in ("sizes", "corners", "primes"):
        setattr(field, name, getattr(field, name).long())
    start = torch.rand(rays, 3, device=place.device)
    towards = F.normalize(torch.randn(rays, 3, device=place.device), dim=-1)
    wanted = torch.rand(rays, 3, device=place.device)

    class Render(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.field = field

        def forward(self, start: Tensor, towards: Tensor, wanted: Tensor) -> Tensor:
            depth = torch.linspace(0.02, 0.5, steps, device=start.device)
            points = (start[:, None] + towards[:, None] * depth[:, None]).remainder(1)
            density, colour = self.field(
                points.view(-1, 3), towards[:, None].expand(-1, steps, 3).reshape(-1, 3))
            density, colour = density.view(rays, steps), colour.view(rays, steps, 3)
            opacity = 1 - torch.exp(-density * 0.48 / steps)
            clear = torch.cumprod(torch.cat(
                [torch.ones_like(opacity[:, :1]), 1 - opacity + 1e-10], -1), -1)[:, :-1]
            weight = opacity * clear
            image = (weight[..., None] * colour).sum(1) + (1 - weight.sum(-1, keepdim=True))
            between = (weight * depth).sum(-1)
            return F.huber_loss(image, wanted) + 1e-3 * between.var()

    return train(compile, Render(), start, towards, wanted)


class Grouping(nn.Module):
    """PointNet++: centres far from each other, neighbours of each by distance, a maximum."""

    def __init__(self, count: int, near: int, sizes: list[int]) -> None:
        super().__init__()
        self.count, self.near = count, near
        pairs = zip(sizes, sizes[1:], strict=False)
        self.steps = nn.ModuleList(nn.Conv2d(a, b, 1) for a, b in pairs)
        self.norms = nn.ModuleList(nn.BatchNorm2d(b) for b in sizes[1:])

    def forward(self, places: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        batch, points = places.shape[:2]
        far = torch.zeros(batch, dtype=torch.long, device=places.device)
        rows = torch.arange(batch, device=places.device)
        distance = torch.full((batch, points), 1e10, device=places.device)
        chosen = []
        for _ in range(self.count):
            chosen.append(far)
            centre = places[rows, far][:, None]
            distance = torch.minimum(distance, (places - centre).square().sum(-1))
            far = distance.argmax(-1)
        at = torch.stack(chosen, 1)
        centres = places.gather(1, at[..., None].expand(-1, -1, 3))
        apart = torch.cdist(centres, places)
        near = apart.topk(self.near, largest=False).indices
        index = near.flatten(1)[..., None]
        around = places.gather(1, index.expand(-1, -1, 3)).unflatten(1, (self.count, self.near))
        beside = x.gather(1, index.expand(-1, -1, x.shape[-1]))
        beside = beside.unflatten(1, (self.count, self.near)).to(around.dtype)
        z = torch.cat([around - centres[:, :, None], beside], -1).permute(0, 3, 2, 1)
        for step, norm in zip(self.steps, self.norms, strict=False):
            z = F.relu(norm(step(z)))
        return centres, z.amax(2).transpose(1, 2)


@program
def points_train(compile: Compile, place: Place) -> Step:
    """Two levels of PointNet++ over clouds of points, trained."""
    batch, points = place.of((2, 32), (16, 4096))

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            near = place.of(4, 32)
            self.first = Grouping(place.of(8, 64), near, [6, 64, 64, 128])
            self.second = Grouping(place.of(4, 32), place.of(4, 32), [131, 128, 128, 256])
            self.head = nn.Linear(256, 40)

        def forward(self, places: Tensor) -> Any:
            centres, x = self.first(places, places)
            _, x = self.second(centres, x)
            return self.head(x.amax(1))

    model = built(place, Net).float()
    return train(compile, model, torch.rand(batch, points, 3, device=place.device))


@program
def volume_segmentation_train(compile: Compile, place: Place) -> Step:
    """A 3D U-Net with instance norms, deep supervision, Dice and cross entropy, in autocast."""
    side, width = place.of((8, 4), (96, 32))

    def block(a: int, b: int, stride: int = 1) -> nn.Sequential:
        return nn.Sequential(
            nn.Conv3d(a, b, 3, stride, 1), nn.InstanceNorm3d(b, affine=True), nn.LeakyReLU(0.01),
            nn.Conv3d(b, b, 3, 1, 1), nn.InstanceNorm3d(b, affine=True), nn.LeakyReLU(0.01))

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            sizes = [width, 2 * width, 4 * width]
            self.down = nn.ModuleList(
                block(a, b, 1 if a == 1 else 2) for a, b in zip([1, *sizes], sizes, strict=False))
            self.up = nn.ModuleList(
                nn.ConvTranspose3d(b, a, 2, 2) for a, b in zip(sizes[:-1], sizes[1:], strict=False))
            self.mix = nn.ModuleList(block(2 * a, a) for a in sizes[:-1])
            self.heads = nn.ModuleList(nn.Conv3d(a, 4, 1) for a in sizes[:-1])

        def forward(self, x: Tensor, labels: Tensor) -> Tensor:
            with torch.autocast(x.device.type, torch.bfloat16, enabled=not place.small):
                kept = []
                for down in self.down:
                    x = down(x)
                    kept.append(x)
                x = kept.pop()
                logits = []
                layers = zip(self.up, self.mix, self.heads, strict=True)
                for up, mix, head in reversed(list(layers)):
                    x = mix(torch.cat([up(x), kept.pop()], 1))
                    logits.append(head(x))
            total = x.new_zeros((), dtype=torch.float32)
            for n, each in enumerate(reversed(logits)):
                target = labels[:, :: 2**n, :: 2**n, :: 2**n]
                each = each.float()
                p = each.softmax(1)
                truth = F.one_hot(target, 4).movedim(-1, 1).float()
                common = (p * truth).sum((2, 3, 4))
                dice = (2 * common + 1e-5) / (p.sum((2, 3, 4)) + truth.sum((2, 3, 4)) + 1e-5)
                total = total + 0.5**n * (F.cross_entropy(each, target) + 1 - dice[:, 1:].mean())
            return total

    model = built(place, Net).float()
    x = place.normal(2, 1, side, side, side).float()
    return train(compile, model, x, place.integers(4, 2, side, side, side))
