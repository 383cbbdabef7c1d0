"""Few bits a number: weights unpacked on the way, products of int8 and float8, training of
adapters and through rounding, by torchao and by hand."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.gpu_programs.program import Compile, Place, Step, Unfit, infer, program, train

NORMAL_FLOAT = (-1.0, -0.6961928, -0.52507305, -0.3949175, -0.28444138, -0.18477343, -0.09105004,
                0.0, 0.0795803, 0.1609302, 0.2461123, 0.33791524, 0.44070983, 0.562617, 0.72295684,
                1.0)  # fmt: skip


class FeedForward(nn.Module):
    """Gated layers of a width of 4096, some in a row."""

    def __init__(self, place: Place, depth: int = 4) -> None:
        super().__init__()
        width, inner = place.of((64, 128), (4096, 11008))
        factory: dict[str, Any] = {"bias": False, "device": place.device, "dtype": place.half}
        self.gate = nn.ModuleList(nn.Linear(width, inner, **factory) for _ in range(depth))
        self.up = nn.ModuleList(nn.Linear(width, inner, **factory) for _ in range(depth))
        self.down = nn.ModuleList(nn.Linear(inner, width, **factory) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        for gate, up, down in zip(self.gate, self.up, self.down, strict=True):
            normed = F.rms_norm(x, (x.shape[-1],))
            x = x + down(F.silu(gate(normed)) * up(normed))
        return x


def torchao(compile: Compile, place: Place, config: Any, rows: int) -> Step:
    from torchao.quantization import quantize_

    model = FeedForward(place)
    quantize_(model, config)
    width = model.gate[0].in_features
    return infer(compile, model, place.normal(min(rows, place.of(32, rows)), width))


def needs_gpu(place: Place, what: str) -> None:
    if place.device != "cuda":
        raise Unfit(f"{what} is for a GPU")


@program
def torchao_int8_weights(compile: Compile, place: Place) -> Step:
    from torchao.quantization import Int8WeightOnlyConfig

    return torchao(compile, place, Int8WeightOnlyConfig(), 1)


@program
def torchao_int8_dynamic(compile: Compile, place: Place) -> Step:
    from torchao.quantization import Int8DynamicActivationInt8WeightConfig

    return torchao(compile, place, Int8DynamicActivationInt8WeightConfig(), 2048)


@program
def torchao_float8_weights(compile: Compile, place: Place) -> Step:
    from torchao.quantization import Float8WeightOnlyConfig

    return torchao(compile, place, Float8WeightOnlyConfig(), 8)


@program
def torchao_float8_dynamic(compile: Compile, place: Place) -> Step:
    from torchao.quantization import Float8DynamicActivationFloat8WeightConfig, PerRow

    needs_gpu(place, "torchao's product of float8")
    return torchao(compile, place, Float8DynamicActivationFloat8WeightConfig(granularity=PerRow()),
                   2048)  # fmt: skip


@program
def torchao_int4_weights(compile: Compile, place: Place) -> Step:
    from torchao.quantization import Int4WeightOnlyConfig

    needs_gpu(place, "the layout of tiles")
    config = Int4WeightOnlyConfig(group_size=128, int4_packing_format="tile_packed_to_4d")
    return torchao(compile, place, config, 1)


@program
def torchao_intx_weights(compile: Compile, place: Place) -> Step:
    """Three bits in groups."""
    from torchao.quantization import IntxWeightOnlyConfig
    from torchao.quantization.granularity import PerGroup

    config = IntxWeightOnlyConfig(weight_dtype=torch.int3, granularity=PerGroup(32))
    return torchao(compile, place, config, 8)


@program
def torchao_qat_train(compile: Compile, place: Place) -> Step:
    from torchao.quantization import Int8DynamicActivationIntxWeightConfig, quantize_
    from torchao.quantization.granularity import PerGroup
    from torchao.quantization.qat import QATConfig

    model = FeedForward(place, 2)
    base = Int8DynamicActivationIntxWeightConfig(
        weight_dtype=torch.int4, weight_granularity=PerGroup(32)
    )
    quantize_(model, QATConfig(base, step="prepare"))
    return train(compile, model, place.normal(place.of(16, 2048), model.down[0].out_features))


@program
def torchao_float8_train(compile: Compile, place: Place) -> Step:
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    needs_gpu(place, "torchao's product of float8")
    model = FeedForward(place, 2)
    convert_to_float8_training(model, config=Float8LinearConfig.from_recipe_name("rowwise"))
    return train(compile, model, place.normal(place.of(16, 4096), model.down[0].out_features))


class DynamicInt8(nn.Module):
    """Rows scaled by their largest number, `torch._int_mm`, scales undone: W8A8 by hand."""

    weight: Tensor
    scale: Tensor

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        scale = linear.weight.detach().float().abs().amax(1, keepdim=True) / 127
        weight = (linear.weight.detach() / scale).round().clamp(-128, 127).to(torch.int8)
        self.register_buffer("weight", weight)
        self.register_buffer("scale", scale.squeeze(1))

    def forward(self, x: Tensor) -> Tensor:
        scale = x.abs().amax(-1, keepdim=True).float().clamp(min=1e-5) / 127
        q = (x / scale).round().clamp(-128, 127).to(torch.int8)
        y = torch._int_mm(q, self.weight.t())
        return (y * scale * self.scale).to(x.dtype)


class StaticInt8(DynamicInt8):
    """SmoothQuant: a scale known before, divided into the channels in advance."""

    smooth: Tensor
    known: Tensor

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__(linear)
        columns, device = linear.in_features, linear.weight.device
        self.register_buffer("smooth", torch.rand(columns, device=device) + 0.5)
        self.register_buffer("known", torch.tensor(0.03, device=device))

    def forward(self, x: Tensor) -> Tensor:
        q = torch.clamp(torch.round(x.float() / self.smooth / self.known), -128, 127)
        y = torch._int_mm(q.to(torch.int8), self.weight.t()).float()
        return (y * (self.known * self.scale)).to(x.dtype)


def replaced(model: nn.Module, kind: Any) -> nn.Module:
    """All linear layers exchanged, as users do it."""
    for name, child in model.named_children():
        if isinstance(child, nn.Linear):
            setattr(model, name, kind(child))
        else:
            replaced(child, kind)
    return model


def through(compile: Compile, place: Place, kind: Any, rows: int, depth: int = 4) -> Step:
    model = FeedForward(place, depth)
    width = model.gate[0].in_features
    return infer(compile, replaced(model, kind), place.normal(place.of(32, rows), width))


@program
def hand_int8_dynamic(compile: Compile, place: Place) -> Step:
    return through(compile, place, DynamicInt8, 2048)


@program
def hand_int8_smooth(compile: Compile, place: Place) -> Step:
    return through(compile, place, StaticInt8, 2048)


class Awq(nn.Module):
    """Eight numbers of four bits in an int32, in the order of AWQ, with zero points packed too."""

    def __init__(self, linear: nn.Linear, group: int = 32) -> None:
        super().__init__()
        rows, columns, device = linear.in_features, linear.out_features, linear.weight.device

        def packed(*size: int) -> Tensor:
            return torch.randint(-(2**31), 2**31 - 1, size, dtype=torch.int32, device=device)

        self.group = group
        self.register_buffer("qweight", packed(rows, columns // 8))
        self.register_buffer("qzeros", packed(rows // group, columns // 8))
        scales = torch.rand(rows // group, columns, device=device) * 0.02 * rows**-0.5
        self.register_buffer("scales", scales.to(linear.weight.dtype))
        order = torch.tensor([0, 4, 1, 5, 2, 6, 3, 7], device=device)
        self.register_buffer("shifts", order * 4)

    def unpack(self, packed: Any) -> Tensor:
        return (packed.unsqueeze(-1) >> self.shifts & 15).to(torch.int8).flatten(-2)

    def weight(self) -> Tensor:
        q, zeros, scales = self.unpack(self.qweight), self.unpack(self.qzeros), self.scales
        q = q.view(-1, self.group, q.shape[-1]) - zeros.unsqueeze(1)
        return (q * scales.unsqueeze(1)).flatten(0, 1)

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight()


class Gptq(Awq):
    """Rows in an order of their own: each names its group."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__(linear)
        rows, device = linear.in_features, linear.weight.device
        index = torch.randperm(rows, device=device) // self.group
        self.register_buffer("g_idx", index)
        self.register_buffer("shifts", torch.arange(0, 32, 4, device=device))
        self.register_buffer("qweight", torch.randint(
            -(2**31), 2**31 - 1, (rows // 8, linear.out_features), dtype=torch.int32, device=device
        ))  # fmt: skip

    def weight(self) -> Tensor:
        packed: Any = self.qweight
        q = packed.unsqueeze(1) >> self.shifts.view(1, 8, 1) & 15
        q = q.reshape(-1, q.shape[-1])
        zeros = self.unpack(self.qzeros) + 1
        return (q - zeros[self.g_idx]) * self.scales[self.g_idx]


class Hqq(nn.Module):
    """Two numbers of four bits in a byte, by halves; zero points that are no integers."""

    def __init__(self, linear: nn.Linear, group: int = 64) -> None:
        super().__init__()
        self.shape, device = linear.weight.shape, linear.weight.device
        count = linear.weight.numel() // group
        packed = torch.randint(0, 256, (count // 2, group), dtype=torch.uint8, device=device)
        self.register_buffer("packed", packed)
        self.register_buffer("zero", torch.full((count, 1), 7.5, device=device))
        scale = torch.rand(count, 1, device=device) * 0.1 * linear.in_features**-0.5
        self.register_buffer("scale", scale)

    def forward(self, x: Tensor) -> Tensor:
        half = self.packed.shape[0]
        q = torch.empty(2 * half, self.packed.shape[1], dtype=torch.uint8, device=x.device)
        q[:half] = (self.packed & 0b11110000) >> 4
        q[half:] = self.packed & 0b00001111
        weight = ((q.to(self.scale.dtype) - self.zero) * self.scale).reshape(self.shape)
        return x @ weight.to(x.dtype).t()


class Ternary(nn.Module):
    """BitNet's: four weights of two bits in a byte, activations of eight bits."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        rows, columns, device = linear.out_features, linear.in_features, linear.weight.device
        values = torch.randint(0, 3, (4, rows // 4, columns), dtype=torch.uint8, device=device)
        packed = values[0] | values[1] << 2 | values[2] << 4 | values[3] << 6
        self.register_buffer("packed", packed)
        self.register_buffer("scale", torch.tensor(columns**-0.5, device=device))

    def forward(self, x: Tensor) -> Tensor:
        parts = [(self.packed >> shift & 3).to(torch.int8) - 1 for shift in (0, 2, 4, 6)]
        weight = torch.cat(parts, dim=0)
        scale = 127 / x.abs().amax(-1, keepdim=True).clamp(min=1e-5)
        q = (x * scale).round().clamp(-128, 127)
        y = F.linear(q, weight.to(x.dtype))
        return y / scale * self.scale


class MxFp4(nn.Module):
    """Blocks of 32 with a power of two: numbers of four bits looked up, as in gpt-oss."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        rows, columns, device = linear.out_features, linear.in_features, linear.weight.device
        blocks = torch.randint(0, 256, (rows, columns // 32, 16), dtype=torch.uint8, device=device)
        self.register_buffer("blocks", blocks)
        exponents = torch.randint(116, 121, (rows, columns // 32), device=device)
        self.register_buffer("exponents", exponents.to(torch.uint8))
        values = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0], device=device)
        self.register_buffer("table", torch.cat([values, -values]).to(linear.weight.dtype))

    def forward(self, x: Tensor) -> Tensor:
        low = self.table[(self.blocks & 15).long()]
        high = self.table[(self.blocks >> 4).long()]
        weight = torch.stack([low, high], dim=-1).flatten(-2)
        weight = torch.ldexp(weight, self.exponents.to(torch.int32).unsqueeze(-1) - 127)
        return F.linear(x, weight.flatten(1).to(x.dtype))


@program
def awq_decode(compile: Compile, place: Place) -> Step:
    return through(compile, place, Awq, 1, depth=2)


@program
def gptq_prefill(compile: Compile, place: Place) -> Step:
    return through(compile, place, Gptq, 512, depth=1)


@program
def hqq_decode(compile: Compile, place: Place) -> Step:
    return through(compile, place, Hqq, 8, depth=2)


@program
def ternary_decode(compile: Compile, place: Place) -> Step:
    return through(compile, place, Ternary, 8, depth=2)


@program
def mxfp4_prefill(compile: Compile, place: Place) -> Step:
    return through(compile, place, MxFp4, 256, depth=1)


class NormalFloat(nn.Module):
    """QLoRA: a frozen weight of sixteen levels, whose scales are quantized again, and LoRA."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.shape, device, dtype = linear.weight.shape, linear.weight.device, linear.weight.dtype
        count = linear.weight.numel() // 64
        codes = torch.randint(0, 256, (count, 32), dtype=torch.uint8, device=device)
        self.register_buffer("codes", codes)
        self.register_buffer("table", torch.tensor(NORMAL_FLOAT, device=device))
        scales = torch.randint(-127, 128, (count // 16, 16), dtype=torch.int8, device=device)
        self.register_buffer("scales", scales)
        self.register_buffer("outer", torch.full((count // 16, 1), 1e-4, device=device))
        self.a = nn.Parameter(torch.randn(16, self.shape[1], device=device, dtype=dtype) * 0.02)
        self.b = nn.Parameter(torch.randn(self.shape[0], 16, device=device, dtype=dtype) * 0.02)

    def forward(self, x: Tensor) -> Tensor:
        scale = (self.scales.float() * self.outer + 0.03).view(-1, 1, 1)
        codes = torch.stack([self.codes >> 4, self.codes & 15], dim=-1)
        weight = (self.table[codes.int()] * scale).view(self.shape).to(x.dtype)
        dropped = F.dropout(x, 0.0)
        return F.linear(x, weight) + F.linear(F.linear(dropped, self.a), self.b) * 2.0


@program
def qlora_train(compile: Compile, place: Place) -> Step:
    model = FeedForward(place, 2)
    width = model.gate[0].in_features
    return train(compile, replaced(model, NormalFloat), place.normal(place.of(16, 2048), width))
