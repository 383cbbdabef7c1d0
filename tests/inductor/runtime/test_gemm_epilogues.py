"""Kernels that our own GEMM calls for parts of its result: the same numbers as behind it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from inductor import compile_fx
from inductor.codegen import own_functions
from inductor.kernels.cpu.gemm import GEMM_DECLARATION, GEMM_NAME
from inductor.scheduler.schedule import Schedule, TemplateKernel
from tests.inductor.runtime.own_functions import (
    define_without_memory,
    gemms_are_ours,
    noted_schedules,
)

# A kernel that calls a GEMM is linked as it is, without a word.
pytestmark = pytest.mark.filterwarnings("error::UserWarning")


@pytest.fixture
def schedules(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Schedule]]:
    gemms_are_ours(monkeypatch)
    with noted_schedules(monkeypatch) as seen:
        yield seen


def templates(schedules: list[Schedule]) -> list[TemplateKernel]:
    return [template for schedule in schedules for template in schedule.templates()]


def gate(x: Any, w: Any, v: Any, b: Any) -> Any:
    return F.silu(F.linear(x, w, b)) * F.linear(x, v)


PROGRAMS: dict[str, Callable[..., Any]] = {
    "gelu": lambda x, w, v, b: F.gelu(F.linear(x, w, b)),
    "gelu of tanh": lambda x, w, v, b: F.gelu(F.linear(x, w), approximate="tanh"),
    "relu": lambda x, w, v, b: F.linear(x, w, b).relu(),
    "gate": gate,
    "residual": lambda x, w, v, b: F.linear(x, w, b) + F.linear(x.sin(), w).cos(),
    "cast": lambda x, w, v, b: F.linear(x, w, b).to(torch.bfloat16),
    "row and column": lambda x, w, v, b: F.linear(x, w) * b + x[..., :1],
    "kept": lambda x, w, v, b: (y := F.linear(x, w, b), y.sigmoid()),
    "half in strips": lambda x, w, v, b: (F.linear(x, w, b).to(torch.float16)),
}


def arguments(rows: int, n: int, k: int) -> list[torch.Tensor]:
    return [torch.randn(2, rows, k), torch.randn(n, k) / k**0.5, torch.randn(n, k) / k**0.5, torch.randn(n)]


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("sizes", [(70, 200, 96), (1, 33, 40), (200, 300, 800)])
def test_results_are_those_of_eager(schedules: Any, name: str, sizes: Any) -> None:
    program = PROGRAMS[name]
    given = arguments(*sizes)
    compiled = compile_fx(torch.fx.symbolic_trace(program), given)
    found, eager = compiled(*given), program(*given)
    exact = program(*(value.double() for value in given))
    for mine, its, right in zip(*map(_listed, (found, eager, exact)), strict=True):
        assert mine.dtype is its.dtype and mine.shape == its.shape
        error, usual = ((each.double() - right.double()).abs().max() for each in (mine, its))
        # a sum that is rounded differently may be cast to the neighbour
        place = torch.finfo(mine.dtype).eps * right.double().abs().max() if mine.dtype.itemsize == 2 else 1e-6
        assert error <= 3 * usual + place
    assert templates(schedules)


def _listed(result: Any) -> tuple[Any, ...]:
    return result if isinstance(result, tuple) else (result,)


def test_special_values(schedules: Any) -> None:
    x, w, _, b = arguments(40, 70, 30)
    x[0, 3, 2], x[1, 5, 7], w[4, 4], b[2] = float("nan"), float("inf"), float("-inf"), -0.0

    def program(x: Any, w: Any, b: Any) -> Any:
        return F.linear(x, w, b).relu()

    compiled = compile_fx(torch.fx.symbolic_trace(program), [x, w, b])
    torch.testing.assert_close(compiled(x, w, b), program(x, w, b), equal_nan=True)
    assert len(templates(schedules)) == 1


def test_what_does_not_follow_its_gemm_stays_apart(schedules: Any) -> None:
    def transposed(x: Any, w: Any) -> Any:
        return F.linear(x, w).transpose(0, 1).exp().contiguous()

    def summed(x: Any, w: Any) -> Any:
        return F.linear(x, w).softmax(-1)

    def written(x: Any, w: Any) -> Any:
        y = F.linear(x, w).sin()
        return x.add_(y), y

    x, w = torch.randn(40, 40), torch.randn(40, 40) / 6
    for program in (transposed, summed, written):
        mine, its = x.clone(), x.clone()
        compiled = compile_fx(torch.fx.symbolic_trace(program), [mine, w])
        torch.testing.assert_close(compiled(mine, w), program(its, w), atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(mine, its, atol=1e-4, rtol=1e-4)
    assert not templates(schedules)


def test_weights_that_change_between_calls(schedules: Any) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(64, 200), torch.nn.GELU(), torch.nn.Linear(200, 64)).eval()
    module[2].weight = torch.nn.Parameter(module[0].weight.t().contiguous())
    x = torch.randn(30, 64)
    compiled = compile_fx(torch.fx.symbolic_trace(module), [x])
    for _ in range(3):
        torch.testing.assert_close(compiled(x), module(x))
        module[0].weight.mul_(1.5)


def test_without_memory_for_copies(
    schedules: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The operator runs, and then what would have been called part by part."""
    define_without_memory("gemm_without_memory", tmp_path)
    instead = GEMM_DECLARATION.replace(GEMM_NAME, "gemm_without_memory")
    monkeypatch.setattr(own_functions, "GEMM_DECLARATION", instead)
    monkeypatch.setattr(own_functions, "GEMM_NAME", "gemm_without_memory")
    given = arguments(20, 50, 30)
    compiled = compile_fx(torch.fx.symbolic_trace(gate), given)
    torch.testing.assert_close(compiled(*given), gate(*given))
    assert len(templates(schedules)) == 1
