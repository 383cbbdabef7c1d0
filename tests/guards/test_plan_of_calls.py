"""The short cut of a guard program for values that come in a tuple or a dict of one call alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynamo
from dynamo import hook
from dynamo.guards.records import Guard
from dynamo.guards.sources import DictSource, ItemSource, LocalSource, Source
from tests.guards import test_plan
from tests.guards.test_plan import MUTATIONS, Box, Program, tensor_guard, weight

Holder = Callable[[Any], Any]
HOLDERS: dict[str, tuple[Source, Holder]] = {
    "tuple": (ItemSource(LocalSource("args"), 0), lambda value: {"args": (value, 1)}),
    "list": (ItemSource(LocalSource("layers"), 1), lambda value: {"layers": [1, value]}),
    "in another": (ItemSource(ItemSource(LocalSource("args"), 1), "m"),
                   lambda value: {"args": (1, {"m": value})}),
    "dict": (ItemSource(LocalSource("kwargs"), "m"), lambda value: {"kwargs": {"k": 1, "m": value}}),
}


class CallProgram(Program):
    """Each run has a tuple or a dict of its own around the value."""

    def __init__(self, holder: Holder, value: Any, *guards: Guard, collect: tuple[Source, ...] = (),
    ) -> None:
        super().__init__(*guards, collect=collect)
        self.holder, self.value = holder, value

    def holds(self) -> bool:
        self.values = self.holder(self.value)
        return super().holds()

    def left(self) -> int:
        """How many instructions the short cut still runs."""
        return len(self.program.plan[2])


@pytest.fixture(params=HOLDERS)
def held(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[Source, Holder]:
    """Where the value is; the sources of `test_plan` begin there."""
    source, holder = HOLDERS[request.param]
    monkeypatch.setattr(test_plan, "M", source)
    monkeypatch.setattr(test_plan, "DICT", DictSource(source))
    return source, holder


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_change_is_noticed(name: str, held: tuple[Source, Holder]) -> None:
    make, guards_of, change = MUTATIONS[name]
    value = make()
    program = CallProgram(held[1], value, *guards_of(value))
    program.settle()
    change(value)
    assert not program.holds()


def numbered(source: Source, count: int) -> list[Guard]:
    return [Guard("CONST", ItemSource(DictSource(source), f"n{at}"), at) for at in range(count)]


def box(count: int, **more: Any) -> Box:
    return Box(**{f"n{at}": at for at in range(count)}, **more)


def test_what_an_item_holds_is_skipped(held: tuple[Source, Holder]) -> None:
    source, holder = held
    program = CallProgram(holder, box(50), *numbered(source, 50))
    program.settle()
    assert program.left() <= 4
    program.value.n7 = 8
    assert not program.holds()


def test_another_object_is_noticed(held: tuple[Source, Holder]) -> None:
    source, holder = held
    program = CallProgram(holder, box(3), *numbered(source, 3))
    program.settle()
    for count in range(100):
        program.value = box(2, n2=2 if count % 3 else 1)
        assert program.holds() == (count % 3 != 0)


def test_an_object_that_is_new_in_each_call_leaves_the_rest_to_the_short_cut() -> None:
    first, second = HOLDERS["tuple"][0], LocalSource("m")
    guards = [*numbered(first, 3), *numbered(second, 50)]
    program = Program(*guards, m=box(50))
    for _ in range(60):
        program.values["args"] = (box(3),)
        assert program.holds()
    assert program.program.plan is not None
    for _ in range(10):
        program.values["args"] = (box(3),)
        assert program.holds()
    assert program.program.plan is not None, "it is no anchor any more"
    assert len(program.program.plan[2]) < 20
    program.values["args"] = (Box(n0=0, n1=2, n2=2),)
    assert not program.holds()


def test_an_argument_that_is_new_in_each_call_leaves_the_rest_to_the_short_cut() -> None:
    guards = [*numbered(LocalSource("x"), 3), *numbered(LocalSource("m"), 50)]
    program = Program(*guards, m=box(50), x=box(3))
    for _ in range(70):
        program.values["x"] = box(3)
        assert program.holds()
    assert program.program.plan is not None and len(program.program.plan[2]) < 20


def test_values_of_another_item_are_not_handed_out() -> None:
    source, holder = HOLDERS["tuple"]
    place = ItemSource(DictSource(source), "p")
    boxes = [Box(p=weight()) for _ in range(3)]
    program = CallProgram(holder, boxes[0], tensor_guard(place, boxes[0].p), collect=(place,))
    for number in (0, 0, 0, 0, 1, 0, 2, 2, 1, 0, 0, 1, 1, 1, 1, 1, 1, 2):
        collected, _, holds = program.program.run(holder(boxes[number]), {}, {})
        assert holds and collected[0] is boxes[number].p


class Wrapped(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(2, 2) for _ in range(5)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def test_the_short_cut_covers_a_module_behind_a_decorator() -> None:
    """As the forwards of transformers are: `def wrapper(*args, **kwargs)`."""

    def forward(*args: Any, **kwargs: Any) -> Any:
        return Wrapped.forward(*args, **kwargs)

    module = Wrapped()
    compiled = dynamo.compile(forward, backend="eager")
    for _ in range(3):
        compiled(module, x=torch.ones(1, 2))
    entry, = hook.entries(forward.__code__, compiled._policy.region)
    names = [entry.program.dump()[number][0] for number in entry.program.plan[2]]
    assert names.count("TENSOR") == 1, "only the argument is looked at"
    module.layers[2].register_forward_hook(lambda module, args, result: result + 1)
    x = torch.ones(1, 2)
    torch.testing.assert_close(compiled(module, x=x), module(x))
