"""Weights of a trace: the backend gets the tensors themselves, copies them once and sees writes."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from dynamo import lazy
from dynamo.lazy import _C
from inductor.driver.freezing import FrozenCall


@pytest.fixture
def prepared(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """A number for each time that weights were prepared."""
    counts: list[int] = []
    real = FrozenCall._prepare

    def prepare(self: FrozenCall, inputs: Any, values: Any) -> Any:
        counts.append(len(values))
        return real(self, inputs, values)

    monkeypatch.setattr(FrozenCall, "_prepare", prepare)
    lazy.reset()
    return counts


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 32, 3),
        nn.BatchNorm2d(32), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 14 * 14, 10)).eval()  # fmt: skip


def lazily(model: Callable[..., Any], x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad(), lazy.mode("cpu"):
        return lazy.eager(model(x))


def assert_right(model: nn.Module, x: torch.Tensor) -> None:
    with torch.no_grad():
        torch.testing.assert_close(lazily(model, x), model(x), rtol=1e-4, atol=1e-4)


def test_weights_are_prepared_once(prepared: list[int]) -> None:
    model = net()
    for _ in range(5):
        assert_right(model, torch.randn(4, 3, 16, 16))
    assert len(prepared) == 1 and prepared[0] >= 5  # the statistics of the norms, too
    assert lazy.metrics().compiles == 1


def test_weights_are_known_where_python_takes_a_followed_trace_over(prepared: list[int]) -> None:
    """Operators that change a tensor's strides in place are not followed: what came before them is
    put into a trace of Python's."""
    model = net()

    def program(x: torch.Tensor) -> torch.Tensor:
        return model(x).t_()

    for _ in range(5):
        x = torch.randn(4, 3, 16, 16)
        with torch.no_grad():
            torch.testing.assert_close(lazily(program, x), program(x), rtol=1e-4, atol=1e-4)
    assert len(prepared) == 1 and lazy.metrics().compiles == 1


WRITES: dict[str, Callable[[nn.Module], Any]] = {
    "in place": lambda model: model[0].weight.mul_(2),
    "statistics": lambda model: model[1].running_mean.add_(1),
    "data": lambda model: setattr(model[7].weight, "data", torch.randn(10, 32 * 14 * 14)),
    "state": lambda model: model.load_state_dict(
        {name: value + 1 for name, value in model.state_dict().items()}),
    "another": lambda model: setattr(model[3], "weight", nn.Parameter(torch.randn(32, 32, 3, 3))),
    "a view": lambda model: model[7].weight.view(-1).neg_(),
}  # fmt: skip


@pytest.mark.parametrize("inside", [False, True], ids=["in eager", "in a trace"])
@pytest.mark.parametrize("name", WRITES)
@torch.no_grad()
def test_writes_between_traces_are_seen(prepared: list[int], name: str, inside: bool) -> None:
    model = net()
    for _ in range(4):
        assert_right(model, torch.randn(4, 3, 16, 16))
    if inside:
        with lazy.mode("cpu"):
            WRITES[name](model)
    else:
        WRITES[name](model)
    for _ in range(3):
        assert_right(model, torch.randn(4, 3, 16, 16))


def test_writes_and_reads_in_one_mode(prepared: list[int]) -> None:
    """The second trace of a mode sees what the first has written."""
    model, x = net(), torch.randn(4, 3, 16, 16)
    for _ in range(3):
        assert_right(model, x)
    with torch.no_grad(), lazy.mode("cpu"):
        first = lazy.eager(model(x))
        model[0].weight.mul_(0.5)
        lazy.mark_step()
        second = lazy.eager(model(x))
    with torch.no_grad():
        torch.testing.assert_close(second, model(x), rtol=1e-4, atol=1e-4)
    assert not torch.allclose(first, second)


def test_training_prepares_nothing(prepared: list[int]) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    other = net()
    theirs = torch.optim.SGD(other.parameters(), lr=1e-3)
    for _ in range(4):
        x = torch.randn(4, 3, 16, 16)
        with lazy.mode("cpu"):
            model(x).square().mean().backward()
            lazy.mark_step()  # the optimizer has a trace of its own
            optimizer.step()
            optimizer.zero_grad()
        other(x).square().mean().backward()
        theirs.step()
        theirs.zero_grad()
    assert not prepared
    for mine, wanted in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(mine, wanted, rtol=1e-4, atol=1e-5)


def test_a_result_that_is_a_weight_stays_one(prepared: list[int]) -> None:
    model = nn.Linear(64, 64)
    for _ in range(3):
        with torch.no_grad(), lazy.mode("cpu"):
            x = torch.randn(8, 64)
            y, w = model(x), model.weight.t()
            lazy.mark_step()
            found = lazy.eager(w)
            torch.testing.assert_close(lazy.eager(y), nn.functional.linear(x, found.t(), model.bias))
        assert found.data_ptr() == model.weight.data_ptr()


def test_numbers_of_another_model_are_not_taken(prepared: list[int]) -> None:
    """Two models of one structure have one program."""
    one, other = net(), net()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(0.1)
    for _ in range(3):
        for model in (one, other):
            assert_right(model, torch.randn(4, 3, 16, 16))
    assert lazy.metrics().compiles == 1


def test_copies_die_with_the_weights(
    prepared: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[FrozenCall] = []
    real = FrozenCall.__init__
    monkeypatch.setattr(FrozenCall, "__init__", lambda self, *args, **more: (
        calls.append(self), real(self, *args, **more))[1])  # fmt: skip
    model = net()
    for _ in range(3):
        assert_right(model, torch.randn(4, 3, 16, 16))
    assert calls and calls[-1].known is not None
    del model
    gc.collect()
    assert calls[-1].known is None
    model = net()
    assert_right(model, torch.randn(4, 3, 16, 16))
    assert calls[-1].known is not None and lazy.metrics().compiles == 1


def test_the_followed_trace_knows_the_tensors() -> None:
    lazy.reset()
    model, given = nn.Linear(8, 8), []
    real = _C.inputs

    def inputs(weights: frozenset[int]) -> Any:
        given.append(real(weights))
        return given[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_C, "inputs", inputs)
        for _ in range(4):
            lazily(model, torch.randn(2, 8))
    assert given and any(tensor is model.weight for tensor in given[-1])
