"""The backend aot_eager: functional graphs that PyTorch runs, without a kernel of ours."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import dynamo
from inductor import metrics


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.gelu(self.norm(self.first(x)))
        return self.last(x).softmax(-1)


@pytest.mark.parametrize("trained", [False, True])
def test_results_gradients_and_buffers_are_eagers(trained: bool) -> None:
    torch.manual_seed(0)
    module, other = Net().double(), Net().double()
    other.load_state_dict(module.state_dict())
    compiled = dynamo.compile(other, backend="aot_eager", fullgraph=True)
    kernels = metrics.snapshot()["kernels"]
    for rows in (4, 7, 9, 1 + 4):  # the second one opens the size
        x = torch.randn(rows, 6, dtype=torch.double)
        with torch.set_grad_enabled(trained):
            found, wanted = compiled(x), module(x)
        torch.testing.assert_close(found, wanted)
        if trained:
            found[:, 0].sum().backward()
            wanted[:, 0].sum().backward()
    for (name, a), (_, b) in zip(other.named_parameters(), module.named_parameters(), strict=True):
        if trained:
            torch.testing.assert_close(a.grad, b.grad, msg=name)
    torch.testing.assert_close(other.state_dict(), module.state_dict())
    assert metrics.snapshot()["kernels"] == kernels


def test_writes_and_what_the_data_decides() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        x.mul_(2)
        y = x[x > 0].cumsum(0)
        return y * x.sum().item()

    compiled = dynamo.compile(program, backend="aot_eager", fullgraph=True)
    for _ in range(3):
        x = torch.randn(8, dtype=torch.double)
        mine = x.clone()
        torch.testing.assert_close(compiled(mine), program(x))
        torch.testing.assert_close(mine, x)


def test_the_option_alone() -> None:
    x = torch.randn(5)
    compiled = dynamo.compile(lambda x: x.sin() * 2, options={"kernels": False})
    assert torch.equal(compiled(x), x.sin() * 2)
