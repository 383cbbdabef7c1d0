"""Steps of a model in `DistributedDataParallel` over gloo: eager, torch.compile and ours, by turns
in the same processes.

    python benchmarks/distributed_ddp.py [--gigabytes 10] [--bucket 25] [--layers 8] [--rounds 15]

The link between the ranks is slowed: a thread sends one bucket after the other, and sleeps as long
as a link of so many gigabytes a second would take. A step that computes for t and sends for s takes
t + s where nothing is sent before backward is over, and little more than the larger where all of it
is. Printed for each: milliseconds of a step (median of the rounds), of one without sending
(`no_sync`), the buckets, and when the first one and half of the bytes leave, as shares of backward.
The mode `whole` is ours with a backward that is not cut.
"""

from __future__ import annotations

import argparse
import itertools
import queue
import statistics
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import dynamo
from dynamo.aot import training

MODES: dict[str, Callable[[Any], Any]] = {
    "eager": lambda module: module,
    "torch": torch.compile,
    "ours": dynamo.compile,
    "whole": dynamo.compile,
}
COLUMNS = "step", "quiet", "first", "half", "buckets"


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.second_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows, length, width = x.shape
        q, k, v = self.qkv(self.norm(x)).view(rows, length, 3, -1, 64).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(rows, length, width))
        return x + self.down(nn.functional.gelu(self.up(self.second_norm(x))))


class Link:
    """Sends buckets one after the other, in a thread. sent: (time, bytes) of this step's."""

    def __init__(self, seconds_per_byte: float) -> None:
        self.seconds_per_byte = seconds_per_byte
        self.sent: list[tuple[float, int]] = []
        self.waiting: queue.Queue[Any] = queue.Queue()
        threading.Thread(target=self.send, daemon=True).start()

    def send(self) -> None:
        while True:
            tensor, done = self.waiting.get()
            start = time.perf_counter()
            dist.all_reduce(tensor.div_(dist.get_world_size()))
            left = tensor.nbytes * self.seconds_per_byte - (time.perf_counter() - start)
            time.sleep(max(left, 0.0))
            done.set_result(tensor)

    def hook(self, state, bucket):  # type: ignore[no-untyped-def]  # torch asks for real annotations
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        self.sent.append((time.perf_counter(), bucket.buffer().nbytes))
        self.waiting.put((bucket.buffer(), done))
        return done


class Case:
    """One way to run the model."""

    def __init__(self, way: Callable[[Any], Any], link: Link, given: argparse.Namespace) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(*[Block(given.width) for _ in range(given.layers)])
        self.wrapped = DistributedDataParallel(
            self.model, bucket_cap_mb=given.bucket, gradient_as_bucket_view=True)
        self.wrapped.register_comm_hook(None, link.hook)
        self.call, self.link = way(self.wrapped), link
        self.times: dict[str, list[float]] = defaultdict(list)

    def step(self, x: torch.Tensor, note: bool = True) -> None:
        dist.barrier()
        self.link.sent.clear()
        start = time.perf_counter()
        loss = self.call(x).square().mean()
        middle = time.perf_counter()
        loss.backward()
        end = time.perf_counter()
        if note:
            shares = [(at - middle) / (end - middle) for at, _ in self.link.sent]
            sums = [*itertools.accumulate(size for _, size in self.link.sent)]
            half = next(share for share, size in zip(shares, sums, strict=True)
                        if size * 2 >= sums[-1])  # fmt: skip
            self.times["step"].append((end - start) * 1e3)
            for name, value in (("first", shares[0]), ("half", half), ("buckets", len(shares))):
                self.times[name].append(value)
        self.model.zero_grad()

    def quiet(self, x: torch.Tensor) -> None:
        dist.barrier()
        start = time.perf_counter()
        with self.wrapped.no_sync():
            self.call(x).square().mean().backward()
        self.times["quiet"].append((time.perf_counter() - start) * 1e3)
        self.model.zero_grad()


def work(rank: int, store: str, given: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=given.ranks)
    link = Link(1e-9 / given.gigabytes)
    modes = given.modes.split(",")
    if "whole" in modes:
        assert "ours" not in modes, "one of the two in a run"
        training.bucket_limits = lambda: (1 << 60,)
    cases = {name: Case(MODES[name], link, given) for name in modes}
    x = torch.randn(given.rows, 64, given.width)
    gradients = {}
    for name, case in cases.items():
        case.call(x).square().mean().backward()
        gradients[name] = [p.grad.clone() for p in case.model.parameters()]
        case.model.zero_grad()
        for _ in range(3):
            case.step(x, note=False)
    for _ in range(given.rounds):
        for case in cases.values():
            case.step(x)
            case.quiet(x)
    if rank == 0:
        size = sum(grad.nbytes for grad in gradients[modes[0]])
        print(f"{size / 1e6:.0f} MB of gradients, {size / given.gigabytes / 1e6:.0f} ms to send")
        print("mode         ms  no_sync  buckets  first   half    error")
        for name, case in cases.items():
            ms, quiet, first, half, buckets = (
                statistics.median(case.times[key]) for key in COLUMNS)
            pairs = zip(gradients[name], gradients[modes[0]], strict=True)
            error = max(float((a - b).abs().max()) for a, b in pairs)
            print(f"{name:6} {ms:8.1f} {quiet:8.1f} {buckets:8.0f} {first:6.0%} {half:6.0%} "
                  f"{error:8.0e}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for option, value in (("ranks", 2), ("layers", 8), ("width", 512), ("rows", 4), ("rounds", 15)):
        parser.add_argument(f"--{option}", type=int, default=value)
    parser.add_argument("--gigabytes", type=float, default=10.0)
    parser.add_argument("--bucket", type=float, default=25.0)
    parser.add_argument("--modes", default="eager,torch,ours")
    with tempfile.TemporaryDirectory() as folder:
        options = parser.parse_args()
        mp.spawn(work, (folder + "/store", options), nprocs=options.ranks)
