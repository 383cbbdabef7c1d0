"""Programs that generate: images and text by loops over a model, latent variables, schedules of noise."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.distributions import Normal, kl_divergence

from tests.models.research import Research, mlp


class Autoencoder(Research):
    """A variational autoencoder: distributions, reparametrisation, a warm-up of the KL term."""

    def build(self) -> None:
        self.encoder, self.decoder = mlp(12, 32, 8), mlp(4, 32, 12)
        self.count = 0

    parts = ("encoder", "decoder")

    def prepare(self) -> None:
        self.optimizer = torch.optim.Adam([*self.encoder.parameters(), *self.decoder.parameters()], 1e-3)

    def batch(self) -> tuple[Any, ...]:
        return self.uniform(8, 12), self.normal(8, 4)

    def step(self, x: Tensor, noise: Tensor) -> Any:
        mean, log_scale = self.encoder(x).chunk(2, dim=-1)
        latent = Normal(mean, (0.5 * log_scale).exp())
        z = latent.loc + latent.scale * noise
        reconstructed = F.binary_cross_entropy_with_logits(self.decoder(z), x, reduction="none").sum(-1).mean()
        divergence = kl_divergence(latent, Normal(torch.zeros_like(mean), torch.ones_like(mean))).sum(-1).mean()
        self.count += 1
        loss = reconstructed + min(1.0, self.count / 10) * divergence
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return {"loss": loss.detach(), "kl": divergence.detach(), "count": self.count}


class Residual(nn.Module):
    def __init__(self, a: int, b: int) -> None:
        super().__init__()
        self.norm, self.first = nn.GroupNorm(4, a), nn.Conv2d(a, b, 3, padding=1)
        self.time, self.second = nn.Linear(16, b), nn.Conv2d(b, b, 3, padding=1)
        self.skip = nn.Conv2d(a, b, 1) if a != b else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        h = self.first(F.silu(self.norm(x))) + self.time(time)[:, :, None, None]
        return self.second(F.silu(h)) + self.skip(x)


class Unet(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.enter = nn.Conv2d(1, width, 3, padding=1)
        self.down = nn.ModuleList([Residual(width, width), Residual(width, 2 * width)])
        self.up = nn.ModuleList([Residual(3 * width, width), Residual(2 * width, width)])
        self.leave = nn.Conv2d(width, 1, 3, padding=1)

    def forward(self, x: Tensor, t: Tensor) -> Tensor:
        rates = torch.exp(-math.log(1e4) * torch.arange(8, device=x.device) / 8).to(x.dtype)
        angle = t[:, None].to(x.dtype) * rates[None]
        time = torch.cat([angle.sin(), angle.cos()], -1)
        h, skips = self.enter(x), []
        for block in self.down:
            skips.append(h)
            h = F.avg_pool2d(block(h, time), 2)
        for block in self.up:
            h = F.interpolate(h, scale_factor=2, mode="nearest")
            h = block(torch.cat([h, skips.pop()], 1), time)
        return self.leave(h)


@dataclass
class Sampled:
    prev: Tensor
    clean: Tensor


class Scheduler:
    """Betas, and a step of the reverse process, with state as such classes have it."""

    def __init__(self, steps: int, dtype: torch.dtype) -> None:
        self.betas = torch.linspace(1e-4, 0.02, steps, dtype=torch.float32).to(dtype)
        self.kept = torch.cumprod(1 - self.betas, 0)
        self.timesteps, self.history = torch.arange(steps).flip(0), []

    def add_noise(self, x: Tensor, noise: Tensor, t: Tensor) -> Tensor:
        kept = self.kept[t][:, None, None, None]
        return kept.sqrt() * x + (1 - kept).sqrt() * noise

    def step(self, predicted: Tensor, t: Any, x: Tensor) -> Sampled:
        kept, before = self.kept[t], self.kept[t - 1] if t > 0 else torch.ones_like(self.kept[0])
        clean = ((x - (1 - kept) ** 0.5 * predicted) / kept**0.5).clamp(-1, 1)
        self.history.append(clean)
        return Sampled(before**0.5 * clean + (1 - before) ** 0.5 * predicted, clean)


class Diffusion(Research):
    """A step of a noise predictor's training, then a loop of sampling by a scheduler object."""

    tolerance = 2e-4

    def build(self) -> None:
        self.model = Unet()

    def prepare(self) -> None:
        self.optimizer = torch.optim.AdamW(self.model.parameters(), 1e-3)
        self.scheduler = Scheduler(6, self.dtype)

    def batch(self) -> tuple[Any, ...]:
        return self.normal(2, 1, 8, 8), self.normal(2, 1, 8, 8), self.ints(6, 2), self.normal(1, 1, 8, 8)

    def step(self, x: Tensor, noise: Tensor, t: Tensor, start: Tensor) -> Any:
        loss = F.mse_loss(self.model(self.scheduler.add_noise(x, noise, t), t), noise)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        sample = start
        self.scheduler.history.clear()
        with torch.no_grad():
            for at in self.scheduler.timesteps:
                sample = self.scheduler.step(self.model(sample, at[None]), at, sample).prev
        return loss.detach(), sample, len(self.scheduler.history)
