"""Small tables of integers: known by value at first, read at a graph break once they have changed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy
import pytest
import torch
from torch.nn import functional

import dynamo
from dynamo import hook
from dynamo.base.config import config

FIRST, SECOND, THIRD = ([[1, 2, 4], [1, 4, 4]], [[2, 2, 4], [1, 4, 4]], [[1, 6, 2], [1, 2, 2]])


def vision(x: torch.Tensor, grid: torch.Tensor) -> Any:
    """What models of images do with the sizes of their pictures."""
    ids = torch.cat([torch.arange(h).repeat_interleave(w).repeat(t) for t, h, w in grid.tolist()])
    frames = torch.repeat_interleave(grid[:, 1] * grid[:, 2], grid[:, 0])
    ends = functional.pad(frames.cumsum(0), (1, 0))
    lengths = (ends[1:] - ends[:-1]).tolist()
    parts = [part.softmax(0) for part in torch.split(x, lengths)]
    return torch.cat(parts) + ids[:, None], (grid.prod(-1) // 4).tolist(), ends


def rows_for(grid: torch.Tensor) -> torch.Tensor:
    return torch.randn(int(grid.prod(-1).sum()), 5)


def breaks() -> int:
    return sum(dynamo.counters["graph_break"].values())


@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_one_graph_until_a_table_changes(backend: str) -> None:
    compiled = dynamo.compile(vision, backend=backend)
    found = []
    for values in (FIRST, FIRST, SECOND, THIRD, FIRST, SECOND):
        dynamo.counters.clear()
        grid = torch.tensor(values)
        x = rows_for(grid)
        torch.testing.assert_close(compiled(x, grid), vision(x, grid))
        found.append(breaks())
    assert found[:2] == [0, 0]
    assert found[2] > 0


def test_a_number_taken_by_an_operation_is_one_in_the_graph() -> None:
    """`arange(sizes.sum())` reads the sum itself: in a graph it would be an `item()`."""

    def count(x: torch.Tensor, grid: torch.Tensor) -> Any:
        area = grid[:, 1] * grid[:, 2]
        rows = torch.repeat_interleave(grid[:, 1], area)
        first = torch.arange(area.sum(), device=x.device) % rows
        return first, x.add(x, alpha=area[0]), torch.full((2,), area[1]), area[0] - area.int()[1]

    compiled = dynamo.compile(count, backend="inductor")
    for values in (FIRST, FIRST, SECOND):
        grid, x = torch.tensor(values), torch.randn(3)
        dynamo.counters.clear()
        for ours, eager in zip(compiled(x, grid), count(x, grid), strict=True):
            torch.testing.assert_close(ours, eager)
        assert not dynamo.counters["not_compiled"]
        assert (breaks() > 0) == (values is SECOND)


def test_a_tensor_that_is_given_as_number_too_stays_a_tensor() -> None:
    def twice(x: torch.Tensor, grid: torch.Tensor) -> Any:
        some = torch.repeat_interleave(grid[:, 1], grid[:, 1] * grid[:, 2])[0]
        return x + 1, some.add(some, alpha=some)

    grid, x = torch.tensor(FIRST), torch.randn(3)
    compiled = dynamo.compile(twice, backend="eager")
    for _ in range(2):
        torch.testing.assert_close(compiled(x, grid), twice(x, grid))


def test_a_changed_table_is_compiled_for_once() -> None:
    def read(x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        (a, b), *_ = table.tolist()
        return x * a + b

    compiled = dynamo.compile(read, backend="eager")
    x = torch.ones(3)
    for number in range(8):
        table = torch.tensor([[number, 2], [3, 4]])
        torch.testing.assert_close(compiled(x, table), read(x, table))
    assert len(compiled_entries(compiled, read)) == 2


def compiled_entries(compiled: Any, function: Callable[..., Any]) -> list[hook.Entry]:
    return hook.entries(function.__code__, compiled.region)


def written_before(x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    table.add_(1)
    return x + table.tolist()[0][0]


def written_by_a_view(x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    table[0].fill_(7)
    return x + table.tolist()[0][0]


def written_by_data(x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    table.data.fill_(7)
    return x + table.sum(0).tolist()[0]


def written_behind(x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    number = table.tolist()[0][0]
    table.add_(1)
    return x + number + table[0, 0]


def written_by_an_array(x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    table.numpy()[0, 0] = 9
    return x + table.tolist()[0][0]


WRITERS = [written_before, written_by_a_view, written_by_data, written_behind, written_by_an_array]


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("function", WRITERS)
def test_tables_that_are_written(function: Callable[..., torch.Tensor], backend: str) -> None:
    compiled = dynamo.compile(function, backend=backend)
    x = torch.ones(3)
    mine, theirs = (torch.tensor([[1, 2], [3, 4]]) for _ in range(2))
    for _ in range(4):  # the values change by themselves
        torch.testing.assert_close(compiled(x, mine), function(x, theirs))
        assert mine.equal(theirs)


def through_another(x: torch.Tensor, table: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    other.add_(1)
    return x + table.tolist()[0][0] + (table * 2).sum(1).tolist()[1]


@pytest.mark.parametrize("shared_first", [False, True])
@pytest.mark.parametrize("dynamic", [None, True])
def test_memory_that_is_written_by_another_name(shared_first: bool, dynamic: bool | None) -> None:
    compiled = dynamo.compile(through_another, backend="eager", dynamic=dynamic)
    x = torch.ones(3)
    for shared in (shared_first, not shared_first, shared_first):
        pairs = []
        for _ in range(2):
            table = torch.tensor([[1, 2], [3, 4]])
            pairs.append((table, table.view(4) if shared else torch.zeros(4, dtype=torch.int64)))
        torch.testing.assert_close(compiled(x, *pairs[0]), through_another(x, *pairs[1]))
        assert pairs[0][0].equal(pairs[1][0])


def test_memory_of_an_array() -> None:
    def function(x: torch.Tensor, table: torch.Tensor, array: Any) -> torch.Tensor:
        array += 1
        return x + table.tolist()[0][0]

    compiled = dynamo.compile(function, backend="eager")
    x = torch.ones(3)
    for shared in (False, True, True):
        results = []
        for call in (compiled, function):
            array = numpy.array([[1, 2], [3, 4]])
            table = torch.from_numpy(array if shared else array.copy())
            results.append(call(x, table, array))
        torch.testing.assert_close(*results)


NO_TABLES: dict[str, torch.Tensor] = {
    "one row of numbers": torch.tensor([1, 2]),
    "floats": torch.tensor([[1.0, 2.0]]),
    "wide": torch.tensor([[1, 2, 3, 4, 5]]),
    "long": torch.ones(33, 2, dtype=torch.int64),
    "bools": torch.tensor([[True, False]]),
}


@pytest.mark.parametrize("name", NO_TABLES)
def test_what_is_no_table_is_read_at_a_break(name: str) -> None:
    def read(x: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        return x + values.flatten().tolist()[0]

    dynamo.counters.clear()
    compiled, x, values = dynamo.compile(read, backend="eager"), torch.ones(3), NO_TABLES[name]
    torch.testing.assert_close(compiled(x, values), read(x, values))
    assert breaks() == 1


class Buffer(torch.nn.Module):
    table: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.tensor([[1, 2], [3, 4]]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.table.tolist()[0][0]


def test_a_buffer_is_known_until_it_has_changed_twice() -> None:
    module, x, found = Buffer(), torch.ones(3), []
    compiled = dynamo.compile(module, backend="eager")
    for _ in range(4):
        dynamo.counters.clear()
        torch.testing.assert_close(compiled(x), module(x))
        found.append(breaks())
        module.table.add_(1)
    assert found == [0, 0, 1, 0]


def test_reads_that_stay_unknown_leave_no_guard() -> None:
    def read(x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        return x + (table + torch.randint(0, 5, (2, 2))).tolist()[0][0]

    compiled, x = dynamo.compile(read, backend="eager"), torch.ones(3)
    for number in range(3):
        table = torch.tensor([[number, 2], [3, 4]])
        torch.manual_seed(number)
        expected = read(x, table)
        torch.manual_seed(number)
        torch.testing.assert_close(compiled(x, table), expected)
    assert len(compiled_entries(compiled, read)) == 1


@pytest.mark.parametrize("options", [{"dynamic": False}, {"dynamic": True}])
def test_without_learning_no_table_is_known(options: dict[str, Any]) -> None:
    dynamo.counters.clear()
    compiled = dynamo.compile(vision, backend="eager", **options)
    grid = torch.tensor(FIRST)
    x = rows_for(grid)
    torch.testing.assert_close(compiled(x, grid), vision(x, grid))
    assert breaks() > 0


def test_whole_graphs_hold_the_numbers() -> None:
    def read(x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        return x + table.tolist()[0][0]

    compiled, x = dynamo.compile(read, backend="eager", fullgraph=True), torch.ones(3)
    for number in range(3):
        table = torch.tensor([[number, 2], [3, 4]])
        torch.testing.assert_close(compiled(x, table), read(x, table))


def test_an_option_of_the_configuration() -> None:
    with config.patch(automatic_dynamic_shapes=False):
        test_without_learning_no_table_is_known({})
