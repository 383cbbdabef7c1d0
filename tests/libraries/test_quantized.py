"""Models that torchao has quantized: one graph each, and what eager gives."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import dynamo

pytestmark = pytest.mark.libraries
CONFIGS = """Float8DynamicActivationFloat8WeightConfig Float8WeightOnlyConfig Int8WeightOnlyConfig IntxWeightOnlyConfig
    Int8DynamicActivationInt8WeightConfig Int8DynamicActivationIntxWeightConfig""".split()


@pytest.mark.parametrize("name", CONFIGS)
def test_linear_layers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torchao: Any = pytest.importorskip("torchao.quantization")
    # It asks for a GPU, though scales of whole tensors work without.
    monkeypatch.setattr("torchao.quantization.quant_api._check_hardware_support", lambda granularity: None)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256, bias=False)).bfloat16().eval()
    torchao.quantize_(model, getattr(torchao, name)())
    dynamo.reset()
    compiled = dynamo.compile(model, fullgraph=True)
    with torch.no_grad():
        for rows in (8, 3):
            x = torch.randn(rows, 256).bfloat16()
            torch.testing.assert_close(compiled(x), model(x), rtol=2e-2, atol=2e-2)
    assert not dynamo.counters["not_compiled"]
