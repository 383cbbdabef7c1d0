"""`AveragedModel.update_parameters`, which branches on a counter in a tensor."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch.optim import swa_utils
from torch.optim.swa_utils import AveragedModel

import dynamo
from dynamo.testing import CompileCounter

KINDS: dict[str, dict[str, Any]] = {
    "mean": {},
    "ema": {"multi_avg_fn": swa_utils.get_ema_multi_avg_fn(0.7)},
    "ema one by one": {"avg_fn": swa_utils.get_ema_avg_fn(0.7)},
    "mean one by one": {"avg_fn": swa_utils.get_swa_avg_fn()},
    "ema of buffers": {"multi_avg_fn": swa_utils.get_ema_multi_avg_fn(0.7), "use_buffers": True},
    "mean of buffers": {"use_buffers": True},
}


@pytest.fixture(autouse=True)
def fresh() -> None:
    dynamo.reset()


def network(dtype: torch.dtype = torch.float32) -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4)).to(dtype)


def change(model: torch.nn.Module) -> None:
    with torch.no_grad():
        for place, param in enumerate(model.parameters()):
            param.add_(torch.linspace(-1, 1, param.numel(), dtype=param.dtype).reshape(param.shape) * (1 + place))
        model[1].running_mean.add_(1)  # type: ignore[index, union-attr, operator]
        model[1].num_batches_tracked.add_(3)  # type: ignore[index, union-attr, operator]


def update(averaged: AveragedModel, model: torch.nn.Module, x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    averaged.update_parameters(model)
    return y + averaged.module[0].weight.sum().detach()  # type: ignore[index]


def updated(how: Any, kind: dict[str, Any], dtype: torch.dtype = torch.float32) -> tuple[Any, ...]:
    model, other = network(), network(dtype)
    averaged = AveragedModel(other, **copy.copy(kind))
    results = []
    for _ in range(4):
        change(model)
        results.append(how(averaged, model, torch.ones(2)))
    return results, dict(averaged.state_dict()), dict(model.state_dict())


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("name", KINDS)
def test_one_graph(name: str, backend: str) -> None:
    counter = CompileCounter(backend)
    found = updated(dynamo.compile(update, backend=counter), KINDS[name])
    exact = backend == "eager"
    torch.testing.assert_close(found, updated(update, KINDS[name]), rtol=0 if exact else 1e-6, atol=0 if exact else 1e-6)
    if KINDS[name].keys() & {"multi_avg_fn", "avg_fn"} or not torch.accelerator.is_available():
        assert counter.frame_count == 1  # else the choice between torch's averages is left to Python
        assert not dynamo.counters["graph_break"]


def test_a_mean_of_another_dtype() -> None:
    for name in ("ema one by one", "mean"):
        found = updated(dynamo.compile(update, backend="eager"), KINDS[name], torch.float64)
        torch.testing.assert_close(found, updated(update, KINDS[name], torch.float64), rtol=0, atol=0)


def test_what_raises_at_the_second_update() -> None:
    outcomes: list[Any] = []
    for how in (update, dynamo.compile(update, backend="eager")):
        averaged = AveragedModel(network(torch.float64), multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.7))
        for _ in range(2):
            try:
                outcomes.append(float(how(averaged, network(), torch.ones(1))))
            except RuntimeError as error:
                outcomes.append(str(error))
        outcomes.append(int(averaged.n_averaged))
    assert outcomes[:3] == outcomes[3:]
    assert isinstance(outcomes[1], str)


def test_the_first_update_takes_what_is_not_finite() -> None:
    """The mean of infinities, which is not a number, is not taken."""
    results = []
    for how in (update, dynamo.compile(update, backend="eager")):
        model = network()
        averaged = AveragedModel(model)
        with torch.no_grad():
            model[0].weight[0] = torch.inf  # type: ignore[index, operator]
            averaged.module[0].weight[1] = torch.nan  # type: ignore[index]
        for _ in range(2):
            how(averaged, model, torch.ones(1))
            results.append(averaged.module[0].weight.detach().clone())  # type: ignore[index]
    torch.testing.assert_close(results[:2], results[2:], rtol=0, atol=0, equal_nan=True)
    assert results[0].isinf().any()
    assert results[1].isnan().any()


def test_a_function_of_the_program_is_called_as_often_as_in_eager() -> None:
    def average(mean: torch.Tensor, new: torch.Tensor, count: Any) -> torch.Tensor:
        calls.append(1)
        return mean * 0.5 + new * 0.5

    counts, states = [], []
    for how in (update, dynamo.compile(update, backend="eager")):
        calls: list[int] = []
        model = network()
        averaged = AveragedModel(model, avg_fn=swa_utils.get_ema_avg_fn(0.5))
        how(averaged, model, torch.ones(2))
        averaged.avg_fn = average
        averaged.n_averaged.zero_()
        for _ in range(3):
            change(model)
            how(averaged, model, torch.ones(2))
        counts.append(len(calls))
        states.append(dict(averaged.state_dict()))
    assert counts == [8, 8]
    torch.testing.assert_close(*states, rtol=0, atol=0)


def test_another_decay() -> None:
    results = []
    for how in (update, dynamo.compile(update, backend="eager")):
        for decay in (0.5, 0.9):
            results.append(updated(how, {"multi_avg_fn": swa_utils.get_ema_multi_avg_fn(decay)})[1])
    torch.testing.assert_close(results[:2], results[2:], rtol=0, atol=0)
