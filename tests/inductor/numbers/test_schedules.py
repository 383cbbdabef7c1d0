"""Optimizers under schedules of their learning rate and momentum: compiled twice, as eager."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn, optim
from torch.optim import lr_scheduler

import dynamo
from inductor import metrics

STEPS = 200
OPTIMIZERS: dict[str, Any] = {
    "AdamW": lambda given, many: optim.AdamW(given, lr=0.01, foreach=many),
    "SGD": lambda given, many: optim.SGD(given, lr=0.1, momentum=0.9, foreach=many),
    "Adam": lambda given, many: optim.Adam(given, lr=0.01, foreach=many),
    "RMSprop": lambda given, many: optim.RMSprop(given, lr=0.001, eps=1e-3, foreach=many),
}
SCHEDULES: dict[str, Any] = {
    "StepLR": lambda optimizer: lr_scheduler.StepLR(optimizer, 5, 0.95),
    "CosineAnnealingLR": lambda optimizer: lr_scheduler.CosineAnnealingLR(optimizer, STEPS),
    "OneCycleLR": lambda optimizer: lr_scheduler.OneCycleLR(
        optimizer, 0.02, total_steps=STEPS + 1),
}


def train(name: str, schedule: str, many: bool, whole: bool, compiles: bool) -> list[torch.Tensor]:
    """The parameters after all steps. whole: the compiled function computes the gradients, too."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 4))
    optimizer = OPTIMIZERS[name](model.parameters(), many)
    scheduler = SCHEDULES[schedule](optimizer)
    inputs, goals = torch.randn(STEPS, 6, 8), torch.randn(STEPS, 6, 4)

    def gradients(x: torch.Tensor, goal: torch.Tensor) -> None:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), goal).backward()

    def step(x: torch.Tensor, goal: torch.Tensor) -> None:
        gradients(x, goal)
        optimizer.step()

    update = dynamo.compile(optimizer.step) if compiles and not whole else optimizer.step
    both = dynamo.compile(step) if compiles else step
    for x, goal in zip(inputs, goals, strict=True):
        if whole:
            both(x, goal)
        else:
            gradients(x, goal)
            update()
        scheduler.step()
    return [parameter.detach() for parameter in model.parameters()]


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize(("name", "schedule", "many"), [
    pytest.param(name, schedule, many, marks=pytest.mark.long if (number + turn) % 3 else ())
    for number, name in enumerate(OPTIMIZERS) for turn, schedule in enumerate(SCHEDULES)
    for many in (False, True) if many is (schedule == "OneCycleLR") or name == "AdamW"
])  # fmt: skip
def test_schedule(name: str, schedule: str, many: bool, whole: bool) -> None:
    wanted = train(name, schedule, many, whole, compiles=False)
    dynamo.counters.clear()
    before = metrics.snapshot()["graphs"]
    found = train(name, schedule, many, whole, compiles=True)
    assert metrics.snapshot()["graphs"] - before <= 2
    assert not dynamo.counters["inductor"] and not sum(dynamo.counters["not_compiled"].values())
    close = 2e-3 if name == "RMSprop" else 2e-5  # it divides by what is near zero at first
    torch.testing.assert_close(found, wanted, rtol=close, atol=close)


def test_fused_operators_run_as_they_are() -> None:
    """The optimizer is one operator of the library, which asks for the numbers."""
    model = nn.Linear(3, 2)
    optimizer = optim.SGD(model.parameters(), lr=0.1, fused=True)
    step = dynamo.compile(optimizer.step)
    dynamo.counters.clear()
    for rate in range(1, 14):
        optimizer.param_groups[0]["lr"] = rate / 10
        weight = model.weight.detach().clone()
        model.weight.grad = torch.randn(2, 3)
        model.bias.grad = torch.randn(2)
        step()
        wanted = weight - rate / 10 * model.weight.grad
        torch.testing.assert_close(model.weight.detach(), wanted)
    assert not dynamo.counters["inductor"]["calls run as captured for their sizes"]
