"""A sharded step over two ranks, and what the simulator says of it.

    python benchmarks/distributed_overlap.py [--layers 6] [--gigabytes 0.1] [--milliseconds 2]
    python benchmarks/distributed_overlap.py --cuda --rows 2048 --width 8192

Each layer's weight is gathered, forward and backward, and its gradient reduced and scattered; small
scales are summed over the ranks. Over gloo the group sends one collective after the other in a
thread, and sleeps until a link of so many gigabytes a second, and so many milliseconds for each
collective, would be done. With `--cuda` two GPUs compute in bfloat16 over NCCL, whose link is
measured: a gather of four bytes, one of a weight. Printed for eager, for the program's order
compiled, and for ours: milliseconds of a step (median), and those predicted from the speed of one
GEMM that is measured here.
"""

from __future__ import annotations

import argparse
import queue
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives  # which says how results of collectives look
import torch.multiprocessing as mp

import dynamo
from inductor.collectives import settings
from inductor.collectives.overlap import Planned

Tensor = torch.Tensor
o: Any = torch.ops._c10d_functional
NAME = "slow"
MODES: dict[str, dict[str, Any]] = {
    "program": {"leave_out": "overlap, buckets"}, "ours": {},
}


class SlowGroup(dist.ProcessGroup):
    """Two ranks over gloo, whose link takes its time. backend: its name; lists of tensors are one
    message for gloo."""

    def __init__(self, inner: Any, latency: float, bandwidth: float, backend: str) -> None:
        super().__init__(inner.rank(), inner.size())
        self.backend = backend
        self.inner, self.latency, self.bandwidth = inner, latency, bandwidth
        self.waiting: queue.Queue[Any] = queue.Queue()
        threading.Thread(target=self.send, daemon=True).start()

    def send(self) -> None:
        while True:
            call, sent, done = self.waiting.get()
            start = time.perf_counter()
            call().wait()
            seconds = self.latency + sent / self.bandwidth
            time.sleep(max(seconds - (time.perf_counter() - start), 0.0))
            done.set_result(None)

    def begin(self, call: Callable[[], Any], tensors: list[Tensor], share: float) -> Any:
        """share: how much of the tensors' bytes leaves this rank."""
        done: torch.futures.Future[Any] = torch.futures.Future()
        self.waiting.put((call, share * sum(x.nbytes for x in tensors), done))
        return torch._C._distributed_c10d._create_work_from_future(done)

    def allreduce(self, tensors: list[Tensor], opts: Any = None) -> Any:
        return self.begin(lambda: self.inner.allreduce(tensors, opts), tensors, 1.0)

    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any = None) -> Any:
        return self.begin(lambda: self.inner.allreduce_coalesced(tensors, opts), tensors, 1.0)

    def all_gather_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None
    ) -> Any:
        def call() -> Any:
            parts = zip(*(output.chunk(2) for output in outputs), strict=True)
            return self.inner.allgather_coalesced([list(part) for part in parts], inputs)

        return self.begin(call, outputs, 0.5)

    def reduce_scatter_single_coalesced(
        self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None
    ) -> Any:
        def call() -> Any:
            parts = [x.clone() for x in inputs]
            work = self.inner.allreduce_coalesced(parts)
            work.wait()
            for output, part in zip(outputs, parts, strict=True):
                output.copy_(part.chunk(2)[self.rank()])
            return work

        return self.begin(call, inputs, 0.5)

    allgather_into_tensor_coalesced = all_gather_single_coalesced  # in torch 2.11 and 2.12
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def getBackendName(self) -> str:  # noqa: N802
        return self.backend

    @property
    def group_name(self) -> str:
        return NAME


def slow_group(rank: int, latency: float, bandwidth: float, backend: str = "gloo") -> str:
    """The name of a group of all ranks."""
    group = SlowGroup(dist.group.WORLD, latency, bandwidth, backend)
    torch._C._distributed_c10d._register_process_group(NAME, group)
    dist.distributed_c10d._world.pg_group_ranks[group] = {0: 0, 1: 1}
    group.begin(lambda: dist.barrier(async_op=True), [], 0.0).wait()
    return NAME


def gather(x: Tensor, group: str) -> Tensor:
    return o.wait_tensor(o.all_gather_into_tensor(x, 2, group))


def step(x: Tensor, shards: list[Tensor], scales: list[Tensor], group: str) -> list[Tensor]:
    """Forward, and backward written out: gradients of shards and scales."""
    seen = [x]
    for shard, scale in zip(shards, scales, strict=True):
        seen.append(torch.tanh(seen[-1] @ gather(shard, group)) * scale)
    grad, found = seen[-1], []
    layers = zip(shards[::-1], scales[::-1], seen[-2::-1], seen[:0:-1], strict=True)
    for shard, scale, given, made in layers:
        weight, inner = gather(shard, group), grad * (scale - made * made / scale)
        found.append(o.wait_tensor(o.all_reduce((grad * made / scale).sum(0), "sum", group)))
        whole = given.t() @ inner
        found.append(o.wait_tensor(o.reduce_scatter_tensor(whole, "sum", 2, group)))
        grad = inner @ weight.t()
    return found


def seconds_of(call: Callable[[], Any], given: argparse.Namespace) -> float:
    """Of one call that both ranks begin together, its kernels done."""
    dist.barrier()
    if given.cuda:
        torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    if given.cuda:
        torch.cuda.synchronize()
    return time.perf_counter() - start


def median_of(call: Callable[[], Any], given: argparse.Namespace, repeats: int = 1) -> float:
    """Median seconds of one of `repeats` calls in a row: on a GPU the host is ahead of them."""
    def all_calls() -> None:
        for _ in range(repeats):
            call()

    all_calls()
    return statistics.median(seconds_of(all_calls, given) for _ in range(15)) / repeats


def numbers(given: argparse.Namespace, group: str, rows: Tensor, shard: Tensor) -> dict[str, float]:
    """Of the machine: kernels are measured, the link is what is asked for, or measured too."""
    weight = torch.cat((shard, shard))
    multiply, turn = dynamo.compile(torch.mm), dynamo.compile(torch.tanh)
    repeats = 20 if given.cuda else 1
    gemm = median_of(lambda: multiply(rows, weight), given, repeats)
    moved = median_of(lambda: turn(rows), given, repeats)
    kind = "half_operations" if given.cuda else "operations"
    found = {kind: 2 * rows.numel() * given.width / gemm,
             "memory_bandwidth": 2 * rows.nbytes / moved, "same_graphs": 1}  # fmt: skip
    latency, bandwidth = given.milliseconds / 1e3, given.gigabytes * 1e9
    if given.cuda:
        latency = median_of(lambda: gather(shard[0, :2], group), given, repeats)
        seconds = median_of(lambda: gather(shard, group), given, repeats)
        bandwidth = shard.nbytes / (seconds - latency)
        print(f"gemm {gemm * 1e3:.3f} ms, gather {seconds * 1e3:.3f} ms, a small one "
              f"{latency * 1e3:.3f}, {bandwidth / 1e9:.0f} GB/s", flush=True)  # fmt: skip
    for place in ("inside", "between"):
        found |= {f"{place}_latency": latency, f"{place}_hop": 1e-9,
                  f"{place}_bandwidth": bandwidth}  # fmt: skip
    return found


def compiled(options: dict[str, Any]) -> tuple[Callable[..., Any], list[Planned]]:
    """The step, and what is predicted of it, once it has been called."""
    plans: list[Planned] = []
    own: Any = settings.plan_collectives

    def kept(*args: Any, **kwargs: Any) -> Planned | None:
        found = own(*args, **kwargs)
        plans.append(found)
        return found  # type: ignore[no-any-return]

    function = dynamo.compile(step, fullgraph=True, options=options)

    def call(*args: Any) -> Any:
        settings.plan_collectives = kept  # type: ignore[assignment]
        try:
            return function(*args)
        finally:
            settings.plan_collectives = own

    return call, plans


def measure(group: str, given: argparse.Namespace) -> dict[str, tuple[float, float]]:
    """Seconds of a step by mode: measured (median), predicted (0 for eager)."""
    kind: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16} if given.cuda else {}
    torch.manual_seed(dist.get_rank())
    x, half, root = torch.randn(given.rows, given.width, **kind), given.width // 2, given.width**0.5
    shards = [torch.randn(half, given.width, **kind) / root for _ in range(given.layers)]
    scales = [torch.rand(given.width, **kind) + 0.5 for _ in range(given.layers)]
    facts = numbers(given, group, x, shards[0])
    calls: dict[str, Callable[..., Any]] = {"eager": step}
    plans = {}
    for name, options in MODES.items():
        calls[name], plans[name] = compiled({**options, "collectives": facts})
    expected = step(x, shards, scales, group)
    near = 5e-2 if given.cuda else 1e-3
    for name in MODES:
        for result, right in zip(calls[name](x, shards, scales, group), expected, strict=True):
            atol = near * float(right.abs().max())
            torch.testing.assert_close(result, right, rtol=near, atol=atol)
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(given.rounds):
        for name, call in calls.items():
            times[name].append(seconds_of(lambda: call(x, shards, scales, group), given))  # noqa: B023
    (ours,) = plans["ours"]
    predicted = {"eager": 0.0, "program": ours.of_program.seconds, "ours": ours.forecast.seconds}
    return {name: (statistics.median(times[name]), predicted[name]) for name in calls}


def work(rank: int, store: str, given: argparse.Namespace) -> None:
    backend = "nccl" if given.cuda else "gloo"
    if given.cuda:
        torch.cuda.set_device(rank)
    dist.init_process_group(backend, init_method=f"file://{store}", rank=rank, world_size=2)
    if given.cuda:
        group = dist.group.WORLD.group_name
    else:
        torch.set_num_threads(1)
        group = slow_group(rank, given.milliseconds / 1e3, given.gigabytes * 1e9)
    found = measure(group, given)
    if rank == 0:
        print("            ms  predicted")
        for name, (seconds, predicted) in found.items():
            print(f"{name:8} {seconds * 1e3:6.2f} {predicted * 1e3:10.2f}", flush=True)
    dist.barrier()


def options_of(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    for option, value in (("layers", 6), ("rows", 512), ("width", 1024), ("rounds", 15)):
        parser.add_argument(f"--{option}", type=int, default=value)
    parser.add_argument("--cuda", action="store_true", help="two GPUs, over NCCL")
    parser.add_argument("--gigabytes", type=float, default=0.1)
    parser.add_argument("--milliseconds", type=float, default=2.0)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(work, (folder + "/store", options_of()), nprocs=2)
