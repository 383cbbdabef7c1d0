"""A loop that breaks the graph in its body: one break for each iteration, whatever it iterates."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import dynamo
from dynamo.testing import CompileCounter

ITEMS = [1.5, 2.5, 3.5, 4.5]
TABLE = {"a": torch.ones(2), "b": torch.zeros(2), "c": torch.ones(2)}
NOTES: list[Any] = []


def noted(item: Any) -> Any:
    NOTES.append(item)
    return item


MAKERS: dict[str, Callable[[], Any]] = {
    "list": lambda: ITEMS,
    "tuple": lambda: tuple(ITEMS),
    "range": lambda: range(2, 9, 2),
    "text": lambda: "abcd",
    "bytes": lambda: b"abcd",
    "reversed list": lambda: reversed(ITEMS),
    "reversed range": lambda: reversed(range(4)),
    "enumerate": lambda: enumerate(ITEMS, 3),
    "zip": lambda: zip(ITEMS, "abcd"),
    "longer zip": lambda: zip(ITEMS, "abcdef", range(9)),
    "map": lambda: map(lambda a, b: a + b, ITEMS, range(9)),
    "enumerate of zip": lambda: enumerate(zip(reversed(ITEMS), range(9))),
    "strict zip": lambda: zip(ITEMS, "abcd", strict=True),
    "filter": lambda: filter(lambda item: item > 2, ITEMS),
    "plain filter": lambda: filter(None, [1, 0, 2, 0]),
    "map of enumerate": lambda: map(str, enumerate(ITEMS)),
    "enumerate of map": lambda: enumerate(map(noted, ITEMS)),
    "zip of filter": lambda: zip(filter(noted, ITEMS), map(noted, ITEMS)),
    "keys": lambda: TABLE,
    "values": lambda: TABLE.values(),
    "items": lambda: TABLE.items(),
}


def loop(x: torch.Tensor, items: Any, seen: list[Any]) -> torch.Tensor:
    for item in items:
        x = x * 2
        dynamo.graph_break()
        seen.append(item)
        x = x + 1
    return x


@pytest.mark.parametrize("name", MAKERS)
def test_each_iteration_takes_the_next_item(name: str) -> None:
    dynamo.reset()
    make = MAKERS[name]
    compiled = dynamo.compile(loop, backend="eager")
    x = torch.randn(2)
    for call in range(3):
        wanted_seen: list[Any] = []
        found_seen: list[Any] = []
        NOTES.clear()
        wanted = loop(x, make(), wanted_seen)
        wanted_notes = NOTES.copy()
        NOTES.clear()
        found = compiled(x, make(), found_seen)
        assert wanted_notes == NOTES
        assert torch.equal(found, wanted), call
        assert repr(found_seen) == repr(wanted_seen)


def parts(make: Callable[[], Any], body: Callable[..., Any] = loop) -> int:
    """Graphs that one run calls, once all is compiled."""
    called = 0

    def backend(graph: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            nonlocal called
            called += 1
            return graph(*args)

        return run

    dynamo.reset()
    compiled = dynamo.compile(body, backend=backend)
    for _ in range(3):
        called = 0
        compiled(torch.ones(2), make(), [])
    return called


@pytest.mark.parametrize("name", ["list", "range", "enumerate", "longer zip", "items", "map"])
def test_a_run_calls_one_graph_for_each_iteration_and_one_at_the_end(name: str) -> None:
    make = MAKERS[name]
    assert parts(make) == len(list(make())) + 1


def test_items_that_are_tensors_need_one_compile() -> None:
    dynamo.reset()
    counter = CompileCounter()
    compiled = dynamo.compile(scaled, backend=counter)
    tensors = [torch.randn(2) for _ in range(6)]
    assert torch.equal(compiled(tensors), scaled(tensors))
    assert counter.frame_count <= 4


def scaled(tensors: list[torch.Tensor]) -> torch.Tensor:
    total = torch.zeros(2)
    for index, tensor in enumerate(tensors):
        total = total + tensor * (index + 1)
        dynamo.graph_break()
    return total


def grows(x: torch.Tensor, items: list[int], other: list[int]) -> torch.Tensor:
    for item in items:
        x = x + item
        dynamo.graph_break()
        if len(other) < 6:
            other.append(8)
    return x


def test_a_list_that_grows_meanwhile() -> None:
    dynamo.reset()
    compiled = dynamo.compile(grows, backend="eager")
    for same in (False, True, False, True):
        wanted, found = [1, 2, 3], [1, 2, 3]
        want = grows(torch.zeros(2), wanted, wanted if same else [])
        got = compiled(torch.zeros(2), found, found if same else [])
        assert torch.equal(got, want) and found == wanted


def changes(x: torch.Tensor, table: dict[str, int], other: dict[str, int]) -> torch.Tensor:
    for key, value in table.items():
        x = x + value
        dynamo.graph_break()
        other["b"] = 10
        if key == "c":
            other["d"] = 1
    return x


def test_a_dict_that_changes_meanwhile() -> None:
    dynamo.reset()
    compiled = dynamo.compile(changes, backend="eager")
    for same in (False, True, False, True):
        first, second = {"a": 1, "b": 2, "c": 3}, {"a": 1, "b": 2, "c": 3}
        outcomes = []
        for run, table in ((changes, first), (compiled, second)):
            try:
                outcomes.append(run(torch.zeros(2), table, table if same else {}).tolist())
            except RuntimeError as error:
                outcomes.append(str(error))
        assert outcomes[0] == outcomes[1] and first == second


def shared(x: torch.Tensor, iterator: Iterator[int], seen: list[Any]) -> torch.Tensor:
    for pair in zip(iterator, iterator):
        x = x + pair[0]
        dynamo.graph_break()
        seen.append((pair, next(iterator, None)))
    seen.append(next(iterator, "end"))
    return x


@pytest.mark.parametrize("count", range(8))
def test_iterators_that_share_their_items(count: int) -> None:
    dynamo.reset()
    compiled = dynamo.compile(shared, backend="eager")
    for _ in range(2):
        wanted: list[Any] = []
        found: list[Any] = []
        want = shared(torch.zeros(2), iter(range(count)), wanted)
        got = compiled(torch.zeros(2), iter(range(count)), found)
        assert torch.equal(got, want) and found == wanted


def strict(x: torch.Tensor, items: list[int], seen: list[Any]) -> torch.Tensor:
    try:
        for left, right in zip(items, "ab", strict=True):
            x = x + left
            dynamo.graph_break()
            seen.append(right)
    except ValueError as error:
        seen.append(str(error))
    return x


@pytest.mark.parametrize("items", [[1], [1, 2], [1, 2, 3]])
def test_a_strict_zip(items: list[int]) -> None:
    dynamo.reset()
    compiled = dynamo.compile(strict, backend="eager")
    for _ in range(2):
        wanted: list[Any] = []
        found: list[Any] = []
        assert torch.equal(compiled(torch.ones(2), items, found), strict(torch.ones(2), items, wanted))
        assert found == wanted


def held(x: torch.Tensor, items: list[int], seen: list[Any]) -> torch.Tensor:
    iterator = iter(items)
    for item in iterator:
        x = x + item
        dynamo.graph_break()
    items.append(9)
    seen.append(next(iterator, "ended"))
    return x


def test_an_iterator_that_has_ended_stays_at_its_end() -> None:
    dynamo.reset()
    compiled = dynamo.compile(held, backend="eager")
    for _ in range(3):
        wanted: list[Any] = []
        found: list[Any] = []
        assert torch.equal(compiled(torch.ones(2), [1, 2], found), held(torch.ones(2), [1, 2], wanted))
        assert found == wanted == ["ended"]


class Doubler(torch.nn.Module):
    """Breaks the graph where it is told to."""

    def __init__(self, breaks: bool, factor: float) -> None:
        super().__init__()
        self.breaks, self.factor = breaks, torch.nn.Parameter(torch.tensor(factor))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x * self.factor
        if self.breaks:
            dynamo.graph_break()
        return x + 1


def stack(*breaking: int) -> list[torch.nn.Module]:
    return [Doubler(place in breaking, 1.0 + place) for place in range(6)]


def every(x: torch.Tensor, modules: Any, seen: list[Any], iterated: Callable[[Any], Any] = iter) -> torch.Tensor:
    for item in iterated(modules):
        while isinstance(item, tuple):
            seen.append(item[0])
            item = item[1]
        if isinstance(item, torch.nn.Module):
            x = item(x)
        seen.append(item)
    else:
        seen.append("end")
    return x


# What the modules stand in, and what is iterated of it.
OF_MODULES: dict[str, tuple[Callable[[list[torch.nn.Module]], Any], Callable[[Any], Any]]] = {
    "Sequential": (lambda modules: torch.nn.Sequential(*modules), iter),
    "ModuleList": (torch.nn.ModuleList, iter),
    "items": (lambda modules: torch.nn.ModuleDict({f"m{i}": m for i, m in enumerate(modules)}), lambda d: d.items()),
    "list": (list, iter),
    "tuple": (tuple, iter),
    "reversed": (list, reversed),
    "reversed values": (lambda modules: dict(enumerate(modules)), lambda table: reversed(table.values())),
    "enumerate": (list, lambda modules: enumerate(modules, 7)),
    "zip": (list, lambda modules: zip("abcdefg", modules)),
    "enumerate of zip": (list, lambda modules: enumerate(zip(modules, modules))),
    "slice": (torch.nn.ModuleList, lambda modules: modules[:5]),
    "enumerate of slice": (torch.nn.ModuleList, lambda modules: enumerate(modules[-6:])),
    "one of many": (lambda modules: [*modules[:3], 2.5, *modules[3:]], iter),
}


@pytest.mark.parametrize("name", OF_MODULES)
def test_modules_behind_a_break_are_one_graph(name: str) -> None:
    kind, iterated = OF_MODULES[name]
    modules, counter = kind(stack(1)), CompileCounter()
    compiled = dynamo.compile(every, backend=counter)
    for call in range(3):
        results = []
        for run in (every, compiled):
            seen: list[Any] = []
            results.append((run(torch.ones(2), modules, seen, iterated), seen))
        assert torch.equal(results[0][0], results[1][0]), call
        assert repr(results[0][1]) == repr(results[1][1])
    # Up to the break, to the end of its module, the others.
    assert counter.frame_count == (4 if name == "one of many" else 3)


class Blocks(torch.nn.ModuleList):
    """A list of modules by another name."""


class Fixed(torch.nn.ModuleList):
    """A list of modules that is made in its own way."""

    made = 0

    def __init__(self, modules: Any) -> None:
        super().__init__(modules)
        type(self).made += 1


@pytest.mark.parametrize("kind", [torch.nn.ModuleList, Blocks, Fixed])
def test_a_slice_of_modules_outlives_a_break(kind: type) -> None:
    def function(x: torch.Tensor, modules: Any) -> Any:
        part = modules[1:4]
        entries = iter(part)
        x = next(entries)(x)
        dynamo.graph_break()
        x = part[1](x) + len(part)
        return x, part, type(part), type(entries), list(entries), [name for name, _ in part.named_parameters()]

    modules = kind(stack())
    compiled = dynamo.compile(function, backend="eager")
    for _ in range(2):
        before = getattr(kind, "made", 0)
        expected = function(torch.ones(2), modules)
        between = getattr(kind, "made", 0)
        found = compiled(torch.ones(2), modules)
        assert getattr(kind, "made", 0) - between == between - before
        assert torch.equal(expected[0], found[0])
        assert list(expected[1]) == list(found[1])
        assert expected[2:] == found[2:]


def test_other_modules_at_a_later_call() -> None:
    """Another number of them, another order, one twice, one that breaks."""
    a, b, c, d, e, f = stack(1)
    breaks = Doubler(True, 3.0)
    compiled = dynamo.compile(every, backend="eager")
    for modules in ([a, b, c, d], [a, b, c, d], [a, b, c, d, e], [a, b, c], [a, b], [b], [a, b, d, c], [a, b, c, c, c],
                    [a, b, c, breaks, d, e, f], [a, b, breaks, breaks, d], [a, b, c, 3, d], [], [a, b, c, d]):
        results = []
        for run in (every, compiled):
            seen: list[Any] = []
            results.append((run(torch.ones(2), modules, seen), seen))
        assert torch.equal(results[0][0], results[1][0])
        assert repr(results[0][1]) == repr(results[1][1])


def test_a_loop_over_modules_that_is_left() -> None:
    """The iterator goes on where the loop has left it."""
    def function(x: torch.Tensor, modules: list[Any], stop: int) -> Any:
        iterator = iter(modules)
        count = 0
        for module in iterator:
            x = module(x)
            count += 1
            if count == stop:
                break
        return x, list(iterator), iterator.__length_hint__()

    modules = stack(0)
    compiled = dynamo.compile(function, backend="eager")
    for stop in (1, 2, 4, 6, 9, 2):
        expected, found = (run(torch.ones(2), modules, stop) for run in (function, compiled))
        assert torch.equal(expected[0], found[0])
        assert expected[1:] == found[1:]


def test_a_list_of_modules_that_changes_meanwhile() -> None:
    def function(x: torch.Tensor, modules: list[Any], more: Any) -> tuple[torch.Tensor, int]:
        count = 0
        for module in modules:
            x = module(x)
            count += 1
            if count == 3:
                modules.append(more)
            if count == 5:
                del modules[0]
        return x, count

    first, more = stack(0), Doubler(False, 9.0)
    compiled = dynamo.compile(function, backend="eager")
    for _ in range(2):
        lists = [list(first), list(first)]
        expected, found = (run(torch.ones(2), each, more) for run, each in zip((function, compiled), lists))
        assert torch.equal(expected[0], found[0])
        assert expected[1] == found[1]
        assert lists[0] == lists[1]


def test_a_module_that_is_stored_behind_the_loop() -> None:
    def function(x: torch.Tensor, modules: Any, kept: dict[str, Any]) -> torch.Tensor:
        for place, module in enumerate(modules):
            x = module(x)
            kept["last"] = module
            kept[place] = module
        return x + kept["last"].factor

    modules = torch.nn.Sequential(*stack(2))
    expected: dict[Any, Any] = {}
    found: dict[Any, Any] = {}
    compiled = dynamo.compile(function, backend="eager")
    for _ in range(2):
        assert torch.equal(function(torch.ones(2), modules, expected), compiled(torch.ones(2), modules, found))
        assert expected.keys() == found.keys()
        assert all(expected[key] is found[key] for key in expected)


class Bar:
    """Iterates in a generator of its own, although it has `__next__`, too."""

    def __init__(self) -> None:
        self.taken = 0
        self.asked: list[str] = []

    def __iter__(self) -> Iterator[int]:
        self.show()
        return self.generator()

    def __next__(self) -> int:
        self.asked.append("next")
        if len(self.asked) > 5:
            raise StopIteration
        return 9

    def show(self) -> None:
        dynamo.graph_break()

    def generator(self) -> Iterator[int]:
        for item in range(3):
            self.show()
            yield item
            self.taken += 1


def in_a_loop(bar: Bar) -> Any:
    for _ in bar:
        pass
    return None


USES: dict[str, Callable[[Bar], Any]] = {
    "loop": in_a_loop,
    "list": list,
    "unpacked": lambda bar: [*bar],
    "three targets": lambda bar: (lambda a, b, c: a + b + c)(*bar),
    "zip": lambda bar: list(zip(bar, "abc")),
    "comprehension": lambda bar: [item for item in bar],
    "in": lambda bar: 2 in bar,
    "sum": sum,
}


@pytest.mark.parametrize("name", USES)
def test_an_iterable_that_has_next_is_asked_for_its_iterator(name: str) -> None:
    def inner() -> tuple[Any, ...]:
        bar = Bar()
        result = USES[name](bar)
        return result, bar.taken, bar.asked

    def function(x: torch.Tensor) -> tuple[Any, ...]:
        y = x + 1
        result = inner()
        return y * 2, *result

    tensor, *expected = function(torch.ones(2))
    dynamo.reset()
    compiled = dynamo.compile(function, backend="eager")
    for _ in range(2):
        found, *rest = compiled(torch.ones(2))
        assert torch.equal(found, tensor)
        assert rest == expected
