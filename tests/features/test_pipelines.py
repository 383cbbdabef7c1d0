"""Stages of `torch.distributed.pipelining` on two ranks: one graph each, eager's losses and gradients."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed import pipelining

import dynamo
from tests.ranks import run_ranks

WIDTH, PARTS, STEPS = 8, 4, 2
# Schedules, and how many stages a rank has. The last two compute gradients of inputs and of weights apart.
SCHEDULES = {
    pipelining.ScheduleGPipe: 1, pipelining.Schedule1F1B: 1, pipelining.ScheduleInterleaved1F1B: 2,
    pipelining.ScheduleInterleavedZeroBubble: 2, pipelining.ScheduleZBVZeroBubble: 2,
}

if torch.__version__ < "2.13":  # the latter two read what autograd functions of Python did not have
    SCHEDULES = {schedule: each for schedule, each in SCHEDULES.items() if "Zero" not in schedule.__name__}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


def trained(rank: int, schedule: Any, each: int, way: Callable[[nn.Module], nn.Module]) -> list[torch.Tensor]:
    """Losses and gradients of some steps."""
    torch.manual_seed(0)
    count = 2 * each
    blocks = [Block() for _ in range(count)]
    mine = [rank, count - 1 - rank] if schedule is pipelining.ScheduleZBVZeroBubble else list(range(rank, count, 2))
    stages = [pipelining.PipelineStage(way(blocks[at]), at, count, torch.device("cpu")) for at in mine]
    run = schedule(stages[0] if each == 1 else stages, PARTS, loss_fn=nn.functional.mse_loss)
    found: list[torch.Tensor] = []
    for _ in range(STEPS):
        x, target, losses = torch.randn(2 * PARTS, WIDTH), torch.randn(2 * PARTS, WIDTH), list[torch.Tensor]()
        last = {"target": target, "losses": losses} if count - 1 in mine else {}
        run.step(*([x] if 0 in mine else []), **last)
        found += [loss.detach() for loss in losses]
    return found + [parameter.grad for at in mine for parameter in blocks[at].parameters()]


def check(rank: int) -> None:
    warnings.simplefilter("ignore")
    for schedule, each in SCHEDULES.items():
        want = trained(rank, schedule, each, lambda block: block)
        for way in (dynamo.compile_in_place, dynamo.compile):
            dynamo.reset()
            found = trained(rank, schedule, each, lambda block, way=way: way(block, fullgraph=True))
            torch.testing.assert_close(found, want)
            # Older versions of torch find the shapes of a stage by a call without gradients.
            assert 1 <= dynamo.counters["stats"]["graphs"] <= (each if torch.__version__ >= "2.13" else 2 * each)


def test_stages_are_graphs(tmp_path: Path) -> None:
    run_ranks(check, tmp_path)
