"""Sizes of results that are written down, where torch's rules are long computations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

from dynamo.base.errors import Break
from dynamo.shapes.symbolic import SymbolicWorld
from dynamo.shapes.symbolic_mode import SymbolicMode

aten = torch.ops.aten
ROWS, COLUMNS, IMAGES = (0, 1, 2, 3), (0, 1, 3, 2), (0, 3, 1, 2)


class Make:
    """Makes the arguments, with given sizes (negative: one that varies) in an order of the axes:
    real ones without a world, else fakes of it."""

    def __init__(self, world: SymbolicWorld | None) -> None:
        self.world = world
        self.symbols: dict[int, Any] = {}

    def size(self, number: int) -> Any:
        if number > 0 or self.world is None:
            return abs(number)
        if number not in self.symbols:
            self.symbols[number] = self.world.size(f"s{-number}", -number)
        return self.symbols[number]

    def __call__(
        self, *sizes: int, order: tuple[int, ...] = (), dtype: torch.dtype = torch.float32
    ) -> torch.Tensor:
        made = [self.size(number) for number in sizes]
        order = order[:len(sizes)] or tuple(range(len(sizes)))
        inner = [made[order.index(axis)] for axis in range(len(sizes))]
        if self.world is None:
            return torch.rand(inner, dtype=dtype).permute(order)
        with self.world.mode, torch.no_grad():
            return torch.empty(inner, dtype=dtype).permute(order)


# name -> (operation, its arguments, by the rule here)
CASES: dict[str, tuple[Any, Callable[[Make], tuple[Any, ...]], bool]] = {
    "layer norm": (aten.native_layer_norm.default, lambda m: (
        m(-3, -5, 8), [8], m(8), m(8), 1e-5), True),
    "layer norm of columns": (aten.native_layer_norm.default, lambda m: (
        m(-3, -5, 4, 8, order=IMAGES), [4, 8], None, None, 1e-5), True),
    "layer norm of doubles": (aten.native_layer_norm.default, lambda m: (
        m(-3, 8, dtype=torch.float64), [8], None, None, 1e-5), True),
    "group norm": (aten.native_group_norm.default, lambda m: (
        m(-3, 4, -5, -6), m(4), m(4), m.size(-3), 4, m.size(-5) * m.size(-6), 2, 1e-5), True),
    "group norm of sequences": (aten.native_group_norm.default, lambda m: (
        m(-3, 4, -5), None, None, m.size(-3), 4, m.size(-5), 2, 1e-5), True),
    "group norm of one place": (aten.native_group_norm.default, lambda m: (
        m(-3, 4, 1, 1), None, None, m.size(-3), 4, 1, 2, 1e-5), False),
    "batch norm": (aten._native_batch_norm_legit.no_stats, lambda m: (
        m(1, -3, -5, -6), None, None, True, 0.1, 1e-5), True),
    "batch norm of columns": (aten._native_batch_norm_legit.no_stats, lambda m: (
        m(-3, 4, -5, -6, order=IMAGES), m(4), m(4), True, 0.1, 1e-5), False),
    "grid": (aten.grid_sampler_2d.default, lambda m: (
        m(-3, 4, -5, -6), m(-3, -7, -8, 2), 0, 0, True), True),
    "grid of columns": (aten.grid_sampler_2d.default, lambda m: (
        m(-3, 4, -5, -6, order=IMAGES), m(-3, -7, -8, 2, order=COLUMNS), 2, 1, False), True),
    "unfold": (aten.unfold_backward.default, lambda m: (
        m(-3, 4, 5), [m.size(-3), 8], 1, 5, 1), True),
    "gelu": (aten.gelu.default, lambda m: (m(-3, -5),), True),
    "gelu of columns": (aten.gelu.default, lambda m: (m(-3, -5, order=(1, 0)),), False),
    "linear": (aten.addmm.default, lambda m: (m(8), m(-3, 4), m(4, 8)), True),
    "linear of columns": (aten.addmm.default, lambda m: (
        m(-5), m(-3, 4, order=(1, 0)), m(4, -5, order=(1, 0))), True),
    "linear of doubles": (aten.addmm.default, lambda m: (
        m(8, dtype=torch.float64), m(-3, 4, dtype=torch.float64), m(4, 8, dtype=torch.float64)),
        True),
}  # fmt: skip
# What eager refuses.
REFUSED: dict[str, tuple[Any, Callable[[Make], tuple[Any, ...]]]] = {
    "layer norm": (aten.native_layer_norm.default, lambda m: (m(-3, 8), [7], None, None, 1e-5)),
    "layer norm's weight": (aten.native_layer_norm.default, lambda m: (
        m(-3, 8), [8], m(7), None, 1e-5)),
    "grid": (aten.grid_sampler_2d.default, lambda m: (m(-3, 4, 5, 6), m(-5, 7, 8, 2), 0, 0, True)),
    "linear": (aten.addmm.default, lambda m: (m(8), m(-3, 4), m(5, 8))),
    "linear's bias": (aten.addmm.default, lambda m: (m(7), m(-3, 4), m(4, 8))),
}  # fmt: skip


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The operations that torch's own rules are asked for."""
    seen: list[Any] = []
    base = SymbolicMode.__mro__[1]
    dispatch = base.dispatch

    def note(mode: Any, func: Any, *args: Any, **kwargs: Any) -> Any:
        seen.append(func)
        return dispatch(mode, func, *args, **kwargs)

    monkeypatch.setattr(base, "dispatch", note)
    yield seen


def facts(values: Any) -> list[tuple[list[int], list[int], torch.dtype]]:
    def number(value: Any) -> int:
        return value if isinstance(value, int) else int(value.node.hint)

    return [
        ([*map(number, value.shape)], [*map(number, value.stride())], value.dtype)
        for value in pytree.tree_leaves(values)
    ]


@pytest.mark.parametrize("name", CASES)
def test_results_are_the_kernels(name: str, calls: list[Any]) -> None:
    func, arguments, is_ours = CASES[name]
    world = SymbolicWorld()
    given = arguments(Make(world))
    calls.clear()
    with world.mode:
        result = func(*given)
    assert facts(result) == facts(func(*arguments(Make(None))))
    assert (func not in calls) == is_ours
    if is_ours:
        assert world.assumptions() == []


@pytest.mark.parametrize("name", REFUSED)
def test_what_eager_refuses_is_refused(name: str) -> None:
    func, arguments = REFUSED[name]
    with pytest.raises(RuntimeError):
        func(*arguments(Make(None)))
    world = SymbolicWorld()
    given = arguments(Make(world))
    with pytest.raises((RuntimeError, Break)), world.mode:
        func(*given)
