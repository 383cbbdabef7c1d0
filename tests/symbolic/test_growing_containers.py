"""Lists and dicts from outside that compiled code adds to: one compile, whatever their length."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynamo
from dynamo.testing import CompileCounter

GLOBAL: list[Any] = []


class Model:
    def __init__(self, length: int) -> None:
        self.history: list[Any] = [0.5] * length
        self.count = 0


def one(m: Model, x: Any) -> Any:
    m.history.append(x.sum())
    return x + 1


def constant(m: Model, x: Any) -> Any:
    m.history.append(("step", 1))
    return x * 2


def several(m: Model, x: Any) -> Any:
    m.history.append(1)
    m.history.extend([x, 2])
    m.history += (3, [4])
    m.history.append(m.history)
    return x


def by_two_names(m: Model, x: Any) -> Any:
    items = m.history
    items.append(1)
    m.history.append(2)
    return x + 1


def with_first(m: Model, x: Any) -> Any:
    m.history.append(7)
    return x + m.history[0]


def truth(m: Model, x: Any) -> Any:
    m.history.append(7)
    return x + 1 if m.history else x


def in_between(m: Model, x: Any) -> Any:
    m.count = 1
    m.history.append(m.count)
    m.count = 2
    m.history.append(m.count)
    return x + m.count


def in_a_loop(m: Model, x: Any) -> Any:
    for i in range(3):
        m.history.append(x[i])
    return x


def twice(m: Model, x: Any) -> Any:
    m.history.append(x)
    m.history.append(x)
    return x * m.history[0]


APPENDING = [one, constant, several, by_two_names, with_first, truth, in_between, in_a_loop, twice]


def length_after(m: Model, x: Any) -> Any:
    m.history.append(7)
    return x + len(m.history)


def items_after(m: Model, x: Any) -> Any:
    m.history.append(7)
    return x + sum(m.history) + m.history[-1]


def pop_after(m: Model, x: Any) -> Any:
    m.history.append(7)
    m.history.append(8)
    m.history.pop()
    m.history.append(9)
    m.history[0] = 3
    return x + m.history.pop()


def break_after(m: Model, x: Any) -> Any:
    m.history.append(7)
    dynamo.graph_break()
    m.history.append(len(m.history))
    return x + 1


def raises(m: Model, x: Any) -> Any:
    m.history.append(7)
    try:
        m.history.append(8)
        m.history.index("absent")
    except ValueError:
        m.history.append(9)
    m.history.append(m.absent)  # type: ignore[attr-defined]
    return x


def part_of_itself(m: Model, x: Any) -> Any:
    m.history.append(1)
    m.history.extend(m.history)
    return x


READING = [length_after, items_after, pop_after, break_after, raises, part_of_itself]


def outcome(function: Callable[..., Any], m: Model, x: Any) -> Any:
    try:
        return function(m, x)
    except Exception as error:
        return type(error), str(error)


def same(a: Any, b: Any, mine: Any = None, theirs: Any = None) -> bool:
    if isinstance(a, torch.Tensor):
        return torch.equal(a, b)
    if isinstance(a, list | tuple):
        if a is mine:
            return b is theirs
        return type(a) is type(b) and len(a) == len(b) and all(
            same(p, q, mine or a, theirs or b) for p, q in zip(a, b, strict=True))
    return type(a) is type(b) and a == b


@pytest.mark.parametrize("function", APPENDING + READING)
def test_a_list_that_grows(function: Callable[..., Any]) -> None:
    backend, x = CompileCounter(), torch.rand(3)
    compiled = dynamo.compile(lambda m, x: (function(m, x), x + 1), backend=backend)
    for length in (2, 1, 5, 3000) if function in APPENDING else (2, 5, 2):
        mine, theirs = Model(length), Model(length)
        for _ in range(3 if function in APPENDING else 1):
            expected = outcome(lambda m, x: (function(m, x), x + 1), theirs, x)
            assert same(outcome(compiled, mine, x), expected)
            assert same(mine.history, theirs.history, mine.history, theirs.history)
            assert mine.count == theirs.count
    if function in APPENDING:
        assert backend.frame_count == 1


def test_a_hundred_calls() -> None:
    def step(x: torch.Tensor) -> torch.Tensor:
        GLOBAL.append((x * 2).sum())
        return x + 1

    backend = CompileCounter()
    compiled = dynamo.compile(step, backend=backend, fullgraph=True)
    x = torch.rand(3)
    for _ in range(100):
        compiled(x)
    assert backend.frame_count == 1 and len(GLOBAL) == 100
    assert all(torch.equal(item, (x * 2).sum()) for item in GLOBAL)


class Counting(list[Any]):
    seen = 0

    def append(self, item: Any) -> None:
        self.seen += 1
        super().append(item)


def test_a_subclass_with_its_own_append() -> None:
    def step(items: Counting, x: torch.Tensor) -> torch.Tensor:
        items.append(1)
        return x + items.seen

    mine, theirs, x = Counting(), Counting(), torch.rand(2)
    compiled = dynamo.compile(step, backend="eager")
    for _ in range(3):
        assert torch.equal(compiled(mine, x), step(theirs, x))
    assert list(mine) == list(theirs) and mine.seen == theirs.seen


# -- dicts -----------------------------------------------------------------------------------------


def store_one(d: Any, x: Any) -> Any:
    d["last"] = x.sum()
    return x


def store_in_order(d: Any, x: Any) -> Any:
    d["p"], d["q"], d["p"] = 1, 2, 3
    d.update(r=4, q=5)
    return x + d["p"] + d["q"] + ("r" in d) + d.get("absent", 9)


def replace_old(d: Any, x: Any) -> Any:
    old = d[0]
    d[0] = x
    d["old"] = old
    return x + old


def store_and_truth(d: Any, x: Any) -> Any:
    d[3.5] = 1
    return x + 1 if d else x


def store_and_length(d: Any, x: Any) -> Any:
    d["last"] = 1
    return x + len(d)


def store_and_items(d: Any, x: Any) -> Any:
    d["p"], d[0] = 1, 2
    d["q"] = 3
    return x, [(k, v) for k, v in d.items() if k != 1], list(d)[-2:]


def store_and_delete(d: Any, x: Any) -> Any:
    d["p"], d["q"] = x, 2
    del d["p"]
    d["p"] = 3
    return x + d.pop("q")


def store_and_fail(d: Any, x: Any) -> Any:
    d["p"] = 1
    return x + d["absent"]


STORING = [store_one, store_in_order, replace_old, store_and_truth]
LOOKING = [store_and_length, store_and_items, store_and_delete, store_and_fail]


@pytest.mark.parametrize("kind", [dict, collections.defaultdict, collections.OrderedDict])
@pytest.mark.parametrize("function", STORING + LOOKING)
def test_a_dict_that_grows(function: Callable[..., Any], kind: Any) -> None:
    backend, x = CompileCounter(), torch.rand(3)
    compiled = dynamo.compile(lambda d, x: (function(d, x), x + 1), backend=backend)
    grows = function in STORING and kind is not collections.OrderedDict
    for length in (2, 3, 5000) if grows else (2, 3):
        mine, theirs = kind(), kind()
        for d in (mine, theirs):
            dict.update(d, {i: 0.5 for i in range(length)}) if kind is not (
                collections.OrderedDict) else d.update({i: 0.5 for i in range(length)})
        for _ in range(1 if function is replace_old else 2):
            expected = outcome(lambda d, x: (function(d, x), x + 1), theirs, x)
            assert same(outcome(compiled, mine, x), expected)
            assert same(list(mine.items()), list(theirs.items()))
    if grows:
        assert backend.frame_count <= 2  # a key that is new, and one that is there


# -- sets and deques -------------------------------------------------------------------------------


def add(s: Any, x: Any) -> Any:
    s.add("p")
    s.add(1)
    return x + ("p" in s) + ("absent" in s) + (5 if s else 6)


def add_and_length(s: Any, x: Any) -> Any:
    s.add("p")
    s.add(1)
    return x + len(s)


def add_and_remove(s: Any, x: Any) -> Any:
    s.add("p")
    s.discard("p")
    s.remove(0)
    s.add("q")
    return x + len(s)


@pytest.mark.parametrize("function", [add, add_and_length, add_and_remove])
def test_a_set_that_grows(function: Callable[..., Any]) -> None:
    backend, x = CompileCounter(), torch.rand(3)
    compiled = dynamo.compile(lambda s, x: (function(s, x), x + 1), backend=backend)
    for length in (2, 1, 3000) if function is add else (2, 1, 2):
        mine, theirs = set(range(length)), set(range(length))
        for _ in range(2):
            expected = outcome(lambda s, x: (function(s, x), x + 1), theirs, x)
            assert same(outcome(compiled, mine, x), expected)
            assert mine == theirs
    assert function is not add or backend.frame_count == 1


def test_a_set_that_is_clear_again() -> None:
    def clear(s: set[Any], x: torch.Tensor) -> torch.Tensor:
        s.add(5)
        s.clear()
        return x + 1 if s else x + 2

    mine, x = {1}, torch.rand(2)
    assert torch.equal(dynamo.compile(clear, backend="eager")(mine, x), x + 2) and not mine


@pytest.mark.parametrize("limit", [None, 3])
def test_a_deque_that_grows(limit: int | None) -> None:
    def step(d: Any, x: torch.Tensor) -> torch.Tensor:
        d.append(x.sum())
        d.extend([1, 2])
        return x + 1

    backend, x = CompileCounter(), torch.rand(3)
    compiled = dynamo.compile(step, backend=backend, fullgraph=True)
    for length in (0, 2, 100):
        mine, theirs = (collections.deque(range(length), limit) for _ in range(2))
        for _ in range(3):
            assert torch.equal(compiled(mine, x), step(theirs, x))
            assert same(list(mine), list(theirs)) and mine.maxlen == theirs.maxlen
    assert backend.frame_count == 1


def test_a_deque_that_is_read() -> None:
    def step(d: Any, x: torch.Tensor) -> torch.Tensor:
        d.append(3)
        x = x + len(d) + (d.maxlen or 0) + sum(d)
        d.popleft()
        return x + d[-1] if d else x

    compiled, x = dynamo.compile(step, backend="eager"), torch.rand(3)
    for limit, length in ((None, 2), (3, 5), (2, 0)):
        mine, theirs = (collections.deque(range(length), limit) for _ in range(2))
        for _ in range(3):
            assert torch.equal(compiled(mine, x), step(theirs, x)) and mine == theirs
