"""The programs of `benchmarks.gpu_programs`, small, as on a GPU but in Triton's interpreter: eager's results.

    TRITON_INTERPRET=1 SUITE_VARIANT=loops pytest tests/inductor/gpu/interpreted_suite.py -k losses-

SUITE_VARIANT: templates (they compute all GEMMs that they can), loops (kernels are cut as for large tensors), or nothing.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import numpy
import pytest
import torch
from as_on_gpu import interpreting

import dynamo
from benchmarks.gpu_programs.one import load
from benchmarks.gpu_programs.program import PROGRAMS, Compile, Place, Unfit, leaves

load()
CALLS = 2
SECONDS = int(os.environ.get("SUITE_SECONDS", "600"))  # of one program: the interpreter is slow with some kernels
TOLERANCE = 1e-3  # of a tensor's norm, as in the suite
# A GPU divides by the reciprocal of a number: what is rounded to few bits may be the next number.
ROUNDED = {"torchao_int8_dynamic": 1e-2, "torchao_qat_train": 1e-2}
# Tens of columns are a large row.
LOOPS = {
    "PERSISTENT_COLUMNS": 16, "PERSISTENT_WITH_LOCALS": 32, "PERSISTENT_ALONG_ROWS": 16, "LOOP_BLOCKS": ((8, 32, 1),), "ENOUGH_ROWS": 8,
    "FEWEST_COLUMNS": (64, 64), "COLUMNS_OF_A_PROGRAM": (32, 32), "CHUNK_STEP": (16, 16), "LARGE_KERNEL": 1024, "LONG_ROW": 64,
    "FEWEST_IN_PARTS": 32, "CACHED": 0,
}
VARIANTS: dict[str, dict[str, Any]] = {"": {}, "templates": {"templates": True}, "loops": {"limits": LOOPS}}
NAMES = [pytest.param(name, id=f"{function.__module__.rpartition('.')[2]}-{name}") for name, function in PROGRAMS.items()]


class TooLong(BaseException):
    """Raised in a program that takes longer than SECONDS, of which nothing takes it for an error of a kernel."""


@pytest.fixture
def in_time() -> Iterator[None]:
    def end(*_: Any) -> None:
        raise TooLong

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def as_it_is(function: Any, **options: Any) -> Any:
    return function


def results_of(name: str, compile: Compile) -> list[torch.Tensor]:
    torch.manual_seed(0)
    step = PROGRAMS[name](compile, Place("cpu", True))
    results = []
    for number in range(CALLS):
        torch.manual_seed(1 + number)
        results += [leaf.detach().clone() for leaf in leaves(step())]
    return results


@pytest.mark.parametrize("name", NAMES)
def test_results_are_eagers(name: str, in_time: None) -> None:
    try:
        wanted = results_of(name, as_it_is)
    except (ImportError, Unfit) as error:  # a library that is not installed, or a GPU's alone
        pytest.skip(f"{type(error).__name__}: {error}")
    dynamo.reset()
    with interpreting(**VARIANTS[os.environ.get("SUITE_VARIANT", "")]) as found, numpy.errstate(all="ignore"):
        try:
            results = results_of(name, dynamo.compile)
        except TooLong:
            pytest.skip(f"it takes more than {SECONDS} s")
    assert not found.slow and not dynamo.counters["not_compiled"]
    for one, other in zip(results, wanted, strict=True):
        assert one.shape == other.shape and one.dtype is other.dtype and one.stride() == other.stride()
        assert torch.equal(one.isfinite(), other.isfinite())
        one, other = (each.double().nan_to_num(0, 0, 0) for each in (one, other))
        assert (one - other).norm() <= ROUNDED.get(name, TOLERANCE) * other.norm().clamp(min=1e-12)
