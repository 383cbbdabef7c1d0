"""What only shows under load: threads, many calls, and compiles that fail half-way."""

from __future__ import annotations

import gc
import resource
import threading
import weakref
from typing import Any

import pytest
import torch

import dynamo


def make_function(k: int) -> Any:
    scope: dict[str, Any] = {"torch": torch}
    exec(f"def f{k}(x, n):\n    for i in range(n):\n        x = torch.sin(x) + {k} * i\n    return x", scope)
    return scope[f"f{k}"]


def test_threads_compile_and_call() -> None:
    """32 threads call the same and different functions with shapes that make them recompile."""
    dynamo.reset()
    eager = [make_function(k) for k in range(8)]
    compiled = [dynamo.compile(f, backend="eager", dynamic=False) for f in eager]
    failures: list[Any] = []
    start = threading.Barrier(32)

    def work(thread: int) -> None:
        try:
            start.wait()
            for step in range(30):
                k, n, size = (thread + step) % 8, 1 + step % 3, 2 + (thread * 7 + step) % 3
                x = torch.full((size,), float(thread))
                if not torch.equal(compiled[k](x, n), eager[k](x, n)):
                    failures.append((thread, step))
        except BaseException as error:  # a thread must report, not vanish
            failures.append(error)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
    assert not any(thread.is_alive() for thread in threads), "deadlock"
    assert not failures, failures[:3]


def test_thread_without_region_is_untouched() -> None:
    """A thread outside of compiled calls never meets the evaluator, though another one is inside."""
    dynamo.reset()
    inside, leave = threading.Event(), threading.Event()
    graphs: list[int] = []

    def backend(module: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        graphs.append(1)
        return module.forward

    @dynamo.disable
    def wait() -> None:
        inside.set()
        leave.wait(30)

    def f(x: torch.Tensor) -> torch.Tensor:
        wait()
        return x + 1

    thread = threading.Thread(target=dynamo.compile(f, backend=backend), args=(torch.ones(2),))
    thread.start()
    assert inside.wait(30)
    before = len(graphs)
    make_function(99)(torch.ones(3), 3)
    assert len(graphs) == before
    leave.set()
    thread.join(30)


def resident_kib() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize() // 1024


def test_many_calls_do_not_grow() -> None:
    dynamo.reset()
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(), torch.nn.Linear(4, 4)).eval()

    def f(x: torch.Tensor, items: list[Any]) -> Any:
        items.append(len(items))
        y = model(x)
        dynamo.graph_break()
        return {"y": y * 2, "n": items.pop()}

    compiled = dynamo.compile(f, backend="eager")
    x, items = torch.ones(2, 4), [1]
    with torch.no_grad():
        for _ in range(3000):
            compiled(x, items)
        objects, growth = [], []
        while len(growth) < 4 and min(growth, default=2048) >= 2048:  # a leak is in all of them; what earlier tests have left may go on in the first ones
            gc.collect()
            objects.append(len(gc.get_objects()))
            memory = resident_kib()
            for _ in range(50_000):
                compiled(x, items)
            gc.collect()
            growth.append(resident_kib() - memory)
    assert len(gc.get_objects()) - objects[0] < 200
    assert min(growth) < 2048


def test_entries_die_with_their_function() -> None:
    dynamo.reset()
    model = torch.nn.Linear(3, 3)
    died = weakref.ref(model)
    compiled = dynamo.compile(model, backend="eager")
    compiled(torch.ones(2, 3))
    del model, compiled
    gc.collect()
    assert died() is None


@pytest.mark.parametrize("when", ["backend", "internal"])
def test_failed_compile_leaves_no_trace(when: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compile that fails half-way has changed no object of the program."""
    dynamo.reset()
    box: dict[str, Any] = {"list": [1], "n": 0}

    def f(x: torch.Tensor) -> torch.Tensor:
        box["list"].append(2)
        box["n"] += 1
        x.add_(1)
        return x * 2

    def backend(module: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        raise KeyError("no such kernel")

    x = torch.zeros(2)
    with pytest.raises(dynamo.exc.BackendError, match="no such kernel"):
        dynamo.compile(f, backend=backend)(x)
    assert box == {"list": [1], "n": 0} and x.eq(0).all()
    assert torch.is_grad_enabled()
    assert dynamo.compile(f, backend="eager")(x).eq(2).all()
    assert box == {"list": [1, 2], "n": 1} and x.eq(1).all()
