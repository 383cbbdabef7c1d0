"""Iterators and generators that existed before the compiled function: items, what is left, graphs."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import dynamo
from dynamo.testing import CompileCounter

LOG: list[str] = []
MARK = object()


def tensors(count: int) -> list[torch.Tensor]:
    return [torch.full((3,), i + 0.5) for i in range(count)]


def doubled(xs: list[torch.Tensor]) -> Iterator[torch.Tensor]:
    for x in xs:
        yield x * 2


def scaled(xs: list[torch.Tensor], start: int, *, factor: int = 2) -> Iterator[torch.Tensor]:
    try:
        for i in range(start, len(xs)):
            yield xs[i] * factor
    finally:
        LOG.append("end")


def failing(xs: list[torch.Tensor]) -> Iterator[torch.Tensor]:
    yield xs[0]
    raise KeyError("here")


def total(it: Any) -> torch.Tensor:
    result = torch.zeros(3)
    for item in it:
        result = result + (item[0] * item[-1] if isinstance(item, tuple) else item)
    return result


def two(it: Any) -> Any:
    return torch.ones(3) * next(it), torch.ones(3) + next(it)


def until_mark(it: Any) -> Any:
    last = torch.zeros(3)
    for item in it:
        if item is MARK:
            break
        last = last + item
    return last * 2


def closed(it: Any) -> Any:
    it.close()
    return torch.ones(3) + 1


MADE: dict[str, Callable[[], Any]] = {
    "list": lambda: iter(tensors(4)),
    "tuple": lambda: iter(tuple(tensors(4))),
    "range": lambda: iter(range(1, 9, 2)),
    "values": lambda: iter(dict(enumerate(tensors(3))).values()),
    "items": lambda: iter(dict(enumerate(tensors(3))).items()),
    "zip": lambda: zip(tensors(3), tensors(4), strict=False),
    "strict zip": lambda: zip(tensors(3), tensors(2), strict=True),
    "map": lambda: map(torch.neg, tensors(3)),
    "filter": lambda: filter(None, [1, 0, 2, 3]),
    "enumerate": lambda: enumerate(tensors(3), 2),
    "chain": lambda: itertools.chain(tensors(1), tensors(2)),
    "generator": lambda: doubled(tensors(3)),
    "keyword": lambda: scaled(tensors(4), 1, factor=3),
    "failing": lambda: failing(tensors(1)),
    "parameters": lambda: torch.nn.Linear(3, 3).parameters(),
    "chained parameters": lambda: itertools.chain(torch.nn.Linear(3, 3).parameters(), tensors(1)),
}
PAIRS = ("items", "zip", "strict zip", "enumerate")
ROWS = [(total, name, 1) for name in MADE if name not in ("failing", "strict zip")] + [
    (total, "strict zip", None), (total, "failing", None),
    *[(two, name, 1) for name in ("list", "tuple", "map", "parameters", "chain", "range")],
    (two, "generator", None), (two, "keyword", None), (closed, "generator", 1),
]


def outcome(function: Any, make: Any) -> list[Any]:
    """What two calls do with one iterator, and what is left of it after each."""
    LOG.clear()
    torch.manual_seed(3)
    it, found = make(), []
    for step in (function, lambda it: list(itertools.islice(it, 1)), function, list):
        try:
            found.append(step(it))
        except Exception as error:
            found.append(repr(error))
    return [str(found), *LOG]


@pytest.mark.parametrize(("function", "name", "graphs"), ROWS)
def test_items_and_what_is_left(function: Any, name: str, graphs: int | None) -> None:
    counter = CompileCounter()
    expected = outcome(function, MADE[name])
    with dynamo.config.patch(suppress_errors=False):
        assert outcome(dynamo.compile(function, backend=counter), MADE[name]) == expected
    if graphs is not None:
        dynamo.compile(function, backend=(first := CompileCounter()))(MADE[name]())
        assert first.frame_count == graphs


def test_a_loop_that_ends_early_leaves_the_rest() -> None:
    for make in (lambda items: iter(items), lambda items: (item for item in items)):
        items = [*tensors(2), MARK, *tensors(1)]
        counter = CompileCounter()
        left, right = make(items), make(items)
        torch.testing.assert_close(
            dynamo.compile(until_mark, backend=counter)(left), until_mark(right), rtol=0, atol=0)
        assert str(list(left)) == str(list(right))


def test_a_list_that_grows_meanwhile() -> None:
    def grow(it: Any, items: list[torch.Tensor]) -> torch.Tensor:
        result = torch.zeros(3)
        for item in it:
            result = result + item
            if len(items) < 5:
                items.append(item)
        return result

    counter = CompileCounter()
    items, others = tensors(3), tensors(3)
    it = iter(items)
    found = dynamo.compile(grow, backend=counter, fullgraph=True)(it, items)
    assert torch.equal(found, grow(iter(others), others))
    assert (len(items), list(it), counter.frame_count) == (5, [], 1)


def test_one_item_per_call_compiles_a_constant_number_of_graphs() -> None:
    counter = CompileCounter()
    x = torch.rand(3)
    step = dynamo.compile(lambda it: x * next(it) + 1, backend=counter)
    for it, other in ((iter(tensors(9)), iter(tensors(9))), (itertools.count(2, 3), itertools.count(2, 3))):
        for _ in range(8):
            assert torch.equal(step(it), x * next(other) + 1)
    assert counter.frame_count <= 4


def test_what_comes_behind_a_started_generator_is_compiled() -> None:
    def sums(it: Any, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        return y + next(it).sin() + 1

    counter = CompileCounter()
    x, it, other = torch.rand(3), doubled(tensors(4)), doubled(tensors(4))
    next(it), next(other)
    assert torch.equal(dynamo.compile(sums, backend=counter)(it, x), sums(other, x))
    assert counter.frame_count == 2 and str(list(it)) == str(list(other))


@pytest.mark.parametrize("buffers", [False, True])
def test_averaged_models(buffers: bool) -> None:
    def run(compiled: bool) -> tuple[list[torch.Tensor], int]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3))
        average = torch.optim.swa_utils.AveragedModel(model, use_buffers=buffers)
        counter = CompileCounter()
        update = average.update_parameters
        if compiled:
            update = dynamo.compile(update, backend=counter)
        for _ in range(4):
            model(torch.randn(4, 3)).sum().backward()
            with torch.no_grad():
                for p in model.parameters():
                    p -= p.grad
            update(model)
        return [*average.state_dict().values()], counter.frame_count

    (found, graphs), (expected, _) = run(True), run(False)
    assert all(map(torch.equal, found, expected))
    assert graphs <= 5
