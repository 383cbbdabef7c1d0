"""One operation, one set of bits: wherever an operation stands in a kernel, it computes the same.

Values are recomputed where that is cheaper than keeping them, and compared with themselves: the
gradient of a maximum is where the value is the maximum. AVX2 and AVX-512 need not agree with each
other, but all places within one build do.
"""

from __future__ import annotations

import platform
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from kernel_support import Runner
from places import MAKERS, Comparison, Operands, Ways, cases_of, short
from test_math import DTYPES

SETS = {
    "native": (), "avx512": ("-march=x86-64-v4",), "avx2": ("-march=x86-64-v3",),
    "avx": ("-march=sandybridge",), "sse": ("-march=x86-64",),
}  # fmt: skip
NEEDS = {"avx512": {"avx512f", "avx512vl", "avx512bw", "avx512dq"}, "avx2": {"avx2", "fma"}, "avx": {"avx"}}
FEW = ("alone", "any", "serial")


def built_for(runner: Runner, kind: str) -> Runner:
    """A runner that compiles for such processors."""
    if kind == "native":
        return runner
    if platform.machine() != "x86_64" or "-march=native" not in runner.toolchain.compile_flags:
        pytest.skip("the flags are those of compilers for x86-64")
    if not NEEDS.get(kind, set()) <= set(Path("/proc/cpuinfo").read_text().split()):
        pytest.skip("this processor cannot run it")
    plain = [flag for flag in runner.toolchain.compile_flags if flag != "-march=native"]
    other = Runner(Path(runner.store.root))
    other.toolchain = replace(runner.toolchain, compile_flags=(*plain, *SETS[kind]))
    return other


def differences(runner: Runner, dtype: torch.dtype, names) -> list[str]:
    operands = Operands()
    ways = Ways(operands, cases_of(operands, dtype), short(dtype))
    return Comparison(ways, runner, names).differences()


@pytest.mark.parametrize("kind", ["native", "avx2"])
def test_places_of_float32(runner: Runner, kind: str) -> None:
    found = differences(built_for(runner, kind), torch.float32, FEW)
    assert not found, "\n".join(found)


@pytest.mark.long
@pytest.mark.parametrize("dtype", DTYPES, ids=short)
@pytest.mark.parametrize("kind", SETS)
def test_all_places(runner: Runner, kind: str, dtype: torch.dtype) -> None:
    found = differences(built_for(runner, kind), dtype, tuple(MAKERS))
    assert not found, "\n".join(found)
