"""Random kernels: compiled code and interpreter agree to the last bit."""

from __future__ import annotations

import secrets

import pytest
import torch
from kernel_support import Runner, interpret_kernel
from random_kernels import random_kernel

KERNELS = 30
FOUND: list[int] = []  # seeds that once gave a difference


def compare(runner: Runner, seeds: list[int], threads: int) -> None:
    made = [random_kernel(seed) for seed in seeds]
    for (kernel, storages), compiled in zip(made, runner.compile_all(made, threads)):
        ours = {name: t.clone() for name, t in storages.items()}
        want = {name: t.clone() for name, t in storages.items()}
        code, _ = compiled(ours)
        assert code == 0, kernel.name
        interpret_kernel(kernel, want)
        for name in kernel.writes():
            assert torch.equal(ours[name], want[name]), f"{kernel.name}: {name}\n{kernel}"


@pytest.mark.parametrize("threads", [1, 2])
def test_random_kernels(runner: Runner, threads: int) -> None:
    compare(runner, [secrets.randbelow(10**6) for _ in range(KERNELS)], threads)


@pytest.mark.parametrize("seed", FOUND)
def test_found_before(runner: Runner, seed: int) -> None:
    compare(runner, [seed], 2)
