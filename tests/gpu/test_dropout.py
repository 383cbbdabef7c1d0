"""Dropout in kernels of our own: eager's masks, bit by bit, eager's generator, and less memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import dynamo
from inductor.driver import cuda
from inductor.runtime.dropout_state import why_not
from tests.gpu.support import DEVICE, DTYPES, HALVES, data, left_uncompiled

GRID = 132 * 8 * 256  # threads of ATen's kernel on an H200; other devices have other numbers, which is all right
SIZES = [(1,), (7,), (33, 1001), (64, 768), (129, 3, 50), (4, 4096, 258), (GRID + 3,), (9 * GRID + 8,), (3, 5 * GRID + 1)]
MODES = [None, "reduce-overhead"]


@pytest.fixture
def texts(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The generated modules."""
    found: list[str] = []
    made = cuda.print_python_wrapper

    def keep(*args: Any) -> str:
        found.append(made(*args))
        return found[-1]

    monkeypatch.setattr(cuda, "print_python_wrapper", keep)
    yield found


def state() -> tuple[int, int]:
    generator = torch.cuda.default_generators[torch.cuda.current_device()]
    return generator.initial_seed(), generator.get_offset()


def test_atens_dropout_is_known_here() -> None:
    assert why_not(torch.device(DEVICE, torch.cuda.current_device())) == ""


@pytest.mark.parametrize("rate", [0.1, 0.5])
@pytest.mark.parametrize("dtype", DTYPES)
def test_masks(dtype: torch.dtype, rate: float, texts: list[str]) -> None:
    def program(x: torch.Tensor) -> Any:
        return F.dropout(x + 1, rate), F.dropout(x.exp().t(), rate) if x.dim() == 2 else x

    for size in SIZES:
        dynamo.reset()
        compiled = dynamo.compile(program, fullgraph=True, backend="inductor", dynamic=False)
        for seed in (3, 1 << 63):
            x = torch.zeros(size, device=DEVICE, dtype=dtype)
            torch.manual_seed(seed)
            torch.rand(5, device=DEVICE)
            wanted, after = program(x), state()
            torch.manual_seed(seed)
            torch.rand(5, device=DEVICE)
            found = compiled(x)
            assert state() == after, size
            for one, other in zip(found, wanted, strict=True):
                assert torch.equal(one, other) and one.stride() == other.stride(), size
        odd = len(size) == 2 and x.numel() % 2 == 1  # eager goes by indices there
        assert "k_keep(" in texts[-1] and ("native_dropout" in texts[-1]) == odd
    assert not left_uncompiled(), left_uncompiled()


def layer(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, p: float = 0.1) -> torch.Tensor:
    hidden = F.dropout(F.gelu(F.linear(x, w, b)), p)
    return F.layer_norm(x + F.dropout(F.linear(hidden, w), p), (x.shape[-1],))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_training(dtype: torch.dtype, mode: str | None, texts: list[str]) -> None:
    """Each step draws another mask, eager's; gradients are near, and the generator is where it is in eager."""
    width = 256
    torch.manual_seed(0)
    weights = [data(width, width, dtype=dtype) / 16, data(width, dtype=dtype)]
    ours, theirs = ([w.clone().requires_grad_() for w in weights] for _ in range(2))
    compiled = dynamo.compile(layer, fullgraph=True, backend="inductor", mode=mode, dynamic=False)
    factors = torch.linspace(-1, 1, width, device=DEVICE)  # squares of what is normed have no gradient
    close = {torch.bfloat16: 5e-2, torch.float16: 1e-2, torch.float32: 1e-3}[dtype]
    for n in range(8):
        results, states = [], []
        x = data(4, 128, width, dtype=dtype)
        for call, owned in ((compiled, ours), (layer, theirs)):
            torch.manual_seed(n // 4)
            torch.rand(8 * (n % 4), device=DEVICE)
            given = x.clone().requires_grad_()
            for w in owned:
                w.grad = None
            out = call(given, *owned)
            (out.float() * factors).sum().backward()
            results.append([out.detach().clone(), given.grad.clone(), *[w.grad.clone() for w in owned]])
            states.append(state())
        assert states[0] == states[1]
        for one, other in zip(*results, strict=True):
            scale = other.float().abs().max()
            error = (one.float() - other.float()).abs().max() / scale
            assert error < close, error
    assert not left_uncompiled(), left_uncompiled()
    assert all("k_keep(" in text and "native_dropout" not in text for text in texts)
    assert "k_keep_four(" in texts[-1]


@pytest.mark.parametrize("mode", MODES)
def test_among_others_that_draw(mode: str | None) -> None:
    """Numbers that ATen draws before, between and behind, in the graph and beside it."""
    def program(x: torch.Tensor) -> Any:
        a = F.dropout(x + 1, 0.3)
        noise = torch.rand_like(a)
        b = F.dropout(a.cos() + noise, 0.2)
        c = torch.bernoulli(noise)
        return a, b, F.dropout(c + b + 2, 0.5), F.dropout(b * 2 + 1, 0.5), noise, c

    compiled = dynamo.compile(program, fullgraph=True, backend="inductor", mode=mode, dynamic=False)
    x = torch.zeros(1000, 331, device=DEVICE)
    masks = []
    for run in range(2):
        torch.manual_seed(5)
        found = []
        for n in range(8):
            results = (program if run else compiled)(x)
            found.append([r.clone() for r in results] + [torch.rand(n + 1, device=DEVICE)])
            if n == 4:
                torch.manual_seed(11)
        masks.append(([r for results in found for r in results], state()))
    assert masks[0][1] == masks[1][1]
    for n, (one, other) in enumerate(zip(masks[0][0], masks[1][0], strict=True)):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-6, msg=lambda text, n=n: f"call {n // 7}, {n % 7}: {text}")
    assert not torch.equal(masks[0][0][0], masks[0][0][7])
    assert not left_uncompiled(), left_uncompiled()


class Attention(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (y.view(*y.shape[:2], -1, 64).transpose(1, 2) for y in self.qkv(self.norm(x)).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, dropout_p=0.1).transpose(1, 2).flatten(2)
        return x + F.dropout(self.out(y), 0.1)


@pytest.mark.parametrize("mode", MODES)
def test_beside_attention_that_drops(mode: str | None, texts: list[str]) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(Attention(128), Attention(128)).to(DEVICE, torch.bfloat16)
    compiled = dynamo.compile(module, fullgraph=True, backend="inductor", mode=mode, dynamic=False)
    for n in range(6):
        x = data(2, 64, 128, dtype=torch.bfloat16)
        found = []
        for call in (compiled, module):
            torch.manual_seed(n)
            module.zero_grad(set_to_none=True)
            out = call(x)
            out.float().square().mean().backward()
            grads = torch.cat([p.grad.reshape(-1).float() for p in module.parameters()])
            found.append((out.detach().float().clone(), grads / grads.abs().max(), state()))
        assert found[0][2] == found[1][2]
        torch.testing.assert_close(found[0][0], found[1][0], rtol=0, atol=8e-2)
        torch.testing.assert_close(found[0][1], found[1][1], rtol=0, atol=3e-2)
    assert any("k_keep(" in text for text in texts)


def peak(step: Callable[[], Any]) -> int:
    for _ in range(4):
        step()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


@pytest.mark.parametrize("dtype", HALVES)
def test_no_masks_are_kept(dtype: torch.dtype) -> None:
    """A step with kept masks needs at least their bytes more."""
    x = data(64, 128, 1024, dtype=dtype).requires_grad_()
    masks = 4 * x.numel()

    def program(x: torch.Tensor) -> torch.Tensor:
        for _ in range(4):
            x = F.dropout(x.sin(), 0.1)
        return x

    def step_of(call: Callable[..., torch.Tensor]) -> Callable[[], None]:
        return lambda: call(x).sum().backward()

    peaks = []
    for options in ({}, {"leave_out": "dropout"}):
        dynamo.reset()
        peaks.append(peak(step_of(dynamo.compile(program, backend="inductor", options=options, dynamic=False))))
    assert peaks[0] + masks * 0.9 <= peaks[1], (peaks, masks)
    assert peaks[0] < peak(step_of(program))


def test_without_gradients_and_by_a_module() -> None:
    module = nn.Sequential(nn.Linear(64, 64), nn.Dropout(0.5), nn.ReLU(), nn.Dropout(0.1)).to(DEVICE)
    compiled = dynamo.compile(module, fullgraph=True, backend="inductor", dynamic=False)
    x = data(32, 64)
    with torch.no_grad():
        torch.manual_seed(1)
        wanted = module(x)
        torch.manual_seed(1)
        torch.testing.assert_close(compiled(x), wanted)
        module.eval()
        torch.testing.assert_close(compiled(x), module(x))
