"""Optimizers whose learning rate changes at every step: few compiles, and eager's parameters."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynamo
from dynamo.testing import CompileCounter

STEPS = 6


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
    ("Adamax", {}), ("Adamax", {"foreach": True}), ("NAdam", {}), ("NAdam", {"foreach": True}),
    ("Adadelta", {}), ("RAdam", {}), ("RAdam", {"foreach": True, "weight_decay": 0.1}),
    ("RAdam", {"decoupled_weight_decay": True, "weight_decay": 0.1, "maximize": True}),
    ("ASGD", {}), ("ASGD", {"t0": 3, "lambd": 0.01}), ("ASGD", {"foreach": True, "t0": 3}),
    ("Rprop", {}), ("Adam", {"fused": True}), ("AdamW", {"fused": True, "amsgrad": True}),
    ("SGD", {"fused": True, "momentum": 0.5}), ("Adagrad", {"fused": True}),
    ("Adafactor", {}), ("Adafactor", {"maximize": True, "weight_decay": 0.1, "d": 1.5}),
]


class Scale(torch.nn.Module):
    """A parameter without dimensions."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = torch.nn.Parameter(torch.tensor(0.7))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor


def train(
    kind: str, settings: dict[str, Any], scheduled: bool, make_step: Callable[[Any], Any]
) -> list[torch.Tensor]:
    """The parameters and the optimizer's tensors after a few steps."""
    torch.manual_seed(0)
    # Rprop writes by a mask, which breaks the graph for a tensor without dimensions.
    scale = torch.nn.Identity() if kind == "Rprop" else Scale()
    layers = torch.nn.Linear(3, 4), torch.nn.Tanh(), scale
    model = torch.nn.Sequential(*layers)
    settings = {"lr": 0.1, **settings}
    if isinstance(settings["lr"], torch.Tensor):
        settings["lr"] = settings["lr"].clone()
    optimizer = getattr(torch.optim, kind)(model.parameters(), **settings)
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


# Their first settings, and others of the most usual.
ALWAYS = [case for number, case in enumerate(OPTIMIZERS)
          if case[0] not in {kind for kind, _ in OPTIMIZERS[:number]} or case[0] in ("AdamW", "SGD")]
CASES = [pytest.param(*case, "method", marks=() if case in ALWAYS else pytest.mark.long) for case in OPTIMIZERS]
CASES += [(*case, "function") for case in OPTIMIZERS[::6]]


@pytest.mark.parametrize(("kind", "settings", "way"), CASES, ids=lambda value: str(value))
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
def test_a_python_step_counter_compiles_twice(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once for the empty state, once for all counts."""
    monkeypatch.setattr(torch.optim, "Counting", Counting, raising=False)
    expected = train("Counting", {}, False, lambda optimizer: optimizer.step)
    counter = CompileCounter("eager")
    got = train("Counting", {}, False, lambda o: WAYS[way](o, counter))
    assert 1 <= counter.frame_count <= 2
    for mine, theirs in zip(got, expected, strict=True):
        assert torch.equal(mine, theirs)


RATES_IN_TENSORS = [
    (kind, foreach)
    for kind in ("SGD", "Adam", "Adadelta", "Rprop", "RAdam", "NAdam")
    for foreach in (False, True)
    if (kind, foreach) != ("Adam", True)  # refused: see below
]


@pytest.mark.parametrize(("kind", "foreach"), [
    pytest.param(*row, marks=pytest.mark.long if number % 3 == 1 else ()) for number, row in enumerate(RATES_IN_TENSORS)])
def test_a_learning_rate_in_a_tensor_compiles_twice(kind: str, foreach: bool) -> None:
    capturable = {"capturable": False} if kind != "SGD" else {}
    settings = {"lr": torch.tensor(0.1), "foreach": foreach, **capturable}
    expected = train(kind, settings, True, lambda optimizer: optimizer.step)
    counter = CompileCounter("eager")
    got = train(kind, settings, True, lambda o: WAYS["method"](o, counter))
    assert 1 <= counter.frame_count <= 2
    for mine, theirs in zip(got, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-6, atol=1e-7)


def test_a_step_after_the_schedule_has_moved_on_compiles_nothing() -> None:
    """The learning rate is symbolic from the first compile on."""
    weight = torch.nn.Parameter(torch.ones(3))
    weight.grad = torch.ones(3)
    optimizer = torch.optim.SGD([weight], lr=0.5)
    counter = CompileCounter("eager")
    step = dynamo.compile(optimizer.step, backend=counter)
    for _ in range(3):
        step()
    optimizer.param_groups[0]["lr"] = 0.25
    step()
    assert counter.frame_count == 1
    assert torch.equal(weight, torch.full((3,), -0.75))


def test_a_setting_that_eager_refuses_is_refused() -> None:
    def run(compiled: bool) -> str:
        weight = torch.nn.Parameter(torch.ones(3))
        weight.grad = torch.ones(3)
        optimizer = torch.optim.Adam([weight], capturable=True)
        step = dynamo.compile(optimizer.step, backend="eager") if compiled else optimizer.step
        with pytest.raises(AssertionError) as caught:
            step()
        return str(caught.value)

    assert run(True) == run(False)


def fused(param: torch.Tensor, grad: torch.Tensor, state: list[torch.Tensor]) -> torch.Tensor:
    torch._fused_adamw_([param], [grad], [state[0]], [state[1]], [], [state[2]], lr=0.1, beta1=0.9,
                        beta2=0.99, weight_decay=0.1, eps=1e-8, amsgrad=False, maximize=False)
    return param * 2 + state[0]


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_an_operator_that_only_writes_is_not_left_out(backend: str) -> None:
    """Its fake kernel does not count what it writes."""
    def inputs() -> Any:
        torch.manual_seed(0)
        return torch.rand(3), torch.rand(3), [torch.rand(3), torch.rand(3), torch.tensor(1.0)]

    mine, theirs = inputs(), inputs()
    assert torch.allclose(dynamo.compile(fused, backend=backend)(*mine), fused(*theirs))
    assert torch.allclose(mine[0], theirs[0]) and not torch.equal(mine[0], inputs()[0])


def test_the_default_backend_trains_alike() -> None:
    expected = train("AdamW", {}, True, lambda optimizer: optimizer.step)
    got = train("AdamW", {}, True, lambda o: WAYS["method"](o, "inductor"))
    for mine, theirs in zip(got, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)


CAPTURABLE = [
    "Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Adadelta", "RMSprop", "ASGD", "Rprop",
]
REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("Adam", {"lr": torch.tensor(0.1), "foreach": True}),
    ("AdamW", {"lr": torch.tensor(0.1), "foreach": True}),
    *((kind, {"capturable": True, "foreach": each}) for kind in CAPTURABLE for each in (False, True)),
]


@pytest.mark.parametrize(("kind", "settings"), REFUSED, ids=str)
def test_what_eager_refuses_on_a_cpu_is_refused_alike(kind: str, settings: dict[str, Any]) -> None:
    errors = []
    for make_step in (lambda o: o.step, lambda o: WAYS["method"](o, "eager")):
        with pytest.raises((ValueError, AssertionError)) as caught:
            train(kind, settings, False, make_step)
        errors.append((type(caught.value), str(caught.value)))
    assert errors[0] == errors[1]


def minimise(
    settings: dict[str, Any], compile_step: Callable[[Any], Callable[[Any], Any]]
) -> tuple[list[float], list[torch.Tensor]]:
    """The losses of 20 steps of LBFGS, and the parameters after them."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 1))
    model.double()
    x, y = torch.randn(16, 4).double(), torch.randn(16, 1).double()
    optimizer = torch.optim.LBFGS(model.parameters(), **settings)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        loss.backward()
        return loss

    step = compile_step(optimizer)
    losses = [float(step(closure).detach()) for _ in range(20)]
    return losses, [p.detach() for p in model.parameters()]


@pytest.mark.parametrize(
    ("settings", "backend"),
    [
        ({"max_iter": 3, "history_size": 4}, "eager"),
        ({"max_iter": 3, "history_size": 4}, "inductor"),
        ({"max_iter": 2, "line_search_fn": "strong_wolfe"}, "eager"),
    ],
    ids=str,
)
def test_lbfgs_with_a_closure(settings: dict[str, Any], backend: str) -> None:
    """Its decisions read data, so it runs as it is; the closure is compiled."""
    expected = minimise(settings, lambda optimizer: optimizer.step)
    counter = CompileCounter(backend)
    got = minimise(settings, lambda optimizer: dynamo.compile(optimizer.step, backend=counter))
    assert got[0][-1] < got[0][0] / 2
    torch.testing.assert_close(got, expected, rtol=1e-8, atol=1e-10)
    assert counter.frame_count == 1


@pytest.mark.parametrize("first", ["lbfgs", "sgd"])
def test_lbfgs_beside_another_optimizer(first: str) -> None:
    """Their steps have one code object; only that of LBFGS runs as it is."""
    def train(compiled: bool, backend: Any = "eager") -> list[torch.Tensor]:
        param = torch.nn.Parameter(torch.tensor([3.0, -2.0]))
        optimizers = {"lbfgs": torch.optim.LBFGS([param], max_iter=2), "sgd": torch.optim.SGD([param], 0.1)}

        def closure() -> torch.Tensor:
            param.grad = None
            loss = (param * param).sum().exp().log()
            loss.backward()
            return loss

        def step(x: torch.Tensor) -> torch.Tensor:
            y = x + 1
            for name in (first, *optimizers):
                y = y + closure()
                optimizers[name].step(*(closure,) if name == "lbfgs" else ())
            return y * 2

        step = dynamo.compile(step, backend=backend) if compiled else step
        return [*(step(torch.ones(1)).detach() for _ in range(3)), param.detach()]

    counter = CompileCounter()
    torch.testing.assert_close(train(True, counter), train(False), rtol=0, atol=0)
    assert any("LBFGS.step" in reason for reason in dynamo.counters["graph_break"])
    assert not any("SGD" in reason for reason in dynamo.counters["graph_break"])
    assert 0 < counter.frame_count <= 8


@pytest.mark.parametrize("kind", [torch.optim.Adam, torch.optim.AdamW, torch.optim.RMSprop, torch.optim.Adadelta])
def test_a_step_counter_that_is_no_tensor(kind: Any) -> None:
    def step(wrong: bool) -> str:
        param = torch.nn.Parameter(torch.ones(2))
        optimizer = kind([param])
        compiled = dynamo.compile(optimizer.step, backend="eager")
        param.grad = torch.ones(2)
        compiled()
        optimizer.state[param]["step"] = 3 if wrong else torch.tensor(3.0)
        try:
            compiled()
        except RuntimeError as error:
            return str(error)
        return ""

    assert "singleton tensors" in step(True)
    assert not step(False)


@pytest.mark.parametrize("options", [{}, {"foreach": False, "decoupled_weight_decay": True, "weight_decay": 0.1}, {"foreach": True}])
def test_capturable_radam(options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's own code of it does not branch; it is for GPUs, which a check asks for."""
    monkeypatch.setattr(importlib.import_module("torch.optim.radam"), "_get_capturable_supported_devices", lambda **_: ["cpu"])
    results = []
    for compiled in (False, True):
        torch.manual_seed(0)
        params = [torch.nn.Parameter(torch.randn(5, 7)) for _ in range(3)]
        optimizer = torch.optim.RAdam(params, lr=1e-2, capturable=True, **options)
        step = dynamo.compile(optimizer.step, backend="eager", fullgraph=True) if compiled else optimizer.step
        for _ in range(8):  # the variance is known well enough from the sixth step on
            for param in params:
                param.grad = torch.randn(5, 7)
            step()
        results.append(params)
    torch.testing.assert_close(*results)
