"""Operators of libraries: what they write into, with and without a fake kernel, and what they return."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynamo

LIBRARY = "dynamo_tests"


@torch.library.custom_op(f"{LIBRARY}::fill", mutates_args={"a"})
def fill(a: torch.Tensor, k: float) -> None:
    a.fill_(k)


@torch.library.custom_op(f"{LIBRARY}::fill_faked", mutates_args={"a"})
def fill_faked(a: torch.Tensor, k: float) -> None:
    a.fill_(k)


@fill_faked.register_fake
def _(a: torch.Tensor, k: float) -> None:
    return None


@torch.library.custom_op(f"{LIBRARY}::fill_all", mutates_args={"parts"})
def fill_all(parts: list[torch.Tensor], k: float) -> None:
    for part in parts:
        part.fill_(k)


@torch.library.custom_op(f"{LIBRARY}::add_and_scale", mutates_args={"a"})
def add_and_scale(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    a.add_(b)
    return a * b


@add_and_scale.register_fake
def _(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(a)


def twice_filled(x: torch.Tensor) -> Any:
    t = x.clone()
    before = t * 2
    fill(t, 3.0)
    between = t * 2
    fill(t, 4.0)
    return before, between, t


def input_filled(x: torch.Tensor) -> Any:
    torch.ops.dynamo_tests.fill_faked(x, k=3.0)
    return x * 2


def view_filled(x: torch.Tensor) -> Any:
    t = x.clone()
    row = t[0]
    fill(row, 4.0)
    return t, row


def parts_filled(x: torch.Tensor) -> Any:
    a, b = x.clone(), x * 2
    fill_all([a, b], 5.0)
    return a + b


def written_and_returned(x: torch.Tensor) -> Any:
    t = x * 1
    return add_and_scale(t, x), add_and_scale(x, t), t


PROGRAMS = [twice_filled, input_filled, view_filled, parts_filled, written_and_returned]


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_one_graph(program: Callable[[torch.Tensor], Any], backend: str) -> None:
    compiled = dynamo.compile(program, backend=backend, fullgraph=True)
    for _ in range(2):
        x = torch.rand(2, 3)
        y = x.clone()
        torch.testing.assert_close((compiled(x), x), (program(y), y))
