"""What the benchmarks on a GPU share: options, errors against float64, times in turns, rows."""

from __future__ import annotations

import argparse
import math
import statistics
import traceback
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

DEVICE = "cuda"


def options_of(text: str | None, programs: Iterable[str], rounds: int) -> argparse.ArgumentParser:
    """The options of every benchmark of programs."""
    parser = argparse.ArgumentParser(description=text)
    parser.add_argument("--only", nargs="+", choices=list(programs))
    parser.add_argument("--no-peer", action="store_true")
    parser.add_argument("--rounds", type=int, default=rounds)
    return parser


def data(*size: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(*size, device=DEVICE, dtype=dtype)


def training(call: Callable[..., torch.Tensor], model: nn.Module) -> Callable[..., list[Any]]:
    """Forward, loss and backward; gives the gradients."""

    def step(*args: torch.Tensor) -> list[Any]:
        model.zero_grad(set_to_none=True)
        call(*args).square().mean().backward()
        return [p.grad for p in model.parameters() if p.grad is not None]

    return step


# -- errors: the distance to float64 --------------------------------------------------------------


FLOOR = 1e-3  # a result that is smaller than this part of the greatest is measured against that


def greatest_distance(found: list[Any], exact: list[Any]) -> float:
    """The greatest difference over the greatest value, of the worst result.

    A result of rounding errors alone (gradients that are 0 in exact arithmetic) has no scale of
    its own: it gets a part of the greatest scale of all.
    """
    scales = [other.abs().max().item() if other.numel() else 0.0 for other in exact]
    least = max(FLOOR * max(scales, default=0.0), 1e-30)
    worst = 0.0
    for one, other, scale in zip(found, exact, scales, strict=True):
        assert one.shape == other.shape, f"{one.shape} is not {other.shape}"
        if one.numel():
            difference = (one.double() - other).abs().max().item()
            error = difference / max(scale, least)
            worst = max(worst, error if error == error else math.inf)
    return worst


def norm_distance(found: list[torch.Tensor], exact: list[torch.Tensor]) -> float:
    """|found - exact| / |exact| over all results together."""
    pairs = list(zip(found, exact, strict=True))
    above = sum((a.double() - b).square().sum().item() for a, b in pairs)
    return (above / max(sum(b.square().sum().item() for _, b in pairs), 1e-60)) ** 0.5


# -- times ----------------------------------------------------------------------------------------


def per_call(step: Callable[..., Any], args: tuple[Any, ...], calls: int) -> float:
    """Microseconds of one call in a row of calls."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    begin.record()
    for _ in range(calls):
        step(*args)
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / calls * 1000


def one_by_one(
    steps: dict[str, Callable[..., Any]], args: tuple[Any, ...], calls: int, rounds: int
) -> dict[str, float]:
    """Microseconds of a call of each: the median over rounds in which they take turns."""
    times: dict[str, list[float]] = {kind: [] for kind in steps}
    for _ in range(rounds):
        for kind, step in steps.items():
            times[kind].append(per_call(step, args, calls))
    return {kind: statistics.median(values) for kind, values in times.items()}


# -- rows -----------------------------------------------------------------------------------------


def print_table(
    names: Iterable[str], rows_of: Callable[[str], list[str]], unit: str, head: str
) -> None:
    """The rows of each program as they come, and all of them again as a table."""
    rows: list[str] = []
    for name in names:
        try:
            made = rows_of(name)
        except Exception as error:
            made = [f"{name:14s} FAILED {type(error).__name__}: {str(error)[:200]}"]
            traceback.print_exc()
        print(*made, sep="\n", flush=True)
        rows += made
    print(f"\n{torch.cuda.get_device_name()}, torch {torch.__version__}; {unit}\n{head}")
    print("\n".join(rows))
