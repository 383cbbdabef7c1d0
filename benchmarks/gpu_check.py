"""Functions and models on a GPU: ours checked against float64 eager, and timed against the others.

    python benchmarks/gpu_check.py [--only softmax bert] [--no-peer] [--rounds 7] [--mode NAME]

Each program runs as eager, as `dynamo.compile(..., backend="inductor")` and as `torch.compile`, the
three in turn, medians of CUDA events around several calls. An error is the greatest distance to
float64 eager divided by the greatest value there; ours must not be more than three times eager's
(plus the rounding of the dtype). "copy" is the bytes of arguments and result (and rows of tables)
over the time, as a part of the speed at which a large tensor is copied (read and written); "same"
is the time in which so many bytes are copied, as a part of ours: what is small takes as long as a
launch and the ramp around it, whoever moves it. The last lines are a table.
"""

from __future__ import annotations

import argparse
import copy
import functools
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
    per_call,
    print_table,
)
from dynamo.testing import assert_compiled  # noqa: E402
from inductor import metrics  # noqa: E402

Program = tuple[Callable[..., Any], tuple[Any, ...]]


def chain() -> Program:
    args = data(4096, 4096), data(4096, 4096)
    return lambda x, y: torch.sigmoid(x * y + 1) * x - y.tanh(), args


def broadcast() -> Program:
    return lambda x, y: F.gelu(x + y) * 2, (data(64, 128, 1024), data(1024))


def transposed() -> Program:
    return lambda x, y: x.t() + y, (data(4096, 2048), data(2048, 4096))


def few_heads() -> Program:
    return lambda x, y: (x + y).permute(0, 3, 1, 2).contiguous(), (data(32, 196, 196, 8), data(8))


def layer_norm() -> Program:
    module = nn.LayerNorm(1024).to(DEVICE)
    return module, (data(64, 512, 1024),)


def softmax() -> Program:
    return lambda x: F.softmax(x, -1), (data(8192, 2048),)


def long_softmax() -> Program:
    return lambda x: F.log_softmax(x, -1), (data(512, 50257),)


def mean_of_all() -> Program:
    return lambda x: (x * x).mean().sqrt(), (data(4096, 4096),)


def column_sum() -> Program:
    return lambda x: x.sum(0), (data(8192, 1024),)


def batch_norm() -> Program:
    module = nn.BatchNorm2d(64).to(DEVICE)
    return lambda x: F.relu(module(x)), (data(32, 64, 56, 56),)


def cross_entropy() -> Program:
    goals = torch.randint(0, 8000, (4096,), device=DEVICE)
    return lambda x: F.cross_entropy(x, goals), (data(4096, 8000),)


def rms_norm_half() -> Program:
    weight = data(4096, dtype=torch.bfloat16)

    def norm(x: torch.Tensor) -> torch.Tensor:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * weight

    return norm, (data(4096, 4096, dtype=torch.bfloat16),)


def embedding() -> Program:
    module = nn.Embedding(30000, 768).to(DEVICE)
    rows = torch.randint(0, 30000, (16, 512), device=DEVICE)
    return lambda x: F.relu(module(rows) + x), (data(512, 768),)


def mlp() -> Program:
    layers = nn.Sequential(nn.Linear(1024, 4096), nn.GELU(), nn.Linear(4096, 1024)).to(DEVICE)
    return layers, (data(2048, 1024),)


def small() -> Program:
    return lambda x: F.relu(x + 1) * 2, (data(64),)


def bert(dtype: torch.dtype = torch.float32, tokens: int = 128) -> Program:
    from transformers import BertConfig, BertModel

    model = BertModel(BertConfig(num_hidden_layers=4)).to(DEVICE, dtype).eval()
    return lambda x: model(inputs_embeds=x).last_hidden_state, (data(8, tokens, 768, dtype=dtype),)


def bert_half() -> Program:
    return bert(torch.bfloat16, 512)


PROGRAMS = {f.__name__: f for f in (
    small, chain, broadcast, transposed, few_heads, layer_norm, softmax, long_softmax, mean_of_all,
    column_sum, batch_norm, cross_entropy, rms_norm_half, embedding, mlp, bert, bert_half,
)}  # fmt: skip


READ_BESIDE = {"embedding": 16 * 512 * 768 * 4}  # bytes of no argument: rows of the table


def in_float64(function: Callable[..., Any], args: tuple[Any, ...]) -> torch.Tensor:
    """The result of eager in double precision; modules that the function holds are put back."""
    cells = [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]
    modules = [value for value in [function, *cells] if isinstance(value, nn.Module)]
    saved = [copy.deepcopy(module.state_dict()) for module in modules]
    wide = [
        a.double() if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in args
    ]
    try:
        for module in modules:
            module.double()
        return function(*wide)
    finally:
        for module, state in zip(modules, saved, strict=True):
            module.to(next(v.dtype for v in state.values() if v.is_floating_point()))
            module.load_state_dict(state)


def check(name: str, options: argparse.Namespace) -> str:
    """One row of the table."""
    torch.manual_seed(0)
    function, args = PROGRAMS[name]()
    dynamo.reset()
    metrics.reset()
    kinds: dict[str, Callable[..., Any]] = {"eager": function}
    kinds["ours"] = dynamo.compile(function, backend="inductor", mode=options.mode)
    if not options.no_peer:
        torch.compiler.reset()
        kinds["peer"] = torch.compile(function, mode=options.mode)
    with torch.no_grad():
        exact = in_float64(function, args)
        errors, seconds = {}, {}
        for key, call in kinds.items():
            torch.cuda.synchronize()
            start = time.perf_counter()
            result = call(*args)
            torch.cuda.synchronize()
            seconds[key] = time.perf_counter() - start
            errors[key] = greatest_distance([call(*args)], [exact])
        calls = max(3, min(200, int(20000 / per_call(function, args, 3))))
        middle = one_by_one(kinds, args, calls, options.rounds)
    rounding = torch.finfo(args[0].dtype).eps if args[0].is_floating_point() else 0
    good = errors["ours"] <= 3 * errors["eager"] + rounding
    assert_compiled()
    counts = metrics.snapshot()
    peer = middle.get("peer", float("nan"))
    size = moved(args, result) + READ_BESIDE.get(name, 0)
    cells = [
        f"{name:14s} {'ok' if good else 'WRONG':6s} {errors['eager']:9.1e} {errors['ours']:9.1e}",
        f"{counts['kernels']:4d} {counts['extern_calls']:4d}",
        f"{middle['eager']:10.1f} {middle['ours']:10.1f} {peer:10.1f}",
        f"{middle['eager'] / middle['ours']:7.2f} {peer / middle['ours']:7.2f}",
        f"{size / middle['ours'] / copied_a_microsecond():5.2f}",
        f"{copy_of(size, calls, options.rounds) / middle['ours']:5.2f}",
        f"{seconds['ours']:7.2f} {seconds.get('peer', float('nan')):7.2f}",
    ]
    return " ".join(cells)


def moved(args: tuple[Any, ...], result: torch.Tensor) -> int:
    """Bytes of the tensors that are read and written at least once."""
    tensors = [x for x in (*args, result) if isinstance(x, torch.Tensor)]
    return sum(x.numel() * x.element_size() for x in tensors)


@functools.cache
def copied_a_microsecond() -> float:
    """Bytes that a copy of a GiB reads and writes in a microsecond."""
    one, other = (torch.empty(2**30, dtype=torch.int8, device=DEVICE) for _ in range(2))
    other.copy_(one)
    return 2 * one.numel() / per_call(other.copy_, (one,), 20)


def copy_of(size: int, calls: int, rounds: int) -> float:
    """Microseconds in which a plain copy reads half of so many bytes and writes the other half."""
    one, other = (torch.empty(max(size // 2, 1), dtype=torch.int8, device=DEVICE) for _ in range(2))
    return one_by_one({"copy": other.copy_}, (one,), calls, rounds)["copy"]


HEAD = (
    f"{'program':14s} {'':6s} {'err eager':>9s} {'err ours':>9s} kern call {'eager':>10s}"
    f" {'ours':>10s} {'peer':>10s} {'/eager':>7s} {'/peer':>7s} {'copy':>5s} {'same':>5s}"
    f" {'s ours':>7s} {'s peer':>7s}"
)


def main() -> None:
    parser = options_of(__doc__, PROGRAMS, rounds=7)
    parser.add_argument("--mode", default=None)
    options = parser.parse_args()
    print_table(
        options.only or PROGRAMS, lambda name: [check(name, options)],
        "microseconds of a call, seconds to compile", HEAD,
    )  # fmt: skip


if __name__ == "__main__":
    main()
