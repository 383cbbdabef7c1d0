"""Autocast, inference mode and random state around the default backend."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import dynamo
from tests.common import new_cache


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Any) -> Any:
    with new_cache(tmp_path):
        yield


def test_compiling_draws_no_random_numbers() -> None:
    x, w, b = torch.randn(16, 16), torch.randn(16, 16), torch.randn(16)
    compiled = dynamo.compile(lambda x, w, b: F.linear(x, w, b).relu(), backend="inductor")
    before = torch.get_rng_state()
    compiled(x, w, b)
    assert torch.equal(before, torch.get_rng_state())


def test_dropout_draws_what_eager_draws() -> None:
    model = nn.Sequential(nn.Linear(16, 16), nn.Dropout(0.5), nn.ReLU())
    compiled = dynamo.compile(model, backend="inductor")
    x = torch.randn(8, 16)
    results = []
    for call in (model, compiled):
        torch.manual_seed(3)
        model.zero_grad()
        out = call(x)
        out.sum().backward()
        results.append((out.detach(), model[0].weight.grad.clone()))
    assert torch.equal(results[0][0], results[1][0])
    torch.testing.assert_close(results[0][1], results[1][1])


@pytest.mark.parametrize("make", [
    lambda: nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, dropout=0.0),
    lambda: nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 8)),
    lambda: nn.MultiheadAttention(32, 4, batch_first=True),
])  # fmt: skip
def test_autocast_gives_eagers_dtype(make: Any) -> None:
    model = make().eval()
    compiled = dynamo.compile(model, backend="inductor")
    x = torch.randn(2, 8, 32)
    args = (x, x, x) if isinstance(model, nn.MultiheadAttention) else (x,)
    for enabled in (True, False):
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=enabled):
            want, got = model(*args), compiled(*args)
        if isinstance(want, tuple):
            want, got = want[0], got[0]
        assert got.dtype is want.dtype
        torch.testing.assert_close(got.float(), want.float(), rtol=0.05, atol=0.05)


def test_inference_mode() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    compiled = dynamo.compile(model, backend="inductor")
    x = torch.randn(3, 8)
    with torch.inference_mode():
        got = compiled(x)
        assert got.is_inference()
        torch.testing.assert_close(got, model(x))
    assert compiled(x).requires_grad
