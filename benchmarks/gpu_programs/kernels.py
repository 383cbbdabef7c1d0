"""Kernels that users bring: Triton of their own and of libraries, attention by description."""

from __future__ import annotations

import importlib.util
import os
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.gpu_programs.program import (
    Compile,
    Place,
    Step,
    Unfit,
    built,
    infer,
    program,
    train,
)  # fmt: skip


def user_kernels(place: Place) -> Any:
    """The module of kernels; on a CPU only Triton's interpreter runs them."""
    if place.device != "cuda" and os.environ.get("TRITON_INTERPRET") != "1":
        raise Unfit("Triton kernels are for a GPU")
    if importlib.util.find_spec("triton") is None:
        raise Unfit("Triton is not installed")
    from benchmarks.gpu_programs import user_kernels

    return user_kernels


def factory(place: Place) -> dict[str, Any]:
    return {"bias": False, "device": place.device, "dtype": place.half}


@program
def kernel_norms_train(compile: Compile, place: Place) -> Step:
    """A norm of both directions in Triton and an opaque gated product, between linear layers."""
    kernels = user_kernels(place)
    width, inner, rows, depth = place.of((32, 48, 8, 2), (2048, 5632, 8192, 4))

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(width, device=place.device, dtype=place.half))
            self.gate = nn.Linear(width, inner, **factory(place))
            self.up = nn.Linear(width, inner, **factory(place))
            self.down = nn.Linear(inner, width, **factory(place))

        def forward(self, x: Tensor) -> Tensor:
            normed = kernels.RmsNorm.apply(x, self.weight, 1e-6)
            return x + self.down(kernels.gated(self.gate(normed), self.up(normed)))

    model = nn.Sequential(*(Block() for _ in range(depth)))
    return train(compile, model, place.normal(rows, width))


@program
def kernel_softmax_train(compile: Compile, place: Place) -> Step:
    """Attention whose softmax is a Triton operator with a derivative of torch."""
    kernels = user_kernels(place)
    batch, heads, length, head = place.of((2, 2, 12, 8), (4, 16, 1024, 64))
    width = heads * head

    class Attend(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = nn.Linear(width, 3 * width, **factory(place))
            self.out = nn.Linear(width, width, **factory(place))

        def forward(self, x: Tensor) -> Tensor:
            q, k, v = self.qkv(x).view(batch, length, 3, heads, head).permute(2, 0, 3, 1, 4)
            p = kernels.softmax(q @ k.mT, head**-0.5)
            return self.out((p @ v).transpose(1, 2).reshape(batch, length, width))

    return train(compile, Attend(), place.normal(batch, length, width))


@program
def kernel_product_autotuned(compile: Compile, place: Place) -> Step:
    """A product with autotuning and a grid of a lambda, and what fuses before and after."""
    kernels = user_kernels(place)
    rows, width = place.of((16, 32), (8192, 4096))
    first, second = (place.normal(width, width) * width**-0.5 for _ in range(2))
    bias = place.normal(width)

    def forward(x: Tensor) -> Tensor:
        y = kernels.linear(F.rms_norm(x, (width,)), first, bias)
        y = F.gelu(y, approximate="tanh")
        return x + kernels.linear(y, second, bias) * 0.5

    return infer(compile, forward, place.normal(rows, width))


@program
def kernel_entropy_train(compile: Compile, place: Place) -> Step:
    """Cross entropy whose forward leaves the gradient in the place of the logits."""
    kernels = user_kernels(place)
    rows, width, words = place.of((8, 16, 101), (4096, 2048, 50304))
    targets = place.integers(words, rows)
    head = nn.Linear(width, words, **factory(place))
    x = place.normal(rows, width)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.head = nn.Linear(width, width, **factory(place)), head

        def forward(self, x: Tensor) -> Tensor:
            logits = self.head(F.silu(self.first(x)) + x)
            return kernels.CrossEntropy.apply(logits, targets)  # type: ignore[no-any-return]

    return train(compile, Model(), x, criterion=lambda loss: loss)


@program
def kernel_attention_prefill(compile: Compile, place: Place) -> Step:
    """Heads turned in place under `torch.cuda.device`, then an attention kernel."""
    kernels = user_kernels(place)
    batch, heads, length, head = place.of((2, 2, 32, 16), (4, 16, 2048, 128))
    width = heads * head
    qkv = nn.Linear(width, 3 * width, **factory(place))
    out = nn.Linear(width, width, **factory(place))
    cos, sin = (place.normal(length, head // 2) for _ in range(2))

    def forward(x: Tensor) -> Tensor:
        q, k, v = qkv(x).view(batch, length, 3, heads, head).unbind(2)
        q, k = q.contiguous(), k.contiguous()
        kernels.rotate(q, cos, sin)
        k = kernels.rotate(k * head**-0.25, cos, sin)
        y = kernels.attention(*(each.transpose(1, 2) for each in (q, k, v)))
        return x + out(y.transpose(1, 2).reshape(batch, length, width))

    return infer(compile, forward, place.normal(batch, length, width))


@program
def kernel_segments(compile: Compile, place: Place) -> Step:
    """Atomic sums into a buffer that is made by `torch.zeros` in the same function."""
    kernels = user_kernels(place)
    rows, width, segments = place.of((24, 8, 5), (200_000, 256, 20_000))
    which, x = place.integers(segments, rows), place.normal(rows, width, dtype=torch.float32)

    def forward(x: Tensor, which: Tensor) -> Tensor:
        x = F.leaky_relu(x * 1.5 - 0.1)
        y = torch.zeros(segments, width, device=x.device)
        kernels.sum_segments[lambda meta: (rows, -(-width // meta["BLOCK"]))](x, which, y, width)
        ones = torch.ones_like(x[:, 0])
        count = torch.zeros(segments, device=x.device).index_add_(0, which, ones)
        return F.normalize(y / count.clamp(min=1).unsqueeze(1), dim=-1)

    return infer(compile, forward, x, which)


@program
def kernel_int4_decode(compile: Compile, place: Place) -> Step:
    """A word through layers whose weights of four bits a kernel reads, in a CUDA graph."""
    kernels = user_kernels(place)
    width, depth = place.of((64, 2), (4096, 16))
    packed = [torch.randint(0, 256, (width, width // 2), dtype=torch.uint8, device=place.device)
              for _ in range(depth)]  # fmt: skip
    scales = [place.normal(width, width // 32) * 0.2 * width**-0.5 for _ in range(depth)]

    def forward(x: Tensor) -> Tensor:
        for weight, scale in zip(packed, scales, strict=True):
            y = torch.empty_like(x)
            kernels.read_int4[(width // 16,)](F.rms_norm(x, (width,)), weight, scale, y, width,
                                              width, GROUP=32, R=16)  # fmt: skip
            x = x + F.silu(y)
        return x

    return infer(compile, forward, place.normal(width), mode="reduce-overhead")


@program
def liger_block_train(compile: Compile, place: Place) -> Step:
    """Liger's norm, gated layer and fused head with loss."""
    user_kernels(place)
    from liger_kernel.transformers import (
        LigerFusedLinearCrossEntropyLoss,
        LigerRMSNorm,
        LigerSwiGLUMLP,
    )

    width, inner, rows, words = place.of((32, 48, 8, 101), (2048, 8192, 4096, 50304))

    class Sizes:
        hidden_size, intermediate_size, hidden_act = width, inner, "silu"

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norms = nn.ModuleList(LigerRMSNorm(width) for _ in range(4))
            self.layers = nn.ModuleList(LigerSwiGLUMLP(Sizes()) for _ in range(4))
            self.head = nn.Linear(width, words, bias=False)
            self.loss = LigerFusedLinearCrossEntropyLoss()

        def forward(self, x: Tensor, targets: Tensor) -> Tensor:
            for norm, layer in zip(self.norms, self.layers, strict=True):
                x = x + layer(norm(x))
            return self.loss(self.head.weight, x.view(-1, width), targets)  # type: ignore[no-any-return]

    model = built(place, Model)
    x, targets = place.normal(1, rows, width), place.integers(words, rows)
    return train(compile, model, x, targets, criterion=lambda loss: loss)


@program
def liger_llama_train(compile: Compile, place: Place) -> Step:
    """A model of transformers, patched by Liger."""
    user_kernels(place)
    from liger_kernel.transformers import apply_liger_kernel_to_qwen3

    from benchmarks.gpu_programs.decoders import language_model, words

    apply_liger_kernel_to_qwen3()
    model = language_model(place, "Qwen3").train()
    ids = words(place, 2, place.of(12, 1024))
    return train(compile, model, criterion=lambda out: out.loss, input_ids=ids, labels=ids,
                 use_cache=False)  # fmt: skip


def of_fla(name: str, **options: Any) -> Any:
    """A layer of flash-linear-attention in training."""

    def build(compile: Compile, place: Place) -> Step:
        user_kernels(place)
        from fla import layers

        width, heads = place.of((64, 2), (2048, 16))
        named = {"hidden_size": width, "num_heads": heads, "layer_idx": 0} | options
        model = built(place, getattr(layers, name), **named)
        x = place.normal(place.of(1, 4), place.of(64, 2048), width)
        return train(compile, model, x, criterion=lambda out: out[0].float().square().mean())

    build.__name__ = f"fla_{name.lower()}_train"
    build.__module__ = __name__
    return build


program(of_fla("GatedLinearAttention"))
program(of_fla("MultiScaleRetention"))
program(of_fla("DeltaNet"))
program(of_fla("GatedDeltaNet", head_dim=64))
program(of_fla("RWKV7Attention", head_dim=64, num_heads=None))


@program
def flex_document_train(compile: Compile, place: Place) -> Step:
    """Packed documents, causal and a window, by a mask of blocks that is made in each step."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    heads, groups, length, head = place.of((4, 2, 128, 16), (16, 4, 8192, 128))
    document = (torch.arange(length, device=place.device) * 5) // length

    def visible(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return (q >= k) & (document[q] == document[k]) & (q - k < length // 4)

    class Attend(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.qkv = nn.Linear(heads * head, (heads + 2 * groups) * head, **factory(place))
            self.out = nn.Linear(heads * head, heads * head, **factory(place))

        def forward(self, x: Tensor, mask: Any) -> Tensor:
            q, k, v = self.qkv(x).view(1, length, -1, head).transpose(1, 2).split(
                [heads, groups, groups], dim=1)  # fmt: skip
            y = flex_attention(q, k, v, block_mask=mask, enable_gqa=True)
            return self.out(y.transpose(1, 2).reshape(1, length, heads * head))

    if place.small:
        raise Unfit("a CPU has no gradient of flexible attention")
    mask = create_block_mask(visible, None, None, length, length, device=place.device)
    return train(compile, Attend(), place.normal(1, length, heads * head), mask)


@program
def flex_biases(compile: Compile, place: Place) -> Step:
    """Linear biases, a soft cap and a table of relative positions, as functions of a score."""
    from torch.nn.attention.flex_attention import flex_attention

    batch, heads, length, head = place.of((2, 4, 128, 16), (4, 16, 2048, 64))
    slopes = torch.exp2(-torch.arange(1, heads + 1, device=place.device) * 8.0 / heads)
    table = place.normal(heads, 2 * length, dtype=torch.float32)

    def alibi(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return 20 * torch.tanh(score / 20) - slopes[h] * (q - k).abs()

    def relative(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return torch.where(q >= k, score + table[h, q - k + length], float("-inf"))

    def forward(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        y = flex_attention(q, k, v, score_mod=alibi)
        return flex_attention(y, k, v, score_mod=relative)

    return infer(compile, forward, *(place.normal(batch, heads, length, head) for _ in range(3)))


@program
def grouped_query_train(compile: Compile, place: Place) -> Step:
    """The attention of torch with few heads of keys, norms of heads and gates behind it."""
    batch, heads, groups, length, head = place.of((2, 4, 2, 12, 8), (2, 32, 4, 4096, 128))
    width = heads * head // 2

    class Attend(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q = nn.Linear(width, 2 * heads * head, **factory(place))
            self.kv = nn.Linear(width, 2 * groups * head, **factory(place))
            self.out = nn.Linear(heads * head, width, **factory(place))

        def forward(self, x: Tensor) -> Tensor:
            q, gate = self.q(x).view(batch, length, heads, 2 * head).chunk(2, dim=-1)
            k, v = self.kv(x).view(batch, length, 2, groups, head).unbind(2)
            q, k = (F.rms_norm(each, (head,)).transpose(1, 2) for each in (q, k))
            y = F.scaled_dot_product_attention(q, k, v.transpose(1, 2), is_causal=True,
                                               enable_gqa=True)  # fmt: skip
            y = y.transpose(1, 2) * gate.sigmoid()
            return self.out(y.reshape(batch, length, heads * head))

    return train(compile, Attend(), place.normal(batch, length, width))


@program
def nested_train(compile: Compile, place: Place) -> Step:
    """Sentences of several lengths as a jagged tensor, through norm, attention and layers."""
    if place.device != "cuda":
        raise Unfit("a CPU has no attention of jagged tensors")
    heads, head, batch, most = place.of((2, 8, 3, 12), (12, 64, 64, 512))
    width = heads * head
    lengths = (place.integers(most - 1, batch) + 1).tolist()
    parts = [place.normal(length, width) for length in lengths]
    nested = torch.nested.nested_tensor(parts, layout=torch.jagged)

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            named = factory(place)
            self.norm = nn.LayerNorm(width, device=place.device, dtype=place.half)
            self.q, self.k, self.v, self.out = (nn.Linear(width, width, **named) for _ in range(4))
            self.up = nn.Linear(width, 4 * width, **named)
            self.down = nn.Linear(4 * width, width, **named)

        def forward(self, x: Tensor) -> Tensor:
            normed = self.norm(x)
            q, k, v = (f(normed).unflatten(-1, [heads, head]).transpose(1, 2)
                       for f in (self.q, self.k, self.v))  # fmt: skip
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(y.transpose(1, 2).flatten(-2))
            return x + self.down(F.gelu(self.up(x)))

    model = Block()
    return train(compile, model, nested, criterion=lambda y: y.values().float().square().mean())
