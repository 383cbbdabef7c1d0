"""Training steps and samplers of diffusion models, written out as in research repositories."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.gpu_programs.program import Compile, Place, Step, infer, program


def waves(times: Tensor, width: int) -> Tensor:
    """Sines and cosines of a batch of times, in the dtype of the times."""
    half = width // 2
    rates = torch.exp(-math.log(10000) * torch.arange(half, device=times.device) / half)
    angles = times.float()[:, None] * rates[None]
    return torch.cat([angles.cos(), angles.sin()], dim=-1).to(times.dtype)


class Residual(nn.Module):
    """Group norm, SiLU, convolution, twice; the time scales and shifts in the middle."""

    def __init__(self, entering: int, leaving: int, width: int) -> None:
        super().__init__()
        self.first = nn.GroupNorm(8, entering)
        self.conv = nn.Conv2d(entering, leaving, 3, padding=1)
        self.time = nn.Linear(width, 2 * leaving)
        self.second = nn.GroupNorm(8, leaving)
        self.last = nn.Conv2d(leaving, leaving, 3, padding=1)
        self.skip = nn.Conv2d(entering, leaving, 1) if entering != leaving else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        h = self.conv(F.silu(self.first(x)))
        scale, shift = self.time(F.silu(time))[:, :, None, None].chunk(2, dim=1)
        h = self.second(h) * (1 + scale) + shift
        return self.skip(x) + self.last(F.silu(h))


class UNet(nn.Module):
    def __init__(self, channels: tuple[int, ...]) -> None:
        super().__init__()
        self.width = channels[0]
        width = 4 * channels[0]
        self.time = nn.Sequential(nn.Linear(channels[0], width), nn.SiLU(), nn.Linear(width, width))
        self.begin = nn.Conv2d(3, channels[0], 3, padding=1)
        pairs = list(zip(channels[:-1], channels[1:], strict=True))
        self.downs = nn.ModuleList(Residual(a, b, width) for a, b in pairs)
        self.middle = Residual(channels[-1], channels[-1], width)
        self.ups = nn.ModuleList(Residual(2 * b, a, width) for a, b in reversed(pairs))
        self.norm = nn.GroupNorm(8, channels[0])
        self.end = nn.Conv2d(channels[0], 3, 3, padding=1)

    def forward(self, x: Tensor, times: Tensor) -> Tensor:
        time = self.time(waves(times, self.width).to(x.dtype))
        h, kept = self.begin(x), []
        for down in self.downs:
            h = down(h, time)
            kept.append(h)
            h = F.avg_pool2d(h, 2)
        h = self.middle(h, time)
        for up in self.ups:
            h = F.interpolate(h, scale_factor=2, mode="nearest")
            h = up(torch.cat([h, kept.pop()], dim=1), time)
        return self.end(F.silu(self.norm(h)))


def modulate(x: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    return x * (1 + scale.unsqueeze(1)) + shift.unsqueeze(1)


class Block(nn.Module):
    """A block of a diffusion transformer: six modulations, normed queries and keys."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.norm2 = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.qkv = nn.Linear(width, 3 * width)
        self.q_norm, self.k_norm = nn.RMSNorm(width // heads), nn.RMSNorm(width // heads)
        self.out = nn.Linear(width, width)
        wide = 4 * width
        self.mlp = nn.Sequential(nn.Linear(width, wide), nn.GELU("tanh"), nn.Linear(wide, width))
        self.modulation = nn.Sequential(nn.SiLU(), nn.Linear(width, 6 * width))

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        shift1, scale1, gate1, shift2, scale2, gate2 = self.modulation(c).chunk(6, dim=1)
        h = self.qkv(modulate(self.norm1(x), shift1, scale1))
        q, k, v = h.unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        h = F.scaled_dot_product_attention(self.q_norm(q), self.k_norm(k), v)
        x = x + gate1.unsqueeze(1) * self.out(h.transpose(1, 2).flatten(2))
        return x + gate2.unsqueeze(1) * self.mlp(modulate(self.norm2(x), shift2, scale2))


class Transformer(nn.Module):
    """A diffusion transformer over patches of an image, or over whatever has two axes."""

    def __init__(self, size: int, channels: int, width: int, heads: int, layers: int) -> None:
        super().__init__()
        self.size, self.channels, self.width = size // 2, channels, width
        self.patches = nn.Conv2d(channels, width, 2, stride=2)
        self.places = nn.Parameter(torch.randn(1, self.size**2, width) * 0.02)
        self.time = nn.Sequential(nn.Linear(256, width), nn.SiLU(), nn.Linear(width, width))
        self.labels = nn.Embedding(1001, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.modulation = nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, 4 * channels)

    def forward(self, x: Tensor, times: Tensor, labels: Tensor) -> Tensor:
        h = self.patches(x).flatten(2).transpose(1, 2) + self.places
        c = self.time(waves(times * 1000, 256).to(x.dtype)) + self.labels(labels)
        for block in self.blocks:
            h = block(h, c)
        shift, scale = self.modulation(F.silu(c)).chunk(2, dim=1)
        h = self.out(modulate(self.norm(h), shift, scale))
        h = h.unflatten(1, (self.size, self.size)).unflatten(-1, (2, 2, self.channels))
        return torch.einsum("nhwpqc->nchpwq", h).reshape(x.shape)


def unet(place: Place) -> UNet:
    return UNet(place.of((8, 16, 24), (128, 256, 256, 512))).to(place.device, place.half)


def transformer(place: Place, layers: int = 8) -> Transformer:
    size, width, heads = place.of((8, 32, 2), (32, 1024, 16))
    return Transformer(size, 4, width, heads, place.of(2, layers)).to(place.device, place.half)


def images(place: Place) -> Tensor:
    return place.normal(place.of(2, 16), 3, place.of(16, 64), place.of(16, 64))


def latents(place: Place) -> tuple[Tensor, Tensor]:
    count, size = place.of((3, 8), (16, 32))
    return place.normal(count, 4, size, size), place.integers(1000, count)


def learn(compile: Compile, model: nn.Module, loss: Callable[..., Tensor], *args: Any) -> Step:
    """A compiled loss, its backward, and the norms of the gradients."""
    compiled = compile(loss)
    parameters = [p for p in model.parameters() if p.requires_grad]

    def step() -> Any:
        value = compiled(*args)
        value.backward()
        found = [p.grad for p in parameters if p.grad is not None]
        norms = torch.stack(torch._foreach_norm(found)).float()
        model.zero_grad(set_to_none=True)
        return value.detach(), norms

    return step


def cosine_alphas(device: str) -> Tensor:
    steps = torch.arange(1001, device=device, dtype=torch.float64) / 1000
    curve = torch.cos((steps + 0.008) / 1.008 * math.pi / 2).square()
    betas = (1 - curve[1:] / curve[:-1]).clamp(max=0.999)
    return (1 - betas).cumprod(0).float()


@program
def ddpm_ema_train(compile: Compile, place: Place) -> Step:
    """DDPM on noise with min-SNR weights, a step of SGD, and an average of the weights."""
    model, x, alphas = unet(place), images(place), cosine_alphas(place.device)
    parameters = list(model.parameters())
    average = [p.detach().clone().float() for p in parameters]
    noise, times = torch.randn_like(x), place.integers(1000, len(x))

    def loss(x: Tensor, noise: Tensor, times: Tensor) -> Tensor:
        alpha = alphas[times].view(-1, 1, 1, 1)
        mixed = (alpha.sqrt() * x + (1 - alpha).sqrt() * noise).to(x.dtype)
        apart = F.mse_loss(model(mixed, times).float(), noise.float(), reduction="none")
        ratio = alpha / (1 - alpha)
        weight = torch.minimum(ratio, torch.full_like(ratio, 5.0)) / ratio
        return (weight * apart).mean()

    def follow(average: list[Tensor], parameters: list[Tensor]) -> None:
        for kept, new in zip(average, parameters, strict=True):
            kept.lerp_(new.float(), 1e-2)

    compiled, followed = compile(loss), compile(follow)
    optimizer = torch.optim.SGD(parameters, lr=1e-3, foreach=True)

    def step() -> Any:
        value = compiled(x, noise, times)
        value.backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            followed(average, parameters)
        return value.detach(), [kept.norm() for kept in average]

    return step


@program
def flow_matching_train(compile: Compile, place: Place) -> Step:
    """Rectified flow over a transformer: times of a logistic normal, labels dropped at random."""
    model = transformer(place)
    x, labels = latents(place)
    noise, drop = torch.randn_like(x), torch.rand(len(x), device=place.device) < 0.1
    odds = place.normal(len(x))

    def loss(x: Tensor, noise: Tensor, labels: Tensor) -> Tensor:
        t = odds.sigmoid()
        wide = t.view(-1, 1, 1, 1)
        mixed = torch.lerp(x, noise, wide)
        flow = model(mixed, t, torch.where(drop, 1000, labels))
        return F.mse_loss(flow.float(), (noise - x).float())

    return learn(compile, model, loss, x, noise, labels)


@program
def mean_flow_train(compile: Compile, place: Place) -> Step:
    """MeanFlow: the target holds a derivative along the path, by forward mode."""
    model = unet(place).float()
    x = images(place).float()
    noise = torch.randn_like(x)
    t = torch.rand(len(x), device=place.device)

    def loss(x: Tensor, noise: Tensor, t: Tensor) -> Tensor:
        wide = t.view(-1, 1, 1, 1)
        mixed, velocity = (1 - wide) * x + wide * noise, noise - x
        mean, slope = torch.func.jvp(model, (mixed, t), (velocity, torch.ones_like(t)))
        target = (velocity - wide * slope).detach()
        error = (mean - target).square().flatten(1).mean(1)
        return (error / (error.detach() + 1e-3)).mean()

    return learn(compile, model, loss, x, noise, t)


@program
def consistency_train(compile: Compile, place: Place) -> Step:
    """Consistency training: the same noise at neighbouring levels, pseudo-Huber, a frozen copy."""
    model, teacher, x = unet(place), unet(place).requires_grad_(False), images(place)
    noise, index = torch.randn_like(x), place.integers(17, len(x))
    ramp = torch.linspace(0.002 ** (1 / 7), 80 ** (1 / 7), 18, device=place.device)

    def denoise(net: nn.Module, x: Tensor, sigma: Tensor) -> Tensor:
        wide = sigma.view(-1, 1, 1, 1)
        skip = 0.25 / ((wide - 0.002).square() + 0.25)
        out = 0.5 * (wide - 0.002) / (wide.square() + 0.25).sqrt()
        scaled = x / (wide.square() + 0.25).sqrt()
        return skip * x + out * net(scaled.to(x.dtype), 250 * sigma.log()).float()

    def loss(x: Tensor, noise: Tensor, index: Tensor) -> Tensor:
        low, high = (ramp**7)[index], (ramp**7)[index + 1]
        near = denoise(model, x + high.view(-1, 1, 1, 1).to(x.dtype) * noise, high)
        with torch.no_grad():
            target = denoise(teacher, x + low.view(-1, 1, 1, 1).to(x.dtype) * noise, low)
        bound = 0.00054 * math.sqrt(x[0].numel())
        apart = ((near - target).square() + bound**2).sqrt() - bound
        return (apart.flatten(1).mean(1) / (high - low)).mean()

    return learn(compile, model, loss, x, noise, index)


@program
def diffusion_dpo_train(compile: Compile, place: Place) -> Step:
    """Preferences between pairs of images against a frozen model."""
    model, frozen = transformer(place, 4), transformer(place, 4).requires_grad_(False)
    (x, labels), (worse, _) = latents(place), latents(place)
    noise, t = torch.randn_like(x), torch.rand(len(x), device=place.device).to(place.half)

    def loss(x: Tensor, worse: Tensor, noise: Tensor) -> Tensor:
        pair = torch.cat([x, worse])
        twice, when, labelled = noise.repeat(2, 1, 1, 1), t.repeat(2), labels.repeat(2)
        wide = when.view(-1, 1, 1, 1)
        mixed = (1 - wide) * pair + wide * twice
        target = (twice - pair).float()

        def error(net: nn.Module) -> Tensor:
            return (net(mixed, when, labelled).float() - target).square().flatten(1).mean(1)

        ours = error(model)
        with torch.no_grad():
            theirs = error(frozen)
        better, lesser = (ours - theirs).chunk(2)
        return -F.logsigmoid(-500.0 * (better - lesser)).mean()

    return learn(compile, model, loss, x, worse, noise)


@program
def gan_penalty_train(compile: Compile, place: Place) -> Step:
    """A discriminator with the penalty on its gradient: backward of a backward."""
    width = place.of(8, 64)
    layers: list[nn.Module] = []
    for a, b in ((3, width), (width, 2 * width), (2 * width, 4 * width), (4 * width, 4 * width)):
        layers += [nn.Conv2d(a, b, 3, stride=2, padding=1), nn.LeakyReLU(0.2)]
    size = place.of(16, 64)
    model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(4 * width * (size // 16) ** 2, 1))
    model.to(place.device)
    count = place.of(2, 64)
    real, fake = (place.normal(count, 3, size, size, dtype=torch.float32) for _ in range(2))
    real.requires_grad_()

    def loss(real: Tensor, fake: Tensor) -> Tensor:
        score, other = model(real), model(fake)
        (slope,) = torch.autograd.grad(score.sum(), real, create_graph=True)
        penalty = slope.square().flatten(1).sum(1).mean()
        return F.softplus(-score).mean() + F.softplus(other).mean() + 5.0 * penalty

    return learn(compile, model, loss, real, fake)


@program
def guided_euler(compile: Compile, place: Place) -> Step:
    """Three steps of Euler with classifier-free guidance and rescaled deviation, one graph."""
    model = transformer(place, 4)
    x, labels = latents(place)

    def sample(x: Tensor, labels: Tensor) -> Tensor:
        levels = torch.linspace(1, 0, 4, device=x.device).to(x.dtype)
        nothing = torch.full_like(labels, 1000)
        for now, then in zip(levels[:-1], levels[1:], strict=True):
            both = model(torch.cat([x, x]), now.expand(2 * len(x)), torch.cat([labels, nothing]))
            given, free = both.chunk(2)
            guided = free + 4.0 * (given - free)
            factor = given.std((1, 2, 3), keepdim=True) / guided.std((1, 2, 3), keepdim=True)
            x = x + (then - now) * (0.7 * guided * factor + 0.3 * guided)
        return x

    return infer(compile, sample, x, labels)


@program
def karras_heun(compile: Compile, place: Place) -> Step:
    """A step of Heun's method with EDM's preconditioning and churn, called for each level."""
    model, x = unet(place), images(place)
    noise = torch.randn_like(x)
    ramp = torch.linspace(80 ** (1 / 7), 0.002 ** (1 / 7), 5, device=place.device) ** 7
    levels = [*ramp.tolist(), 0.0]

    def denoise(x: Tensor, sigma: Tensor) -> Tensor:
        skip, out = 0.25 / (sigma**2 + 0.25), sigma * 0.5 / (sigma**2 + 0.25).sqrt()
        scaled = x * (sigma**2 + 0.25).rsqrt()
        times = (sigma.log() / 4).expand(len(x))
        return skip * x + out * model(scaled.to(place.half), times).float()

    def advance(x: Tensor, now: Tensor, then: Tensor, last: bool) -> Tensor:
        raised = now * 1.2
        x = x + (raised**2 - now**2).sqrt() * noise
        slope = (x - denoise(x, raised)) / raised
        ahead = x + (then - raised) * slope
        if last:
            return ahead
        other = (ahead - denoise(ahead, then)) / then
        return x + (then - raised) * (slope + other) / 2

    compiled = compile(advance)
    pairs = [(torch.tensor(a, device=place.device), torch.tensor(b, device=place.device), b == 0)
             for a, b in zip(levels[:-1], levels[1:], strict=True)]  # fmt: skip

    @torch.no_grad()
    def step() -> Any:
        y = x.float() * 80
        for now, then, last in pairs:
            y = compiled(y, now, then, last)
        return y

    return step
