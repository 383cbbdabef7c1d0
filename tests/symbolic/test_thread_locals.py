"""Attributes of `threading.local`: each thread has its own, which guards and effects follow."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynamo
from dynamo.testing import CompileCounter


class Store(threading.local):
    shared = 3

    def __init__(self, start: int = 1) -> None:
        self.count = start
        self.scale = torch.full((2,), 2.0)

    def next(self) -> int:
        self.count += 1
        return self.count


plain, stores = threading.local(), Store(5)
plain.bias, plain.items, plain.gone = torch.ones(2), [torch.ones(2)], 1


def in_thread(function: Callable[[], Any]) -> Any:
    found: list[Any] = []

    def run() -> None:
        try:
            found.append(function())
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return found[0]


def reads(x: torch.Tensor) -> torch.Tensor:
    return x * plain.bias + stores.scale * stores.count + stores.shared + plain.items[0]


def may_be_missing(x: torch.Tensor) -> torch.Tensor:
    if hasattr(plain, "depth"):
        return x + plain.depth
    return x * getattr(plain, "other", 4)


def catches(x: torch.Tensor) -> torch.Tensor:
    try:
        return x + plain.nothing
    except AttributeError as error:
        return x + len(str(error))


def test_reads_are_those_of_the_thread() -> None:
    counter, x = CompileCounter("eager"), torch.randn(2)
    compiled = dynamo.compile(reads, backend=counter, fullgraph=True)
    assert torch.equal(compiled(x), reads(x))
    plain.bias = torch.randn(2)
    assert torch.equal(compiled(x), reads(x)) and counter.frame_count == 1

    def other() -> Any:
        plain.bias, plain.items = torch.randn(2), [torch.randn(2)]
        stores.count = 9
        return compiled(x), reads(x)

    result, expected = in_thread(other)
    assert torch.equal(result, expected)
    assert torch.equal(compiled(x), reads(x))
    stores.count = 6
    assert torch.equal(compiled(x), reads(x))
    assert isinstance(in_thread(lambda: compiled(x)), AttributeError)


def test_what_is_missing() -> None:
    x = torch.randn(2)
    for f in (may_be_missing, catches):
        compiled = dynamo.compile(f, backend="eager", fullgraph=True)
        for name, value in (("depth", 7), ("other", torch.ones(2)), ("nothing", 1.5)):
            assert torch.equal(compiled(x), f(x))
            setattr(plain, name, value)
            assert torch.equal(compiled(x), f(x))
            assert torch.equal(in_thread(lambda c=compiled: c(x)), in_thread(lambda g=f: g(x)))
            delattr(plain, name)
            assert torch.equal(compiled(x), f(x))


def test_writes_are_effects_in_the_thread() -> None:
    def f(x: torch.Tensor) -> Any:
        plain.last = x * 2
        plain.depth = getattr(plain, "depth", 0) + 1
        found = stores.next()
        plain.temporary = 1
        del plain.temporary
        return plain.last + plain.depth + found

    compiled = dynamo.compile(f, backend="eager", fullgraph=True)

    def run(function: Callable[..., Any]) -> Any:
        results = []
        for _ in range(3):
            results.append(function(torch.arange(2.0)))
            results += [plain.last, plain.depth, stores.count, hasattr(plain, "temporary")]
        return results, sorted(plain.__dict__)

    for where in (in_thread, lambda g: g()):
        before = stores.count
        ours = where(lambda: run(compiled))
        stores.count = before
        plain.__dict__.pop("depth", None), plain.__dict__.pop("last", None)
        expected = where(lambda: run(f))
        assert not isinstance(ours, Exception), ours
        assert str(ours) == str(expected)
        plain.__dict__.pop("depth", None), plain.__dict__.pop("last", None)
        stores.count = 5


def test_init_runs_once_in_each_thread() -> None:
    made: list[int] = []

    class Counted(threading.local):
        def __init__(self) -> None:
            made.append(threading.get_ident())
            self.value = len(made)

    held = Counted()
    compiled = dynamo.compile(lambda x: x + held.value, backend="eager", fullgraph=True)
    assert [compiled(torch.zeros(1)).item() for _ in range(2)] == [1, 1]
    assert in_thread(lambda: [compiled(torch.zeros(1)).item() for _ in range(2)]) == [2, 2]
    assert len(made) == 2


class Manager:
    """As libraries hold which backend a thread has chosen."""

    chosen = threading.local()

    @classmethod
    def backend(cls) -> int:
        return cls.chosen.__dict__.get("backend", 2)  # type: ignore[no-any-return]


def test_dicts_of_threads() -> None:
    def program(x: torch.Tensor) -> Any:
        own = Manager.chosen.__dict__
        own["calls"] = own.get("calls", 0) + 1
        return x * Manager.backend() + len(vars(Manager.chosen)), own, dict(own)

    compiled, x = dynamo.compile(program, fullgraph=True), torch.ones(2)

    def check() -> bool:
        Manager.chosen.__dict__.pop("calls", None)
        found = compiled(x)
        Manager.chosen.__dict__.pop("calls", None)
        wanted = program(x)
        return torch.equal(found[0], wanted[0]) and found[1] is wanted[1] and found[2] == wanted[2]

    assert check()
    Manager.chosen.backend = 7
    assert check() and in_thread(check) and check()


def test_numbers_of_threads() -> None:
    counts = {threading.get_ident(): 3}

    def program(x: torch.Tensor) -> torch.Tensor:
        return x * counts.get(threading.get_ident(), 1)

    counter = CompileCounter()
    compiled, x = dynamo.compile(program, backend=counter), torch.ones(2)
    for _ in range(3):
        before = counter.frame_count
        assert torch.equal(compiled(x), x * 3)
        assert counter.frame_count == max(1, before), "the main thread has one graph"
        assert torch.equal(in_thread(lambda: compiled(x)), x)


def test_a_dict_that_is_met_by_itself() -> None:
    def program(x: torch.Tensor, own: dict[str, Any]) -> Any:
        return x + 1, own is plain.__dict__

    compiled, x = dynamo.compile(program), torch.ones(2)
    for own in (plain.__dict__, {}, plain.__dict__):
        assert compiled(x, own)[1] == program(x, own)[1]


@pytest.mark.parametrize("f", [
    lambda x: (local := threading.local(), setattr(local, "a", x), local.a + 1)[-1],
])
def test_what_is_not_modelled_runs_as_it_is(f: Callable[..., Any]) -> None:
    x = torch.randn(2)
    assert torch.equal(dynamo.compile(f, backend="eager")(x), f(x))
