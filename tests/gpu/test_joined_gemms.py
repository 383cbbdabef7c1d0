"""GEMMs of one input whose weights lie in order in memory are one GEMM; else they are not."""

from __future__ import annotations

import copy
import importlib
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import dynamo
from inductor.operators.joined_gemms import OPERATOR
from tests.gpu.support import DEVICE, DTYPES, assert_near, data, exactly, left_uncompiled

SIZE, HEADS = 256, 4


class Attention(nn.Module):
    def __init__(self, bias: bool, dtype: torch.dtype, gap: int = 0) -> None:
        """gap: elements of memory between the weights."""
        super().__init__()
        self.parts = nn.ModuleList(nn.Linear(SIZE, SIZE, bias) for _ in range(3)).to(DEVICE, dtype)
        for name in ("weight", "bias") if bias else ("weight",):
            own = [getattr(part, name) for part in self.parts]
            whole = torch.cat([F.pad(each.detach().flatten(), (0, gap)) for each in own])
            for part, each in zip(whole.chunk(3), own, strict=True):
                each.data = part[: each.numel()].view(each.shape)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part(x).view(*x.shape[:2], HEADS, -1).transpose(1, 2) for part in self.parts)
        return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape) + x


@pytest.fixture
def joined(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many joined GEMMs each graph has."""
    seen: list[int] = []
    where = importlib.import_module("inductor.driver.inference")
    before = where.join_gemms

    def spying(module: torch.fx.GraphModule, *rest: Any) -> torch.fx.GraphModule:
        module = before(module, *rest)
        seen.append(len(module.graph.find_nodes(op="call_function", target=OPERATOR)))
        return module

    monkeypatch.setattr(where, "join_gemms", spying)
    dynamo.reset()
    return seen


def check(model: nn.Module, compiled: Any, dtype: torch.dtype) -> None:
    exact = copy.deepcopy(model).double()
    with torch.no_grad():
        for _ in range(3):
            x = data(2, 48, SIZE, dtype=dtype)
            assert_near(compiled(x), model(x), exact(exactly(x)), slack=16.0)
    assert not left_uncompiled()


@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype)[6:])
def test_weights_in_order(dtype: torch.dtype, bias: bool, mode: str | None, joined: list[int]) -> None:
    model = Attention(bias, dtype)
    compiled = dynamo.compile(model, mode=mode)
    check(model, compiled, dtype)
    assert joined == [1]
    with torch.no_grad():  # in place: the same memory
        model.parts[1].weight.mul_(-0.5)
    check(model, compiled, dtype)
    apart = data(3, SIZE + 1, SIZE, dtype=dtype)[:, :SIZE] / 16
    for part, weight in zip(model.parts, apart, strict=True):
        part.weight.data = weight
    check(model, compiled, dtype)


def test_weights_apart(joined: list[int]) -> None:
    model = Attention(True, torch.float16, gap=64)
    check(model, dynamo.compile(model), torch.float16)
    assert joined == [0]


def test_biases_apart(joined: list[int]) -> None:
    model = Attention(True, torch.float16)
    biases = [part.bias.detach().clone() for part in model.parts[::-1]]
    for part, bias in zip(model.parts, biases[::-1], strict=True):
        part.bias.data = bias
    check(model, dynamo.compile(model), torch.float16)
    assert joined == [1]
