"""`python -m benchmarks.gpu_dropout [--peer]`: training with dropout on a GPU, a step's
milliseconds and peak memory.

Ours with dropout in kernels, ours with ATen's dropout (`options={"leave_out": "dropout"}`), eager,
and torch.compile (whose masks are not eager's). Engines take turns; medians.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

import dynamo


def chain(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.dropout(F.gelu(x), 0.1) * 2


def normed(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x + F.dropout(x.sin(), 0.1), (x.shape[-1],))


def layers(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    for _ in range(4):
        hidden = F.dropout(F.gelu(x @ w), 0.1)
        x = F.layer_norm(x + F.dropout(hidden @ w, 0.1), (x.shape[-1],))
    return x


def step_of(call: Callable[..., Any], x: torch.Tensor, w: torch.Tensor) -> Callable[[], None]:
    grad = torch.ones_like(x)

    def step() -> None:
        x.grad = w.grad = None
        call(x, w).backward(grad)

    return step


def milliseconds(step: Callable[[], None]) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(10):
        step()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 10


def peak(step: Callable[[], None]) -> float:
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 1e6


def engines(program: Callable[..., Any], peer: bool) -> dict[str, Callable[..., Any]]:
    made: dict[str, Callable[..., Any]] = {"eager": program}
    for name, mode in (("", None), (" graphs", "reduce-overhead")):
        for kept in (True, False):
            title = f"{'ours' if kept else 'ours, ATen drops'}{name}"
            options = {"cudagraphs": mode is not None} | ({} if kept else {"leave_out": "dropout"})
            made[title] = dynamo.compile(program, options=options, dynamic=False)
        if peer:
            made[f"torch.compile{name}"] = torch.compile(program, mode=mode, dynamic=False)
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer", action="store_true", help="beside torch.compile")
    options = parser.parse_args()
    torch.manual_seed(0)
    for program in (chain, normed, layers):
        x = torch.randn(8 * 512, 1024, device="cuda", dtype=torch.bfloat16).requires_grad_()
        w = (torch.randn(1024, 1024, device="cuda", dtype=torch.bfloat16) / 32).requires_grad_()
        dynamo.reset()
        steps = {name: step_of(call, x, w) for name, call in engines(program, options.peer).items()}
        times: dict[str, list[float]] = {name: [] for name in steps}
        for step in steps.values():
            for _ in range(6):
                step()
        for _ in range(12):
            for name, step in steps.items():
                times[name].append(milliseconds(step))
        for name, step in steps.items():
            took, held = statistics.median(times[name]), peak(step)
            print(f"{program.__name__:8} {name:26} {took:7.3f} ms {held:8.1f} MB")


if __name__ == "__main__":
    main()
