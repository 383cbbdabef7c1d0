"""Loops with graph breaks and deep recursion: the stack grows no faster than in plain Python."""

from __future__ import annotations

import sys
import threading
import traceback
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch

import dynamo

TURNS = 3 * sys.getrecursionlimit()


@contextmanager
def noted(log: list[int], turn: int) -> Iterator[None]:
    log.append(turn)
    try:
        yield
    finally:
        log.append(-turn)


def for_loop(x: torch.Tensor, turns: int) -> Any:
    for _ in range(turns):
        x = x + 1
        dynamo.graph_break()
        x = x * 1
    return x


def while_loop(x: torch.Tensor, turns: int) -> Any:
    done = 0
    while done < turns:
        x = x + 1
        done += 1
        if x.sum().item() < 0:
            return None
    return x, done


def two_loops(x: torch.Tensor, turns: int) -> Any:
    for outer in range(turns // 100):
        for inner in range(100):
            dynamo.graph_break()
            if inner % 3 == outer % 3:
                continue
            x = x + inner
        dynamo.graph_break()
    else:
        x = x * 2
    return x


def in_an_inlined_call(x: torch.Tensor, turns: int) -> Any:
    return for_loop(x, turns) * 2


def with_blocks(x: torch.Tensor, turns: int) -> Any:
    log: list[int] = []
    for turn in range(turns):
        with noted(log, turn):
            try:
                x = x + 1
                dynamo.graph_break()
                if turn % 2:
                    raise KeyError(turn)
            except KeyError as error:
                dynamo.graph_break()
                log.append(error.args[0])
            finally:
                dynamo.graph_break()
                x = x - 1
    return x, log


def breaking_generator(turns: int) -> Iterator[int]:
    for turn in range(turns):
        dynamo.graph_break()
        yield turn


def over_a_generator(x: torch.Tensor, turns: int) -> Any:
    for turn in breaking_generator(turns):
        x = x + turn
    return x


def calling_itself(x: torch.Tensor, turns: int) -> Any:
    for turn in range(4):
        dynamo.graph_break()
        x = x + turn
        if turns:
            x = calling_itself(x, turns // 5)
        dynamo.graph_break()
    return x


PROGRAMS: list[Callable[[torch.Tensor, int], Any]] = [
    for_loop, while_loop, two_loops, in_an_inlined_call, with_blocks, over_a_generator,
    calling_itself,
]  # fmt: skip


@pytest.mark.parametrize("f", PROGRAMS)
def test_more_turns_than_the_recursion_limit(f: Callable[[torch.Tensor, int], Any]) -> None:
    dynamo.reset()
    want = f(torch.zeros(2), TURNS)
    found = dynamo.compile(f, backend="eager")(torch.zeros(2), TURNS)
    if isinstance(want, tuple):
        assert torch.equal(found[0], want[0])
        assert found[1:] == want[1:]
    else:
        assert torch.equal(found, want)


def test_the_traceback_of_a_late_turn_is_short() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        for turn in range(50):
            x = x + 1
            dynamo.graph_break()
            if turn == 40:
                raise KeyError(turn)
        return x

    with pytest.raises(KeyError) as raised:
        dynamo.compile(f, backend="eager")(torch.zeros(2))
    lines = [frame.line for frame in traceback.extract_tb(raised.value.__traceback__)]
    assert lines[-1] == "raise KeyError(turn)" and len(lines) <= 4


class Held:
    pass


def test_what_a_turn_has_made_dies_with_the_next() -> None:
    alive: list[weakref.ref[Held]] = []
    counts: list[int] = []

    def f(x: torch.Tensor) -> torch.Tensor:
        for _ in range(20):
            held = Held()
            alive.append(weakref.ref(held))
            counts.append(sum(ref() is not None for ref in alive))
            dynamo.graph_break()
            x = x + 1
        return x

    f(torch.zeros(2))
    want, counts[:], alive[:] = list(counts), [], []
    dynamo.compile(f, backend="eager")(torch.zeros(2))
    assert counts == want


def test_a_finalizer_that_calls_compiled_code_between_two_turns() -> None:
    inner = dynamo.compile(for_loop, backend="eager")
    found: list[torch.Tensor] = []

    class Last:
        def __del__(self) -> None:
            found.append(inner(torch.zeros(2), 3))

    def f(x: torch.Tensor) -> torch.Tensor:
        for _ in range(5):
            last = Last()
            dynamo.graph_break()
            x = x + 1
            del last
            dynamo.graph_break()
        return x

    assert torch.equal(dynamo.compile(f, backend="eager")(torch.zeros(2)), torch.full((2,), 5.0))
    assert len(found) == 5 and all(torch.equal(x, torch.full((2,), 3.0)) for x in found)


def test_a_profiler_sees_no_call_of_the_hook() -> None:
    returned: list[Any] = []

    def profile(frame: Any, event: str, value: Any) -> None:
        if event == "return":
            returned.append(type(value).__name__)

    compiled = dynamo.compile(for_loop, backend="eager")
    compiled(torch.zeros(2), 10)
    sys.setprofile(profile)
    try:
        found = compiled(torch.zeros(2), 10)
    finally:
        sys.setprofile(None)
    assert torch.equal(found, torch.full((2,), 10.0))
    assert returned and "LastCall" not in returned


def count_down(n: int) -> int:
    return count_down(n - 1) + 1 if n else 0


def deep(x: torch.Tensor, n: int) -> Any:
    x = x + 1
    dynamo.graph_break()
    return x * 2, count_down(n)


def test_recursion_as_deep_as_without_the_compiler() -> None:
    found: list[Any] = []

    def run() -> None:
        found.append(dynamo.compile(deep, backend="eager")(torch.zeros(2), 30_000)[1])

    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(100_000)
    try:
        run()
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    finally:
        sys.setrecursionlimit(limit)
    assert found == [30_000, 30_000]


def test_recursion_beyond_the_limit_raises() -> None:
    with pytest.raises(RecursionError):
        dynamo.compile(deep, backend="eager")(torch.zeros(2), 5 * sys.getrecursionlimit())
    assert dynamo.compile(deep, backend="eager")(torch.zeros(2), 10)[1] == 10


def frames() -> int:
    frame, count = sys._getframe(1), 0
    while frame is not None:
        frame, count = frame.f_back, count + 1  # type: ignore[assignment]
    return count


def test_a_call_near_the_recursion_limit() -> None:
    """The compiler needs more frames than the program: what it can't compile runs as it is."""

    def plain(x: int) -> list[int]:
        return [x]

    def deep(rounds: int, last: Callable[[int], list[int]]) -> list[int]:
        return deep(rounds - 1, last) if rounds else last(1)

    def runs(room: int, last: Callable[[int], list[int]]) -> bool:
        try:
            return deep(sys.getrecursionlimit() - frames() - room, last) == [1]
        except RecursionError:
            return False

    least = next(room for room in range(100) if runs(room, plain))
    for room in range(least + 2, least + 8):
        dynamo.reset()
        assert runs(room, dynamo.compile(plain, backend="eager"))
