"""Where ATen's kernels for GPUs round a product and a sum at once, so do ours."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy
import pytest
import torch
from test_gpu_training import interpreted

from inductor.ir import interpret

aten = torch.ops.aten
Tensor = torch.Tensor
COUNT = 200


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Buffers lie in memory that is here."""
    monkeypatch.setattr(interpret, "_allocate", lambda layout: torch.empty(
        layout.storage_elements(), dtype=layout.dtype))


def rounded(exact: Fraction) -> float:
    """The nearest float32; of two, the even one."""
    near = numpy.float32(float(exact))
    beside = (near, numpy.nextafter(near, numpy.float32(-numpy.inf)), numpy.nextafter(near, numpy.float32(numpy.inf)))
    least = min(abs(Fraction(float(each)) - exact) for each in beside)
    nearest = [each for each in beside if abs(Fraction(float(each)) - exact) == least]
    return float(min(nearest, key=lambda each: each.view(numpy.int32) & 1))


def fma(one: Tensor, other: Tensor, more: Tensor) -> Tensor:
    """In float32, rounded once."""
    numbers = zip(*(each.expand(COUNT).tolist() for each in (one, other, more)), strict=True)
    return torch.tensor([rounded(Fraction(a) * Fraction(b) + Fraction(c)) for a, b, c in numbers])


PROGRAMS: list[tuple[Callable[..., Any], Callable[..., Any]]] = [
    (lambda x, a, b: aten.add.Tensor(x, a, alpha=0.3), lambda x, a, b, n: fma(a, n, x)),
    (lambda x, a, b: aten.sub.Tensor(x, a, alpha=0.3), lambda x, a, b, n: fma(a, -n, x)),
    (lambda x, a, b: aten.lerp.Scalar(x, a, 0.3), lambda x, a, b, n: fma(a - x, n, x)),
    (lambda x, a, b: aten.addcmul.default(x, a, b), lambda x, a, b, n: fma(a, b, x)),
    (lambda x, a, b: aten.addcmul.default(x, a, b, value=0.3), lambda x, a, b, n: fma(a * b, n, x)),
    (lambda x, a, b: aten.addcdiv.default(x, a, b, value=0.3), lambda x, a, b, n: fma(a / b, n, x)),
    (lambda x, a, b: aten.addcdiv.default(x, a, b), lambda x, a, b, n: x + a / b),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_rounded_once(number: int) -> None:
    program, expected = PROGRAMS[number]
    given = [torch.randn(COUNT) for _ in range(3)]
    (found,) = interpreted(program, given)
    assert found.tolist() == expected(*given, torch.tensor(0.3)).tolist()
    twice = given[0] + torch.tensor(0.3) * given[1]
    assert number != 0 or found.tolist() != twice.tolist()
