"""Compiling in the background: what runs before and behind a compile, and what may go wrong meanwhile."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore

import dynamo
from dynamo.background.examples import Unlike, facts, make, snapshot, stand_ins
from dynamo.background.jobs import later, pool
from dynamo.base.config import config
from dynamo.base.errors import BackendError

ROOT = Path(__file__).parents[2]
LATER = {"background": True}
SECONDS = 60.0


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    dynamo.reset()
    yield
    assert dynamo.background.wait(SECONDS)


class Slow:
    """A backend that waits to be let go, and notes which thread compiles and what is called."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.threads: list[str] = []
        self.calls = 0
        self.seen: list[Any] = []

    def __call__(self, module: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        self.threads.append(threading.current_thread().name)
        assert self.go.wait(SECONDS)
        self.seen.append((torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"),
                          torch.is_inference_mode_enabled(), torch.get_default_device().type))

        def call(*args: Any) -> Any:
            self.calls += 1
            return module.forward(*args)

        return call


def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.relu(x + y) * 2


def test_calls_run_as_captured_until_the_compile_is_done() -> None:
    backend = Slow()
    g = dynamo.compile(f, backend=backend, options=LATER)
    x, y = torch.randn(4), torch.randn(4)
    for _ in range(3):
        assert torch.equal(g(x, y), f(x, y))
    assert backend.calls == 0 and dynamo.background.pending() == 1
    assert not dynamo.background.wait(0.01)
    backend.go.set()
    assert dynamo.background.wait(SECONDS)
    assert torch.equal(g(x, y), f(x, y))
    assert backend.calls == 1 and backend.threads == ["dynamo-compile"]


def test_the_call_that_waits() -> None:
    backend = Slow()
    g = dynamo.compile(f, backend=backend, options={**LATER, "background_calls": 3})
    x = torch.randn(4)
    g(x, x), g(x, x)
    threading.Timer(0.05, backend.go.set).start()
    assert torch.equal(g(x, x), f(x, x)) and backend.calls == 1


def test_no_earlier_call_runs_the_code() -> None:
    backend = Slow()
    backend.go.set()
    g = dynamo.compile(f, backend=backend, options={**LATER, "background_calls": 3})
    x = torch.randn(4)
    for calls in (0, 0, 1, 2):
        assert torch.equal(g(x, x), f(x, x)) and backend.calls == calls
        assert dynamo.background.wait(SECONDS)


def test_ranks_switch_at_the_same_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is ready first, or finds its code on the disk."""
    monkeypatch.setattr("dynamo.background.jobs.CALLS_OF_RANKS", 3)
    x = torch.randn(4)
    for rank in (0, 1):
        torch.distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=2)
        try:
            backend = Slow()
            backend.go.set()
            backend.is_cached = lambda *args, rank=rank, **extra: rank == 1  # type: ignore[attr-defined]
            g = dynamo.compile(f, backend=backend, options=LATER)
            for calls in (0, 0, 1, 2):
                assert torch.equal(g(x, x), f(x, x)) and backend.calls == calls
                assert dynamo.background.wait(SECONDS)
        finally:
            torch.distributed.destroy_process_group()


def test_a_setting_asks_for_it() -> None:
    backend = Slow()
    with config.patch(background=True):
        g = dynamo.compile(f, backend=backend)
    g(torch.randn(4), torch.randn(4))
    assert dynamo.background.pending() == 1
    backend.go.set()


@pytest.mark.parametrize("wrong", [{"background": 1}, {"background_calls": True}])
def test_wrong_options(wrong: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match="background"):
        dynamo.compile(f, options=wrong)


def test_modes_of_the_thread_come_along() -> None:
    backend = Slow()
    backend.go.set()
    g = dynamo.compile(f, backend=backend, options=LATER)
    x = torch.randn(4)
    with torch.no_grad(), torch.autocast("cpu"):
        g(x, x)
    assert dynamo.background.wait(SECONDS)
    with torch.device("meta"):
        dynamo.compile(f, backend=backend, options=LATER)(x, x)
    assert dynamo.background.wait(SECONDS)
    assert backend.seen == [(False, True, False, "cpu"), (True, False, False, "meta")]


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 3)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = self.last(torch.tanh(self.first(x)))
        return torch.nn.functional.cross_entropy(logits, y), logits


def losses(model: nn.Module, call: Callable[..., Any], behind: Callable[[int], Any]) -> list[torch.Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(1)
    found = []
    for number in range(5):
        loss, _ = call(torch.randn(4, 8), torch.randint(0, 3, (4,)))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.detach())
        behind(number)
    return [*found, *(parameter.detach().clone() for parameter in model.parameters())]


@pytest.mark.parametrize("ready", [0, 2, 9])
def test_a_training_with_a_compile_in_its_midst(ready: int) -> None:
    def run(compiles: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = Model()
        call = dynamo.compile(model, options=LATER) if compiles else model
        return losses(model, call, lambda n: dynamo.background.wait() if n == ready else None)

    torch.testing.assert_close(run(True), run(False))
    assert not dynamo.counters["not_compiled"]


def test_a_backward_that_was_not_foreseen() -> None:
    model = Model()
    call = dynamo.compile(model, options=LATER)
    x, y = torch.randn(4, 8), torch.randint(0, 3, (4,))
    call(x, y)
    dynamo.background.wait()
    for _ in range(2):  # by both outputs: as ATen, then compiled
        for runs in (model, call):
            loss, logits = runs(x, y)
            (loss + logits.square().sum()).backward()
        gradients = [parameter.grad.clone() for parameter in model.parameters()]
        model.zero_grad()
        loss, logits = model(x, y)
        (2 * (loss + logits.square().sum())).backward()
        torch.testing.assert_close(gradients, [parameter.grad for parameter in model.parameters()])
        model.zero_grad()
        assert dynamo.background.wait(SECONDS)
    assert not dynamo.counters["not_compiled"]


def test_numbers_sizes_and_breaks() -> None:
    def g(x: torch.Tensor, n: int) -> torch.Tensor:
        x = x * n
        if x.sum() > 0:
            x = x + 1
        return torch.cat([x, x[:n]]).relu()

    h = dynamo.compile(g, options=LATER)
    for _ in range(2):
        for n, size in ((2, 5), (3, 7), (4, 9)):
            x = torch.randn(size)
            torch.testing.assert_close(h(x, n), g(x, n))
        assert dynamo.background.wait(SECONDS)


def test_pieces_between_unknown_numbers() -> None:
    def g(x: torch.Tensor) -> torch.Tensor:
        return torch.relu(x * 2) * int(x.sum().item()) + 1

    with config.patch(capture_scalar_outputs=True):
        h = dynamo.compile(g, options=LATER)
        for value in (1.0, 2.0, 3.0, 2.0):
            x = torch.full((4,), value)
            torch.testing.assert_close(h(x), g(x))
            assert dynamo.background.wait(SECONDS)
    assert not dynamo.counters["not_compiled"]


def test_what_changes_meanwhile_is_not_seen() -> None:
    backend = Slow()
    seen: list[Any] = []

    def look(module: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        compiled = backend(module, inputs)
        seen.extend((value.requires_grad, tuple(value.shape), value.grad) for value in inputs)
        return compiled

    weight = torch.randn(4, requires_grad=True)
    g = dynamo.compile(lambda: weight * 2, backend=look, options=LATER)
    g().sum().backward()
    weight.requires_grad_(False)
    weight.data = torch.randn(7)
    backend.go.set()
    assert dynamo.background.wait(SECONDS)
    assert seen == [(True, (4,), None)]
    assert torch.equal(g(), weight * 2)


# -- errors -----------------------------------------------------------------------------------------


def fails(module: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    raise KeyError("a defect")


def test_an_error_is_told_once_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    g = dynamo.compile(f, backend=fails, options=LATER)
    x = torch.randn(4)
    for _ in range(3):
        assert torch.equal(g(x, x), f(x, x))
        assert dynamo.background.wait(SECONDS)
    [(reason, count)] = dynamo.counters["not_compiled"].items()
    assert "graph runs as captured" in reason and "a defect" in reason and count == 1


@pytest.mark.parametrize("strict", ["fullgraph", "suppress_errors"])
def test_an_error_that_the_user_wants_is_raised_at_the_next_call(strict: str) -> None:
    x = torch.randn(4)
    with config.patch(suppress_errors=strict != "suppress_errors"):
        g = dynamo.compile(f, backend=fails, options=LATER, fullgraph=strict == "fullgraph")
        assert torch.equal(g(x, x), f(x, x))
        assert dynamo.background.wait(SECONDS)
        for _ in range(2):
            with pytest.raises(BackendError, match="a defect"):
                g(x, x)


def test_errors_of_the_program_are_its_own() -> None:
    def g(x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        return x[at] * 2

    h = dynamo.compile(g, options=LATER)
    for _ in range(2):
        with pytest.raises(IndexError):
            h(torch.randn(3), torch.tensor([5]))
        assert torch.equal(h(torch.ones(3), torch.tensor([2])), torch.tensor([2.0]))
        assert dynamo.background.wait(SECONDS)


def test_a_graph_that_nobody_can_call_any_more_is_not_compiled() -> None:
    first, second = Slow(), Slow()
    x = torch.randn(4)
    dynamo.compile(f, backend=first, options=LATER)(x, x)
    g = dynamo.compile(f, backend=second, options=LATER)
    g(x, x)
    dynamo.reset()
    gc.collect()  # what is left in a cycle could still be called
    first.go.set(), second.go.set()
    assert dynamo.background.wait(SECONDS)
    assert not second.threads


# -- stand-ins --------------------------------------------------------------------------------------


def examples() -> dict[str, list[Any]]:
    base = torch.randn(4, 6)
    leaf = torch.randn(3, requires_grad=True)
    with torch.inference_mode():
        inference = torch.randn(3)
    graded = torch.randn(3, requires_grad=True)
    graded.sum().backward()
    return {
        "plain": [base, 3, 2.5, None],
        "transposed": [base.t(), base[1:, ::2]],
        "twice": [base, base, base[0]],
        "parameter": [nn.Parameter(base)],
        "frozen": [nn.Parameter(base, requires_grad=False)],
        "leaf": [leaf],
        "computed": [leaf * 2],
        "view": [(leaf * 2)[1:]],
        "inference": [inference],
        "gradient": [graded],
        "integers": [torch.arange(5), torch.ones(2, dtype=torch.bool)],
        "empty": [torch.randn(0, 3)],
    }


@pytest.mark.parametrize("name", list(examples()))
def test_stand_ins_are_alike(name: str) -> None:
    values = examples()[name]
    rows, _ = snapshot(values)
    storages = [torch.UntypedStorage(size) for size, _ in rows.storages]
    for made in (stand_ins(values), make(rows, storages.__getitem__)):
        for value, other in zip(values, made, strict=True):
            if not isinstance(value, torch.Tensor):
                assert value is other
                continue
            assert value is not other and facts(value) == facts(other)
            assert (value.grad is None if value.is_leaf else True) == (other.grad is None if other.is_leaf else True)
    made = stand_ins(values)
    assert [a is b for a in values for b in values] == [a is b for a in made for b in made]


@pytest.mark.parametrize("value", [torch.randn(3).to_sparse(), torch.randn(3, dtype=torch.complex64).conj(), object()])
def test_what_has_no_stand_in_is_compiled_at_once(value: Any) -> None:
    with pytest.raises(Unlike):
        stand_ins([value])
    if isinstance(value, torch.Tensor):
        g = dynamo.compile(lambda x: x * 2, options=LATER)
        g(value)
        assert not dynamo.background.pending()


# -- the world around -------------------------------------------------------------------------------


def test_a_fork_while_jobs_wait() -> None:
    backend = Slow()
    g = dynamo.compile(f, backend=backend, options={**LATER, "background_calls": 2})
    x = torch.randn(4)
    g(x, x)
    backend.go.set()
    child = os.fork()
    if not child:
        right = torch.equal(g(x, x), f(x, x)) and dynamo.background.wait(1.0)
        os._exit(0 if right else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert dynamo.background.wait(SECONDS)


SCRIPT = """
import sys, time, torch, dynamo
def slow(module, inputs):
    print("begun", flush=True)
    for _ in range(600): time.sleep(0.05)
f = dynamo.compile(lambda x: x * 2, backend=slow, options={"background": True})
f(torch.ones(2))
while not dynamo.background.pending(): pass
time.sleep(0.2)
print(f(torch.ones(2)).tolist(), flush=True)
"""


def test_the_interpreter_ends_while_a_job_runs() -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", SCRIPT], env=env, capture_output=True, text=True, timeout=SECONDS)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    assert done.stdout.split("\n")[:2] == ["begun", "[2.0, 2.0]"]


def test_an_interrupt_while_a_call_waits() -> None:
    backend = Slow()
    g = dynamo.compile(f, backend=backend, options={**LATER, "background_calls": 1})
    x = torch.randn(4)
    raised = threading.Event()

    def interrupt() -> None:  # again where it meets a callback of the interpreter, which drops it
        while not raised.wait(0.3):
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # shells may have it ignored
    sender = threading.Thread(target=interrupt)
    sender.start()
    with pytest.raises(KeyboardInterrupt):
        try:
            g(x, x)
        finally:
            raised.set()
    sender.join()
    signal.signal(signal.SIGINT, before)
    backend.go.set()
    assert dynamo.background.wait(SECONDS)
    assert torch.equal(g(x, x), f(x, x)) and backend.calls == 1


def test_a_job_of_a_job_is_done_at_once() -> None:
    made: list[str] = []

    def inner() -> Callable[..., Any]:
        made.append(threading.current_thread().name)
        return lambda: 2

    def outer() -> Callable[..., Any]:
        return later(inner, lambda: 1, lambda error: None)

    function = later(outer, lambda: 0, lambda error: None)
    assert pool.wait(SECONDS)
    assert function() == 2 and made == ["dynamo-compile"]
