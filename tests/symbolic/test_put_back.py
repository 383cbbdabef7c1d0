"""`x[i] += v` where `i` is a tensor without dimensions: in the graph, where nobody can tell a copy from eager's view."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import dynamo
from tests.symbolic.test_picking import both, table

ONE, TWO = torch.tensor(1), torch.tensor(2)


@pytest.fixture(autouse=True)
def fresh() -> None:
    dynamo.reset()


def plus(x: Tensor, i: Tensor, v: Tensor) -> Tensor:
    x[i] += v
    return x.sum()


def column(x: Tensor, i: Tensor, v: Tensor) -> Tensor:
    x[:, i] *= 2
    return x + v


def part(x: Tensor, i: Tensor, v: Tensor) -> None:
    x[i, 1:3] -= v[0]


def element(x: Tensor, i: Tensor, v: Tensor) -> None:
    x[i, i] += v[1]


def counted(x: Tensor, i: Tensor, v: Tensor) -> Tensor:
    count = torch.zeros(5, dtype=torch.int64)
    for k in range(3):
        count[i] += k
        count[(i + k) % 5] += 1
    return count


def by_itself(x: Tensor, i: Tensor, v: Tensor) -> Tensor:
    x[i] += x[i] * v
    x[i] /= x.sum()
    return x.exp()


def used_and_then_written(x: Tensor, i: Tensor, v: Tensor) -> Tensor:
    row = x[i] * 2
    x[0] = row
    x.mul_(2)
    return row + v


CAPTURED = [plus, column, part, element, counted, by_itself, used_and_then_written]


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("function", CAPTURED, ids=lambda function: function.__name__)
def test_captured(function: Callable[..., Any], backend: str) -> None:
    for number in (2, -1):
        dynamo.reset()
        counter = both(function, lambda: (table(), torch.tensor(number), table(4)), backend)  # noqa: B023
        assert counter.frame_count == 1
        assert not dynamo.counters["graph_break"]


def kept(x: Tensor, i: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    row = x[i]
    row += v
    x[i] = row
    return row, x * 2


def seen_between(x: Tensor, i: Tensor, v: Tensor) -> Tensor:
    row = x[i]
    row += v
    total = x.sum()
    x[i] = row
    return total


def put_elsewhere(x: Tensor, i: Tensor, v: Tensor) -> None:
    row = x[i]
    row += v
    x[i + 1] = row


def of_another_number(x: Tensor, i: Tensor, v: Tensor) -> None:
    row = x[i]
    row += v
    i.add_(1)
    x[i] = row


def written_twice(x: Tensor, i: Tensor, v: Tensor) -> None:
    row = x[i]
    row += v
    row *= 2
    x[i] = row


def used_after(x: Tensor, i: Tensor, v: Tensor) -> Tensor:
    row = x[i]
    row += v
    x[i] = row
    x.mul_(2)
    return row + 1


def with_its_neighbour(x: Tensor, i: Tensor, v: Tensor) -> None:
    x[i, 1:3] += x[2, 0:2]


def added_to_all(x: Tensor, i: Tensor, v: Tensor) -> None:
    x.add_(x[i])


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("function", [
    kept, seen_between, put_elsewhere, of_another_number, written_twice, used_after, with_its_neighbour, added_to_all,
], ids=lambda function: function.__name__)  # fmt: skip
def test_where_the_view_can_be_told(function: Callable[..., Any], backend: str) -> None:
    both(function, lambda: (table(), torch.tensor(2), table(4)), backend)


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("number", [5, -6])
def test_out_of_range(number: int, backend: str) -> None:
    both(plus, lambda: (table(), torch.tensor(number), table(4)), backend)


def test_arguments_that_share_memory() -> None:
    compiled = dynamo.compile(plus)
    for other in (lambda x: torch.ones(4), lambda x: x[0], lambda x: x[2], lambda x: x.view(-1)[9:13]):
        outcomes = []
        for run in (plus, compiled):
            x = table()
            try:
                outcomes.append(repr(run(x, TWO, other(x))))
            except RuntimeError as error:
                outcomes.append(type(error).__name__)
            outcomes.append(repr(x))
        assert outcomes[:2] == outcomes[2:]


def multiplied(x: Tensor, i: Tensor, v: Tensor) -> Tensor:
    x = x * 1
    x[i] += v
    x[0, i] *= 3
    return x.square().sum()


def saved_and_then_written(x: Tensor, i: Tensor, v: Tensor) -> Tensor:
    total = (x.detach()[i] * v).sum()
    x.detach()[0] = 1.0
    return total


def saved_and_put_back(x: Tensor, i: Tensor, v: Tensor) -> Tensor:
    x = x * 1
    x[i] *= v
    return x.sum()


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("function", [multiplied, saved_and_then_written, saved_and_put_back],
                         ids=lambda function: function.__name__)  # fmt: skip
def test_gradients(function: Callable[..., Any], backend: str) -> None:
    def outcome(run: Callable[..., Any]) -> Any:
        x, v = table().requires_grad_(), table(4).requires_grad_()
        try:
            run(x, TWO, v).backward()
        except RuntimeError as error:
            return type(error)
        return x.grad, v.grad

    want, got = outcome(function), outcome(dynamo.compile(function, backend=backend))
    assert repr(got) == repr(want)
