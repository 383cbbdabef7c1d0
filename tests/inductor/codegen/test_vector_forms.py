"""Functions that have a vector form of their own: errors on dense scans, specials, and every place.

The bounds are what a scan of all float32 (0.79, 0.80, 0.80, 0.78, 0.91; 0.601 of 1e7) or of many float64 has shown.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from kernel_support import Runner

from inductor.codegen.cpp.prelude import prelude_for
from inductor.ir.body import trace_body
from inductor.package.link import needed_instructions
from inductor.scheduler.schedule import Kernel

F, D = torch.float32, torch.float64
BOUNDS = {
    ("log", F): 0.80, ("log2", F): 0.80, ("log10", F): 0.80, ("tanh", F): 0.78, ("exp", F): 1.01,
    ("erf", F): 0.91, ("sin", F): 0.602, ("cos", F): 0.602,
    ("log", D): 0.88, ("log2", D): 0.85, ("log10", D): 0.85, ("exp", D): 1.2, ("sqrt", D): 0.5001,
}  # fmt: skip
CASES = [pytest.param(*case, id=f"{case[0]}-{case[1]}") for case in BOUNDS]
SCAN = 1 << 19
EVERYWHERE = ("sin", "cos")  # of one text for all machines
ELSE = 4  # where there are no vectors of 512 bits, or the compiler has another name for their instructions


def is_wide(runner: Runner) -> bool:
    """Whether the kernels have our own forms."""
    return not runner.toolchain.is_clang and "avx512f" in needed_instructions(runner.toolchain).split()


def kernel_of(name: str, dtype: torch.dtype, count: int) -> Kernel:
    def body(ops, i, r):
        ops.store("out", i[0], ops.call(name, ops.load("x", i[0], dtype)))

    kind = str(dtype).split(".")[1]
    return Kernel(f"{name}_{kind}_{count}", (), (trace_body((count,), (), body),))


def samples(name: str, dtype: torch.dtype) -> torch.Tensor:
    """Numbers of all magnitudes where the function is not constant, and both sides of each edge."""
    info = torch.finfo(dtype)
    if name == "exp":
        limit = -math.log(info.tiny) + math.log(1 / info.eps) + 2
        x = torch.cat([(torch.rand(SCAN, dtype=D) * 2 - 1) * limit, torch.randn(SCAN, dtype=D)])
        edges = torch.arange(-1100, 1100, dtype=D) * (math.log(2) / 2)
    elif name in ("sin", "cos"):
        big = 10 ** (torch.rand(SCAN // 4, dtype=D) * 33 + 5) * (torch.rand(SCAN // 4, dtype=D) - 0.5).sign()
        x = torch.cat([torch.randn(SCAN, dtype=D), torch.rand(SCAN, dtype=D) * 200 - 100, big])
        few = torch.tensor([1e-40, 1e-20, 1e5, 1e10, 1e20, 2.0**21, 2.0**36, 2.0**-12], dtype=D)
        edges = torch.cat([torch.arange(-400, 400, dtype=D) * (math.pi / 4), few, -few])
    elif name in ("tanh", "erf"):
        x = torch.cat([torch.randn(SCAN, dtype=D) * 4, torch.randn(SCAN, dtype=D) * 0.3])
        edges = torch.tensor([2.0, 3, 5, 7], dtype=D)[:, None] * 2.0 ** torch.arange(-7, 2)
        few = torch.tensor([0.6, -0.6, 9.1, -9.1, 3.93, -3.93, 1e-20, 1e-40], dtype=D)
        edges = torch.cat([edges.flatten(), few])
    else:
        low, high = math.log(info.tiny) - 10, math.log(info.max)
        wide = torch.exp(torch.rand(SCAN, dtype=D) * (high - low) + low)
        x = torch.cat([wide, torch.rand(SCAN, dtype=D) * 1.5 + 0.5])
        edges = (1 + torch.arange(33, dtype=D) / 32)[:, None] * torch.tensor([0.5, 1, 4, 2.0**-140])
    near = edges.flatten().to(dtype)
    sides = [near]
    for _ in range(4):
        sides = [sides[0].nextafter(near * -4), *sides, sides[-1].nextafter(near * 4)]
    special = [0.0, -0.0, math.inf, -math.inf, math.nan, -math.nan, info.max, -info.max, info.tiny,
               info.smallest_normal / 4, -info.smallest_normal / 4, 1, -1, 88.73, -103.98, 709.79,
               -745.2, -746, 721, -761, 1e30, -1e30]  # fmt: skip
    return torch.cat([torch.tensor(special, dtype=dtype), *sides, x.to(dtype)])


def exactly(name: str, x: torch.Tensor) -> np.ndarray:
    """The function in the longest float that there is."""
    if name == "erf":
        return torch.erf(x.double()).numpy()
    with np.errstate(all="ignore"):
        return getattr(np, name)(x.numpy().astype(np.longdouble))


@pytest.mark.parametrize(("name", "dtype"), CASES)
def test_errors_and_special_values(runner: Runner, name: str, dtype: torch.dtype) -> None:
    x = samples(name, dtype)
    storages = {"x": x, "out": torch.zeros_like(x)}
    runner.compile(kernel_of(name, dtype, len(x)), storages)(storages)
    got, want = storages["out"].numpy(), exactly(name, x)
    with np.errstate(all="ignore"):
        rounded = want.astype(got.dtype)
        unit = np.spacing(np.maximum(np.abs(rounded), np.finfo(got.dtype).tiny))
        distance = np.abs((got - want) / unit)
    known = np.isfinite(rounded) & np.isfinite(want)
    same = (got == rounded) | (np.isnan(got) & np.isnan(rounded))
    assert same[~known].all(), x.numpy()[~known & ~same][:5]
    assert (np.signbit(got) == np.signbit(rounded))[known].all()
    distance = np.where(known, distance, 0)
    worst = int(distance.argmax())
    bound = BOUNDS[name, dtype] if name in EVERYWHERE or is_wide(runner) else ELSE
    assert distance[worst] <= bound, (float(x[worst]), got[worst], distance[worst])


@pytest.mark.parametrize(("name", "dtype"), [
    pytest.param(*case, id=f"{case[0]}-{case[1]}", marks=pytest.mark.long if number % 3 else ())
    for number, case in enumerate(BOUNDS)])
def test_a_result_does_not_depend_on_its_place(
    runner: Runner, name: str, dtype: torch.dtype
) -> None:
    """The last elements of a loop are computed in shorter vectors and one by one. Without forms of
    our own these are glibc's for float64, which differ from its vectors by rounding."""
    own = is_wide(runner) or dtype == F
    counts = [*range(1, 18), 23, 31, 32, 47]
    x = torch.rand(47, dtype=D).to(dtype) * 3 + 0.01
    special = torch.tensor([-0.0, 0.0, math.inf, -1.0, math.nan, -math.inf], dtype=dtype)
    x[::8] = special
    storages = [{"x": x, "out": torch.zeros(n, dtype=dtype)} for n in counts]
    kernels = [kernel_of(name, dtype, n) for n in counts]
    for run, given in zip(runner.compile_all(list(zip(kernels, storages))), storages):
        run(given)
    for given in storages:
        got, want = given["out"].numpy(), storages[-1]["out"][: len(given["out"])].numpy()
        known = ~np.isnan(want)
        if own:
            assert np.array_equal(got, want, equal_nan=True)
        np.testing.assert_array_max_ulp(got[known], want[known], ELSE)
        assert np.array_equal(np.isnan(got), ~known)
        assert np.array_equal(np.signbit(got)[known], np.signbit(want)[known])


def test_a_unit_has_only_forms_of_its_types() -> None:
    single = prelude_for(["f32 y = k_log(x);"])
    assert "K_USES_f32" in single and "#define K_USES_f64" not in single
    assert "#define K_FORMS" in single and "k_form_exp" not in single
    assert "K_FORMS" not in prelude_for(["f32 y = k_abs(x);"])
