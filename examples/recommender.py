"""A recommender, and what int8 does for it: tables of embeddings, their products, and two MLPs.

    python -m examples.recommender

The linear layers are quantized (`graphs.calibrate`, `graphs.convert`); tables stay as they are.
Prints milliseconds of float32 and int8, both compiled, and how far the probabilities are from those
of float32.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import dynamo
from dynamo import graphs


class Recommender(nn.Module):
    """Numbers and categories of a user and an item; the probability that they fit ("DLRM")."""

    def __init__(self, rows: int = 10_000, tables: int = 8, numbers: int = 13, width: int = 64,
                 inner: int = 1024) -> None:  # fmt: skip
        super().__init__()
        self.tables = nn.ModuleList([nn.EmbeddingBag(rows, width, mode="sum")
                                     for _ in range(tables)])  # fmt: skip
        self.bottom = nn.Sequential(nn.Linear(numbers, inner), nn.ReLU(),
                                    nn.Linear(inner, inner), nn.ReLU(),
                                    nn.Linear(inner, width), nn.ReLU())  # fmt: skip
        pairs = (tables + 1) * tables // 2
        self.top = nn.Sequential(nn.Linear(width + pairs, inner), nn.ReLU(),
                                 nn.Linear(inner, inner), nn.ReLU(),
                                 nn.Linear(inner, 1))  # fmt: skip
        self.pairs: Tensor
        self.register_buffer("pairs", torch.triu_indices(tables + 1, tables + 1, 1))

    def forward(self, numbers: Tensor, categories: Tensor) -> Tensor:
        """numbers: [batch, numbers]. categories: [table, batch, items of each]."""
        dense = self.bottom(numbers)
        found = [table(items) for table, items in zip(self.tables, categories, strict=True)]
        features = torch.stack([dense, *found], 1)
        products = features @ features.mT
        return self.top(torch.cat([dense, products[:, self.pairs[0], self.pairs[1]]], 1)).sigmoid()


def inputs(batch: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    drawn = torch.Generator().manual_seed(seed)
    return (torch.randn(batch, 13, generator=drawn),
            torch.randint(0, 10_000, (8, batch, 4), generator=drawn))  # fmt: skip


def quantized(model: nn.Module, batch: int, samples: int = 4) -> torch.fx.GraphModule:
    """The model with int8 linear layers, their ranges those of some batches."""
    with torch.no_grad():
        graph, _ = dynamo.export(model, *inputs(batch))
        ranges = graphs.calibrate(graph, [inputs(batch, seed) for seed in range(1, samples + 1)])
        return graphs.convert(graph, ranges)


def measure(batch: int = 512, rounds: int = 30) -> dict[str, float]:
    """Milliseconds of both, and the largest difference of a probability."""
    torch.manual_seed(0)
    model = Recommender().eval()
    given = inputs(batch)
    calls: dict[str, Callable[..., Any]] = {
        "float32": dynamo.compile(model), "int8": dynamo.compile(quantized(model, batch))}
    with torch.no_grad():
        error = float((calls["int8"](*given) - model(*given)).abs().max())
        times: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(rounds):
            for name, call in calls.items():
                start = time.perf_counter()
                call(*given)
                times[name].append(1e3 * (time.perf_counter() - start))
    return {**{name: statistics.median(found[3:]) for name, found in times.items()},
            "error": error}  # fmt: skip


if __name__ == "__main__":
    found = measure()
    print(f"float32 {found['float32']:.2f} ms, int8 {found['int8']:.2f} ms: "
          f"{found['float32'] / found['int8']:.2f} x; probabilities differ by at most "
          f"{found['error']:.4f}")  # fmt: skip
