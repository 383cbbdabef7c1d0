"""The programs of `benchmarks.gpu_programs`, small and on a CPU: eager's results, and nothing is left uncompiled."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import dynamo
from benchmarks.gpu_programs.one import load
from benchmarks.gpu_programs.program import PROGRAMS, Compile, Place, Unfit, leaves

load()
CALLS = 3
TOLERANCE = 1e-3  # of a tensor's norm, as in the suite


def as_it_is(function: Any, **options: Any) -> Any:
    return function


def results_of(name: str, compile: Compile) -> list[torch.Tensor]:
    torch.manual_seed(0)
    step = PROGRAMS[name](compile, Place("cpu", True))
    result: Any = None
    for number in range(CALLS):
        torch.manual_seed(1 + number)
        result = step()
    return [leaf.detach() for leaf in leaves(result)]


@pytest.mark.long
@pytest.mark.parametrize("name", PROGRAMS)
def test_results_are_eagers(name: str) -> None:
    try:
        wanted = results_of(name, as_it_is)
    except (ImportError, Unfit) as error:  # a library that is not installed, or kernels that need a GPU
        pytest.skip(f"{type(error).__name__}: {error}")
    dynamo.reset()
    found = results_of(name, dynamo.compile)
    assert not dynamo.counters["not_compiled"]
    for one, other in zip(found, wanted, strict=True):
        assert one.shape == other.shape and one.dtype is other.dtype
        assert torch.equal(one.isfinite(), other.isfinite())
        one, other = (each.double().nan_to_num(0, 0, 0) for each in (one, other))
        assert (one - other).norm() <= TOLERANCE * other.norm().clamp(min=1e-12)
