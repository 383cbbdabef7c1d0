"""Calls of compiled functions leave no object and no block of memory behind, whatever they do."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import dynamo

CALLS = 2000


class Box:
    def __init__(self) -> None:
        self.names = {"a": 1, "b": [1, 2]}
        self.items = [1, 2, 3]

    @property
    def size(self) -> int:
        return len(self.items)


class Answers:
    def __getattr__(self, name: str) -> int:
        return 5


@contextlib.contextmanager
def manager() -> Iterator[None]:
    yield


def counted(x: Tensor) -> Iterator[Tensor]:
    for step in range(3):
        yield x + step


BOX, ANSWERS, ORDERED, ARRAY = Box(), Answers(), OrderedDict(a=1, b=2), np.ones(2)
WEIGHT = torch.ones(2, requires_grad=True)


def guarded(x: Tensor) -> Tensor:
    return x * BOX.names["a"] + BOX.items[0] + BOX.size + ORDERED["b"] + len(ORDERED)


def guarded_by_python(x: Tensor) -> Tensor:
    return x * ANSWERS.anything


def broken(x: Tensor) -> list[Tensor]:
    with torch.no_grad():
        y = x + 1
        dynamo.graph_break()
        return [y * 2 for _ in BOX.items]


def branching(x: Tensor) -> Tensor:
    return x + 1 if x.sum() > 0 else x - 1


def of_a_generator(x: Tensor) -> Any:
    open_one = counted(x)
    return sum(counted(x)), next(open_one), open_one


def raising(x: Tensor) -> None:
    with manager():
        raise ValueError(x + 1)


def raising_behind_a_break(x: Tensor) -> None:
    with manager():
        y = x + 1
        dynamo.graph_break()
        raise ValueError(y)


def catching(x: Tensor) -> Any:
    try:
        try:
            raise KeyError(1)
        except KeyError as error:
            raise ValueError(2) from error
    except ValueError as error:
        return x + 1, error


def making(x: Tensor) -> Any:
    class Made:
        value = x + 1

    def inner() -> Tensor:
        return x

    return Made, Box(), inner, f"{x.shape[0]}"


def writing(x: Tensor) -> Tensor:
    BOX.items.append(BOX.items.pop(0))
    BOX.last = x + 1  # type: ignore[attr-defined]
    return x


def of_an_array(x: Tensor) -> Any:
    return np.sin(ARRAY) + 1, x + 1


def recorded(x: Tensor) -> Tensor:
    return (x * WEIGHT).sum().sin()


@pytest.mark.parametrize("function", [
    guarded, guarded_by_python, broken, branching, of_a_generator, raising, raising_behind_a_break,
    catching, making, writing, of_an_array, recorded,
], ids=lambda function: function.__name__)  # fmt: skip
def test_nothing_is_left(function: Callable[[Tensor], Any]) -> None:
    dynamo.reset()
    compiled, x = dynamo.compile(function, backend="eager"), torch.ones(2)

    def call(times: int) -> None:
        for _ in range(times):
            with contextlib.suppress(ValueError):
                compiled(x)
        gc.collect()

    call(300)
    objects, blocks = len(gc.get_objects()), sys.getallocatedblocks()
    call(CALLS)
    assert len(gc.get_objects()) - objects < CALLS // 20
    assert sys.getallocatedblocks() - blocks < CALLS // 20
