"""Milliseconds of flex attention on a GPU: ours, torch.compile's, and attention without functions.

    python -m tests.gpu.time_flex
"""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import dynamo

HEADS, HEAD = 16, 64


def milliseconds(function: Any) -> float:
    """The least of five means of ten calls."""
    for _ in range(5):
        function()
    times = []
    for _ in range(5):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(10):
            function()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end) / 10)
    return min(times)


def main() -> None:
    warnings.simplefilter("ignore")
    slopes = torch.rand(HEADS, device="cuda")
    mods = {
        "causal": (None, lambda b, h, i, j: i >= j),
        "alibi": (lambda s, b, h, i, j: s - slopes[h] * (i - j), lambda b, h, i, j: i >= j),
        "window": (None, lambda b, h, i, j: (i >= j) & (i - j < 256)),
    }
    for length in (1024, 4096):
        given = [torch.randn(2, HEADS, length, HEAD, device="cuda", dtype=torch.bfloat16,
                             requires_grad=True) for _ in range(3)]
        for name, (mod, mask) in mods.items():
            blocks = create_block_mask(mask, None, None, length, length, "cuda")
            line = [f"{name} {length}"]
            torch.compiler.reset()  # or it stops compiling at its eighth program
            for make in (dynamo.compile, torch.compile):
                def program(q: Any, k: Any, v: Any, mod: Any = mod, blocks: Any = blocks) -> Any:
                    return flex_attention(q, k, v, mod, blocks)

                call = make(program)
                with torch.no_grad():
                    line.append(f"{milliseconds(lambda: call(*given)):.3f}")  # noqa: B023
                grad = torch.randn_like(given[0])

                def step() -> None:
                    torch.autograd.grad(call(*given), given, grad)  # noqa: B023

                line.append(f"{milliseconds(step):.3f}")
            print(*line, flush=True)


if __name__ == "__main__":
    main()
