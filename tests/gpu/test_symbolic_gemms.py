"""GEMMs with any number of rows and what follows them: which are templates, and that they are right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from dynamo.base import logs
from dynamo.base.config import config
from inductor.autotune import gpu_gemms
from inductor.codegen.triton.template_configs import candidate_blocks
from inductor.driver import for_gpu
from tests.gpu.support import DTYPES, check, data


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many templates each graph for all sizes has."""
    counts: list[int] = []
    before = for_gpu.choose_templates

    def spying(*args: Any, **more: Any) -> Any:
        schedule = before(*args, **more)
        counts.append(len(list(schedule.templates())))
        return schedule

    monkeypatch.setattr(for_gpu, "choose_templates", spying)
    return counts


def rows_in_turn(*rows: int, columns: int, dtype: torch.dtype) -> Callable[[], tuple[Any, ...]]:
    given = iter(rows)
    return lambda: (data(next(given), columns, dtype=dtype),)


def weight(*size: int, dtype: torch.dtype) -> torch.nn.Parameter:
    """A parameter, whose sizes are known to the compiler."""
    return torch.nn.Parameter(data(*size, dtype=dtype) / 8, requires_grad=False)


@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
def test_few_rows(chosen: list[int], dtype: torch.dtype) -> None:
    """Up to sixteen are a template's; more are the library's, in a variant of their own."""
    g, u = weight(704, 256, dtype=dtype), weight(704, 256, dtype=dtype)

    def f(x: Any) -> Any:
        return F.silu(F.linear(x, g.to(x.dtype))) * F.linear(x, u.to(x.dtype))

    with torch.no_grad():
        check(f, rows_in_turn(8, 3, 16, 2, 17, 300, 5, columns=256, dtype=dtype), calls=7, slack=8.0, dynamic=True)
    assert chosen == [1, 0]


@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
def test_many_rows_that_wait_for_memory(chosen: list[int], dtype: torch.dtype) -> None:
    w = weight(144, 24, dtype=dtype)

    def f(x: Any) -> Any:
        return F.silu(F.linear(x, w.to(x.dtype)))

    with torch.no_grad():
        check(f, rows_in_turn(401408, 100352, 4001, 257, columns=24, dtype=dtype), calls=4, slack=8.0, dynamic=True)
    assert chosen == [1]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_measured(
    chosen: list[int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Any,
    dtype: torch.dtype,
) -> None:
    """What is faster at the first sizes, of which some are no multiples of a tile's."""
    monkeypatch.setattr(gpu_gemms, "candidate_blocks", lambda each: candidate_blocks(each)[:2])
    monkeypatch.setattr(gpu_gemms, "neighbours", lambda best, each: ())
    for limit in ("ADVANTAGE", "CLOSE"):  # whatever the library takes, and whoever else is measuring
        monkeypatch.setattr(gpu_gemms, limit, 100.0)
    monkeypatch.setattr(logs.log("autotuning"), "enabled", True)
    w, b = weight(200, 120, dtype=dtype), weight(200, dtype=dtype)

    def f(x: Any) -> Any:
        return F.gelu(F.linear(x, w.to(x.dtype), b.to(x.dtype))) + 1

    with config.patch(cache_dir=str(tmp_path)), torch.no_grad():
        check(f, rows_in_turn(1000, 17, 129, 2048, columns=120, dtype=dtype), calls=4, slack=8.0,
              mode="max-autotune-no-cudagraphs", dynamic=True)
    assert chosen == [1], capsys.readouterr().err
