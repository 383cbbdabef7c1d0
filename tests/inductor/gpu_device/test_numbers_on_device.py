"""Numbers that change, on a real GPU: two compiles for all values, and schedules of optimizers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

import dynamo
from inductor import metrics

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]
VALUES = [0.1 + 0.07 * step for step in range(12)]
USES: dict[str, Callable[..., Any]] = {
    "mul": lambda x, y, s: x * s,
    "add alpha": lambda x, y, s: torch.add(x, y, alpha=s),
    "pow": lambda x, y, s: x.abs() ** s,
    "clamp": lambda x, y, s: x.clamp(-s, s),
    "full": lambda x, y, s: torch.full((4,), s, device="cuda") + x[0, 0],
    "lerp": lambda x, y, s: torch.lerp(x, y, s),
    "where": lambda x, y, s: torch.where(x > 0, s, 0.0),
    "leaky relu": lambda x, y, s: functional.leaky_relu(x, s),
    "dropout": lambda x, y, s: functional.dropout(x, s) * 2,
    "int": lambda x, y, s: x * int(s * 10),
}


@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", USES)
def test_use(name: str, dtype: torch.dtype, mode: str | None) -> None:
    dynamo.reset()
    dynamo.counters.clear()
    program, before = USES[name], metrics.snapshot()["graphs"]
    compiled = dynamo.compile(program, mode=mode)
    x, y = torch.randn(2, 32, 24, device="cuda").to(dtype)
    close = 1e-6 if dtype is torch.float32 else 2e-2
    for value in VALUES:
        torch.manual_seed(1)
        found = compiled(x, y, value)
        torch.manual_seed(1)
        torch.testing.assert_close(found, program(x, y, value), rtol=close, atol=close)
    assert metrics.snapshot()["graphs"] - before <= 2
    assert not dynamo.counters["inductor"] and not sum(dynamo.counters["not_compiled"].values())


@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD, torch.optim.RMSprop])
def test_schedule(kind: Any) -> None:
    def trained(compiles: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).cuda()
        optimizer = kind(model.parameters(), lr=0.01)
        rates = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 50)
        step = dynamo.compile(optimizer.step) if compiles else optimizer.step
        for _ in range(30):
            optimizer.zero_grad()
            model(torch.randn(6, 8, device="cuda")).square().mean().backward()
            step()
            rates.step()
        return [parameter.detach() for parameter in model.parameters()]

    wanted = trained(False)
    dynamo.reset()
    dynamo.counters.clear()
    torch.testing.assert_close(trained(True), wanted, rtol=1e-4, atol=1e-5)
    assert not dynamo.counters["inductor"] and not sum(dynamo.counters["not_compiled"].values())
