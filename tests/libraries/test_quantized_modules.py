"""Quantized modules as libraries write them: packed buffers, shapes as parameters, fake quantization."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import dynamo


class Params4bit(nn.Parameter):
    """A parameter of bytes with what is needed to unpack it, as bitsandbytes has it."""

    quant_state: dict[str, Any]

    def __new__(cls, data: torch.Tensor, state: dict[str, Any]) -> Params4bit:
        made = torch.Tensor._make_subclass(cls, data, False)
        made.quant_state = state
        return made

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


class LookedUp(nn.Module):
    def __init__(self, k: int, n: int) -> None:
        super().__init__()
        state = {"absmax": torch.rand(n * k // 64), "shape": (n, k), "code": torch.linspace(-1, 1, 16)}
        self.weight = Params4bit(torch.randint(0, 256, (n * k // 2, 1), dtype=torch.uint8), state)
        self.bias = nn.Parameter(torch.randn(n))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        state, packed = self.weight.quant_state, self.weight.flatten()
        places = torch.stack([packed >> 4, packed & 15], -1).flatten().int()
        weight = (state["code"][places].view(-1, 64) * state["absmax"][:, None]).view(state["shape"])
        return F.linear(x, weight, self.bias)


class Halves(nn.Module):
    """Two halves of the groups in one byte, and a dict of what belongs to them, as HQQ has it."""

    W_q: torch.Tensor

    def __init__(self, k: int, n: int, group: int = 16) -> None:
        super().__init__()
        count = n * k // group
        self.register_buffer("W_q", torch.randint(0, 256, (count // 2, group), dtype=torch.uint8))
        self.meta = {"shape": (n, k), "scale": torch.rand(count, 1), "zero": torch.rand(count, 1) * 15}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        packed, meta = self.W_q, self.meta
        made = torch.empty([2 * len(packed), packed.shape[1]], dtype=torch.uint8, device=packed.device)
        made[: len(packed)] = (packed & 0xF0) >> 4
        made[len(packed) :] = packed & 0x0F
        weight = ((made.to(x.dtype) - meta["zero"]) * meta["scale"]).reshape(meta["shape"])
        return x @ weight.t()


class Compressed(nn.Module):
    """The shape is a parameter of integers, as in compressed-tensors."""

    def __init__(self, k: int, n: int) -> None:
        super().__init__()
        self.packed = nn.Parameter(torch.randint(0, 2**31 - 1, (n, k // 8), dtype=torch.int32), False)
        self.scale = nn.Parameter(torch.rand(n, 4), False)
        self.shape = nn.Parameter(torch.tensor([n, k]), False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, k = (int(size) for size in self.shape)
        weight = torch.zeros((n, k), dtype=torch.int32, device=x.device)
        for place in range(8):
            weight[:, place::8] = (self.packed >> (4 * place)) & 15
        grouped = (weight.to(torch.int8) - 8).to(x.dtype).unflatten(-1, (4, -1)) * self.scale[..., None]
        return F.linear(x, grouped.flatten(-2))


class InSteps(nn.Module):
    """Scale and zero point are buffers."""

    scale: torch.Tensor
    zero: torch.Tensor

    def __init__(self, k: int, n: int) -> None:
        super().__init__()
        self.linear = nn.Linear(k, n)
        self.register_buffer("scale", torch.tensor(0.05))
        self.register_buffer("zero", torch.tensor(3, dtype=torch.int32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rounded = torch.fake_quantize_per_tensor_affine(x, self.scale, self.zero, -128, 127)  # type: ignore[call-overload]
        return self.linear(rounded)


@pytest.mark.parametrize("kind", [LookedUp, Halves, Compressed, InSteps])
def test_one_graph(kind: type[nn.Module]) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(kind(64, 32), nn.ReLU(), kind(32, 16))
    compiled = dynamo.compile(module, fullgraph=True)
    for rows in (3, 5, 7):
        x = torch.randn(rows, 64, requires_grad=True)
        found, expected = compiled(x), module(x)
        torch.testing.assert_close(found, expected)
        grads = (torch.autograd.grad(each.sin().sum(), x)[0] for each in (found, expected))
        torch.testing.assert_close(*grads)
    assert not dynamo.counters["not_compiled"]


def test_observers_that_give_their_statistics_a_size() -> None:
    """With a scale for each channel they are empty before the first call."""

    class Observed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(8, 16))
            for name in ("low", "high", "scale"):
                self.register_buffer(name, torch.empty(0))
            self.register_buffer("zero", torch.empty(0, dtype=torch.int32))
            self.register_buffer("on", torch.ones(1, dtype=torch.long))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            weight = torch.fused_moving_avg_obs_fake_quant(
                self.weight, self.on, self.on, self.low, self.high, self.scale, self.zero, 0.1, -128, 127, 0, True, True)
            return F.linear(x, weight)

    module = Observed()
    other = copy.deepcopy(module)
    compiled = dynamo.compile(module)
    for _ in range(3):
        x = torch.randn(4, 16)
        found, expected = compiled(x), other(x)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(
            torch.autograd.grad(found.sum(), module.weight), torch.autograd.grad(expected.sum(), other.weight))
        for ours, eager in zip(module.buffers(), other.buffers(), strict=True):
            assert torch.equal(ours, eager)
