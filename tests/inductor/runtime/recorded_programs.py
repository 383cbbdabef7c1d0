"""Programs whose graphs are recorded: each checks that nothing that it can see differs from eager.

They run on a GPU, and with a recorder that needs none (`recorded_memory.py`).
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

import dynamo
from inductor import metrics
from inductor.runtime.cuda_graphs import GraphedCall
from inductor.runtime.recorder import CudaRecorder

Tensor = torch.Tensor
MODE = "reduce-overhead"
CALLS = 8
WIDTH = 64


def recorded() -> int:
    return metrics.snapshot()["cuda_graphs_recorded"]


def close(got: Any, want: Any) -> None:
    torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-3)


def layers(device: str, *more: nn.Module) -> nn.Module:
    width = WIDTH
    parts = [nn.Linear(width, width), nn.GELU(), *more, nn.LayerNorm(width), nn.Linear(width, width)]
    return nn.Sequential(*parts).to(device)


def rows(device: str, count: int = 32) -> Tensor:
    return torch.randn(count, WIDTH, device=device)


def results_are_held_over_calls(device: str) -> None:
    model, before = layers(device), recorded()
    compiled = dynamo.compile(model, mode=MODE)
    held = []
    with torch.no_grad():
        for n in range(CALLS):
            x = rows(device)
            y = compiled(x)
            if n % 3:
                held.append((y if n % 2 else y[3:7, 5], x, n % 2))
        for y, x, whole in held:
            want = model(x)
            close(y, want if whole else want[3:7, 5])
    assert recorded() - before == 1


def nothing_is_copied_when_results_are_dropped(device: str) -> None:
    compiled = dynamo.compile(layers(device), mode=MODE)
    x = rows(device)
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


def a_result_is_the_next_input(device: str) -> None:
    model = layers(device)
    compiled = dynamo.compile(model, mode=MODE)
    with torch.no_grad():
        x = want = rows(device)
        for _ in range(CALLS):
            x, want = compiled(x), model(want)
            close(x, want)


def functions_share_memory(device: str) -> None:
    models = [layers(device), layers(device), layers(device)]
    compiled = [dynamo.compile(model, mode=MODE) for model in models]
    held = []
    with torch.no_grad():
        for n in range(4 * CALLS):
            at = (n * n + n // 3) % 3
            x = held[-1][0] if n % 4 == 1 else rows(device)
            y = compiled[at](x)
            held = [*held[-5:], (y, models[at](x))]
            for got, want in held:
                close(got, want)


def the_last_result_is_held_in_a_loop(device: str) -> None:
    model, before = layers(device), recorded()
    compiled = dynamo.compile(model, mode=MODE)
    with torch.no_grad():
        y = last = None
        for _ in range(2 * CALLS):
            x = rows(device, 8192)
            y = compiled(x)
            close(y, model(x))
            if last is not None:
                close(last[0], last[1])
            last = y, model(x)
    if device == "cuda":
        assert recorded() - before == 2


def pieces_of_a_program(device: str) -> None:
    first, second = layers(device), layers(device)

    def program(x: Tensor) -> Tensor:
        y = first(x)
        dynamo.graph_break()
        z = second(y)
        return z + y

    compiled = dynamo.compile(program, mode=MODE)
    with torch.no_grad():
        for _ in range(CALLS):
            x = rows(device)
            close(compiled(x), program(x))


def train(
    device: str, model: nn.Module, step: Callable[[nn.Module, Any], Tensor], accumulate: int
) -> None:
    run = dynamo.compile(model, mode=MODE)
    other = copy.deepcopy(model)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9) for m in (model, other)]
    for n in range(3 * CALLS):
        x = rows(device)
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


def training(device: str) -> None:
    before = recorded()
    train(device, layers(device), lambda f, x: f(x).square().mean(), 1)
    assert recorded() - before >= 2


def accumulated_gradients(device: str) -> None:
    train(device, layers(device), lambda f, x: f(x).square().mean(), 3)


def training_with_running_statistics(device: str) -> None:
    before = recorded()
    train(device, layers(device, nn.BatchNorm1d(WIDTH)), lambda f, x: f(x).square().mean(), 1)
    assert recorded() - before >= 2


def several_forwards_for_one_step(device: str) -> None:
    train(device, layers(device), lambda f, x: (f(x) * f(x + 1) - f(f(x - 1))).square().mean(), 2)


def retained_graphs(device: str) -> None:
    model = layers(device)
    run = dynamo.compile(model, mode=MODE)
    for _ in range(CALLS):
        x = rows(device).requires_grad_()
        y, want = run(x).sum(), model(x).sum()
        for retain in (True, False):
            (got,) = torch.autograd.grad(y, x, retain_graph=retain)
            (other,) = torch.autograd.grad(want, x, retain_graph=retain)
            close(got, other)


def dropout_draws_what_eager_draws(device: str) -> None:
    model = layers(device, nn.Dropout(0.3))
    plain = copy.deepcopy(model)
    run = dynamo.compile(model, mode=MODE)
    inputs = [rows(device) for _ in range(CALLS)]
    states = []
    for f in (run, plain):
        torch.manual_seed(3)
        states.append([f(x).detach().clone() for x in inputs] + [torch.rand(3, device=device)])
    for got, want in zip(*states, strict=True):
        close(got, want)


def a_cache_is_written_in_place(device: str) -> None:
    weight = torch.randn(WIDTH, 64, device=device)

    def step(cache: Tensor, at: Tensor, x: Tensor) -> Tensor:
        cache.index_copy_(0, at, x @ weight)
        at.add_(1)
        return (cache * 2).softmax(-1).sum(0)

    run, before = dynamo.compile(step, mode=MODE), recorded()
    caches = [torch.zeros(CALLS + 2, WIDTH, device=device) for _ in range(2)]
    places = [torch.zeros(1, dtype=torch.long, device=device) for _ in range(2)]
    with torch.no_grad():
        for _ in range(CALLS):
            x = rows(device, 1)
            got, want = run(caches[0], places[0], x), step(caches[1], places[1], x)
            close(got, want)
            close(caches[0], caches[1])
    assert recorded() - before == 1 and int(places[0]) == CALLS


def sizes_have_recordings_of_their_own(device: str) -> None:
    model = layers(device)
    run, before = dynamo.compile(model, mode=MODE, dynamic=True), recorded()
    with torch.no_grad():
        for _ in range(5):
            for count in (8, 24, 33):
                x = rows(device, count)
                close(run(x), model(x))
    assert recorded() - before == 3


def a_whole_step_with_its_optimizer(device: str) -> None:
    model = layers(device)
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
        x = rows(device)
        close(run(model, optimizers[0], x), step(other, optimizers[1], x))
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        close(one, two)
    assert recorded() > before


def a_recording_that_goes_leaves_its_results(device: str) -> None:
    model = layers(device)
    run = dynamo.compile(model, mode=MODE)
    with torch.no_grad():
        for _ in range(5):
            x = rows(device)
            y = run(x)
        want = model(x)
        del run
        dynamo.reset()
        torch.cuda.empty_cache()
        for _ in range(8):
            torch.full((1 << 20,), 3.0, device=device)
        close(y, want)


def failures_leave_nothing_behind(device: str) -> None:
    def waits(x: Tensor) -> tuple[Tensor]:
        return (x * float((x + 1).sum().item()),)

    def needs_too_much(x: Tensor) -> tuple[Tensor]:
        if torch.cuda.is_current_stream_capturing():
            torch.empty(1 << 46, device=device)
        return (x * 2,)

    def works(x: Tensor) -> tuple[Tensor]:
        return ((x + 1).softmax(-1),)

    for call, fails in ((waits, True), (needs_too_much, True), (works, False)):
        graphed = GraphedCall(call, CudaRecorder(torch.device("cuda", 0)))
        for _ in range(CALLS):
            x = rows(device)
            close(graphed(x), call(x))
        assert graphed.off == fails and bool(graphed.recordings) != fails
    compiled, model = dynamo.compile(layers(device), mode=MODE), layers(device)
    assert compiled(rows(device)).shape == model(rows(device)).shape
    before = torch.cuda.memory_allocated()
    held = [torch.empty(1 << 20, device=device) for _ in range(4)]
    del held
    assert torch.cuda.memory_allocated() == before


PROGRAMS = (
    results_are_held_over_calls,
    a_result_is_the_next_input,
    functions_share_memory,
    the_last_result_is_held_in_a_loop,
    pieces_of_a_program,
    training,
    accumulated_gradients,
    training_with_running_statistics,
    several_forwards_for_one_step,
    retained_graphs,
    a_cache_is_written_in_place,
    a_whole_step_with_its_optimizer,
)
ON_GPU = (
    *PROGRAMS,
    sizes_have_recordings_of_their_own,
    nothing_is_copied_when_results_are_dropped,
    dropout_draws_what_eager_draws,
    a_recording_that_goes_leaves_its_results,
    failures_leave_nothing_behind,
)
