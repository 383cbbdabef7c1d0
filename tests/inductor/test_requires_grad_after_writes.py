"""`requires_grad_()` of a tensor behind writes, with views of it made before or after."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynamo
from inductor import metrics


def fill_by_view(b: torch.Tensor) -> Any:
    v = b[:, 1:3]
    b.fill_(v.sum())
    b.requires_grad_()
    return v


def view_not_written(b: torch.Tensor) -> Any:
    v = b[:, 1:3]
    b.requires_grad_()
    return v


def view_then_write(b: torch.Tensor) -> Any:
    v = b[:, 1:3]
    b.mul_(2)
    b.requires_grad_()
    return v * 2


def views_on_both_sides(b: torch.Tensor) -> Any:
    v = b[:, 1:3]
    b.mul_(2)
    b.requires_grad_()
    return v, b[:, 1:3]


def made_inside(b: torch.Tensor) -> Any:
    c = b * 2
    v = c[:, 1:3]
    c.mul_(3)
    c.requires_grad_()
    return v * 2, c


def the_view_itself(b: torch.Tensor) -> Any:
    v = b[:, 1:3]
    v.mul_(2)
    v.requires_grad_()
    return v * b.sum(), v, b


def write_alone(b: torch.Tensor) -> Any:
    b.mul_(2)
    b.requires_grad_()
    return (b * b).sum()


PROGRAMS = [fill_by_view, view_not_written, view_then_write, views_on_both_sides, made_inside,
            the_view_itself, write_alone]  # fmt: skip


def outcome(program: Callable[[torch.Tensor], Any]) -> list[Any]:
    b = torch.arange(8.0, dtype=torch.double).view(2, 4)
    results = program(b)
    results = results if isinstance(results, tuple) else (results,)
    facts: list[Any] = [
        (x.requires_grad, x.is_leaf, x._is_view(), x._base is b, x._version, x.tolist())
        for x in (*results, b)
    ]
    if results[0].requires_grad:
        results[0].sum().backward()
        facts += [x.grad for x in (*results, b) if x.is_leaf]
    return facts


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_histories_values_and_versions_are_eagers(program: Any, backend: str) -> None:
    compiled = dynamo.compile(program, backend=backend, fullgraph=True)
    wanted = outcome(program)
    for _ in range(2):
        found = outcome(compiled)
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            if isinstance(other, torch.Tensor):
                torch.testing.assert_close(one, other)
            else:
                assert one == other


def other_is_told(a: torch.Tensor, b: torch.Tensor) -> Any:
    a.requires_grad_()
    return b * 2


def other_is_told_after_a_write(a: torch.Tensor, b: torch.Tensor) -> Any:
    b.add_(1)
    a.requires_grad_()
    return b * 2


def copy_is_told(a: torch.Tensor, b: torch.Tensor) -> Any:
    b.add_(1)
    a.requires_grad_()
    return b.detach().clone().requires_grad_() * 2


def told_by_itself(a: torch.Tensor, b: torch.Tensor) -> Any:
    a.requires_grad_()
    return (b * 2).requires_grad, b.requires_grad, b.is_leaf, (b + 1).is_leaf


def read_alone(a: torch.Tensor, b: torch.Tensor) -> Any:
    a.requires_grad_()
    return b.requires_grad


@pytest.mark.parametrize("program", [told_by_itself, read_alone])
def test_what_a_view_says_of_itself(program: Any) -> None:
    for apart_first in (False, True):
        dynamo.reset()
        compiled = dynamo.compile(program, backend="eager")
        if apart_first:
            x, y = torch.randn(4), torch.randn(4)
            assert compiled(x, y) == program(x.detach(), y.detach())
        for _ in range(2):
            a, other = torch.randn(4), torch.randn(4)
            assert compiled(a, a.view(4)) == program(other, other.view(4))


def test_arguments_apart_stay_one_graph() -> None:
    def attack(x: torch.Tensor, weight: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        x = x.detach().requires_grad_()
        return ((x @ weight - target) ** 2).sum()

    def told(x: torch.Tensor, weight: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        x.requires_grad_()
        return ((x @ weight - target) ** 2).sum()

    for program in (attack, told):
        given = [torch.randn(3, 4), torch.randn(4, 2), torch.randn(3, 2)]
        compiled = dynamo.compile(program, backend="eager", fullgraph=True)
        torch.testing.assert_close(compiled(*given), program(*given))


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("program", [other_is_told, other_is_told_after_a_write, copy_is_told])
def test_an_argument_that_is_a_view_of_another_only_later(program: Any, backend: str) -> None:
    compiled = dynamo.compile(program, backend=backend)
    compiled(torch.randn(4), torch.randn(4))
    found = []
    for call in (compiled, program):
        a = torch.arange(4.0)
        b = a.view(4)
        result = call(a, b)
        facts = [(x.requires_grad, x.is_leaf, x.tolist(), x._version) for x in (result, a, b)]
        try:
            result.sum().backward()
        except RuntimeError as error:  # a view that was not written has no history
            facts.append(str(error))
        found.append((facts, None if a.grad is None else a.grad.tolist()))
    assert found[0] == found[1]


def test_a_write_alone_is_compiled() -> None:
    compiled = dynamo.compile(write_alone)
    before = metrics.snapshot()["kernels"]
    outcome(compiled)
    assert metrics.snapshot()["kernels"] > before


def test_versions_move_once_where_pytorch_runs_the_graph() -> None:
    def program(x: torch.Tensor) -> None:
        x.mul_(2).add_(1)

    for backend in ("aot_eager", "inductor"):
        x = torch.ones(3)
        dynamo.compile(program, backend=backend)(x)
        assert (x._version, x.tolist()) == (1, [3.0, 3.0, 3.0]), backend
