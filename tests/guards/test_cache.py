"""The cache of entries: limits, order, threads."""

from __future__ import annotations

import functools
import gc
import threading
import warnings
from typing import Any

import pytest
import torch

import dynamo
from dynamo import hook
from dynamo.base import counters
from dynamo.base.config import Config
from dynamo.testing import CompileCounter
from tests.common import told


def scaled(x: torch.Tensor, text: str) -> torch.Tensor:
    return x * len(text)


def test_the_accumulated_limit_holds_over_all_compiled_functions() -> None:
    def shared(x: torch.Tensor, text: str) -> torch.Tensor:
        return x * len(text)

    counter = CompileCounter("eager")
    apart = functools.partial(dynamo.compile, backend=counter, isolate_recompiles=True)
    one, other = (apart(shared) for _ in range(2))
    x = torch.randn(3)
    with dynamo.config.patch(accumulated_recompile_limit=3):
        one(x, "a"), one(x, "bb"), other(x, "a")
        assert counter.frame_count == 3 == hook.entry_count(shared.__code__)
        with told("accumulated recompile limit of 3.*text was 'bb'"):  # once
            assert torch.equal(one(x, "ccc"), 3 * x)
            assert torch.equal(one(x, "dddd"), 4 * x)
            assert torch.equal(one(x, "bb"), 2 * x)
        third = apart(shared)
        with told("other compiled functions share this code"):
            assert torch.equal(third(x, "a"), x)
        assert counter.frame_count == 3
        hits = sum(entry.hits for entry in hook.entries(shared.__code__, one.region))
        one(x, "a"), one(x, "bb")
        assert sum(e.hits for e in hook.entries(shared.__code__, one.region)) == hits + 2
        del other  # its entries go with it, so that there is room
        import gc

        gc.collect()
        one(x, "ccc")
        assert counter.frame_count == 4


def test_the_limits_can_be_set_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DYNAMO_ACCUMULATED_RECOMPILE_LIMIT", "17")
    monkeypatch.setenv("DYNAMO_RECOMPILE_LIMIT", "5")
    fresh = Config("fresh", list(dynamo.config._knobs.values()))
    assert fresh.accumulated_recompile_limit == 17 and fresh.recompile_limit == 5
    assert dynamo.config.accumulated_recompile_limit == 256


def test_the_entry_that_was_hit_last_is_asked_first() -> None:
    def f(x: torch.Tensor, text: str) -> torch.Tensor:
        return x * len(text)

    compiled = dynamo.compile(f, backend="eager")
    x = torch.ones(2)
    texts = ["a", "bb", "ccc", "dddd"]
    for text in texts:
        compiled(x, text)

    def order() -> list[str]:
        found = []
        for entry in hook.entries(f.__code__, compiled.region):
            found += [g.payload for g in entry.keepalive.guards if g.kind == "CONST"]
        return found

    assert order() == texts[::-1]
    for text, expected in [("bb", ["bb", "dddd", "ccc", "a"]), ("a", ["a", "bb", "dddd", "ccc"]),
                           ("a", ["a", "bb", "dddd", "ccc"])]:
        compiled(x, text)
        assert order() == expected


def test_threads_that_miss_together_compile_once() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x * 3

    counter = CompileCounter("eager")
    compiled = dynamo.compile(f, backend=counter)
    start = threading.Barrier(4)
    results: list[Any] = []
    x = torch.ones(2)
    torch.set_num_threads(torch.get_num_threads())

    def work() -> None:
        start.wait()
        for _ in range(20):
            results.append(torch.equal(compiled(x), 3 * x))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 80
    assert counter.frame_count == 1


def test_an_entry_is_there_before_the_next_thread_looks() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x * 3

    compiled = dynamo.compile(f, backend="eager")
    policy = compiled._policy
    seen: list[int] = []

    class Lock:
        def __init__(self, lock: Any) -> None:
            self.lock = lock

        def __enter__(self) -> None:
            self.lock.__enter__()

        def __exit__(self, *error: Any) -> None:
            seen.append(len(hook.entries(f.__code__, policy.region)))
            self.lock.__exit__(*error)

    policy.lock = Lock(policy.lock)
    for n in (2, 3):
        assert torch.equal(compiled(torch.ones(n)), torch.full((n,), 3.0))
    assert seen == [1, 2]


def test_entries_may_die_while_other_threads_call() -> None:
    held: dict[int, Any] = {}

    def f(x: torch.Tensor, number: int) -> torch.Tensor:
        return held[number](x)  # type: ignore[no-any-return]

    compiled = dynamo.compile(f, backend="eager", recompile_limit=1000)
    errors: list[Any] = []

    def work(number: int) -> None:
        for step in range(15):
            held[number] = eval(f"lambda x: x * {step + 1}")
            if not torch.equal(compiled(torch.ones(2), number), torch.full((2,), step + 1.0)):
                errors.append((number, step))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors


class Emptying:
    """Garbage whose finaliser empties a list."""

    def __init__(self, place: list[Any]) -> None:
        self.place, self.cycle = place, self

    def __del__(self) -> None:
        self.place[0].clear()


def first_two(x: torch.Tensor, items: list[torch.Tensor]) -> torch.Tensor:
    return x + items[0] + items[1]


def test_no_garbage_is_collected_between_guards() -> None:
    """Else a finaliser takes away what the guards have just found in a list."""
    compiled = dynamo.compile(first_two, backend="eager")
    x, before = torch.ones(3), gc.get_threshold()
    expected = torch.full((3,), 6.0)
    place = [[torch.full((3,), 2.0), torch.full((3,), 3.0)]]
    compiled(x, place[0])
    for trial in range(120):
        place[0] = [torch.full((3,), 2.0), torch.full((3,), 3.0)]
        gc.collect()
        gc.disable()
        kept = [Emptying(place) for _ in range(3)]
        del kept
        gc.set_threshold(trial % 40 + 1)
        gc.enable()
        try:
            result = compiled(x, place[0])
        except IndexError:  # it was empty before
            result = expected
        gc.set_threshold(*before)
        assert torch.equal(result, expected)


def test_builtins_of_its_own() -> None:
    """A program whose globals name another dict of built-ins: without `sum`, with a `len` that changes."""
    own = {"len": len, "NameError": NameError}
    scope: dict[str, Any] = {"__builtins__": own}
    exec("def f(x):\n    try: return x + sum([x])\n    except NameError: return x + len([1])", scope)
    compiled, x = dynamo.compile(scope["f"], backend="eager"), torch.ones(2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            assert torch.equal(compiled(x), x + 1)
        own["len"] = lambda items: 7
        assert torch.equal(compiled(x), x + 7)


@pytest.mark.parametrize("entry", ["root", "inlined", "behind_break"])
def test_builtins_that_came_after_the_function(entry: str) -> None:
    """A function keeps the built-ins that its globals named when it was made."""
    scope: dict[str, Any] = {"dynamo": dynamo}
    exec("def root(x): return x + len([1])\ndef behind_break(x):\n    x = x * 1\n    dynamo.graph_break()\n"
         "    return x + len([1])", scope)
    scope["__builtins__"] = {"len": lambda items: 7}
    root = scope["root"]
    f = scope[entry] if entry != "inlined" else lambda x: root(x)
    compiled, x = dynamo.compile(f, backend="eager"), torch.ones(2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(2):
            assert torch.equal(compiled(x), x + 1)


class Asked:
    def __getattribute__(self, name: str) -> Any:
        return object.__getattribute__(self, name)


def asks(x: torch.Tensor, target: Asked, name: str) -> torch.Tensor:
    return x + hasattr(target, name)


def test_traces_that_give_nothing_come_to_an_end() -> None:
    """Where `asks` is at its limit, `__getattribute__` is a frame of its own, which only raises: it is
    not looked at, or not without end."""
    compiled, x, target = dynamo.compile(asks, backend="eager"), torch.ones(2), Asked()
    reason = "no tensor before the first break"
    before = counters.counters["skips"][reason]
    with dynamo.config.patch(recompile_limit=3):
        for number in range(20):
            assert torch.equal(compiled(x, target, f"name {number}"), x)
        assert counters.counters["skips"][reason] <= before + 3
        target.found = 1
        assert torch.equal(compiled(x, target, "found"), x + 1)


def test_entries_that_die_unused_come_to_an_end() -> None:
    counter = CompileCounter("eager")

    @dynamo.compile(backend=counter)
    def function(x: torch.Tensor, kind: type) -> torch.Tensor:
        return x * len(kind.__name__)

    def call(times: int) -> None:
        made = type("Made", (), {})
        for _ in range(times):
            assert torch.equal(function(torch.ones(2), made), torch.full((2,), 4.0))

    with dynamo.config.patch(recompile_limit=2):
        for number in range(1, 11):  # each is used again
            call(3)
            gc.collect()
            assert counter.frame_count == number
        for _ in range(8):
            call(1)
            gc.collect()
        assert counter.frame_count == 18
        with told("died each time after one call"):
            call(1)
        call(3)
        assert counter.frame_count == 18


def test_behind_the_limit_nothing_new_is_compiled_for_callees() -> None:
    def helper(x: torch.Tensor, text: str) -> torch.Tensor:
        return (x + len(text)).sin()

    def shared(x: torch.Tensor, text: str) -> torch.Tensor:
        return x.cos() + helper(x, text) * 2

    counter, x = CompileCounter("eager"), torch.randn(3)
    compiled = dynamo.compile(shared, backend=counter, recompile_limit=3)
    with told("recompile limit of 3"):
        for number in range(20):
            text = "a" * number
            assert torch.equal(compiled(x, text), shared(x, text))
    before = counter.frame_count
    assert before == 3
    assert torch.equal(compiled(x, "a" * 30), shared(x, "a" * 30))
    assert torch.equal(compiled(x, ""), shared(x, "")) and counter.frame_count == before


def test_calls_of_modules_behind_the_limit_have_limits_of_their_own() -> None:
    """All modules are called by one function."""
    class Broken(torch.nn.Sequential):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self:
                dynamo.graph_break()
                x = layer(x)
            return x

    classes = [type(f"Layer{n}", (torch.nn.Linear,), {
        "forward": eval(f"lambda self, x: torch.nn.functional.linear(x, self.weight) * {n}")})
        for n in range(2, 9)]
    net, counter = Broken(*[each(2, 2) for each in classes]), CompileCounter("eager")
    x = torch.randn(2, 2)
    compiled = dynamo.compile(net, backend=counter, recompile_limit=3)
    assert torch.allclose(compiled(x), net(x))
    assert counter.frame_count > 3
