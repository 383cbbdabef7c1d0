"""`x[i]` where `i` is a tensor without dimensions: in the graph where nobody can tell it from eager's view."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import dynamo
from dynamo.testing import CompileCounter

TWO = torch.tensor(2)


@pytest.fixture(autouse=True)
def fresh() -> None:
    dynamo.reset()


def both(function: Callable[..., Any], make: Callable[[], tuple[Any, ...]], backend: str = "eager") -> CompileCounter:
    """Results (or the error), arguments and what results share with them, compiled and not."""
    counter = CompileCounter(backend)

    def outcome(run: Callable[..., Any]) -> Any:
        args = make()
        try:
            result = run(*args)
        except Exception as error:
            return type(error), args
        parts = [part for part in (result if isinstance(result, tuple) else (result,)) if isinstance(part, Tensor)]
        start = {arg.untyped_storage().data_ptr() for arg in args if isinstance(arg, Tensor)}
        shared = [part.untyped_storage().data_ptr() in start for part in parts]
        return result, args, shared, [part.stride() for part in parts]

    expected, found = outcome(function), outcome(dynamo.compile(function, backend=counter))
    assert repr(expected) == repr(found)
    return counter


def table(*size: int) -> Tensor:
    return torch.arange(1.0, 1 + torch.Size(size or (5, 4)).numel()).reshape(size or (5, 4))


def used(x: Tensor, i: Tensor) -> Tensor:
    return x[i] * 2


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("make", [
    lambda: (table(), TWO), lambda: (table(), torch.tensor(-1)), lambda: (table(5), TWO), lambda: (table(5, 2, 3), TWO),
], ids=["row", "negative", "number", "matrix"])
def test_inside_of_a_graph(make: Callable[[], tuple[Any, ...]], backend: str) -> None:
    counter = both(used, make, backend)
    assert counter.frame_count == 1
    assert not dynamo.counters["graph_break"]


INDICES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "int, number": lambda x, i: x[1, i],
    "number, int": lambda x, i: x[i, -1],
    "two numbers": lambda x, i: x[i, i],
    "number, slice": lambda x, i: x[i, 1:],
    "number, slice, int": lambda x, i: x[i, ::2, 1],
    "three": lambda x, i: x[i, 0, i],
    "slice, number": lambda x, i: x[:, i],
    "slices, number": lambda x, i: x[1:, ::2, i],
    "slice, number, slice": lambda x, i: x[:, i, 1:],
    "number, slice, number": lambda x, i: x[i, :, i],
    "slice, number, int": lambda x, i: x[1:, i, -1],
    "of turned": lambda x, i: x.transpose(0, 2)[:, i],
}


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("name", INDICES)
def test_several_indices(name: str, backend: str) -> None:
    index = INDICES[name]

    def read(x: Tensor, i: Tensor) -> Tensor:
        return index(x, i) * 2

    def give(x: Tensor, i: Tensor) -> Tensor:
        return index(x, i)

    def write(x: Tensor, i: Tensor) -> Tensor:
        index(x, i).add_(1)
        return x + 1

    counter = both(read, lambda: (table(3, 4, 5), TWO), backend)
    assert counter.frame_count == 1
    assert not dynamo.counters["graph_break"]
    for function in (give, write):
        both(function, lambda: (table(3, 4, 5), TWO), backend)


@pytest.mark.parametrize("index", [
    lambda x, i: x[:, i], lambda x, i: x[..., i], lambda x, i: x[i, None], lambda x, i: x[True, i],
    lambda x, i: x[i, torch.tensor([0, 1])], lambda x, i: x[i, i, i, i], lambda x, i: x[i, 7], lambda x, i: x[i, i > 1],
    lambda x, i: x[0, i.int()],
])
def test_other_indices(index: Any) -> None:
    both(lambda x, i: (index(x, i), index(x, i) * 2), lambda: (table(3, 4, 5), TWO))


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("number", [5, -6])
def test_out_of_range(number: int, backend: str) -> None:
    def caught(x: Tensor, i: Tensor) -> Tensor:
        try:
            return x[i] * 2
        except IndexError:
            return x * 3

    for function in (used, caught):
        both(function, lambda: (table(), torch.tensor(number)), backend)


def write_base(x: Tensor, i: Tensor) -> Tensor:
    row = x[i]
    x.add_(1)
    return row * 2


def write_made_base(x: Tensor, i: Tensor) -> Tensor:
    made = x + 1
    row = made[i]
    made.mul_(2)
    return row * 2


def write_row(x: Tensor, i: Tensor) -> Tensor:
    x[i].add_(1)
    return x * 2


def write_view_of_row(x: Tensor, i: Tensor) -> Tensor:
    part = x[i].detach()[1:]
    part.zero_()
    return x * 2


def give_row(x: Tensor, i: Tensor) -> tuple[Tensor, Tensor]:
    row = x[i]
    return row, row * 2


def give_view_of_row(x: Tensor, i: Tensor) -> tuple[Tensor, Tensor]:
    row = x[i]
    return row.view(2, 2), row * 2


def keep_row(x: Tensor, i: Tensor, kept: list[Any]) -> Tensor:
    kept.append(x[i])
    return x[i] + 1


def over_a_break(x: Tensor, i: Tensor) -> Tensor:
    row = x[i]
    y = row * 2
    dynamo.graph_break()
    row.add_(1)
    return y + x.sum()


def row_by_row(x: Tensor, i: Tensor) -> Tensor:
    first = x[i] * 2
    second = x[i]
    second.add_(1)
    return first + x[i]


def of_turned(x: Tensor, i: Tensor) -> tuple[Tensor, Any]:
    row = x.t()[i]
    return row * 2, row.stride()


def of_column(x: Tensor, i: Tensor) -> tuple[Tensor, Any, Any, Tensor]:
    column = x[:, i]
    return column * 2, column.stride(), column.is_contiguous(), column.reshape(5, 1) + x


def write_column(x: Tensor, i: Tensor) -> Tensor:
    column = x[:, i]
    column.add_(1)
    return x * 2


def write_base_of_column(x: Tensor, i: Tensor) -> Tensor:
    made = x + 1
    column = made[:, i]
    made.mul_(2)
    return column * 2


def give_column(x: Tensor, i: Tensor) -> tuple[Tensor, Tensor]:
    column = x[:, i]
    return column, column * 2


def ask_offset(x: Tensor, i: Tensor) -> tuple[Tensor, Any]:
    row = x[i]
    return row * 2, row.storage_offset()


def check_view(x: Tensor, i: Tensor) -> tuple[Tensor, Any]:
    row = x[i]
    return row * 2, row._is_view(), row._base is x


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("function", [
    write_base, write_made_base, write_row, write_view_of_row, give_row, give_view_of_row, over_a_break, row_by_row,
    of_turned, of_column, write_column, write_base_of_column, give_column, ask_offset, check_view,
])
def test_where_the_view_can_be_told(function: Any, backend: str) -> None:
    both(function, lambda: (table(), TWO), backend)


def test_a_row_that_is_kept() -> None:
    kept: list[list[Any]] = [[], []]
    x = table()
    for run, rows in zip((keep_row, dynamo.compile(keep_row, backend="eager")), kept, strict=True):
        run(x, TWO, rows)
    x.add_(1)
    assert repr(kept[0]) == repr(kept[1])


def test_another_argument_that_is_written() -> None:
    """It may lie in the same memory at a later call."""
    def function(x: Tensor, i: Tensor, y: Tensor) -> Tensor:
        row = x[i]
        y.add_(1)
        return row * 2

    counter = CompileCounter()
    compiled = dynamo.compile(function, backend=counter)
    for at in (None, 0, 2):
        results = []
        for run in (function, compiled):
            x = table()
            results.append((run(x, TWO, torch.ones(4) if at is None else x[at]), x))
        assert repr(results[0]) == repr(results[1])
        assert counter.frame_count == 1 if at is None else counter.frame_count > 1


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_gradients(backend: str) -> None:
    def function(x: Tensor, i: Tensor) -> Tensor:
        return (x[i].sin() * x[i]).sum() + x.cos().sum()

    counter = CompileCounter(backend)
    found = []
    for run in (function, dynamo.compile(function, backend=counter)):
        x = table().requires_grad_()
        run(x, TWO).backward()
        found.append(x.grad)
    torch.testing.assert_close(found[0], found[1])
    assert counter.frame_count == 1
    assert not dynamo.counters["graph_break"]


def test_open_sizes() -> None:
    counter = CompileCounter()
    compiled = dynamo.compile(used, backend=counter, dynamic=True)
    for size in (5, 7, 9):
        x = table(size, 3)
        assert torch.equal(compiled(x, torch.tensor(size - 1)), used(x, torch.tensor(size - 1)))
    assert counter.frame_count == 1


def test_experts() -> None:
    """The loop over experts of a mixture: one break for each decision, none for the weights."""
    class Experts(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.down = (torch.nn.Parameter(torch.randn(4, 6, 6)) for _ in range(2))

        def forward(self, x: Tensor, chosen: Tensor) -> Tensor:
            out = torch.zeros_like(x)
            for expert in torch.arange(4):
                mask = (chosen == expert).to(x.dtype)[:, None]
                out.add_(torch.relu(x @ self.up[expert]) @ self.down[expert] * mask)
            return out

    model, counter = Experts(), CompileCounter()
    args = torch.randn(5, 6), torch.tensor([0, 1, 3, 1, 2])
    assert torch.equal(dynamo.compile(model, backend=counter, fullgraph=True)(*args), model(*args))
    assert counter.frame_count == 1
