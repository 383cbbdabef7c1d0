"""Two GEMMs that run band by band: the same numbers as one behind the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from inductor import compile_fx
from inductor.driver import cpu
from inductor.kernels.cpu.gemm import GEMM_NAME
from inductor.scheduler import cpu_gemms
from inductor.scheduler.schedule import GemmChain, Schedule, TemplateKernel
from tests.inductor.runtime.own_functions import (
    define_without_memory,
    gemms_are_ours,
    noted_schedules,
)

pytestmark = pytest.mark.filterwarnings("error::UserWarning")


@pytest.fixture
def schedules(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Schedule]]:
    """GEMMs are ours, chains pay for all sizes."""
    gemms_are_ours(monkeypatch)
    monkeypatch.setattr(cpu_gemms, "LEAST_BETWEEN", 0)
    monkeypatch.setattr(cpu_gemms, "MOST_WEIGHTS", 1 << 40)
    with noted_schedules(monkeypatch) as seen:
        yield seen


def chains(schedules: list[Schedule]) -> list[GemmChain]:
    return [step for s in schedules for step in s.steps if isinstance(step, GemmChain)]


def scaled(x: Any, w: Any, v: Any, b: Any, c: Any) -> Any:
    return F.linear(F.gelu(F.linear(x, w, b)), v, c) * c + x


PROGRAMS: dict[str, Callable[..., Any]] = {
    "mlp": lambda x, w, v, b, c: F.linear(F.gelu(F.linear(x, w, b)), v, c),
    "scale and residual": scaled,
    "two gemms": lambda x, w, v, b, c: F.linear(F.linear(x, w), v),
    "bare first": lambda x, w, v, b, c: F.linear(F.linear(x, w, b), v).relu(),
    "row of the batch": lambda x, w, v, b, c: F.linear(F.linear(x, w) + x[..., :1], v, c),
    "saved": lambda x, w, v, b, c: F.linear((y := F.linear(x, w, b)).relu(), v) + y.sum(),
}


def arguments(rows: int, k: int, n: int, other: int) -> list[torch.Tensor]:
    w, v = torch.randn(n, k) / k**0.5, torch.randn(other, n) / n**0.5
    return [torch.randn(2, rows, k), w, v, torch.randn(n), torch.randn(other)]


# Bands of one tile and of many, columns beside whole panels, sums in parts, rows of 2 KB.
SIZES = [(5, 40, 33, 40), (230, 64, 96, 64), (400, 96, 900, 96), (150, 512, 1024, 512)]


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("sizes", SIZES)
def test_results_are_those_of_eager(schedules: Any, name: str, sizes: Any) -> None:
    program, given = PROGRAMS[name], arguments(*sizes)
    compiled = compile_fx(torch.fx.symbolic_trace(program), given)
    for _ in range(2):
        found, eager = compiled(*given), program(*given)
        exact = program(*(value.double() for value in given))
        error, usual = ((each.double() - exact).abs().max() for each in (found, eager))
        assert error <= 3 * usual + 1e-6
        given[0] = torch.randn_like(given[0])
    assert bool(chains(schedules)) == (name != "saved")


def test_bits_are_those_of_gemms_behind_each_other(
    schedules: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = arguments(300, 96, 384, 96)
    found = compile_fx(torch.fx.symbolic_trace(scaled), given)(*given)
    monkeypatch.setattr(cpu_gemms, "MOST_WEIGHTS", 0)
    apart = compile_fx(torch.fx.symbolic_trace(scaled), given)(*given)
    assert len(chains(schedules)) == 1
    assert torch.equal(found, apart)


def test_special_values(schedules: Any) -> None:
    x, w, v, b, c = given = arguments(60, 40, 70, 40)
    x[0, 3, 2], x[1, 5, 7], w[4, 4], v[3, 3], b[2] = (
        float("nan"), float("inf"), float("-inf"), float("nan"), -0.0)  # fmt: skip
    def program(x: Any, w: Any, v: Any, b: Any, c: Any) -> Any:
        return F.linear(F.linear(x, w, b).relu(), v, c) + x

    compiled = compile_fx(torch.fx.symbolic_trace(program), given)
    torch.testing.assert_close(compiled(*given), program(*given), equal_nan=True)
    assert len(chains(schedules)) == 1


def test_what_others_read_is_stored(schedules: Any) -> None:
    def kept(x: Any, w: Any, v: Any) -> Any:
        y = F.linear(x, w).relu()
        return y, F.linear(y, v)

    def read_behind(x: Any, w: Any, v: Any) -> Any:
        y = F.linear(x, w).relu()
        return F.linear(y, v) * y

    def both_sides(x: Any, w: Any, v: Any) -> Any:
        y = F.linear(x, w).relu()
        return y @ y

    def written(x: Any, w: Any, v: Any) -> Any:
        return x.copy_(F.linear(F.linear(x, w).relu(), v).exp())

    given = [torch.randn(70, 70) / 8 for _ in range(3)]
    for program in (written, kept, read_behind, both_sides):
        mine, its = ([value.clone() for value in given] for _ in range(2))
        compiled = compile_fx(torch.fx.symbolic_trace(program), mine)
        torch.testing.assert_close(compiled(*mine), program(*its), atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(mine, its, atol=1e-4, rtol=1e-4)
    # What is written into x is computed behind the chain, of which all bands read x.
    (chain,) = chains(schedules)
    assert not set(chain.writes()) & {"arg0", "arg1", "arg2"}


def test_only_where_it_pays(schedules: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    given = arguments(40, 40, 40, 40)
    monkeypatch.setattr(cpu_gemms, "LEAST_BETWEEN", 80 * 40 + 1)
    compile_fx(torch.fx.symbolic_trace(scaled), given)
    monkeypatch.setattr(cpu_gemms, "LEAST_BETWEEN", 0)
    monkeypatch.setattr(cpu_gemms, "MOST_WEIGHTS", 2 * 40 * 40 - 1)
    compile_fx(torch.fx.symbolic_trace(scaled), given)
    assert not chains(schedules)
    stored = [part for s in schedules for t in s.templates() for part in t.parts]
    assert all(part.target and not part.stored for part in stored)


def test_without_memory_for_copies(
    schedules: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The GEMMs run one behind the other."""
    define_without_memory("no_memory_chain", tmp_path)
    generate = cpu.generate

    def without(*given: Any) -> Any:
        units, spec = generate(*given)
        return [text.replace(f"{GEMM_NAME}_chain", "no_memory_chain") for text in units], spec

    monkeypatch.setattr(cpu, "generate", without)
    given = arguments(300, 40, 50, 40)
    compiled = compile_fx(torch.fx.symbolic_trace(scaled), given)
    torch.testing.assert_close(compiled(*given), scaled(*given))
    assert len(chains(schedules)) == 1


def test_the_result_of_a_gemm_lies_where_its_kernel_stores(schedules: Any) -> None:
    def kept(x: Any, w: Any, b: Any) -> Any:
        y = F.linear(x, w, b)
        return y, y.sigmoid()

    x, w, *_ = arguments(40, 40, 50, 40)
    b = torch.randn(50)
    for program in (kept, lambda x, w, b: F.linear(x, w, b).to(torch.float16)):
        compiled = compile_fx(torch.fx.symbolic_trace(program), [x, w, b])
        torch.testing.assert_close(compiled(x, w, b), program(x, w, b), atol=1e-3, rtol=1e-3)
    parts = [part for s in schedules for t in s.templates() for part in t.parts]
    assert len(parts) == 2 and not any(part.target for part in parts)
    compile_fx(torch.fx.symbolic_trace(lambda x, w, b: F.linear(x, w, b).exp()), [x, w, b])
    (template,) = (step for step in schedules[-1].steps if isinstance(step, TemplateKernel))
    assert template.parts[0].target in template.epilogues()[0].writes()
    assert not template.parts[0].stored and template.gemms()[0].name not in template.writes()
