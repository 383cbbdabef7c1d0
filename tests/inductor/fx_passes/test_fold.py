"""Frozen batch norms inside of convolutions: eager's values, also after a change; who is folded."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

import dynamo
from inductor.fx_passes import fold

OPTIONS = {"freezing": True}


@pytest.fixture
def folds(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Grows by one with each batch norm that is folded."""
    found: list[Any] = []
    original = fold._fold

    def counted(*args: Any) -> Any:
        found.append(1)
        return original(*args)

    monkeypatch.setattr(fold, "_fold", counted)
    return found


def stir(model: nn.Module) -> None:
    """Statistics and parameters as after a training."""
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            module.running_mean.normal_()
            module.running_var.uniform_(0.3, 3)
            if module.affine:
                nn.init.normal_(module.weight)
                nn.init.normal_(module.bias)


def check(model: nn.Module, fast: Any, x: torch.Tensor) -> None:
    got = fast(x)
    exact = copy.deepcopy(model).double()(x.double())
    assert got.stride() == model(x).stride()
    torch.testing.assert_close(got.double(), exact, rtol=1e-4, atol=1e-4)


CASES = {
    "plain": (lambda: nn.Conv2d(3, 8, 3, bias=False), lambda: nn.BatchNorm2d(8), (2, 3, 9, 7)),
    "bias": (lambda: nn.Conv2d(4, 8, 3, stride=2, padding=1), lambda: nn.BatchNorm2d(8), (2, 4, 9, 7)),
    "large": (lambda: nn.Conv2d(150, 900, 1), lambda: nn.BatchNorm2d(900), (2, 150, 3, 5)),
    "groups": (lambda: nn.Conv2d(6, 6, 3, groups=6), lambda: nn.BatchNorm2d(6), (1, 6, 8, 8)),
    "no affine": (lambda: nn.Conv1d(3, 5, 3), lambda: nn.BatchNorm1d(5, affine=False), (2, 3, 20)),
    "three": (lambda: nn.Conv3d(2, 5, 2), lambda: nn.BatchNorm3d(5, eps=0.1), (2, 2, 4, 5, 6)),
}


@pytest.mark.parametrize("name", CASES)
def test_folded_and_again_after_a_change(name: str, folds: list[Any]) -> None:
    convolution, norm, shape = CASES[name]
    model = nn.Sequential(convolution(), norm(), nn.ReLU()).eval()
    fast = dynamo.compile(model, options=OPTIONS)
    with torch.no_grad():
        stir(model)
        for _ in range(3):
            check(model, fast, torch.randn(shape))
        assert len(folds) == 1
        stir(model)
        check(model, fast, torch.randn(shape))
        model[1].running_var.mul_(2)
        model[0].weight.add_(0.1)
        check(model, fast, torch.randn(shape))
        assert len(folds) == 1


def test_training_in_between() -> None:
    """It writes the statistics without counting a version."""
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).eval()
    fast = dynamo.compile(model.forward, options=OPTIONS)
    with torch.no_grad():
        for _ in range(3):
            check(model, fast, torch.randn(2, 3, 8, 8))
            model.train()
            model(torch.randn(2, 3, 8, 8) + 3)
            model.eval()


class TwoReaders(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)

    def forward(self, x: Any) -> Any:
        y = self.convolution(x)
        return self.norm(y) + y


@pytest.mark.parametrize("kind", ["two readers", "training", "transposed", "off", "alone"])
def test_not_folded(kind: str, folds: list[Any]) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).eval()
    if kind == "two readers":
        model = TwoReaders().eval()
    elif kind == "transposed":
        model = nn.Sequential(nn.ConvTranspose2d(3, 4, 3), nn.BatchNorm2d(4)).eval()
    elif kind == "alone":
        model = nn.BatchNorm2d(3).eval()
    stir(model)
    model.train(kind == "training")
    other = copy.deepcopy(model)
    fast = dynamo.compile(model, options={"freezing": kind != "off"})
    with torch.no_grad():
        for _ in range(2):
            x = torch.randn(2, 3, 8, 8)
            torch.testing.assert_close(fast(x), other(x), rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(model.state_dict(), other.state_dict(), rtol=1e-4, atol=1e-4)
    assert not folds


def test_folded_beside_inputs_that_are_written(folds: list[Any]) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)).eval()

    def step(x: Any, total: Any, k: float) -> Any:
        y = model(x * k)
        total.add_(y.sum())
        return y, total.view(1, 1)

    fast = dynamo.compile(step, options=OPTIONS)
    with torch.no_grad():
        stir(model)
        for k in (1.0, 2.0, 3.0):
            x, mine, other = torch.randn(2, 3, 8, 8), torch.zeros(1), torch.zeros(1)
            torch.testing.assert_close(fast(x, mine, k), step(x, other, k), rtol=1e-4, atol=1e-3)
            torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-3)
    assert folds
