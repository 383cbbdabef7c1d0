"""Training through rounding, caches and tables of few bits: the rest of `quantized`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.gpu_programs.program import Compile, Place, Step, infer, program, train
from benchmarks.gpu_programs.quantized import FeedForward, replaced


class BitLinear(nn.Linear):
    """Ternary weights and activations of eight bits, with gradients as if nothing were rounded."""

    def forward(self, x: Tensor) -> Tensor:
        x = F.rms_norm(x, (self.in_features,))
        scale = 127.0 / x.abs().max(dim=-1, keepdim=True).values.clamp_(min=1e-5)
        rounded = (x * scale).round().clamp_(-128, 127) / scale
        x = x + (rounded - x).detach()
        mean = 1.0 / self.weight.abs().mean().clamp_(min=1e-5)
        ternary = (self.weight * mean).round().clamp_(-1, 1) / mean
        return F.linear(x, self.weight + (ternary - self.weight).detach())


def cast_linear(kind: Any) -> Any:
    def of(linear: nn.Linear) -> nn.Module:
        made = kind(linear.in_features, linear.out_features, bias=False,
                    device=linear.weight.device, dtype=linear.weight.dtype)  # fmt: skip
        made.weight = linear.weight
        return made  # type: ignore[no-any-return]

    return of


def training(compile: Compile, place: Place, kind: Any, rows: int = 2048) -> Step:
    model = FeedForward(place, 2)
    width = model.gate[0].in_features
    model = replaced(model, cast_linear(kind))
    return train(compile, model, place.normal(place.of(32, rows), width))


@program
def bitnet_train(compile: Compile, place: Place) -> Step:
    return training(compile, place, BitLinear)


class Round(torch.autograd.Function):
    """A learned step size: its gradient and where the input's passes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, step: Tensor, low: int, high: int) -> Tensor:
        ctx.save_for_backward(x, step)
        ctx.low, ctx.high = low, high
        return (x / step).round().clamp(low, high) * step

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (grad,), (x, step) = grads, ctx.saved_tensors
        q = x / step
        below, above = q < ctx.low, q > ctx.high
        inside = ~(below | above)
        of_step = torch.where(inside, q.round() - q, torch.where(below, ctx.low, ctx.high))
        scale = (x.numel() * ctx.high) ** -0.5
        return grad * inside, ((grad * of_step).sum() * scale).view_as(step), None, None


class LearnedStep(nn.Linear):
    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        device = self.weight.device
        self.step_w = nn.Parameter(torch.tensor(0.01, device=device, dtype=self.weight.dtype))
        self.step_x = nn.Parameter(torch.tensor(0.2, device=device, dtype=self.weight.dtype))

    def forward(self, x: Tensor) -> Tensor:
        weight: Any = Round.apply(self.weight, self.step_w, -8, 7)
        return F.linear(Round.apply(x, self.step_x, -8, 7), weight)  # type: ignore[arg-type]


@program
def learned_step_train(compile: Compile, place: Place) -> Step:
    return training(compile, place, LearnedStep)


class Observed(nn.Linear):
    """Fake quantization of torch with observers whose ranges move in each step."""

    low: Tensor
    high: Tensor

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.register_buffer("low", torch.tensor(0.0, device=self.weight.device))
        self.register_buffer("high", torch.tensor(0.0, device=self.weight.device))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            with torch.no_grad():
                low, high = torch.aminmax(x.detach().float())
                self.low.lerp_(low.clamp(max=0), 0.1)
                self.high.lerp_(high.clamp(min=0), 0.1)
        scale = ((self.high - self.low) / 255).clamp(min=1e-6)
        zero = (-self.low / scale).round().clamp(0, 255).to(torch.int32)
        x = torch.fake_quantize_per_tensor_affine(x.float(), scale, zero, 0, 255).to(x.dtype)
        of_rows = self.weight.detach().float().abs().amax(1).clamp(min=1e-6) / 127
        zeros = torch.zeros_like(of_rows, dtype=torch.int32)
        weight = torch.fake_quantize_per_channel_affine(
            self.weight.float(), of_rows, zeros, 0, -128, 127
        )
        return F.linear(x, weight.to(x.dtype))


@program
def observed_train(compile: Compile, place: Place) -> Step:
    return training(compile, place, Observed)


E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


def scaled(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    most = torch.finfo(dtype).max
    scale = (x.abs().amax().float() / most).clamp(min=1e-12)
    return (x / scale).clamp(-most, most).to(dtype), scale


class Float8Product(torch.autograd.Function):
    """Three products in float8 with a scale a tensor, as the small training speedruns do."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        (x8, x_scale), (w8, w_scale) = scaled(x, E4M3), scaled(weight, E4M3)
        ctx.save_for_backward(x8, w8, x_scale, w_scale)
        return torch._scaled_mm(x8, w8.t(), x_scale, w_scale, out_dtype=x.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (grad,), (x8, w8, x_scale, w_scale) = grads, ctx.saved_tensors
        g8, g_scale = scaled(grad, E5M2)
        to_x = torch._scaled_mm(g8, w8.t().contiguous().t(), g_scale, w_scale,
                                out_dtype=grad.dtype)  # fmt: skip
        to_w = torch._scaled_mm(g8.t().contiguous(), x8.t().contiguous().t(), g_scale, x_scale,
                                out_dtype=grad.dtype)  # fmt: skip
        return to_x, to_w


class Float8Linear(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return Float8Product.apply(x, self.weight)  # type: ignore[no-any-return]


@program
def hand_float8_train(compile: Compile, place: Place) -> Step:
    return training(compile, place, Float8Linear, 4096)


@program
def cache_int8_decode(compile: Compile, place: Place) -> Step:
    """Keys and values of a byte with a scale a token and head, written and read in each step."""
    batch, heads, most, head = place.of((2, 2, 16, 8), (16, 32, 4096, 128))
    keys, values = (torch.randint(-127, 128, (batch, heads, most, head), dtype=torch.int8,
                                  device=place.device) for _ in range(2))  # fmt: skip
    k_scale, v_scale = (torch.rand(batch, heads, most, 1, device=place.device) / 64
                        for _ in range(2))  # fmt: skip
    at = torch.tensor([most - 2], device=place.device)

    def pack(x: Tensor) -> tuple[Tensor, Tensor]:
        scale = x.float().abs().amax(-1, keepdim=True).clamp(min=1e-6) / 127
        return (x / scale).round().to(torch.int8), scale

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        for new, cache, scales in ((k, keys, k_scale), (v, values, v_scale)):
            packed, scale = pack(new)
            cache.index_copy_(2, at, packed)
            scales.index_copy_(2, at, scale)
        seen = (torch.arange(most, device=q.device) <= at).unsqueeze(0)
        k, v = (keys * k_scale).to(q.dtype), (values * v_scale).to(q.dtype)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=seen)

    new = [place.normal(batch, heads, 1, head) for _ in range(3)]
    return infer(compile, attend, *new, mode="reduce-overhead")


@program
def table_int4_bags(compile: Compile, place: Place) -> Step:
    """Rows of four bits with a scale and a bias each, looked up and summed in bags."""
    rows, width, batch, each = place.of((50, 16, 4, 3), (2_000_000, 128, 16384, 32))
    table = torch.randint(0, 256, (rows, width // 2), dtype=torch.uint8, device=place.device)
    scale, bias = (torch.rand(rows, 1, device=place.device) * 0.1 for _ in range(2))
    ids, weight = place.integers(rows, batch, each), place.normal(batch, each)

    def look_up(ids: Tensor, weight: Tensor) -> Tensor:
        packed = table[ids]
        numbers = torch.stack([packed & 15, packed >> 4], dim=-1).flatten(-2).float()
        numbers = numbers * scale[ids] - bias[ids]
        return (numbers * weight.unsqueeze(-1)).sum(1).to(weight.dtype)

    return infer(compile, look_up, ids, weight)


@program
def codebook_train(compile: Compile, place: Place) -> Step:
    """Residual vector quantization: the nearest code of four books, moved by averages."""
    rows, width, codes, books = place.of((24, 8, 6, 2), (32768, 256, 1024, 4))

    class Quantize(nn.Module):
        table: Tensor
        counts: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(width, width, device=place.device, dtype=place.half)
            self.last = nn.Linear(width, width, device=place.device, dtype=place.half)
            table = place.normal(books, codes, width, dtype=torch.float32)
            self.register_buffer("table", table)
            self.register_buffer("counts", torch.ones(books, codes, device=place.device))

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            residual = z = self.first(x)
            total, commitment = torch.zeros_like(z), 0.0
            for table, counts in zip(self.table, self.counts, strict=True):
                distance = torch.cdist(residual.detach().float(), table)
                nearest = distance.argmin(-1)
                code = F.embedding(nearest, table).to(z.dtype)
                with torch.no_grad():
                    chosen = F.one_hot(nearest, codes).float()
                    counts.lerp_(chosen.sum(0), 0.01)
                    sums = chosen.t() @ residual.float()
                    table.lerp_(sums / counts.clamp(min=1e-3).unsqueeze(1), 0.01)
                commitment = commitment + F.mse_loss(residual, code)
                residual, total = residual - code, total + code
            total = z + (total - z).detach()
            return self.last(total), torch.as_tensor(commitment)

    return train(compile, Quantize(), place.normal(rows, width))


@program
def finite_scalars_train(compile: Compile, place: Place) -> Step:
    """Finite scalar quantization: bounded levels, rounding without gradient, indices of codes."""
    rows, width = place.of((24, 16), (65536, 1024))
    levels = torch.tensor([8, 8, 8, 5, 5, 5], device=place.device)
    basis = torch.cumprod(torch.cat([levels.new_ones(1), levels[:-1]]), 0)
    come = nn.Linear(width, 6, device=place.device, dtype=place.half)
    leave = nn.Linear(6, width, device=place.device, dtype=place.half)

    class Quantize(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.come, self.leave = come, leave

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            z = self.come(x).float()
            half = (levels - 1) * (1 + 1e-3) / 2
            offset = torch.where(levels % 2 == 0, 0.5, 0.0)
            bounded = (z + (offset / half).atanh()).tanh() * half - offset
            rounded = bounded + (bounded.round() - bounded).detach()
            codes = rounded / (levels // 2)
            index = ((codes * (levels // 2) + levels // 2) * basis).sum(-1).to(torch.int32)
            return self.leave(codes.to(x.dtype)), index

    return train(compile, Quantize(), place.normal(rows, width))
