"""Collectives that the compiler moves and joins: eager's values, whatever stands between start and wait."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import dynamo
from benchmarks.distributed_overlap import measure, options_of, slow_group
from inductor.collectives.machine import Group, group_of
from tests.ranks import run_ranks

Tensor = torch.Tensor
operators: Any = torch.ops._c10d_functional
WIDTH = 160  # enough to be on its way while kernels run
OPTIONS: list[dict[str, Any]] = [
    {"collectives": {"same_graphs": 1}}, {"collectives": {"megabytes": 0}}, {},
    {"collectives": {"between_bandwidth": 1e3, "same_graphs": 1}}, {"collectives": {"same_graphs": 1}, "leave_out": "overlap"},
    {"leave_out": "fusion"},
    {"collectives": {"same_graphs": 1, "chunks": 2, "operations": 1e5, "inside_latency": 1e-9, "inside_hop": 1e-9}},
]


def start(kind: int, x: Tensor, group: str) -> Tensor:
    """Each gives a matrix of the operand's size, or of its multiple."""
    if kind == 0:
        return operators.all_gather_into_tensor(x, 2, group)
    if kind == 1:
        return operators.reduce_scatter_tensor(torch.cat([x, x]), "sum", 2, group)
    if kind == 2:
        return operators.all_to_all_single(torch.cat([x, x]), [WIDTH] * 2, [WIDTH] * 2, group)
    return operators.broadcast(x, 0, group) if kind == 3 else operators.all_reduce(x, "sum", group)


def program(numbers: list[int], inputs: list[Tensor], groups: list[str], copy: bool = False) -> list[Tensor]:
    """Collectives, products and writes in an order that is drawn. Waits come at once, later, or last.
    copy: of operands, for eager, which may send what is written before the wait."""
    values, sent = [x.sin() for x in inputs], []
    for kind, one, other, third in zip(*[iter(numbers)] * 4):
        x, y = values[one % len(values)], values[other % len(values)]
        if kind < 5:
            operand = (x, x * 0.5, inputs[one % len(inputs)])[other % 3]
            sent.append(start(third % 6, operand.clone() if copy else operand, groups[kind % 2]))
            if kind < 2:
                values.append(operators.wait_tensor(sent.pop())[-WIDTH:].tanh())
        elif kind == 5 and sent:
            values.append(operators.wait_tensor(sent.pop(one % len(sent)))[-WIDTH:].tanh())
        elif kind == 6:
            values.append(x @ y / WIDTH)
        elif kind == 7:
            inputs[one % len(inputs)].mul_(0.5)
        elif kind == 8:
            x.add_(y)
        else:
            values.append((x + y).cos())
    return [*values, *[operators.wait_tensor(one) for one in sent]]


def check_programs(rank: int, seeds: range) -> None:
    groups = [dist.group.WORLD.group_name, dist.new_group([0, 1]).group_name]  # type: ignore[union-attr]
    for seed in seeds:
        draws = random.Random(seed)
        numbers = [draws.randrange(10 if n % 4 == 0 else 60) for n in range(120)]
        given = [torch.randn(WIDTH, WIDTH) + rank for _ in range(3)]
        copies = [x.clone() for x in given]
        expected = program(numbers, given, groups, copy=True)
        compiled = dynamo.compile(program, fullgraph=True, options=OPTIONS[seed % len(OPTIONS)])
        found = compiled(numbers, copies, groups)
        try:
            torch.testing.assert_close((found, copies), (expected, given))
        except AssertionError as error:
            raise AssertionError(f"seed {seed}") from error


def test_drawn_programs(tmp_path: Path) -> None:
    run_ranks(check_programs, tmp_path, range(100, 106))


def test_ranks_that_need_other_things(tmp_path: Path) -> None:
    """What one rank alone reads is an operand of its next collective there, and of nothing elsewhere: no rank joins
    what another can't."""
    run_ranks(check_unlike_ranks, tmp_path)


def check_unlike_ranks(rank: int) -> None:
    name = dist.group.WORLD.group_name  # type: ignore[union-attr]

    def f(x: Tensor) -> Tensor:
        total = operators.wait_tensor(operators.all_reduce(x.sin(), "sum", name))
        if rank == 0:
            x = x + total
        return operators.wait_tensor(operators.all_reduce(x, "sum", name)) * 2

    x = torch.arange(4.0) + rank
    torch.testing.assert_close(dynamo.compile(f, fullgraph=True)(x), f(x))
    dist.barrier()


@pytest.mark.long
def test_the_simulator_predicts_a_slow_link(tmp_path: Path) -> None:
    """Two ranks over gloo; what others do on this machine makes steps longer than they would be."""
    given = options_of(["--layers", "4", "--gigabytes", "0.05", "--rounds", "7"])
    found, _ = run_ranks(check_slow_link, tmp_path, given)
    (program, of_program), (ours, of_ours) = found["program"], found["ours"]
    assert of_ours < 0.85 * of_program and ours < 0.95 * program
    for seconds, predicted in (found["program"], found["ours"]):
        assert 0.6 < seconds / predicted < 2


def check_slow_link(rank: int, given: Any) -> dict[str, tuple[float, float]]:
    torch.set_num_threads(1)
    return measure(slow_group(rank, given.milliseconds / 1e3, given.gigabytes * 1e9), given)


def test_a_group_of_the_program(tmp_path: Path) -> None:
    """A process group without a backend of torch's: its collectives are compiled, and each is sent alone."""
    run_ranks(check_own_group, tmp_path)


def check_own_group(rank: int) -> None:
    name = slow_group(rank, 1e-4, 1e9, "mine")
    assert group_of("missing", torch.device("cpu")) is None
    assert group_of(name, torch.device("cpu")) == Group((0, 1), "mine")

    def f(x: Tensor, y: Tensor) -> Tensor:
        sums = [operators.wait_tensor(operators.all_reduce(z, "sum", name)) for z in (x, y)]
        return sums[0].sin() @ sums[1]

    x, y = torch.randn(8, 8), torch.randn(8, 8)
    torch.testing.assert_close(dynamo.compile(f, fullgraph=True)(x, y), f(x, y))


def test_a_rank_that_ends(tmp_path: Path) -> None:
    """The others get gloo's error where they wait, with other collectives on their way; the next call has it, too."""
    found, _ = run_ranks(leave, tmp_path, ends=(1,))
    assert len(found) == 2 and all("gloo" in text or "onnection" in text for text in found)


def leave(rank: int) -> list[str]:
    name = dist.group.WORLD.group_name  # type: ignore[union-attr]

    def f(x: Tensor, y: Tensor) -> Tensor:
        gathered = [operators.all_gather_into_tensor(z.sin(), 2, name) for z in (x, y)]
        return operators.wait_tensor(gathered[0]) @ operators.wait_tensor(gathered[1])[:8]

    compiled, found = dynamo.compile(f, fullgraph=True), []
    given = torch.randn(8, 8), torch.randn(8, 8)
    compiled(*given)
    dist.barrier()
    if rank == 1:
        os._exit(0)
    for _ in range(2):
        try:
            compiled(*given)
        except RuntimeError as error:
            found.append(str(error))
    return found
