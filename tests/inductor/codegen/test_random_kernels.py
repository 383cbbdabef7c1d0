"""Random kernels: compiled code and interpreter agree to the last bit."""

from __future__ import annotations

import random

import pytest
import torch
from kernel_support import Runner, interpret_kernel
from random_kernels import random_kernel

from inductor.codegen.cpp import nest, pointwise, reduction, work

KERNELS = 10
SMALL = {  # so that small kernels take the ways of large ones
    work: {"PARALLEL_WORK": 0},
    nest: {"SHORTEST_PIECE": 2},
    pointwise: {"TILED_ELEMENTS": 0, "TILE": 4, "BIG_TILE": 8},
    reduction: {"ROW_CHUNK": 8, "COLUMN_CHUNK": 4, "BLOCK": 8, "LANES": 4},
}
FOUND = [8222, 380237]  # seeds that once gave a difference


def compare(runner: Runner, seeds: list[int], threads: int) -> None:
    made = [random_kernel(seed) for seed in seeds]
    for (made_kernel, storages), compiled in zip(made, runner.compile_all(made, threads)):
        ours = {name: t.clone() for name, t in storages.items()}
        want = {name: t.clone() for name, t in storages.items()}
        code, _ = compiled(ours)
        assert code == 0, made_kernel.name
        interpret_kernel(made_kernel, want)
        for name in made_kernel.writes():
            assert torch.equal(ours[name], want[name]), f"{made_kernel.name}: {name}\n{made_kernel}"


def make_small(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, values in SMALL.items():
        for name, value in values.items():
            monkeypatch.setattr(module, name, value)


@pytest.mark.draws
@pytest.mark.parametrize("small", [False, True])
def test_random_kernels(runner: Runner, small: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if small:
        make_small(monkeypatch)
    seeds = [random.randrange(10**6) for _ in range(KERNELS)]
    compare(runner, seeds, threads=3 if small else 1)


@pytest.mark.parametrize("small", [False, True])
@pytest.mark.parametrize("seed", FOUND)
def test_found_before(
    runner: Runner, seed: int, small: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if small:
        make_small(monkeypatch)
    compare(runner, [seed], threads=3 if small else 1)
