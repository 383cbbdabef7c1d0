"""Recordings on a real GPU: nothing that a program can see differs from eager."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

import dynamo
from inductor import metrics

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]
Tensor = torch.Tensor
MODE = "reduce-overhead"
CALLS = 8


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    dynamo.reset()
    torch.manual_seed(0)
    before = metrics.snapshot()
    yield
    after = metrics.snapshot()
    assert after["cuda_graphs_given_up"] == before["cuda_graphs_given_up"]
    dynamo.reset()


def recorded() -> int:
    return metrics.snapshot()["cuda_graphs_recorded"]


def close(got: Any, want: Any) -> None:
    torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-3)


def layers(width: int = 64, *more: nn.Module) -> nn.Module:
    parts = [nn.Linear(width, width), nn.GELU(), *more, nn.LayerNorm(width), nn.Linear(width, width)]
    return nn.Sequential(*parts).cuda()


def rows(width: int = 64, count: int = 32) -> Tensor:
    return torch.randn(count, width, device="cuda")


def test_results_are_held_over_calls() -> None:
    model, before = layers(), recorded()
    compiled = dynamo.compile(model, mode=MODE)
    held = []
    with torch.no_grad():
        for n in range(CALLS):
            x = rows()
            y = compiled(x)
            if n % 3:
                held.append((y if n % 2 else y[3:7, 5], x, n % 2))
        for y, x, whole in held:
            want = model(x)
            close(y, want if whole else want[3:7, 5])
    assert recorded() - before == 1


def test_nothing_is_copied_when_results_are_dropped() -> None:
    compiled = dynamo.compile(layers(), mode=MODE)
    x = rows()
    with torch.no_grad():
        for _ in range(4):
            compiled(x)
        torch.cuda.synchronize()
        places = {compiled(x).data_ptr() for _ in range(4)}
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        compiled(x)
        assert torch.cuda.max_memory_allocated() == before
    assert len(places) == 1


def test_a_result_is_the_next_input() -> None:
    model = layers()
    compiled = dynamo.compile(model, mode=MODE)
    with torch.no_grad():
        x = want = rows()
        for _ in range(CALLS):
            x, want = compiled(x), model(want)
            close(x, want)


def test_functions_share_memory() -> None:
    models = [layers(), layers(), layers()]
    compiled = [dynamo.compile(model, mode=MODE) for model in models]
    held = []
    with torch.no_grad():
        for n in range(4 * CALLS):
            at = (n * n + n // 3) % 3
            x = held[-1][0] if n % 4 == 1 else rows()
            y = compiled[at](x)
            held = [*held[-5:], (y, models[at](x))]
            for got, want in held:
                close(got, want)


def test_pieces_of_a_program() -> None:
    first, second = layers(), layers()

    def program(x: Tensor) -> Tensor:
        y = first(x)
        dynamo.graph_break()
        z = second(y)
        return z + y

    compiled = dynamo.compile(program, mode=MODE)
    with torch.no_grad():
        for _ in range(CALLS):
            x = rows()
            close(compiled(x), program(x))


def train(model: nn.Module, step: Callable[[nn.Module, Any], Tensor], accumulate: int) -> None:
    run = dynamo.compile(model, mode=MODE)
    other = copy.deepcopy(model)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9) for m in (model, other)]
    for n in range(3 * CALLS):
        x = rows()
        step(run, x).backward()
        step(other, x).backward()
        if n % accumulate == 0:
            for one, two in zip(model.parameters(), other.parameters(), strict=True):
                close(one.grad, two.grad)
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
    for one, two in zip(model.state_dict().values(), other.state_dict().values(), strict=True):
        close(one, two)


@pytest.mark.parametrize("accumulate", [1, 3])
def test_training(accumulate: int) -> None:
    before = recorded()
    train(layers(), lambda f, x: f(x).square().mean(), accumulate)
    assert recorded() - before >= 2


def test_training_with_running_statistics() -> None:
    before = recorded()
    train(layers(64, nn.BatchNorm1d(64)), lambda f, x: f(x).square().mean(), 1)
    assert recorded() - before >= 2


def test_several_forwards_for_one_step() -> None:
    train(layers(), lambda f, x: (f(x) * f(x + 1) - f(f(x - 1))).square().mean(), 2)


def test_retained_graphs() -> None:
    model = layers()
    run = dynamo.compile(model, mode=MODE)
    for _ in range(CALLS):
        x = rows().requires_grad_()
        y, want = run(x).sum(), model(x).sum()
        for retain in (True, False):
            (got,) = torch.autograd.grad(y, x, retain_graph=retain)
            (other,) = torch.autograd.grad(want, x, retain_graph=retain)
            close(got, other)


def test_dropout_draws_what_eager_draws() -> None:
    model = layers(64, nn.Dropout(0.3))
    plain = copy.deepcopy(model)
    run = dynamo.compile(model, mode=MODE)
    inputs = [rows() for _ in range(CALLS)]
    states = []
    for f in (run, plain):
        torch.manual_seed(3)
        states.append([f(x).detach().clone() for x in inputs] + [torch.rand(3, device="cuda")])
    for got, want in zip(*states, strict=True):
        close(got, want)


def test_a_cache_is_written_in_place() -> None:
    weight = torch.randn(64, 64, device="cuda")

    def step(cache: Tensor, at: Tensor, x: Tensor) -> Tensor:
        cache.index_copy_(0, at, x @ weight)
        at.add_(1)
        return (cache * 2).softmax(-1).sum(0)

    run, before = dynamo.compile(step, mode=MODE), recorded()
    caches = [torch.zeros(CALLS + 2, 64, device="cuda") for _ in range(2)]
    places = [torch.zeros(1, dtype=torch.long, device="cuda") for _ in range(2)]
    with torch.no_grad():
        for _ in range(CALLS):
            x = rows(64, 1)
            got, want = run(caches[0], places[0], x), step(caches[1], places[1], x)
            close(got, want)
            close(caches[0], caches[1])
    assert recorded() - before == 1 and int(places[0]) == CALLS


def test_sizes_have_recordings_of_their_own() -> None:
    model = layers()
    run, before = dynamo.compile(model, mode=MODE, dynamic=True), recorded()
    with torch.no_grad():
        for _ in range(5):
            for count in (8, 24, 33):
                x = rows(64, count)
                close(run(x), model(x))
    assert recorded() - before == 3


def test_a_whole_step_with_its_optimizer() -> None:
    model = layers()
    other = copy.deepcopy(model)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9) for m in (model, other)]

    def step(m: nn.Module, optimizer: Any, x: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss = m(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    run = dynamo.compile(step, mode=MODE)
    before = recorded()
    for _ in range(CALLS):
        x = rows()
        close(run(model, optimizers[0], x), step(other, optimizers[1], x))
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        close(one, two)
    assert recorded() > before


def test_a_recording_that_goes_leaves_its_results() -> None:
    model = layers()
    run = dynamo.compile(model, mode=MODE)
    with torch.no_grad():
        for _ in range(5):
            x = rows()
            y = run(x)
        want = model(x)
        del run
        dynamo.reset()
        torch.cuda.empty_cache()
        for _ in range(8):
            torch.full((1 << 20,), 3.0, device="cuda")
        close(y, want)
