"""An OrderedDict has an order of its own, which is not that of the dict below."""

from __future__ import annotations

import builtins
import warnings
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynamo
from dynamo.guards.build import build_program
from dynamo.guards.records import Guard
from dynamo.guards.sources import DictKeySource, DictValueSource, LocalSource, Scope

D = LocalSource("d")


@pytest.mark.parametrize("kind", [DictKeySource, DictValueSource])
@pytest.mark.parametrize("moved", [False, True])
def test_the_program_and_sources_count_alike(kind: type, moved: bool) -> None:
    ordered = OrderedDict(a=1, b=2, c=3)
    if moved:
        ordered.move_to_end("a")
    items = list(ordered.values() if kind is DictValueSource else ordered)
    for index, item in enumerate(items):
        source = kind(D, index)
        program = build_program([Guard("TYPE", D, OrderedDict)], (source,))
        assert program.run({"d": ordered}, {}, builtins.__dict__)[0] == (item,)
        assert source.fetch(Scope({"d": ordered}, {}, builtins.__dict__, {})) == item


class Key:
    def __init__(self, number: float) -> None:
        self.number = number


READS: list[Callable[[Any], Any]] = [
    lambda d: [(k, v) for k, v in d.items()],
    lambda d: list(d),
    lambda d: [(k, v) for k, v in dict.items(d)],
    lambda d: list(dict.values(d)),
    lambda d: [d[k] for k in dict.keys(d)],
    lambda d: [d[k] for k in dict.__iter__(d)],
]


@pytest.mark.parametrize("index", range(len(READS)))
@pytest.mark.parametrize("keys", ["names", "objects"])
def test_moved_items_are_read_in_their_order(index: int, keys: str) -> None:
    first, second = ("a", "b") if keys == "names" else (Key(2), Key(3))
    ordered = OrderedDict({first: 2.0, second: 5.0, "c": 7.0})
    ordered.move_to_end(first)
    read = READS[index]

    def f(x: torch.Tensor) -> Any:
        x = x + 1
        return read(ordered), x * 2

    compiled = dynamo.compile(f, backend="eager")
    for last in (True, False, True):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert compiled(torch.ones(2))[0] == f(torch.ones(2))[0]
        ordered.move_to_end(second, last=last)


def test_hooks_that_were_prepended_keep_their_order() -> None:
    calls: list[str] = []
    module = torch.nn.Identity()
    module.register_forward_hook(lambda m, a, o: calls.append("first"))
    for name in ("second", "third"):
        module.register_forward_pre_hook(lambda m, a, name=name: calls.append(name), prepend=True)

    def f(x: torch.Tensor) -> Any:
        handle = module.register_forward_hook(lambda m, a, o: o * 3)
        y = module(x)
        handle.remove()
        return y, module(x)

    expected = [*f(torch.ones(2))], [*calls]
    compiled = dynamo.compile(f, backend="eager")
    for _ in range(3):
        calls.clear()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            found = compiled(torch.ones(2))
        assert calls == expected[1]
        assert all(map(torch.equal, found, expected[0]))
    module._forward_pre_hooks.move_to_end(next(iter(module._forward_pre_hooks)))
    calls.clear()
    f(torch.ones(2))
    wanted = [*calls]
    calls.clear()
    compiled(torch.ones(2))
    assert calls == wanted
