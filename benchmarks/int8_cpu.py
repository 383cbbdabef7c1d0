"""Linear layers of the size of BERT in int8 beside float32, both compiled, on the CPU.

    python -m benchmarks.int8_cpu

Columns: milliseconds of a call (medians of alternating calls), the speed over float32, and the
error of int8 over the largest value of float32.
"""

from __future__ import annotations

import statistics
import time
from functools import partial
from typing import Any

import torch

import dynamo
from dynamo.graphs.quantize import calibrate, convert, quantize_dynamic

SIZES = ((256, 768, 768), (256, 768, 3072), (256, 3072, 768), (1024, 1024, 4096))
ROUNDS = 40


class Layers(torch.nn.Module):
    """Four layers there and back, so that weights are not in the cache."""

    def __init__(self, inner: int, outer: int) -> None:
        super().__init__()
        pairs = [(inner, outer), (outer, inner)] * 2
        self.layers = torch.nn.ModuleList([torch.nn.Linear(*pair) for pair in pairs])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = torch.nn.functional.gelu(layer(x))
        return x


def times(calls: dict[str, Any]) -> dict[str, float]:
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(ROUNDS):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            found[name].append(1e3 * (time.perf_counter() - start))
    return {name: statistics.median(each[5:]) for name, each in found.items()}


@torch.no_grad()
def main() -> None:
    print(f"{'rows x k x n':>18} {'float32':>9} {'dynamic':>9} {'static':>9}   speed   error")
    for rows, inner, outer in SIZES:
        torch.manual_seed(0)
        model, x = Layers(inner, outer).eval(), torch.randn(rows, inner)
        graph, _ = dynamo.export(model, x)
        ranges = calibrate(graph, [(x,)])
        forms = {"float32": model, "dynamic": quantize_dynamic(graph),
                 "static": convert(graph, ranges)}  # fmt: skip
        compiled = {name: dynamo.compile(form) for name, form in forms.items()}
        want = model(x)
        errors = [(compiled[name](x) - want).abs().max() / want.abs().max() for name in forms]
        ms = times({name: partial(call, x) for name, call in compiled.items()})
        speed = [ms["float32"] / ms[name] for name in ("dynamic", "static")]
        shown = " ".join(f"{each:9.3f}" for each in ms.values())
        print(f"{rows:6}x{inner:5}x{outer:5} {shown}"
              f"   {speed[0]:.2f}, {speed[1]:.2f}   {errors[1]:.4f}, {errors[2]:.4f}")  # fmt: skip


if __name__ == "__main__":
    main()
