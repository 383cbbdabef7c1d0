"""`verify` agrees with what is right, and names the operator that is wrong."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import dynamo
from dynamo.diagnose import culprit
from dynamo.frames import convert, entries
from tests.common import new_cache
from tests.diagnose.defects import DEFECTS, Defect
from tests.parametrize import few


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path) -> Any:
    """Nothing that a seeded defect has made stays in a cache."""
    with new_cache(tmp_path):
        yield
    dynamo.reset()


@pytest.mark.parametrize("seeded", DEFECTS, ids=lambda seeded: seeded.name)
def test_defects_are_named(seeded: Defect, monkeypatch: pytest.MonkeyPatch) -> None:
    seeded.patch(monkeypatch)
    found = dynamo.verify(seeded.program, *seeded.inputs())
    assert not found.ok
    assert found.operator in seeded.operators, found
    assert seeded.text in found.line, found
    assert found.culprit is not None and found.culprit.stage == seeded.stage, found
    place, text, what = str(found).split("\n")[:3]
    assert "defects.py:" in place and seeded.text in text and "differs from eager" in what
    assert "What to do:" in str(found).split("\n")[-1]


def test_there_are_twenty_defects() -> None:
    assert len(DEFECTS) >= 20


@pytest.mark.parametrize("seeded", few(DEFECTS, 7), ids=lambda seeded: seeded.name)
def test_the_programs_are_right_without_them(seeded: Defect) -> None:
    found = dynamo.verify(seeded.program, *seeded.inputs())
    assert found.ok, found
    assert "does what eager does" in str(found)


# -- what no operator of one graph shows ------------------------------------------------------------


def scaled(x: torch.Tensor, settings: dict[str, float]) -> torch.Tensor:
    y = x + 1
    return y * settings["scale"]


def test_a_missing_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    right = entries.program_text

    def program_text(guards: Any, *rest: Any) -> Any:
        return right([g for g in guards if "scale" not in str(g.source)], *rest)

    monkeypatch.setattr(entries, "program_text", program_text)
    compiled = dynamo.compile(scaled, options={"verify": True}, dynamic=False)
    x = torch.randn(3)
    assert torch.equal(compiled(x, {"scale": 2.0}), (x + 1) * 2)
    with pytest.raises(dynamo.exc.VerifyError, match="a guard is missing") as error:
        compiled(x, {"scale": 3.0})
    assert 'y * settings["scale"]' in str(error.value).split("\n")[1]
    assert "'mul'" in str(error.value) or "'__mul__'" in str(error.value)


def test_a_missing_guard_of_a_compiled_function(monkeypatch: pytest.MonkeyPatch) -> None:
    right = entries.program_text
    monkeypatch.setattr(entries, "program_text", lambda guards, *rest: right(
        [g for g in guards if "scale" not in str(g.source)], *rest))
    compiled = dynamo.compile(scaled, dynamic=False)
    compiled(torch.ones(3), {"scale": 2.0})
    found = dynamo.verify(compiled, torch.ones(3), {"scale": 3.0})
    assert found.culprit is not None and found.culprit.stage == culprit.GUARDS, found


LOG: list[int] = []


def logging(x: torch.Tensor) -> torch.Tensor:
    LOG.append(1)
    return x.sin()


def test_a_lost_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    right = convert.generate
    monkeypatch.setattr(convert, "generate", lambda plan, *rest: right(replace(plan, effects=()), *rest))
    found = dynamo.verify(logging, torch.ones(3))
    assert not found.ok and "LOG" in str(found) and not LOG, found


# -- what is right ------------------------------------------------------------------------------------


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.norm = torch.nn.BatchNorm1d(4)
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return F.dropout(self.norm(self.linear(x)).relu(), 0.5)


def test_a_module_is_as_before() -> None:
    model = Model()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    found = dynamo.verify(model, torch.randn(8, 4))
    assert found.ok, found
    assert model.calls == 0 and all(torch.equal(model.state_dict()[n], v) for n, v in before.items())
    assert model.linear.weight.grad is None and model.linear.weight.dtype is torch.float32


def test_options_verify_runs_once_for_real() -> None:
    model, other = Model(), Model()
    other.load_state_dict(model.state_dict())
    compiled = dynamo.compile(model, options={"verify": True})
    x = torch.randn(8, 4)
    for _ in range(2):
        torch.manual_seed(1)
        y = compiled(x)
        torch.manual_seed(1)
        wanted = other(x)
        assert torch.allclose(y, wanted, atol=1e-5)
        y.sum().backward()
        wanted.sum().backward()
    assert model.calls == 2 and type(compiled).__name__ == "Model"
    assert torch.allclose(model.linear.weight.grad, other.linear.weight.grad, atol=1e-4)
    assert torch.allclose(model.norm.running_mean, other.norm.running_mean)


def test_a_training_step_with_an_optimizer() -> None:
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)

    def step(x: torch.Tensor) -> torch.Tensor:
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    before = model.weight.detach().clone()
    found = dynamo.verify(step, torch.randn(5, 3))
    assert found.ok, found
    assert torch.equal(model.weight, before) and model.weight.grad is None and not optimizer.state


def test_breaks_views_and_numbers() -> None:
    def f(x: torch.Tensor, shared: torch.Tensor) -> Any:
        y = x.sin()
        dynamo.graph_break()
        shared.add_(y[0].item())
        return {"view": x[1:], "sum": y.sum(), "text": "abc", "n": x.shape[0]}

    base = torch.randn(6)
    assert dynamo.verify(f, base, base[:3]).ok


def test_what_raises_in_both_was_not_compared() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x @ torch.ones(7)

    found = dynamo.verify(f, torch.ones(3))
    assert not found.ok and not found.differences and "Nothing was compared" in str(found), found
    found = dynamo.verify(f, torch.ones(7), backend="eager")  # f takes no such keyword
    assert not found.ok and "both raise TypeError" in found.raised and "backend=" in str(found), found
    with pytest.raises(RuntimeError, match="inconsistent tensor size"):  # the program's own error
        dynamo.compile(f, options={"verify": True})(torch.ones(3))


def test_what_was_not_compiled_was_not_compared() -> None:
    def numbers(x: list[int]) -> int:
        return sum(x)

    def drawn(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    assert "Nothing of it was compiled" in str(found := dynamo.verify(numbers, [1, 2])) and not found.ok
    with dynamo.config.patch(disable=True):
        found = dynamo.verify(drawn, torch.ones(2))
    assert "Nothing of it was compiled" in str(found) and not found.ok
    compiled = dynamo.compile(drawn)
    with dynamo.set_stance("force_eager"):
        found = dynamo.verify(compiled, torch.ones(2))
    assert not found.ok and not found.graphs


def test_a_backward_that_raises_in_both_is_told() -> None:
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
            raise KeyError("no backward")

    def f(x: torch.Tensor) -> torch.Tensor:
        return Fails.apply(x * 2)

    found = dynamo.verify(f, torch.ones(2, requires_grad=True))
    assert "Gradients were not compared" in str(found) and "no backward" in found.gradients, found


def test_a_backend_of_the_user() -> None:
    def wrong(module: Any, inputs: Any) -> Any:
        return lambda *given: tuple(result + 1 for result in module(*given))

    compiled = dynamo.compile(lambda x: x.sin() * 2, backend=wrong)
    found = dynamo.verify(compiled, torch.ones(3))
    assert not found.ok and "'wrong'" in str(found) and found.operator == "sin", found


def test_arguments_of_verify() -> None:
    with pytest.raises(TypeError, match="verify takes a function"):
        dynamo.verify(3)
    with pytest.raises(TypeError, match="'verify'.*True or False"):
        dynamo.compile(scaled, options={"verify": 1})
