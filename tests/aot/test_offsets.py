"""Arguments that begin elsewhere in their storages at each call: what views them begins there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

import dynamo

PROGRAMS: dict[str, Callable[..., Any]] = {
    "an item": lambda x, y: (x[0], x[-1] > 0),
    "a slice": lambda x, y: (x[1:], x * 2),
    "transposed": lambda x, y: (x.t(), y.t() + 1),
    "detached": lambda x, y: (x.detach(), x.detach()[1:], y.data, y.data[:1]),
    "parts": lambda x, y: (*x.split(1), *y.unbind(1), y.sum()),
    "expanded": lambda x, y: (x[0].expand(3, -1), y.reshape(-1)[1:3], y.diagonal()),
    "after a write": lambda x, y: (x.mul_(2)[1:], y + 1, y[1:]),
    "after a write of a view": lambda x, y: (x[1:].add_(3), x, y[1:]),
    "placed": lambda x, y: (x.as_strided((2,), (1,), 1), y.as_strided((2,), (1,)), x + y),
    "at its offset": lambda x, y: (x.as_strided((2,), (2,), x.storage_offset()), x + y),
    "only computed": lambda x, y: (x[1:] @ y, x[:, 1:].sum(), y.t().exp2()),
}
STARTS = [(0, 1), (1, 0), (3, 1), (2, 3)]


def arguments(starts: tuple[int, int], second: int, learns: bool) -> tuple[torch.Tensor, ...]:
    """A storage, and two blocks of 2 x 2 in it, which begin at multiples of 4."""
    whole = torch.arange(40.0).remainder(7).requires_grad_(learns)
    memory = whole * 1.0
    blocks = [memory[at : at + 4].view(2, 2) for at in (4 * starts[0], second + 4 * starts[1])]
    return (whole, memory, *blocks)


def describe(result: Any, memory: torch.Tensor) -> list[Any]:
    """Values and layouts; places for what lies in `memory`."""
    found = []
    for item in pytree.tree_leaves(result):
        inside = item.untyped_storage()._cdata == memory.untyped_storage()._cdata
        place = (item.storage_offset(), item._is_view()) if inside else None
        found.append((item.tolist(), item.stride(), item.requires_grad, place))
    return found


@pytest.mark.parametrize("learns", [False, True])
@pytest.mark.parametrize("second", [20, 2])  # the second block apart from the first, or across it
@pytest.mark.parametrize("name", PROGRAMS)
def test_views_begin_where_their_argument_does(name: str, second: int, learns: bool) -> None:
    program = PROGRAMS[name]

    def run(x, y):
        return program(x, y)

    compiled = dynamo.compile(run, dynamic=False)
    for starts in STARTS:
        outcomes = []
        for call in (run, compiled):
            whole, memory, *blocks = arguments(starts, second, learns)
            result = call(*blocks)
            seen = describe(result, memory), memory.tolist()
            if learns:
                parts = [part for part in pytree.tree_leaves(result) if part.requires_grad]
                if parts:
                    sum(part.square().sum() for part in parts).backward()
                seen += (None if whole.grad is None else whole.grad.tolist(),)
            outcomes.append(seen)
        assert outcomes[0] == outcomes[1], starts
    assert dynamo.counters["internal_error"] == {}
