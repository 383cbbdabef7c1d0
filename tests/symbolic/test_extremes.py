"""`min` and `max` of tensors of no dimension: Python's choice, in the graph where it must be whole."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynamo
from dynamo.base.errors import Unsupported
from dynamo.testing import CompileCounter

PROGRAMS: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "max of tensor and number": lambda a, b: max(a, 0.25) * 2,
    "max of number and tensor": lambda a, b: max(0.25, a) * 2,
    "min of tensor and int": lambda a, b: min(a, 1) + b,
    "min of number and tensor": lambda a, b: min(-0.25, a) - b,
    "max of tensors": lambda a, b: max(a, b) * 3,
    "min of tensors": lambda a, b: min(a.exp(), b.exp()),
}
VALUES = (-math.inf, -1.5, -0.25, 0.0, 0.25, 0.75, 1.0, 7.0, math.inf, math.nan)


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_values_are_pythons_without_a_break(name: str, dtype: torch.dtype) -> None:
    dynamo.reset()
    counter = CompileCounter()
    compiled = dynamo.compile(PROGRAMS[name], backend=counter, fullgraph=True)
    for one in VALUES:
        for two in (*VALUES[2:5], math.nan, float(torch.randn(()))):
            a, b = torch.tensor(one, dtype=dtype), torch.tensor(two, dtype=dtype)
            found = compiled(a, b)
            assert float(found) == pytest.approx(float(PROGRAMS[name](a, b)), nan_ok=True)
            assert isinstance(found, torch.Tensor) and found.dtype is dtype
    assert counter.frame_count == 1


def test_gradients_go_to_the_winner() -> None:
    dynamo.reset()
    compiled = dynamo.compile(lambda a: max(a.sum(), 0.5) * a.sum(), fullgraph=True)
    for sign in (1, -1):
        x = (sign * torch.rand(4)).requires_grad_()
        y = x.detach().clone().requires_grad_()
        compiled(x).backward()
        (max(y.sum(), 0.5) * y.sum()).backward()
        torch.testing.assert_close(x.grad, y.grad)


def test_without_fullgraph_the_object_is_pythons() -> None:
    dynamo.reset()
    compiled = dynamo.compile(lambda a: max(a, 0.5), backend="eager")
    assert compiled(torch.tensor(0.25)) == 0.5 and type(compiled(torch.tensor(0.25))) is float
    high = torch.tensor(2.0)
    assert compiled(high) is high


def test_other_tensors_are_left_to_python() -> None:
    for args in ((torch.tensor(3), 2), (torch.ones(1), 0.5), (torch.tensor(1.0), torch.tensor(2))):
        dynamo.reset()
        with pytest.raises(Unsupported):
            dynamo.compile(lambda a, b: max(a, b), fullgraph=True)(*args)
