"""Sizes at which an assumption of the compile fails, and where the value of a size is needed."""

from __future__ import annotations

import sys
from typing import Any

import pytest
import torch
from for_all_sizes import capture, check

import dynamo
from dynamo.base.config import config
from inductor import metrics
from inductor.driver.from_aten import compile_aten
from inductor.dynamic_shapes import symbolic
from inductor.lowering.run import lower_graph


def power(x: torch.Tensor) -> torch.Tensor:
    return x.abs() ** x.shape[0]  # the exponent decides what is computed


def test_a_variant_for_each_assumption(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(symbolic, "MOST_VARIANTS", 3)
    dynamo.reset()
    check(power, lambda n: [torch.rand(n, 3)], (2, 3, 2, 4, 5, 3), first=7, builds=3)
    assert sum(dynamo.counters["not_compiled"].values()) == 2  # 4 and 5


def test_what_is_assumed_is_little() -> None:
    """Neither loops nor memory assume anything of sizes that the program does not ask about."""
    programs: list[tuple[Any, list[torch.Tensor]]] = [
        (lambda x: (x + 1).softmax(-1).sum(0), [torch.randn(5, 7)]),
        (lambda x, y: torch.cat((x, y), 1).amax(1) * 2, [torch.randn(5, 7), torch.randn(5, 9)]),
        (lambda x: x.transpose(1, 2).reshape(x.shape[0], -1).mean(1), [torch.randn(5, 7, 9)]),
        (lambda x: x[1:] - x[:-1], [torch.randn(5, 7)]),
    ]
    for program, inputs in programs:
        lowered = lower_graph(capture(program, inputs))
        assert lowered.symbols is not None and not lowered.symbols.sizes.assumptions


def test_sizes_that_become_0() -> None:
    compiled = dynamo.compile(lambda x, k: x.new_ones(k, x.size(1)).sum(0) + x[:1] * k)
    for k in (4, 5, 9, 0, 1, 2, 0, 33):
        x = torch.randn(4, 3)
        assert torch.equal(compiled(x, k), torch.full((3,), float(k)) + x[:1] * k)


def test_defects_lead_to_another_way(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*given: Any) -> Any:
        raise RuntimeError("broken")

    monkeypatch.setattr(sys.modules["inductor.driver.from_aten"], "schedule_graph", fail)
    compiled = dynamo.compile(lambda x: x * 2, dynamic=True)
    with config.patch(suppress_errors=True), pytest.warns(UserWarning, match="broken"):
        x = torch.randn(5)
        assert torch.equal(compiled(x), x * 2)


def test_launchers_are_kept() -> None:
    compiled = compile_aten(capture(lambda x: x * 2, [torch.randn(5)]), [])
    before = metrics.snapshot()["sizes_bound"]
    for size in (4, 9, 4, 9, 4, 100):
        x = torch.randn(size)
        assert torch.equal(compiled(x)[0], x * 2)
    assert metrics.snapshot()["sizes_bound"] - before == 3


def test_errors_are_eagers() -> None:
    program = lambda x, i: x[i] * 2  # noqa: E731
    compiled = compile_aten(capture(program, [torch.randn(5, 2), torch.tensor([1, 4, 0])]), [])
    for size in (3, 70):
        x = torch.randn(size, 2)
        with pytest.raises(IndexError, match=f"index {size} is out of bounds .* size {size}"):
            compiled(x, torch.tensor([0, size, 1, 1]))
        with pytest.raises(TypeError, match="is a double tensor"):
            compiled(x.double(), torch.tensor([0, 1]))
