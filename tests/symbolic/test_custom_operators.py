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


OWN = torch.library.Library("dynamo_tests_own", "DEF")
OWN.define("count_up(Tensor x, Tensor(a!) out) -> Tensor(a!)")
OWN.impl("count_up", lambda x, out: out.add_(x.cumsum(0)), "CompositeExplicitAutograd")


def test_an_operator_that_returns_what_it_writes() -> None:
    """No functional graph has a form of it: the graphs around it are compiled all the same."""
    def f(x: torch.Tensor) -> Any:
        y = x * 2
        z = torch.ops.dynamo_tests_own.count_up(x, y)
        return z.relu() + 1, z is y

    dynamo.counters.clear()
    compiled = dynamo.compile(f)
    for _ in range(2):
        x = torch.randn(5)
        torch.testing.assert_close(compiled(x), f(x))
    assert not dynamo.counters["not_compiled"]
    assert sum(dynamo.counters["graph_break"].values()) == 1


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


@pytest.fixture(autouse=True)
def nothing_compiled() -> None:
    dynamo.reset()


def written_in_training(x: torch.Tensor) -> Any:
    t = x.detach() * 2
    torch.ops.dynamo_tests.fill_faked(t, 3.0)
    out = (x * t).sin()
    return out.detach(), torch.autograd.grad(out.sum(), x)


def test_in_training() -> None:
    compiled = dynamo.compile(written_in_training, fullgraph=True)
    for _ in range(2):
        x = torch.rand(2, 3, requires_grad=True)
        torch.testing.assert_close(compiled(x), written_in_training(x))
    assert not dynamo.counters["inductor"]["graphs run as captured"]


def test_copies_only_where_old_values_are_wanted(capfd: pytest.CaptureFixture[str]) -> None:
    """Of the three writes the second one alone needs a copy of what it writes."""

    def f(x: torch.Tensor) -> Any:
        made = x.exp()
        torch.ops.dynamo_tests.fill_faked(made, 1.0)
        old = x.sin()
        new = old.clone()
        torch.ops.dynamo_tests.fill_faked(new, 2.0)
        torch.ops.dynamo_tests.fill_faked(x, 3.0)
        return made, old, new

    dynamo.set_logs("aot_graphs")
    try:
        x = torch.rand(2, 3)
        dynamo.compile(f, fullgraph=True)(x)
    finally:
        dynamo.set_logs("-aot_graphs")
    text = capfd.readouterr().err
    assert text.count("dynamo_tests.fill_faked.default") == 3, text
    assert "dynamo_functional" not in text and text.count("clone.default(") == 1, text


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_one_graph(program: Callable[[torch.Tensor], Any], backend: str) -> None:
    compiled = dynamo.compile(program, backend=backend, fullgraph=True)
    for _ in range(2):
        x = torch.rand(2, 3)
        y = x.clone()
        torch.testing.assert_close((compiled(x), x), (program(y), y))
    if backend == "inductor" and program is not parts_filled:
        assert not dynamo.counters["inductor"]["graphs run as captured"]
