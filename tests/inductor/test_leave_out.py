"""`leave_out`: each optimization can be left out; results stay, and what it does is not done."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import dynamo
import inductor
from dynamo.base.logs import set_logs
from inductor.config import STAGES, config, is_enabled


class Block(nn.Module):
    """Attention that is written out, norms, a gate and a table."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(50, 32)
        self.qkv = nn.Linear(32, 96)
        self.out = nn.Linear(32, 32)
        self.norm = nn.LayerNorm(32)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.table(tokens)
        q, k, v = (part.view(*part.shape[:2], 4, 8).transpose(1, 2)
                   for part in self.qkv(self.norm(x)).chunk(3, -1))
        weights = torch.softmax(q @ k.transpose(-2, -1) / 8**0.5, -1)
        y = (weights @ v).transpose(1, 2).reshape(x.shape)
        return F.gelu(self.out(y)) + x * torch.sigmoid(x)


def convolved() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
                         nn.MaxPool2d(2), nn.Conv2d(16, 16, 3, groups=4), nn.SiLU(),
                         nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(64, 5))


def turned(x: torch.Tensor) -> torch.Tensor:
    y = torch.exp(-x.transpose(0, 2).abs()) + x.permute(2, 1, 0).cos()
    z = torch.cat([y, y.flip(1)], 1)
    z[:, 1] = 2.0
    return z.softmax(1) * z.cumsum(2) + z.mean((0, 2), keepdim=True) + z.amax(0)


PROGRAMS: dict[str, Callable[[], tuple[Any, torch.Tensor]]] = {
    "block": lambda: (Block(), torch.randint(0, 50, (2, 12))),
    "convolved": lambda: (convolved(), torch.randn(2, 3, 20, 20)),
    "turned": lambda: (turned, torch.randn(6, 5, 9)),
}


def gradients_of(call: Any, model: Any, x: torch.Tensor) -> list[torch.Tensor]:
    given = x.clone().requires_grad_(x.is_floating_point())
    parameters = list(model.parameters()) if isinstance(model, nn.Module) else []
    wanted = [*parameters, *([given] if given.requires_grad else [])]
    return [*torch.autograd.grad(call(given).square().sum(), wanted)]


ALL = ", ".join(STAGES)
CASES = [("decompositions", "block"), ("fusion", "turned"), ("inlining", "turned"),
         ("layout", "convolved"), ("patterns", "block"), ("templates", "block"),
         *((ALL, program) for program in PROGRAMS)]


@pytest.mark.parametrize(("stage", "program"), CASES)
def test_results_stay(stage: str, program: str) -> None:
    torch.manual_seed(0)
    model, x = PROGRAMS[program]()
    compiled = dynamo.compile(model, options={"leave_out": stage, "graph_cache": False})
    if isinstance(model, nn.Module):
        model.eval()
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
    if stage == ALL:
        found, wanted = gradients_of(compiled, model, x), gradients_of(model, model, x)
        torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-4)
    assert not dynamo.counters["not_compiled"]


def kernels_of(f: Any, x: torch.Tensor, stage: str) -> int:
    dynamo.reset()
    inductor.metrics.reset()
    with torch.no_grad():
        dynamo.compile(f, options={"leave_out": stage, "graph_cache": False})(x)
    return inductor.metrics.generated_kernel_count


def test_each_result_has_its_kernel() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return (x.exp() + 1).sum(1).tanh()

    x = torch.randn(8, 8)
    assert kernels_of(f, x, "") == 1
    assert kernels_of(f, x, "fusion") == 2  # the sum with what it adds up, and the tangent
    assert kernels_of(f, x, "inlining") == 1  # fused again
    assert kernels_of(f, x, "fusion, inlining") == 4


def test_operators_stay_whole(capsys: pytest.CaptureFixture[str]) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return F.huber_loss(x, x.cos())

    calls = []
    for stage in ("", "decompositions"):
        set_logs("aot_graphs")
        kernels_of(f, torch.randn(8), stage)
        set_logs("-aot_graphs")
        calls.append("aten.huber_loss" in capsys.readouterr().err)
    assert calls == [False, True]


def test_unknown_stages_are_refused() -> None:
    with pytest.raises(ValueError, match="no 'fuse'; there are decompositions"):
        dynamo.compile(lambda x: x, options={"leave_out": "fuse"})
    with config.patch(leave_out="layout fusion"):
        assert [stage for stage in STAGES if not is_enabled(stage)] == ["fusion", "layout"]
