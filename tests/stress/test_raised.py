"""An exception that leaves compiled code keeps nothing alive once it is handled."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import dynamo


class Held:
    pass


@pytest.fixture(autouse=True)
def without_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def raises(x: torch.Tensor, held: Held) -> torch.Tensor:
    y = x + 1
    raise ValueError("x", y.shape)


def fails(x: torch.Tensor, held: Held) -> Any:
    return {}[x.dim()]


def raises_behind_a_break(x: torch.Tensor, held: Held) -> torch.Tensor:
    y = x + 1
    dynamo.graph_break()
    raise ValueError("x", y.shape)


@pytest.mark.parametrize("function", [raises, fails, raises_behind_a_break])
def test_what_the_frame_held_is_freed_at_once(function: Callable[..., Any]) -> None:
    dynamo.reset()
    compiled = dynamo.compile(function, backend="eager")
    for call in range(3):
        held = Held()
        alive = weakref.ref(held)
        with pytest.raises((ValueError, KeyError)):
            compiled(torch.ones(2), held)
        del held
        assert call == 0 or alive() is None  # what compiling made goes with a collection
