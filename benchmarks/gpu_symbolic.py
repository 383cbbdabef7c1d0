"""Symbolic sizes on a GPU: one compile for all, checked at each size and timed.

    python benchmarks/gpu_symbolic.py [--only softmax bert] [--no-peer] [--rounds 5]

Each program is compiled at its first size with `dynamic=True` and called at the others: `per size`
counts compiles that hold for one set of sizes only, `bound` sets of sizes that the same kernels
were bound to, `new ms` is the time of the first call at a new size (median). At the last size it is
timed as eager, as ours compiled for this size alone (`static`), as ours for all sizes, and as
`torch.compile(dynamic=True)`. Errors are distances to float64 eager over the greatest value there,
the greatest over all sizes. The last lines are a table.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1]))

import dynamo  # noqa: E402
from benchmarks.gpu import (  # noqa: E402
    DEVICE,
    data,
    greatest_distance,
    one_by_one,
    options_of,
    print_table,
    training,
)
from dynamo.testing import assert_compiled  # noqa: E402
from inductor import metrics  # noqa: E402

Inputs = Callable[[int], tuple[torch.Tensor, ...]]
Program = tuple[Callable[..., Any], Inputs, tuple[int, ...], bool]


def chain() -> Program:
    f = lambda x, y: torch.sigmoid(x * y + 1) * x - y.tanh()  # noqa: E731
    return f, lambda n: (data(n, n), data(n, n)), (1000, 515, 64, 4096), False


def layer_norm() -> Program:
    module = nn.LayerNorm(1024).to(DEVICE)
    return module, lambda n: (data(n, 1024),), (500, 8, 33, 32768), False


def softmax() -> Program:
    sizes = (300, 1000, 17, 4097, 2048)
    return lambda x: F.softmax(x, -1), lambda n: (data(4096, n),), sizes, False


def sums() -> Program:
    f = lambda x: (x.sum(0), x.mean(), x.amax(1))  # noqa: E731
    return f, lambda n: (data(n, 1024),), (5000, 3, 129, 8192), False


def transposed() -> Program:
    return lambda x, y: x.t() + y, lambda n: (data(n, 512), data(512, n)), (300, 33, 2, 4096), False


def joined() -> Program:
    f = lambda x, y: torch.cat((x, y), 1).relu() * 2  # noqa: E731
    return f, lambda n: (data(512, n), data(512, 2 * n)), (30, 7, 1000), False


def mlp() -> Program:
    layers = nn.Sequential(nn.Linear(512, 2048), nn.GELU(), nn.Linear(2048, 512)).to(DEVICE)
    return layers, lambda n: (data(n, 512),), (100, 7, 64, 1000), False


def mlp_training() -> Program:
    layers = nn.Sequential(nn.Linear(256, 512), nn.LayerNorm(512), nn.ReLU(), nn.Linear(512, 256))
    return layers.to(DEVICE), lambda n: (data(n, 256),), (100, 7, 64, 1000), True


def bert(training: bool = False) -> Program:
    from transformers import BertConfig, BertModel

    config = BertConfig(num_hidden_layers=2, hidden_dropout_prob=0, attention_probs_dropout_prob=0)
    model = BertModel(config).to(DEVICE)

    class Hidden(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model.train(training)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.model(inputs_embeds=x).last_hidden_state

    return Hidden(), lambda n: (data(4, n, 768),), (40, 100, 17, 128), training


def bert_training() -> Program:
    return bert(True)


PROGRAMS = {f.__name__: f for f in (
    chain, layer_norm, softmax, sums, transposed, joined, mlp, mlp_training, bert, bert_training,
)}  # fmt: skip


def step_of(call: Callable[..., Any], owner: Any, trains: bool) -> Callable[..., list[Any]]:
    """What is run: inference, or forward and backward with the gradients as results."""

    def infer(*args: torch.Tensor) -> list[Any]:
        with torch.no_grad():
            found = call(*args)
        return list(found) if isinstance(found, tuple) else [found]

    return training(call, owner) if trains else infer


def check(name: str, options: argparse.Namespace) -> str:
    dynamo.reset()
    torch.manual_seed(0)
    function, inputs, sizes, trains = PROGRAMS[name]()

    def step(compiler: Callable[..., Any] | None, **settings: Any) -> Callable[..., list[Any]]:
        own = copy.deepcopy(function) if isinstance(function, nn.Module) else function
        return step_of(compiler(own, **settings) if compiler else own, own, trains)

    wide = copy.deepcopy(function).double() if isinstance(function, nn.Module) else function
    exact = step_of(wide, wide, trains)
    eager, ours = step(None), step(
        dynamo.compile, backend="inductor", dynamic=True)
    metrics.reset()
    errors = {"eager": 0.0, "ours": 0.0}
    news = []
    for size in sizes:
        args = inputs(size)
        torch.cuda.synchronize()
        start = time.perf_counter()
        found = ours(*args)
        torch.cuda.synchronize()
        news.append(time.perf_counter() - start)
        goal = exact(*(a.double() for a in args))
        errors["ours"] = max(errors["ours"], greatest_distance(found, goal))
        errors["eager"] = max(errors["eager"], greatest_distance(eager(*args), goal))
    counts = metrics.snapshot()
    steps = {"eager": eager, "static": step(dynamo.compile, backend="inductor", dynamic=False)}
    steps["ours"] = ours
    if not options.no_peer:
        steps["peer"] = step(torch.compile, dynamic=True)
    for other in steps.values():
        other(*args)
    us = one_by_one(steps, args, 20, options.rounds)
    assert_compiled()
    good = errors["ours"] <= 3 * errors["eager"] + 1e-6
    timed = " ".join(f"{us.get(k, float('nan')):9.1f}" for k in ("eager", "static", "ours", "peer"))
    return (
        f"{name:14s} {'ok' if good else 'WRONG':6s} {errors['eager']:9.1e} {errors['ours']:9.1e} "
        f"{counts['sizes_compiled']:8d} {counts['sizes_bound']:5d} {news[0]:7.2f} "
        f"{statistics.median(news[1:]) * 1000:7.1f} {timed} {us['static'] / us['ours']:7.2f} "
        f"{us.get('peer', float('nan')) / us['ours']:6.2f}"
    )


HEAD = (
    f"{'program':14s} {'':6s} {'err eager':>9s} {'err ours':>9s} per size bound   first "
    f" new ms {'eager':>9s} {'static':>9s} {'ours':>9s} {'peer':>9s} /static  /peer"
)


def main() -> None:
    options = options_of(__doc__, PROGRAMS, rounds=5).parse_args()
    names = options.only or PROGRAMS
    print_table(names, lambda name: [check(name, options)], "microseconds of a call", HEAD)


if __name__ == "__main__":
    main()
