"""GEMMs in chunks with a collective before or behind them: eager's values on two ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import dynamo
from inductor.collectives.machine import machine_of
from inductor.config import check_options
from tests.ranks import run_ranks

Tensor = torch.Tensor
o: Any = torch.ops._c10d_functional
ROWS, WIDTH, COUNT = 48, 32, 4
# A link as slow as the kernels.
SLOW = {"same_graphs": 1, "chunks": COUNT, "inside_latency": 1e-9, "inside_hop": 1e-9, "inside_bandwidth": 1e6,
        "operations": 1e7}  # fmt: skip


def reduced(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return o.wait_tensor(o.all_reduce(x.sin() @ a, "sum", "0")).cos()


def reduced_in_three_dimensions(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return o.wait_tensor(o.all_reduce(torch.nn.functional.linear(x.view(2, ROWS // 2, WIDTH), a), "sum", "0")) + 1


def scattered(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    return o.wait_tensor(o.reduce_scatter_tensor(x @ a, "sum", 2, "0")) * 2


def scattered_in_layers(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """What is read in parts is put together from parts."""
    for weight in (a, b, a):
        part = o.wait_tensor(o.reduce_scatter_tensor(x @ (weight / 8), "sum", 2, "0"))
        x = torch.cat([part, part])
    return x


def gathered(x: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    every = o.wait_tensor(o.all_gather_into_tensor(x.tanh(), 2, "0"))
    return every @ a, every @ b


def written_between(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    sent = o.all_reduce(x @ a, "sum", "0")
    x.mul_(2)
    return o.wait_tensor(sent) + x @ b


def read_twice(x: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    every = o.wait_tensor(o.all_gather_into_tensor(x, 2, "0"))
    return every @ a, every.sin()


PROGRAMS = {reduced: COUNT, reduced_in_three_dimensions: COUNT, scattered: COUNT, scattered_in_layers: 3 * COUNT, gathered: COUNT,
            written_between: COUNT, read_twice: 1}  # fmt: skip


def check(rank: int) -> None:
    torch.manual_seed(0)
    a, b = torch.randn(WIDTH, WIDTH), torch.randn(WIDTH, WIDTH)
    for program, count in PROGRAMS.items():
        for chunks in (True, False):
            seen: list[Any] = []
            x = torch.randn(ROWS, WIDTH) * (rank + 1)
            copy = x.clone()
            want = program(x, a, b)
            options = {"collectives": SLOW if chunks else {**SLOW, "chunks": 0}, "post_grad_custom_post_pass": (
                lambda graph, seen=seen: seen.extend(n for n in graph.nodes if "_tensor" in str(n.target) or "all_reduce" in str(n.target)))}
            got = dynamo.compile(program, fullgraph=True, options=options)(copy, a, b)
            torch.testing.assert_close((got, copy), (want, x))
            starts = [node for node in seen if "wait" not in str(node.target)]
            assert len(starts) == (count if chunks else max(count // COUNT, 1)), (program, starts)


def test_values_are_those_of_eager(tmp_path: Path) -> None:
    run_ranks(check, tmp_path)


def test_chunks_need_the_same_graphs_and_a_whole_number() -> None:
    for wrong in ({"chunks": 2}, {"chunks": 1.5, "same_graphs": 1}):
        with pytest.raises(ValueError, match="^collectives: chunks"):
            check_options(None, {"collectives": wrong})
    assert machine_of("cpu", {"chunks": 2, "same_graphs": 1}).chunks == 2
