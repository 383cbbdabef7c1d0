"""Printed kernels in Triton's interpreter against the reference (see test_triton_interpreted)."""

from __future__ import annotations

import os
import random

import pytest
import torch
from interpreter_repairs import repair
from triton_kernels import CASES, every_operation, gather
from triton_random import random_kernel
from triton_reference import layout_of, reference, run

from inductor.codegen.triton import aligned, configs, eviction, plan, split, tiling
from inductor.codegen.triton import print_kernel as printer
from inductor.codegen.triton.print_kernel import print_kernel

SEEDS = range(*(int(n) for n in os.environ.get("TRITON_SEEDS", "0,12").split(",")))
DEFAULT = {}
LOOPS = {"PERSISTENT_COLUMNS": 4, "PERSISTENT_WITH_LOCALS": 8, "PERSISTENT_ALONG_ROWS": 4, "LOOP_BLOCKS": ((2, 16, 1), (1, 32, 1)), "CACHED": 0,
         "FEWEST_IN_PARTS": 32, "FEWEST_LOOPS": 0.03, "LONG_ROW": 64}
CUTS = {"ENOUGH_ROWS": 100, "LARGE_KERNEL": 64, "SMALL_STAGE": 0, "FEWEST_COLUMNS": (40, 40), "COLUMNS_OF_A_PROGRAM": (16, 16),
        "CHUNK_STEP": (8, 8), "SHORTEST": 2, "TILES": ((8, 4, 1), (4, 16, 1))}

RUNS = {"SMALL_STAGE": 500}  # elements of stages that stay together
WIDE = {"MOST_INT32": 0}


@pytest.fixture(autouse=True)
def repaired(monkeypatch) -> None:
    repair(monkeypatch)


def use(monkeypatch, limits) -> None:
    for module in (aligned, plan, split, configs, eviction, tiling, printer):
        for name, value in limits.items():
            if hasattr(module, name):
                monkeypatch.setattr(module, name, value)


@pytest.mark.parametrize(
    "limits, choice", [(DEFAULT, 0), (LOOPS | WIDE, 1), (CUTS, 0), (CUTS | RUNS, 0)], ids=["default", "loops", "cuts", "runs"]
)
@pytest.mark.parametrize("case", CASES, ids=lambda f: f.__name__)
def test_by_hand(case, limits, choice, tmp_path, monkeypatch) -> None:
    use(monkeypatch, limits)
    kernel, buffers = case()
    printed = print_kernel(kernel, {name: layout_of(t) for name, t in buffers.items()})
    if choice and all(len(source.choices.all()) <= choice for source in printed.sources):
        pytest.skip("one config only")
    found = run(printed, buffers, tmp_path, choice)
    for name, expected in reference(kernel, buffers).items():
        text = f"{name}\n{[s.text for s in printed.sources]}"
        torch.testing.assert_close(found[name], expected, equal_nan=True, msg=text)


@pytest.mark.parametrize("bad", [7, -8])
def test_index_is_checked(bad, tmp_path) -> None:
    kernel, buffers = gather()
    buffers["index"][3] = bad
    printed = print_kernel(kernel, {name: layout_of(t) for name, t in buffers.items()})
    with pytest.raises(Exception, match="index out of range"):
        run(printed, buffers, tmp_path)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.int8, torch.uint8, torch.bool])
def test_every_operation(dtype, tmp_path) -> None:
    kernel, buffers = every_operation(dtype)
    printed = print_kernel(kernel, {name: layout_of(t) for name, t in buffers.items()})
    found = run(printed, buffers, tmp_path)
    wrong = []
    for name, expected in reference(kernel, buffers).items():
        value = found[name]
        same = torch.equal(value.isnan(), expected.isnan()) and torch.allclose(
            value.double(), expected.double(), rtol=1e-6, atol=0, equal_nan=True)
        if name in ("neg", "copysign", "floordiv") and dtype.is_floating_point:
            keep = ~expected.isnan()
            same &= torch.equal(value.signbit()[keep], expected.signbit()[keep])
        if not same:
            bad = (value != expected) & ~(value.isnan() & expected.isnan())
            wrong.append((name, buffers["a"][bad][:4], buffers["b"][bad][:4], value[bad][:4], expected[bad][:4]))
    assert not wrong, wrong


def limits_of(seed: int) -> dict:
    rng = random.Random(seed)
    return {name: value for group in (LOOPS, CUTS, RUNS, WIDE) if rng.random() < 0.5 for name, value in group.items()}


@pytest.mark.parametrize("seed", SEEDS)
def test_random(seed, tmp_path, monkeypatch) -> None:
    use(monkeypatch, limits_of(seed))
    kernel, buffers = random_kernel(seed)
    printed = print_kernel(kernel, {name: layout_of(t) for name, t in buffers.items()})
    found = run(printed, buffers, tmp_path, seed % 3)
    for name, expected in reference(kernel, buffers).items():
        text = f"{name}\n{kernel}\n" + "\n".join(s.text for s in printed.sources)
        torch.testing.assert_close(found[name], expected, equal_nan=True, rtol=1e-4, atol=1e-4, msg=text)
