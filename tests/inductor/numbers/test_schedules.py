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


FUSED: dict[str, Any] = {
    "SGD": lambda given: optim.SGD(
        given, lr=0.1, momentum=0.9, dampening=0.2, weight_decay=0.1, fused=True),
    "Nesterov": lambda given: optim.SGD(given, lr=0.1, momentum=0.9, nesterov=True, fused=True),
    "Adam": lambda given: optim.Adam(given, lr=0.1, amsgrad=True, weight_decay=0.1, fused=True),
    "AdamW": lambda given: optim.AdamW(given, lr=torch.tensor(0.1), maximize=True, fused=True),
    "Adagrad": lambda given: optim.Adagrad(given, lr=0.1, lr_decay=0.1, fused=True),
}


@pytest.mark.parametrize("name", FUSED)
def test_fused_optimizers_are_part_of_the_graph(name: str) -> None:
    def make() -> Any:
        torch.manual_seed(0)
        model = nn.Linear(3, 2)
        return model, FUSED[name](model.parameters())

    def step_of(model: Any, optimizer: Any) -> Any:
        def step(x: torch.Tensor) -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(x).square().sum()
            loss.backward()
            optimizer.step()
            return loss

        return step

    dynamo.reset()
    pairs = [make(), make()]
    eager, compiled = step_of(*pairs[0]), dynamo.compile(step_of(*pairs[1]), fullgraph=True)
    for rate in range(1, 6):
        for _, optimizer in pairs:
            before = optimizer.param_groups[0]["lr"]
            new = torch.tensor(rate / 20) if isinstance(before, torch.Tensor) else rate / 20
            optimizer.param_groups[0]["lr"] = new
        x = torch.randn(4, 3)
        torch.testing.assert_close(compiled(x), eager(x))
    for plain, ours in zip(*(model.parameters() for model, _ in pairs), strict=True):
        torch.testing.assert_close(ours, plain)
    for plain, ours in zip(*(optimizer.state.values() for _, optimizer in pairs), strict=True):
        torch.testing.assert_close(ours, plain)
    assert not dynamo.counters["not_compiled"]


def test_a_fused_optimizer_in_16_bits_breaks() -> None:
    def step() -> torch.Tensor:
        grads = weight * 2 + 1
        torch._fused_sgd_([weight], [grads], [], weight_decay=0.1, momentum=0.0, lr=0.3,
                          dampening=0.0, nesterov=False, maximize=False, is_first_step=False)
        return weight.sin()

    weight = torch.randn(9).bfloat16()
    before = weight.clone()
    wanted = step()
    weight = before
    assert torch.equal(dynamo.compile(step, backend="eager")(), wanted)
    with pytest.raises(dynamo.exc.Unsupported, match="16 bits"):
        dynamo.compile(step, backend="eager", fullgraph=True)()
