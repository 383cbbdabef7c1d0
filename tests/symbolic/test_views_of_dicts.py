"""Views of dicts that the program has kept, and their methods by name."""

from __future__ import annotations

import collections
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import dynamo


def look(x: Tensor, held: Any) -> Any:
    held.real["new"] = 1
    return x + len(held.view), held.view, list(held.view), held.view is held.same


@pytest.mark.parametrize("kind", [dict, collections.OrderedDict])
@pytest.mark.parametrize("part", ["keys", "values", "items"])
def test_kept(kind: type[dict[str, int]], part: str) -> None:
    compiled = dynamo.compile(look, fullgraph=True, backend="eager")
    for number in range(2):
        seen = []
        for function in (look, compiled):
            real = kind(a=1, b=number)
            view = getattr(real, part)()
            held = SimpleNamespace(real=real, view=view, same=view)
            count, found, items, is_same = function(torch.ones(1), held)
            assert found is view
            seen.append((count.item(), items, is_same))
        assert seen[0] == seen[1]


def test_another_dict() -> None:
    def program(x: Tensor, held: Any) -> Any:
        return x + len(held.view), "q" in held.view, held.view.__contains__("a")

    compiled = dynamo.compile(program, fullgraph=True, backend="eager")
    x = torch.ones(1)
    for real in ({"a": 1}, {"q": 1}, {"a": 1, "b": 2}, {}):
        held = SimpleNamespace(view=real.keys())
        assert compiled(x, held) == program(x, held)
        real["r"] = 1
        assert compiled(x, held) == program(x, held)


def test_methods() -> None:
    def program(x: Tensor) -> Any:
        names = {"a": 1, "b": 2}
        return (
            x + 1, names.keys().__contains__("a"), names.items().__contains__(("a", 2)),
            names.keys().isdisjoint(["c"]), names.items().isdisjoint([("a", 1)]),
            names.values().__len__(), [*names.keys().__iter__()],
        )

    compiled = dynamo.compile(program, fullgraph=True, backend="eager")
    assert compiled(torch.ones(1)) == program(torch.ones(1))
