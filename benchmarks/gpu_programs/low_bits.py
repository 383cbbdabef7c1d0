"""Few bits: blocks of float8, four-bit floats, rotations, caches in integers, codebooks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.gpu_programs.program import Compile, Place, Step, infer, program, train

FLOAT8 = torch.float8_e4m3fn


def blocks_of(x: Tensor) -> tuple[Tensor, Tensor]:
    """Float8 with a scale for each 128 elements of a row (DeepSeek V3's activations)."""
    parts = x.unflatten(-1, (-1, 128)).float()
    scale = parts.abs().amax(-1).clamp(min=1e-4) / 448
    return (parts / scale[..., None]).to(FLOAT8).flatten(-2), scale


@program
def blocks_float8_prefill(compile: Compile, place: Place) -> Step:
    """DeepSeek V3's linear layers written plainly: weights with a scale for each 128 x 128, rows
    with one for each 128, multiplied after both are multiplied out."""
    tokens, width, hidden = place.of((4, 128, 256), (2048, 4096, 11008))

    def weights(rows: int, columns: int) -> tuple[Tensor, Tensor]:
        w = place.normal(rows, columns).float() * columns**-0.5
        tiles = w.view(rows // 128, 128, columns // 128, 128)
        scale = tiles.abs().amax((1, 3)) / 448
        return (tiles / scale[:, None, :, None]).to(FLOAT8).view(rows, columns), scale

    layers = [weights(hidden, width), weights(hidden, width), weights(width, hidden)]

    def linear(x: Tensor, layer: tuple[Tensor, Tensor]) -> Tensor:
        w, by = layer
        by = by.to(x.dtype)
        whole = w.to(x.dtype).view(len(by), 128, by.shape[1], 128) * by[:, None, :, None]
        kept, scale = blocks_of(x)
        rows = kept.to(x.dtype).unflatten(-1, (-1, 128)) * scale[..., None].to(x.dtype)
        return F.linear(rows.flatten(-2), whole.view(w.shape))

    def block(x: Tensor) -> Tensor:
        return x + linear(F.silu(linear(x, layers[0])) * linear(x, layers[1]), layers[2])

    return infer(compile, block, place.normal(tokens, width))


GRID = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


@program
def nvfp4_train(compile: Compile, place: Place) -> Step:
    """Linear layers whose inputs, weights and gradients are rounded to NVFP4: sixteen elements
    share a float8 scale; gradients are rounded at random after a Hadamard rotation of sixteen."""
    tokens, width = place.of((32, 64), (4096, 2048))
    signs = torch.tensor([[1.0]])
    for _ in range(4):
        signs = torch.cat([torch.cat([signs, signs], 1), torch.cat([signs, -signs], 1)])
    rotation = (signs / 4).to(place.device, place.half)
    grid = torch.tensor(GRID, device=place.device)

    def rounded(x: Tensor, noise: Tensor | None = None) -> Tensor:
        parts = x.float().unflatten(-1, (-1, 16))
        scale = (parts.abs().amax(-1, keepdim=True) / 6).to(FLOAT8).float().clamp(min=2**-9)
        size = (parts / scale).abs().clamp(max=6)
        if noise is None:
            at = torch.bucketize(size, (grid[1:] + grid[:-1]) / 2)
        else:
            low = (torch.bucketize(size, grid, right=True) - 1).clamp(0, 6)
            part = (size - grid[low]) / (grid[low + 1] - grid[low])
            at = low + (noise.view_as(part) < part)
        return (grid[at] * parts.sign() * scale).flatten(-2).to(x.dtype)

    class Rounded(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, w: Tensor, noise: Tensor, rotation: Tensor) -> Tensor:
            ctx.save_for_backward(x, w, noise, rotation)
            return rounded(x) @ rounded(w).t()

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
            x, w, noise, rotation = ctx.saved_tensors
            turn = lambda t: (t.unflatten(-1, (-1, 16)) @ rotation).flatten(-2)  # noqa: E731
            to_x = rounded(grad, noise) @ rounded(w.t().contiguous()).t()
            to_w = rounded(turn(grad.t().contiguous()), noise.t().contiguous()) @ rounded(
                turn(x.t().contiguous())).t()
            return to_x, to_w, None, None

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = nn.ParameterList(
                place.normal(width, width) * width**-0.5 for _ in range(3))

        def forward(self, x: Tensor, noise: Tensor) -> Tensor:
            for w in self.weights:
                x = x + F.silu(Rounded.apply(F.rms_norm(x, (width,)), w, noise, rotation))
            return x

    noise = torch.rand(tokens, width, device=place.device)
    return train(compile, Net(), place.normal(tokens, width), noise)


@program
def rotated_int4_prefill(compile: Compile, place: Place) -> Step:
    """QuaRot: activations go through a fast Hadamard transform, are rounded to four bits by row,
    and are multiplied as int8."""
    tokens, width = place.of((32, 32), (4096, 4096))
    weights = [torch.randint(-8, 8, (width, width), device=place.device, dtype=torch.int8)
               for _ in range(2)]  # fmt: skip
    scales = [torch.rand(width, device=place.device) * 0.01 for _ in weights]

    def hadamard(x: Tensor) -> Tensor:
        rows, size, step = x.shape[0], x.shape[-1], 1
        while step < size:
            x = x.view(rows, size // (2 * step), 2, step)
            a, b = x[:, :, 0], x[:, :, 1]
            x = torch.stack([a + b, a - b], 2)
            step *= 2
        return x.reshape(rows, size) * size**-0.5

    def linear(x: Tensor, w: Tensor, scale: Tensor) -> Tensor:
        turned = hadamard(x.float())
        by = turned.abs().amax(-1, keepdim=True).clamp(min=1e-5) / 7
        kept = (turned / by).round().clamp(-8, 7).to(torch.int8)
        return (torch._int_mm(kept, w.t()).float() * by * scale).to(x.dtype)

    def block(x: Tensor) -> Tensor:
        for w, scale in zip(weights, scales, strict=True):
            x = x + linear(F.rms_norm(x, (width,)), w, scale)
        return x

    return infer(compile, block, place.normal(tokens, width))


@program
def cache_two_bits_decode(compile: Compile, place: Place) -> Step:
    """KIVI: keys in two bits by channel, values by token, the last ones as they are; one token."""
    batch, heads, length, size, last = place.of((1, 2, 32, 16, 4), (8, 32, 4096, 128, 32))

    def packed(x: Tensor, axis: int) -> tuple[Tensor, Tensor, Tensor]:
        parts = x.float().unflatten(axis, (-1, 32 if not place.small else 4))
        axis = axis if axis < 0 else axis + 1
        low, high = parts.amin(axis, keepdim=True), parts.amax(axis, keepdim=True)
        scale = ((high - low) / 3).clamp(min=1e-5)
        code = ((parts - low) / scale).round().clamp(0, 3).to(torch.uint8)
        code = code.flatten(-2) if axis == -1 else code.flatten(2, 3)
        code = code.unflatten(-1, (-1, 4))
        word = code[..., 0] | code[..., 1] << 2 | code[..., 2] << 4 | code[..., 3] << 6
        return word, scale.to(x.dtype), low.to(x.dtype)

    def unpacked(word: Tensor, scale: Tensor, low: Tensor, axis: int) -> Tensor:
        shift = torch.tensor([0, 2, 4, 6], device=word.device, dtype=torch.uint8)
        code = (word[..., None] >> shift & 3).flatten(-2)
        parts = code.unflatten(axis, (-1, 32 if not place.small else 4)).to(scale.dtype)
        whole = parts * scale + low
        return whole.flatten(-2) if axis == -1 else whole.flatten(2, 3)

    keys, values = (place.normal(batch, heads, length, size) for _ in range(2))
    k_packed, v_packed = packed(keys, 2), packed(values, -1)
    late_k, late_v = (place.normal(batch, heads, last, size) for _ in range(2))

    def attend(q: Tensor) -> Tensor:
        k = torch.cat([unpacked(*k_packed, 2), late_k], 2)
        v = torch.cat([unpacked(*v_packed, -1), late_v], 2)
        weight = (q @ k.transpose(-1, -2) * size**-0.5).float().softmax(-1).to(q.dtype)
        return weight @ v

    return infer(compile, attend, place.normal(batch, heads, 1, size))


@program
def codebooks_weights_decode(compile: Compile, place: Place) -> Step:
    """AQLM: a weight's eight columns are the sum of two entries of codebooks; one token."""
    width, hidden = place.of((16, 32), (4096, 11008))

    def layer(rows: int, columns: int) -> tuple[Tensor, Tensor, Tensor]:
        codes = place.integers(256, rows, columns // 8, 2).to(torch.uint8)
        return codes, place.normal(2, 256, 8) * columns**-0.5, place.normal(rows, 1).abs()

    layers = [layer(hidden, width), layer(width, hidden)]

    def linear(x: Tensor, codes: Tensor, books: Tensor, scale: Tensor) -> Tensor:
        parts = sum(books[n][codes[..., n].long()] for n in range(2))
        return F.linear(x, parts.flatten(1) * scale)  # type: ignore[union-attr]

    def block(x: Tensor) -> Tensor:
        return x + linear(F.gelu(linear(x, *layers[0])), *layers[1])

    return infer(compile, block, place.normal(1, width))


@program
def four_bits_normal_lora_train(compile: Compile, place: Place) -> Step:
    """NF4 weights with doubly quantized scales, by hand, with DoRA's low rank and magnitudes."""
    tokens, width, rank = place.of((4, 64, 2), (4096, 4096, 16))
    table = torch.tensor(
        [-1.0, -0.6962, -0.5251, -0.3949, -0.2844, -0.1848, -0.0911, 0.0, 0.0796, 0.1609, 0.2461,
         0.3379, 0.4407, 0.5626, 0.723, 1.0], device=place.device)  # fmt: skip

    class Dora(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            blocks = width * width // 64
            self.register_buffer("codes", place.integers(256, width * width // 2).to(torch.uint8))
            self.register_buffer("by", place.integers(256, blocks).to(torch.uint8))
            self.register_buffer("second", torch.rand(max(blocks // 256, 1), device=place.device))
            self.down = nn.Parameter(place.normal(rank, width) * width**-0.5)
            self.up = nn.Parameter(place.normal(width, rank) * 0.01)
            self.size = nn.Parameter(torch.rand(width, device=place.device).to(place.half))

        def forward(self, x: Tensor) -> Tensor:
            scale = (self.by.float().view(len(self.second), -1) - 128) * self.second[:, None] / 128
            both = torch.stack([self.codes >> 4, self.codes & 15], -1).long()
            whole = (table[both].view(-1, 64) * scale.view(-1, 1) * width**-0.5).to(x.dtype)
            whole = whole.view(width, width)
            norm = (whole + self.up @ self.down).float().norm(dim=1).detach() + 1e-6
            by = (self.size / norm).to(x.dtype)
            return by * (F.linear(x, whole) + F.linear(F.linear(x, self.down), self.up))

    model = nn.Sequential(Dora(), nn.SiLU(), Dora())
    return train(compile, model, place.normal(tokens, width))
