"""GEMMs in chunks with a collective before or behind them, over gloo with a slowed link.

    python benchmarks/distributed_chunks.py [--layers 4] [--gigabytes 0.1] [--milliseconds 2]

Printed for each program, without chunks and with four: milliseconds of a call (median, the two by
turns), and those that the simulator predicts of the whole graph. See `distributed_overlap.py`.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import dynamo
from benchmarks.distributed_overlap import NAME, numbers, options_of, slow_group
from inductor.collectives import settings
from inductor.collectives.overlap import Planned

Tensor = torch.Tensor
o: Any = torch.ops._c10d_functional
COUNTS = (0, 4)


def reduced(x: Tensor, weights: list[Tensor]) -> Tensor:
    for weight in weights:
        x = torch.tanh(o.wait_tensor(o.all_reduce(x @ weight, "sum", NAME)))
    return x


def scattered(x: Tensor, weights: list[Tensor]) -> Tensor:
    for weight in weights:
        part = o.wait_tensor(o.reduce_scatter_tensor(x @ weight, "sum", 2, NAME))
        x = torch.cat([part, part])
    return x


def gathered(x: Tensor, weights: list[Tensor]) -> Tensor:
    for weight in weights:
        every = o.wait_tensor(o.all_gather_into_tensor(x.chunk(2)[0].tanh(), 2, NAME))
        x = every @ weight
    return x


def compiled(
    program: Callable[..., Any], options: dict[str, Any], given: tuple[Any, ...]
) -> tuple[Callable[..., Any], float]:
    """The function, once it has been called, and the seconds that are predicted of it."""
    plans: list[Planned] = []
    own: Any = settings.plan_collectives

    def kept(*args: Any, **kwargs: Any) -> Planned | None:
        plans.append(own(*args, **kwargs))
        return plans[-1]

    function = dynamo.compile(program, fullgraph=True, options=options)
    settings.plan_collectives = kept  # type: ignore[assignment]
    try:
        torch.testing.assert_close(function(*given), program(*given), rtol=1e-3, atol=1e-2)
    finally:
        settings.plan_collectives = own
    return function, plans[-1].forecast.seconds


def work(rank: int, store: str, given: argparse.Namespace) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    torch.set_num_threads(1)
    slow_group(rank, given.milliseconds / 1e3, given.gigabytes * 1e9)
    rows, shard = torch.randn(given.rows, given.width), torch.randn(given.width // 2, given.width)
    facts = numbers(given, NAME, rows, shard)
    every: list[Any] = [None, None]
    dist.all_gather_object(every, facts)  # what they measure differs; what decides must not
    torch.manual_seed(rank)
    arguments = (torch.randn(given.rows, given.width),
                 [torch.randn(given.width, given.width) / 32 for _ in range(given.layers)])
    for program in (reduced, scattered, gathered):
        calls = {count: compiled(program, {"graph_cache": False, "collectives": {
            **every[0], "chunks": count}}, arguments) for count in COUNTS}  # fmt: skip
        times: dict[int, list[float]] = {count: [] for count in COUNTS}
        for _ in range(given.rounds):
            for count, (call, _) in calls.items():
                dist.barrier()
                start = time.perf_counter()
                call(*arguments)
                times[count].append(time.perf_counter() - start)
        for count, (_, predicted) in calls.items() if rank == 0 else ():
            median = statistics.median(times[count])
            print(f"{program.__name__:10} chunks {count} {median * 1e3:8.1f} ms, "
                  f"predicted {predicted * 1e3:8.1f}", flush=True)
    dist.barrier()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(work, (folder + "/store", options_of()), nprocs=2)
