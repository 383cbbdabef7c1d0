"""Training steps on a GPU, with and without CUDA graphs: ours against float64 eager, and timed.

    python benchmarks/gpu_training.py [--only mlp block] [--no-peer] [--rounds 7]

Each step is forward, loss and backward. It runs as eager, as `dynamo.compile` and as
`torch.compile`, the compilers also with mode="reduce-overhead" (`graphed`). An error is
|g - g64| / |g64| over all gradients after several calls with new inputs, g64 from eager in float64.
`graphs` counts the CUDA graphs that ours recorded. The last lines are a table.
"""

from __future__ import annotations

import argparse
import copy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1]))

import dynamo  # noqa: E402
from benchmarks.gpu import (  # noqa: E402
    DEVICE,
    norm_distance,
    one_by_one,
    options_of,
    print_table,
    training,
)
from dynamo.testing import assert_compiled  # noqa: E402
from inductor import metrics  # noqa: E402

CHECKED = 6  # calls: two as they are, one that records, the others replayed
Step = Callable[[torch.Tensor], list[torch.Tensor]]


class Block(nn.Module):
    """A transformer's layer."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.inner, self.outer = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.mixed, self.joined = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.mixed(self.first(x)).unflatten(-1, (3, 8, -1)).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(parts[0], parts[1], parts[2])
        x = x + self.joined(mixed.transpose(1, 2).flatten(2))
        return x + self.outer(nn.functional.gelu(self.inner(self.second(x))))


def mlp() -> tuple[nn.Module, tuple[int, ...]]:
    layers = [nn.Sequential(nn.Linear(256, 256), nn.LayerNorm(256), nn.ReLU()) for _ in range(4)]
    return nn.Sequential(*layers), (64, 256)


def block() -> tuple[nn.Module, tuple[int, ...]]:
    return nn.Sequential(Block(256), Block(256)), (4, 64, 256)


def wide_block() -> tuple[nn.Module, tuple[int, ...]]:
    return nn.Sequential(Block(1024), Block(1024)), (8, 512, 1024)


def convolutions() -> tuple[nn.Module, tuple[int, ...]]:
    def layer(inputs: int, outputs: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()
        )

    layers = layer(3, 32), layer(32, 64), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)
    return nn.Sequential(*layers), (16, 3, 32, 32)


PROGRAMS = {f.__name__: f for f in (mlp, block, wide_block, convolutions)}


def prepare(name: str, with_peer: bool) -> tuple[dict[str, Step], Step, tuple[int, ...]]:
    """The steps to time, and the exact one."""
    torch.manual_seed(0)
    base, size = PROGRAMS[name]()
    base = base.to(DEVICE)
    steps: dict[str, Step] = {}
    compilers: dict[str, tuple[Any, str | None]] = {
        "ours": (dynamo.compile, None), "ours graphed": (dynamo.compile, "reduce-overhead")
    }  # fmt: skip
    if with_peer:
        compilers["peer"] = (torch.compile, None)
        compilers["peer graphed"] = (torch.compile, "reduce-overhead")
    model = copy.deepcopy(base)
    steps["eager"] = training(model, model)
    for kind, (compile_with, mode) in compilers.items():
        model = copy.deepcopy(base)
        extra = {"backend": "inductor"} if compile_with is dynamo.compile else {}
        steps[kind] = training(compile_with(model, mode=mode, **extra), model)
    model = copy.deepcopy(base).double()
    return steps, training(model, model), size


def check(name: str, options: argparse.Namespace) -> list[str]:
    """The rows of a program, one for each way to run it."""
    dynamo.reset()
    metrics.reset()
    steps, exact, size = prepare(name, not options.no_peer)
    errors: dict[str, float] = dict.fromkeys(steps, 0.0)
    for _ in range(CHECKED):
        x = torch.randn(size, device=DEVICE)
        goal = exact(x.double())
        for kind, step in steps.items():
            errors[kind] = max(errors[kind], norm_distance(step(x), goal))
    x = torch.randn(size, device=DEVICE)
    middle = one_by_one(steps, (x,), 20, options.rounds)
    assert_compiled()
    graphs = metrics.snapshot()["cuda_graphs_recorded"]
    rows = []
    for kind in steps:
        good = errors[kind] <= 3 * errors["eager"] + 1e-6
        count = graphs if kind == "ours graphed" else 0
        rows.append(
            f"{name:14s} {kind:14s} {'ok' if good else 'WRONG':6s} {errors[kind]:9.1e} "
            f"{count:6d} {middle[kind]:10.1f} {middle['eager'] / middle[kind]:7.2f}"
        )
    return rows


HEAD = f"{'program':14s} {'way':14s} {'':6s} {'error':>9s} graphs {'us':>10s} {'/eager':>7s}"


def main() -> None:
    options = options_of(__doc__, PROGRAMS, rounds=7).parse_args()
    names = options.only or PROGRAMS
    print_table(names, lambda name: check(name, options), "microseconds of a step", HEAD)


if __name__ == "__main__":
    main()
