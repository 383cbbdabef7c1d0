"""Each way to compute attention: forward, and gradients where they are wanted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

import dynamo
from tests.gpu.support import DEVICE, HALVES, check

BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "math": SDPBackend.MATH,
}
MASKS = ("none", "causal", "bool", "bias")
B, H, S = 2, 4, 130


def program(mask: str, grouped: bool, gradients: bool) -> Callable[..., Any]:
    def attend(x: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, m: torch.Tensor | None) -> Any:
        q = q * x
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=m, is_causal=mask == "causal", enable_gqa=grouped)
        return out.transpose(1, 2).reshape(B, S, -1) * 2

    def train(x: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, m: torch.Tensor | None) -> Any:
        out = attend(x, q, k, v, m)
        wanted = [q, k, v] + ([m] if m is not None and m.is_floating_point() else [])
        return out, torch.autograd.grad(out.square().sum(), wanted)

    return train if gradients else attend


def inputs(mask: str, grouped: bool, gradients: bool, size: int, dtype: torch.dtype) -> tuple[Any, ...]:
    def made(heads: int) -> torch.Tensor:
        lying = torch.randn(B, S, heads, size, device=DEVICE).to(dtype)  # as a projection gives it
        return lying.transpose(1, 2).detach().requires_grad_(gradients)

    other = H // 2 if grouped else H
    m: torch.Tensor | None = None
    if mask == "bool":
        m = torch.rand(B, 1, S, S, device=DEVICE) > 0.3
        m[..., 0] = True
    elif mask == "bias":
        m = torch.randn(1, H, S, S, device=DEVICE).to(dtype).requires_grad_(gradients)
    return torch.ones(size, device=DEVICE, dtype=dtype), made(H), made(other), made(other), m


def run(backend: str, mask: str, grouped: bool, gradients: bool, size: int, dtype: torch.dtype) -> None:
    f = program(mask, grouped, gradients)
    with sdpa_kernel([BACKENDS[backend]]):
        try:
            f(*inputs(mask, grouped, gradients, size, dtype))
        except RuntimeError as error:
            pytest.skip(f"eager has no such kernel: {error!s:.80}")

        def exactly(x: torch.Tensor, *args: Any) -> Any:
            with sdpa_kernel([SDPBackend.MATH] if x.dtype == torch.float64 else [BACKENDS[backend]]):
                return f(x, *args)

        check(f, lambda: inputs(mask, grouped, gradients, size, dtype), reference=exactly, calls=2, slack=8.0)


@pytest.mark.parametrize("gradients", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_masks(backend: str, mask: str, gradients: bool) -> None:
    for dtype in (*HALVES, torch.float32) if backend in ("math", "efficient") else HALVES:
        run(backend, mask, False, gradients, 64, dtype)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("side", ["start", "end", "hole"])
def test_keys_that_are_hidden_as_a_whole(side: str, causal: bool) -> None:
    """Blocks of keys at the start or the end of a sequence, which kernels leave out."""
    lengths = torch.tensor([S, 70], device=DEVICE)[:, None]
    places = torch.arange(S, device=DEVICE)
    seen = {"end": places < lengths, "start": places >= S - lengths, "hole": places != lengths - 60}[side]

    def attend(x: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, m: torch.Tensor) -> Any:
        mask = m[:, None, None, :].expand(B, 1, S, S)
        if causal:
            mask = mask & torch.ones(S, S, dtype=torch.bool, device=DEVICE).tril()
        out = F.scaled_dot_product_attention(q * x, k, v, attn_mask=mask)
        out = out.transpose(1, 2).reshape(B, S, -1)
        return torch.where(m[:, :, None], out, 0.0) * 2  # of a query that sees nothing: as one likes

    for dtype in HALVES:
        def made(dtype: torch.dtype = dtype) -> tuple[Any, ...]:
            return (*inputs("none", False, False, 64, dtype)[:4], seen)

        check(attend, made, calls=2, slack=8.0)


@pytest.mark.parametrize("gradients", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("size", [32, 72, 80, 128, 256])
@pytest.mark.parametrize("backend", BACKENDS)
def test_head_sizes(backend: str, size: int, gradients: bool) -> None:
    run(backend, "causal", False, gradients, size, torch.bfloat16)


@pytest.mark.parametrize("gradients", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("mask", ["none", "causal", "bool"])
@pytest.mark.parametrize("backend", ["flash", "cudnn", "math"])
def test_groups(backend: str, mask: str, gradients: bool) -> None:
    run(backend, mask, True, gradients, 64, torch.bfloat16)


@pytest.mark.parametrize("gradients", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("mask", MASKS)
def test_as_torch_chooses(mask: str, gradients: bool) -> None:
    f = program(mask, False, gradients)
    check(f, lambda: inputs(mask, False, gradients, 64, torch.float16), calls=2, slack=8.0)


@pytest.mark.parametrize("queries", [1, 5])
@pytest.mark.parametrize("mask", ["none", "keys", "scores", "bias"])
@pytest.mark.parametrize("dtype", HALVES)
def test_few_queries_of_many_keys(dtype: torch.dtype, mask: str, queries: int) -> None:
    """As in decoding, with a cache of fewer heads, which the program repeats where it masks keys."""
    keys, heads, few, size = 1100, 8, 2, 64

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, m: torch.Tensor | None) -> torch.Tensor:
        if mask == "keys":
            k, v = (x[:, :, None].expand(B, few, heads // few, keys, size).reshape(B, heads, keys, size) for x in (k, v))
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=m, enable_gqa=mask != "keys")
        return out.transpose(1, 2).reshape(B, queries, -1) * 2

    def make() -> tuple[Any, ...]:
        q = torch.randn(B, queries, heads, size, device=DEVICE).to(dtype).transpose(1, 2)
        k, v = (torch.randn(B, few, keys, size, device=DEVICE).to(dtype) for _ in range(2))
        shape = {"keys": (B, 1, 1, keys), "scores": (B, 1, queries, keys), "bias": (1, heads, queries, keys)}
        m = None if mask == "none" else torch.randn(shape[mask], device=DEVICE).to(dtype)
        return q, k, v, m > -0.5 if m is not None and mask != "bias" else m

    check(attend, make, calls=2, slack=8.0)


@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
@pytest.mark.parametrize("keys", [512, 4096])
def test_layers_of_few_queries(keys: int, mode: str | None) -> None:
    """The last programs of each layer join what the others have found; on two streams at once, and again and again."""
    def layers(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
        for _ in range(6):
            q = q + F.scaled_dot_product_attention(q, k, v, attn_mask=m, enable_gqa=True)
        return q

    torch.manual_seed(0)
    q = torch.randn(8, 32, 1, 128, device=DEVICE, dtype=torch.bfloat16)
    k, v = (torch.randn(8, 8, keys, 128, device=DEVICE, dtype=torch.bfloat16) for _ in range(2))
    m = (torch.arange(keys, device=DEVICE) < keys // 3)[None, None, None]
    wanted = layers(*(x.double() for x in (q, k, v)), m)
    compiled = dynamo.compile(layers, **({"mode": mode} if mode else {}))
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    with torch.no_grad():
        first = compiled(q, k, v, m).clone()
        torch.testing.assert_close(first.double(), wanted, rtol=3e-2, atol=3e-2)
        for _ in range(30):
            torch.cuda.synchronize()
            found = []
            for stream in streams:
                with torch.cuda.stream(stream):
                    found.append(compiled(q, k, v, m).clone())
            torch.cuda.synchronize()
            assert all(torch.equal(each, first) for each in found)


@pytest.mark.parametrize("gradients", [False, True], ids=["inference", "training"])
def test_written_by_hand(gradients: bool) -> None:
    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        scores = (q @ k.transpose(-1, -2)) * 0.125 + bias
        return scores.float().softmax(-1).to(v.dtype) @ v

    def train(*args: torch.Tensor) -> Any:
        out = attend(*args)
        return out, torch.autograd.grad(out.square().sum(), args)

    def make() -> tuple[Any, ...]:
        _, q, k, v, m = inputs("bias", False, gradients, 64, torch.bfloat16)
        return q, k, v, m

    check(train if gradients else attend, make, calls=2, slack=8.0)


def padded(kind: str, padding: torch.Tensor) -> torch.Tensor:
    """A mask as transformers makes it inside of the program."""
    b = torch.arange(B, device=DEVICE)[:, None, None, None]
    q = torch.arange(S, device=DEVICE)[None, None, :, None]
    k = torch.arange(S, device=DEVICE)[None, None, None, :]
    seen = {"keys": q >= 0, "causal": k <= q, "window": (k <= q) & (k > q - 50)}[kind]
    return (q.new_ones((), dtype=torch.bool) & seen & padding[b, k]).expand(B, -1, S, S)


@pytest.mark.parametrize("gradients", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("kind", ["keys", "causal", "window"])
@pytest.mark.parametrize("dtype", HALVES)
def test_masks_made_in_the_program(kind: str, gradients: bool, dtype: torch.dtype) -> None:
    """Of the mask, our kernel reads what is no comparison of positions."""

    def attend(x: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, padding: torch.Tensor) -> Any:
        out = F.scaled_dot_product_attention(q * x, k, v, attn_mask=padded(kind, padding))
        out = out.transpose(1, 2).reshape(B, S, -1) * 2
        return (out, torch.autograd.grad(out.square().sum(), [q, k, v])) if gradients else out

    def make() -> tuple[Any, ...]:
        *given, _ = inputs("none", False, gradients, 64, dtype)
        padding = torch.rand(B, S, device=DEVICE) > 0.3
        padding[:, 0] = True
        return *given, padding

    check(attend, make, calls=2, slack=8.0)
