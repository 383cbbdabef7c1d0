"""The function that calls all kernels of a graph, where it is long."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import dynamo
from inductor.codegen.wrapper import AFTER_LONG, BEFORE_LONG, LONG
from inductor.driver import cpu


def gemms(count: int) -> Any:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        for _ in range(count):
            x = torch.tanh(x @ w) + 0.5
        return x

    return f


@pytest.mark.parametrize("count", [4, 2 * LONG])
def test_long_functions_are_not_optimized(count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []
    real = cpu.build
    monkeypatch.setattr(cpu, "build", lambda units, store: seen.append(units) or real(units, store))
    x, w = torch.randn(5, 12), torch.randn(12, 12) / 4
    f = gemms(count)
    found = dynamo.compile(f, fullgraph=True)(x, w)
    torch.testing.assert_close(found.double(), f(x.double(), w.double()), rtol=1e-4, atol=1e-4)
    (units,) = seen
    text = "\n".join(units)
    is_long = count > LONG
    assert [line in text for line in (*BEFORE_LONG, *AFTER_LONG)] == [is_long] * 3
    if is_long:  # the kernels are optimized, and stand before it
        assert text.index("static") < text.index(BEFORE_LONG[0]) < text.index(" run(Runtime* rt)")
