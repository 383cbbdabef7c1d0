"""Losses and augmentations of vision: depth, segmentation, contrast, restoration, images."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.gpu_programs.program import Compile, Place, Step, infer, program, train
from benchmarks.gpu_programs.vision import descend


def similarity(a: Tensor, b: Tensor) -> Tensor:
    """SSIM's distance over windows of three, as in self-supervised depth."""
    a, b = F.pad(a, (1, 1, 1, 1), "reflect"), F.pad(b, (1, 1, 1, 1), "reflect")
    left, right = F.avg_pool2d(a, 3, 1), F.avg_pool2d(b, 3, 1)
    spread = F.avg_pool2d(a * a, 3, 1) - left**2, F.avg_pool2d(b * b, 3, 1) - right**2
    shared = F.avg_pool2d(a * b, 3, 1) - left * right
    above = (2 * left * right + 1e-4) * (2 * shared + 9e-4)
    below = (left**2 + right**2 + 1e-4) * (spread[0] + spread[1] + 9e-4)
    return ((1 - above / below) / 2).clamp(0, 1)


@program
def depth_reprojection_train(compile: Compile, place: Place) -> Step:
    """Monodepth: back-project, move, project, sample, the least error of two frames, smoothness."""
    count, h, w = place.of((1, 12, 16), (12, 192, 640))
    camera = torch.eye(4, device=place.device)
    camera[0, 0] = camera[1, 1] = w / 2
    camera[0, 2], camera[1, 2] = w / 2, h / 2
    inverse = torch.linalg.inv(camera)
    images = torch.rand(3, count, 3, h, w, device=place.device)
    disparity = place.normal(count, 1, h, w, dtype=torch.float32, grad=True)
    motion = (place.normal(2, count, 6, dtype=torch.float32) * 0.02).requires_grad_()

    def pose(vector: Tensor) -> Tensor:
        angle = vector[:, :3].norm(dim=1, keepdim=True) + 1e-7
        x, y, z = (vector[:, :3] / angle).unbind(1)
        zero = torch.zeros_like(x)
        cross = torch.stack([zero, -z, y, z, zero, -x, -y, x, zero], 1).view(-1, 3, 3)
        sine, cosine = angle.sin()[..., None], angle.cos()[..., None]
        rotation = torch.eye(3, device=x.device) + sine * cross + (1 - cosine) * cross @ cross
        return torch.cat([rotation, vector[:, 3:, None]], 2)

    def loss(disparity: Tensor, motion: Tensor, images: Tensor) -> Tensor:
        depth = 1 / (0.01 + 9.99 * disparity.sigmoid())
        lines = (torch.arange(size, device=images.device) for size in (h, w))
        rows, columns = torch.meshgrid(*lines, indexing="ij")
        pixels = torch.stack([columns, rows, torch.ones_like(rows)]).flatten(1).float()
        points = depth.flatten(2) * (inverse[:3, :3] @ pixels)
        errors = []
        for vector, source in zip(motion, images[1:], strict=True):
            moved = pose(vector)
            seen = camera[:3, :3] @ (moved[:, :, :3] @ points + moved[:, :, 3:])
            grid = (seen[:, :2] / (seen[:, 2:] + 1e-7)).view(count, 2, h, w).permute(0, 2, 3, 1)
            grid = (grid / grid.new_tensor([w - 1, h - 1]) - 0.5) * 2
            warped = F.grid_sample(source, grid, padding_mode="border", align_corners=True)
            apart = (warped - images[0]).abs().mean(1, keepdim=True)
            errors += [0.85 * similarity(warped, images[0]).mean(1, keepdim=True) + 0.15 * apart]
            errors += [similarity(source, images[0]).mean(1, keepdim=True)]
        least = torch.cat(errors, 1).min(1).values.mean()
        norm = disparity / (disparity.mean((2, 3), keepdim=True) + 1e-7)
        edges = [images[0].diff(dim=d).abs().mean(1, keepdim=True) for d in (2, 3)]
        smooth = [
            (norm.diff(dim=d).abs() * (-e).exp()).mean() for d, e in zip((2, 3), edges, strict=True)
        ]
        return least + 1e-3 * (smooth[0] + smooth[1])

    return descend(compile, loss, disparity, motion, images)


@program
def segmentation_losses_train(compile: Compile, place: Place) -> Step:
    """Dice, focal and Lovasz (a sort over pixels) with an ignored label."""
    count, classes, size = place.of((2, 4, 12), (4, 19, 512))
    logits = place.normal(count, classes, size, size, grad=True)
    labels = place.integers(classes + 1, count, size, size)

    def loss(logits: Tensor, labels: Tensor) -> Tensor:
        valid = labels < classes
        target = torch.where(valid, labels, 255)
        cross = F.cross_entropy(logits.float(), target, ignore_index=255, reduction="none")
        focal = ((1 - (-cross).exp()).square() * cross).sum() / valid.sum()
        odds = logits.float().softmax(1)
        hot = F.one_hot(labels, classes + 1)[..., :classes].permute(0, 3, 1, 2) * valid[:, None]
        both = (odds * hot).sum((0, 2, 3))
        dice = 1 - (2 * both + 1) / ((odds * valid[:, None] + hot).sum((0, 2, 3)) + 1)
        flat, truth = odds.transpose(0, 1).flatten(1), hot.transpose(0, 1).flatten(1).float()
        errors = (truth - flat).abs() * valid.flatten()
        errors, order = errors.sort(dim=1, descending=True)
        truth = truth.gather(1, order)
        total = truth.sum(1, keepdim=True)
        jaccard = 1 - (total - truth.cumsum(1)) / (total + (1 - truth).cumsum(1))
        jaccard = torch.cat([jaccard[:, :1], jaccard.diff(dim=1)], 1)
        return focal + dice.mean() + (errors * jaccard).sum(1).mean()

    return descend(compile, loss, logits, labels)


@program
def clip_siglip_train(compile: Compile, place: Place) -> Step:
    """The softmax loss of pairs and the sigmoid one, with learned scale and bias."""
    rows, width = place.of((8, 16), (8192, 768))
    pictures, texts = place.normal(rows, width, grad=True), place.normal(rows, width, grad=True)
    scale = torch.tensor(2.3, device=place.device, requires_grad=True)
    bias = torch.tensor(-10.0, device=place.device, requires_grad=True)

    def loss(pictures: Tensor, texts: Tensor, scale: Tensor, bias: Tensor) -> Tensor:
        pictures, texts = F.normalize(pictures, dim=-1), F.normalize(texts, dim=-1)
        logits = (pictures @ texts.t()).float() * scale.exp()
        which = torch.arange(rows, device=logits.device)
        paired = (F.cross_entropy(logits, which) + F.cross_entropy(logits.t(), which)) / 2
        signs = 2 * torch.eye(rows, device=logits.device) - 1
        return paired - F.logsigmoid(signs * (logits + bias)).sum() / rows

    return descend(compile, loss, pictures, texts, scale, bias)


@program
def dino_heads_train(compile: Compile, place: Place) -> Step:
    """DINO: Sinkhorn's normalization of the teacher, students of several crops, KoLeo."""
    count, width, out, crops = place.of((4, 16, 24, 3), (256, 384, 32768, 8))
    student = place.normal(crops, count, width, grad=True)
    teacher = place.normal(2, count, width)
    head = (place.normal(out, width) * width**-0.5).requires_grad_()

    def loss(student: Tensor, head: Tensor, teacher: Tensor) -> Tensor:
        unit = F.normalize(head, dim=-1)
        with torch.no_grad():
            scores = (F.normalize(teacher, dim=-1) @ unit.t()).float().flatten(0, 1)
            q = (scores / 0.07).exp().t()
            q = q / q.sum()
            for _ in range(3):
                q = q / q.sum(1, keepdim=True) / out
                q = q / q.sum(0, keepdim=True) / (2 * count)
            target = (q * 2 * count).t().view(2, count, out)
        logs = ((F.normalize(student, dim=-1) @ unit.t()).float() / 0.1).log_softmax(-1)
        pairs = torch.einsum("tnk,snk->ts", target, logs) / count
        other = ~torch.eye(2, crops, dtype=torch.bool, device=pairs.device)
        crossed = -(pairs * other).sum() / other.sum()
        first = F.normalize(student[0].float(), dim=-1)
        dots = first @ first.t()
        nearest = dots.fill_diagonal_(-1).argmax(1)
        spread = -((first - first[nearest]).norm(dim=1) + 1e-8).log().mean()
        return crossed + 0.1 * spread

    return descend(compile, loss, student, head, teacher)


@program
def masked_autoencoder_train(compile: Compile, place: Place) -> Step:
    """MAE: a random three quarters of the patches dropped by gather, and put back."""
    count, size, width, heads = place.of((2, 16, 32, 2), (64, 224, 768, 12))
    patch = place.of(4, 16)
    tokens = (size // patch) ** 2
    layer = dict(d_model=width, nhead=heads, dim_feedforward=4 * width, dropout=0.0,
                 activation="gelu", batch_first=True, norm_first=True)  # fmt: skip

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.enter, self.leave = nn.Linear(3 * patch**2, width), nn.Linear(width, 3 * patch**2)
            self.places = nn.Parameter(torch.randn(1, tokens, width) * 0.02)
            self.mask = nn.Parameter(torch.randn(1, 1, width) * 0.02)
            self.encoder = nn.ModuleList(
                nn.TransformerEncoderLayer(**layer) for _ in range(place.of(1, 6))
            )
            self.decoder = nn.TransformerEncoderLayer(**layer)

        def forward(self, images: Tensor, noise: Tensor) -> Tensor:
            side = size // patch
            x = images.view(count, 3, side, patch, side, patch)
            target = torch.einsum("nchpwq->nhwpqc", x).reshape(count, tokens, -1)
            h = self.enter(target) + self.places
            order = noise.argsort(1)
            back, kept = order.argsort(1), tokens // 4
            seen = order[:, :kept, None].expand(-1, -1, width)
            h = h.gather(1, seen)
            for block in self.encoder:
                h = block(h)
            h = torch.cat([h, self.mask.expand(count, tokens - kept, -1)], 1)
            h = h.gather(1, back[..., None].expand(-1, -1, width)) + self.places
            out = self.leave(self.decoder(h)).float()
            mean, spread = (
                target.float().mean(-1, keepdim=True),
                target.float().var(-1, keepdim=True),
            )
            error = (out - (target - mean) / (spread + 1e-6).sqrt()).square().mean(-1)
            hidden = (back >= kept).float()
            return (error * hidden).sum() / hidden.sum()

    model = Masked().to(place.device, place.half)
    return train(compile, model, place.normal(count, 3, size, size),
                 torch.rand(count, tokens, device=place.device))  # fmt: skip


class Dense(nn.Module):
    """A residual dense block of ESRGAN."""

    def __init__(self, width: int, growth: int) -> None:
        super().__init__()
        self.convs = nn.ModuleList(
            nn.Conv2d(width + n * growth, growth, 3, padding=1) for n in range(4)
        )
        self.last = nn.Conv2d(width + 4 * growth, width, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        seen = [x]
        for conv in self.convs:
            seen.append(F.leaky_relu(conv(torch.cat(seen, 1)), 0.2, inplace=True))
        return x + 0.2 * self.last(torch.cat(seen, 1))


@program
def super_resolution_train(compile: Compile, place: Place) -> Step:
    """ESRGAN's generator with a pixel shuffle, Charbonnier and frequency losses, trained."""
    width, size, count = place.of((8, 8, 1), (64, 64, 32))
    blocks = [Dense(width, width // 2) for _ in range(place.of(1, 4))]
    model = nn.Sequential(
        nn.Conv2d(3, width, 3, padding=1), *blocks, nn.Conv2d(width, 4 * width, 3, padding=1),
        nn.PixelShuffle(2), nn.PReLU(), nn.Conv2d(width, 3, 3, padding=1),
    ).to(place.device, place.half)  # fmt: skip
    low, high = place.normal(count, 3, size, size), place.normal(count, 3, 2 * size, 2 * size)

    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = model

        def forward(self, low: Tensor, high: Tensor) -> Tensor:
            out = self.net(low).float() + F.interpolate(low, scale_factor=2, mode="bicubic").float()
            near = ((out - high).square() + 1e-6).sqrt().mean()
            apart = torch.fft.rfft2(out) - torch.fft.rfft2(high.float())
            return near + 0.05 * (apart.real.abs() + apart.imag.abs()).mean()

    return train(compile, Loss(), low, high)


def colours(images: Tensor, brightness: Tensor, contrast: Tensor, turn: Tensor) -> Tensor:
    """Brightness, contrast, and a turn of the hue in HSV; a number of each for each image."""
    x = (images * brightness.view(-1, 1, 1, 1)).clamp(0, 1)
    grey = (
        (x * x.new_tensor([0.299, 0.587, 0.114]).view(3, 1, 1))
        .sum(1)
        .mean((1, 2))
        .view(-1, 1, 1, 1)
    )
    x = torch.lerp(grey, x, contrast.view(-1, 1, 1, 1)).clamp(0, 1)
    r, g, b = x.unbind(1)
    value, least = x.amax(1), x.amin(1)
    span = value - least
    safe = torch.where(span == 0, 1, span)
    hue = torch.where(
        value == r,
        (g - b) / safe % 6,
        torch.where(value == g, (b - r) / safe + 2, (r - g) / safe + 4),
    )
    hue = (hue / 6 + turn.view(-1, 1, 1)) % 1
    pure = torch.stack([(n + hue * 6) % 6 for n in (5, 3, 1)], 1)
    return value[:, None] - span[:, None] * torch.minimum(pure, 4 - pure).clamp(0, 1)


@program
def image_augmentation(compile: Compile, place: Place) -> Step:
    """From bytes: a random affine per image, colours, blur, erasing, mixing, normalizing."""
    count, size = place.of((3, 12), (256, 224))
    images = place.integers(256, count, size, size, 3).to(torch.uint8)
    labels = F.one_hot(place.integers(10, count), 10).float()

    def augment(images: Tensor, labels: Tensor, chance: Tensor) -> tuple[Tensor, Tensor]:
        x = images.permute(0, 3, 1, 2).float() / 255
        angle, zoom = (chance[:, 0] - 0.5) * math.pi / 3, 0.7 + 0.6 * chance[:, 1]
        flip = torch.where(chance[:, 2] < 0.5, -1.0, 1.0)
        row = torch.stack([zoom * flip * angle.cos(), -zoom * angle.sin(), chance[:, 3] - 0.5], 1)
        other = torch.stack([zoom * flip * angle.sin(), zoom * angle.cos(), chance[:, 4] - 0.5], 1)
        grid = F.affine_grid(torch.stack([row, other], 1), list(x.shape), align_corners=False)
        x = F.grid_sample(x, grid, padding_mode="reflection", align_corners=False)
        x = colours(
            x, 0.6 + 0.8 * chance[:, 5], 0.6 + 0.8 * chance[:, 6], 0.2 * (chance[:, 7] - 0.5)
        )
        taps = torch.arange(-3, 4, device=x.device).square()
        kernel = (-taps / (2 * (0.1 + chance[:, 8, None]) ** 2)).exp()
        kernel = (kernel / kernel.sum(1, keepdim=True)).repeat_interleave(3, 0)
        x = F.pad(x.reshape(1, -1, size, size), (3, 3, 3, 3), "reflect")
        x = F.conv2d(x, kernel[:, None, None, :], groups=3 * count)
        x = F.conv2d(x, kernel[:, None, :, None], groups=3 * count).view(count, 3, size, size)
        line = torch.arange(size, device=x.device)
        begin = (chance[:, 9:11] * size / 2).long()
        rows = (line >= begin[:, :1]) & (line < begin[:, :1] + size // 4)
        columns = (line >= begin[:, 1:]) & (line < begin[:, 1:] + size // 4)
        x = x.masked_fill((rows[:, :, None] & columns[:, None, :])[:, None], 0.5)
        share = chance[0, 11]
        x, labels = torch.lerp(x.flip(0), x, share), torch.lerp(labels.flip(0), labels, share)
        mean, spread = x.new_tensor([0.485, 0.456, 0.406]), x.new_tensor([0.229, 0.224, 0.225])
        return ((x - mean.view(3, 1, 1)) / spread.view(3, 1, 1)).to(place.half), labels

    return infer(compile, augment, images, labels, torch.rand(count, 12, device=place.device))


class Parted(nn.Module):
    """A (2+1)-D convolution: space, then time."""

    def __init__(self, a: int, b: int, stride: int) -> None:
        super().__init__()
        self.space = nn.Conv3d(a, b, (1, 3, 3), (1, stride, stride), (0, 1, 1), bias=False)
        self.time = nn.Conv3d(b, b, (3, 1, 1), (stride, 1, 1), (1, 0, 0), bias=False)
        self.norm1, self.norm2 = nn.BatchNorm3d(b), nn.BatchNorm3d(b)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm1(self.space(x)), inplace=True)
        return F.relu(self.norm2(self.time(x)), inplace=True)


@program
def video_parted_train(compile: Compile, place: Place) -> Step:
    """R(2+1)D with squeeze-and-excitation over a film, batch norm in training."""
    width, frames, size, count = place.of((8, 4, 16, 2), (64, 16, 112, 32))

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            sizes = [3, width, width, 2 * width, 4 * width]
            strides = [2, 1, 2, 2]
            pairs = zip(sizes[:-1], sizes[1:], strides, strict=True)
            self.parts = nn.ModuleList(Parted(a, b, stride) for a, b, stride in pairs)
            self.gates = nn.ModuleList(nn.Conv3d(b, b, 1) for b in sizes[1:])
            self.head = nn.Linear(sizes[-1], place.of(7, 400))

        def forward(self, x: Tensor) -> Any:
            for part, gate in zip(self.parts, self.gates, strict=True):
                x = part(x)
                x = x * gate(x.mean((2, 3, 4), keepdim=True)).sigmoid()
            return self.head(x.mean((2, 3, 4)))

    model = Net().to(place.device, place.half)
    return train(compile, model, place.normal(count, 3, frames, size, size))


@program
def roi_align_train(compile: Compile, place: Place) -> Step:
    """Boxes sorted to levels of a pyramid, their regions sampled, a mask head."""
    count, boxes, width, size = place.of((2, 6, 8, 16), (8, 128, 256, 160))
    sizes = [size, size // 2, size // 4]
    maps = [place.normal(count, width, s, s, grad=True) for s in sizes]
    corners = torch.rand(count, boxes, 4, device=place.device) * 0.5
    corners = torch.cat([corners[..., :2], corners[..., :2] + 0.02 + corners[..., 2:]], -1)
    last = nn.ConvTranspose2d(width, 1, 2, stride=2)
    head = nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.ReLU(), last)
    head.to(place.device, place.half)
    truth = torch.rand(count * boxes, 1, 28, 28, device=place.device)

    def loss(one: Tensor, two: Tensor, three: Tensor, corners: Tensor) -> Tensor:
        area = (corners[..., 2:] - corners[..., :2]).prod(-1).sqrt()
        level = (2 + (area / 0.35).log2()).floor().clamp(0, 2)
        line = (torch.arange(14, device=area.device) + 0.5) / 14
        across = corners[..., 0, None] + (corners[..., 2] - corners[..., 0])[..., None] * line
        down = corners[..., 1, None] + (corners[..., 3] - corners[..., 1])[..., None] * line
        grid = torch.stack(torch.broadcast_tensors(across[..., None, :], down[..., None]), -1)
        grid = 2 * grid.reshape(count, boxes * 14, 14, 2) - 1
        total: Any = 0
        for number, image in enumerate((one, two, three)):
            part = F.grid_sample(image, grid.to(image.dtype), align_corners=False)
            part = part.view(count, width, boxes, 14, 14)
            total = total + part * (level == number)[:, None, :, None, None]
        regions = total.transpose(1, 2).flatten(0, 1)
        return F.binary_cross_entropy_with_logits(head(regions).float(), truth)

    return descend(compile, loss, *maps, corners)
