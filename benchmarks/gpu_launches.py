"""`python -m benchmarks.gpu_launches [--peer]`: what many short kernels cost the host, on a GPU.

A chain of softmaxes over alternating axes, of which none can be part of another's kernel, as it
runs in eager, by default, with kernels started one by one (`options={"cudagraphs": False}`), as a
CUDA graph, and by torch.compile. Engines take turns; medians of a call's milliseconds until the
host has started all, and until the GPU is done; kernels and their time from a profiler; peak memory
in MiB.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity, profile

import dynamo

ROUNDS = 30
Chain = Callable[[torch.Tensor], torch.Tensor]


def chain(x: torch.Tensor) -> torch.Tensor:
    for _ in range(150):
        x = torch.softmax(x, 0)
        x = torch.softmax(x * 3, 1)
    return x


def held_results(call: Chain, x: torch.Tensor) -> Chain:
    """As `y = f(x)` in a loop does: the last result lives during the next call."""
    last = [call(x)]

    def keeping(x: torch.Tensor) -> torch.Tensor:
        last[0] = call(x)
        return last[0]

    return keeping


def timed(call: Chain, x: torch.Tensor) -> tuple[float, float]:
    torch.cuda.synchronize()
    begin = time.perf_counter()
    call(x)
    started = time.perf_counter()
    torch.cuda.synchronize()
    return (started - begin) * 1e3, (time.perf_counter() - begin) * 1e3


def kernels_of(call: Chain, x: torch.Tensor) -> tuple[int, float]:
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        call(x)
        torch.cuda.synchronize()
    found = [e for e in profiled.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    return len(found), sum(event.time_range.elapsed_us() for event in found) / 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--peer", action="store_true", help="torch.compile, too")
    peer = parser.parse_args().peer
    x = torch.randn(256, 256, device="cuda")
    ways: dict[str, Chain] = {
        "eager": chain,
        "ours": dynamo.compile(chain),
        "ours, one by one": dynamo.compile(chain, options={"cudagraphs": False}),
        "ours, CUDA graph": dynamo.compile(chain, mode="reduce-overhead"),
    }
    if peer:
        ways["torch.compile"] = torch.compile(chain)
    wanted = chain(x.double())
    with torch.no_grad():
        for name, call in ways.items():
            ways[name] = held_results(call, x)
            for _ in range(8):
                found = ways[name](x)
            apart = (found.double() - wanted).abs().max() / wanted.abs().max()
            assert apart < 1e-4, f"{name} is {apart:.1e} from eager in float64"
        times: dict[str, list[tuple[float, float]]] = {name: [] for name in ways}
        for _ in range(ROUNDS):
            for name, call in ways.items():
                times[name].append(timed(call, x))
        print(f"{'':18}{'host':>8}{'done':>8}{'kernels':>9}{'GPU':>8}{'MiB':>7}")
        for name, call in ways.items():
            host, done = map(statistics.median, zip(*times[name], strict=True))
            torch.cuda.reset_peak_memory_stats()
            call(x)
            peak = torch.cuda.max_memory_allocated() / 2**20
            count, busy = kernels_of(call, x)
            print(f"{name:18}{host:8.3f}{done:8.3f}{count:9}{busy:8.3f}{peak:7.1f}")


if __name__ == "__main__":
    main()
