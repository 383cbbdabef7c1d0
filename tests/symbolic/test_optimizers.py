"""Optimizers whose learning rate changes at every step: few compiles, and eager's parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynamo
from dynamo.testing import CompileCounter

STEPS = 8


@pytest.fixture(autouse=True)
def forget() -> None:
    """Other tests compile the optimizers' functions, too."""
    dynamo.reset()


# What is compiled -> the function that does a step.
WAYS: dict[str, Callable[[Any, Any], Callable[[], Any]]] = {
    "function": lambda optimizer, backend: dynamo.compile(
        lambda: optimizer.step() and None, backend=backend),
    "method": lambda optimizer, backend: dynamo.compile(optimizer.step, backend=backend),
}
OPTIMIZERS: list[tuple[str, dict[str, Any]]] = [
    ("AdamW", {}), ("AdamW", {"amsgrad": True, "foreach": True}), ("Adam", {"weight_decay": 0.1}),
    ("Adam", {"maximize": True}), ("SGD", {}), ("SGD", {"momentum": 0.9, "nesterov": True}),
    ("SGD", {"momentum": 0.5, "foreach": True}), ("RMSprop", {"momentum": 0.5}), ("Adagrad", {}),
    ("Adamax", {}), ("NAdam", {}), ("Adadelta", {}),
]


def train(
    kind: str, settings: dict[str, Any], scheduled: bool, make_step: Callable[[Any], Any]
) -> list[torch.Tensor]:
    """The parameters and the optimizer's tensors after a few steps."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    optimizer = getattr(torch.optim, kind)(model.parameters(), lr=0.1, **settings)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9) if scheduled else None
    step = make_step(optimizer)
    for _ in range(STEPS):
        optimizer.zero_grad()
        model(torch.randn(5, 3)).square().sum().backward()
        step()
        if scheduler is not None:
            scheduler.step()
        else:
            optimizer.param_groups[0]["lr"] *= 0.8
    state = [value for row in optimizer.state.values() for value in row.values()]
    return [p.detach() for p in model.parameters()] + [torch.as_tensor(v) for v in state]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("kind", "settings"), OPTIMIZERS, ids=lambda value: str(value))
def test_a_decaying_learning_rate_compiles_twice(
    kind: str, settings: dict[str, Any], way: str
) -> None:
    expected = train(kind, settings, way == "method", lambda optimizer: optimizer.step)
    counter = CompileCounter("eager")
    got = train(kind, settings, way == "method", lambda o: WAYS[way](o, counter))
    assert 1 <= counter.frame_count <= 2, counter.frame_count
    assert len(got) == len(expected)
    for mine, theirs in zip(got, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-7)


class Counting(torch.optim.Optimizer):
    """Counts its steps in a Python number, as optimizers used to."""

    def __init__(self, params: Any, lr: float) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                state["step"] = state.get("step", 0) + 1
                p.add_(p.grad, alpha=-group["lr"] / (1 + 0.1 * state["step"]))


@pytest.mark.parametrize("way", WAYS)
def test_a_python_step_counter_compiles_thrice(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once for the empty state, once for the first count, once for all."""
    monkeypatch.setattr(torch.optim, "Counting", Counting, raising=False)
    expected = train("Counting", {}, False, lambda optimizer: optimizer.step)
    counter = CompileCounter("eager")
    got = train("Counting", {}, False, lambda o: WAYS[way](o, counter))
    assert 1 <= counter.frame_count <= 3
    for mine, theirs in zip(got, expected, strict=True):
        assert torch.equal(mine, theirs)


def test_the_default_backend_trains_alike() -> None:
    expected = train("AdamW", {}, True, lambda optimizer: optimizer.step)
    got = train("AdamW", {}, True, lambda o: WAYS["method"](o, "inductor"))
    for mine, theirs in zip(got, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)


def test_a_branch_on_the_step_counter_is_still_right() -> None:
    expected = train("RAdam", {}, False, lambda optimizer: optimizer.step)
    got = train("RAdam", {}, False, lambda o: WAYS["function"](o, "eager"))
    for mine, theirs in zip(got, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-7)
