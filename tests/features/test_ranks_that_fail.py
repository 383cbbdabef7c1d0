"""What goes wrong among ranks goes wrong as in eager: its error, within seconds, and never a wrong value."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard

import dynamo
from tests.ranks import run_ranks

HARD_LIMIT = 60  # seconds, then the processes are ended, and the test has failed
LATE = 20.0  # an error takes eager less than a second; a compile on a busy machine some


def written(x: torch.Tensor, group: Any = None) -> torch.Tensor:
    y = x * 2
    dist.all_reduce(y, group=group)
    return y + 1


def returned(x: torch.Tensor, group: Any = None) -> torch.Tensor:
    return functional.all_reduce(x * 2, "sum", group or dist.group.WORLD) + 1


def spread(x: torch.Tensor, group: Any = None) -> torch.Tensor:
    mesh = dist.DeviceMesh.from_group(group, "cpu")
    return DTensor.from_local(x, mesh, [Shard(0)]).redistribute(mesh, [Replicate()]).to_local()[: len(x)] * 5


def error_of(call: Callable[[], Any]) -> tuple[str, str, float]:
    """The class of the error, how it begins, and the seconds until then."""
    start, found = time.monotonic(), ("none", "")
    try:
        call()
    except Exception as error:
        found = type(error).__name__, str(error)[:30]
    return *found, time.monotonic() - start


def new_group() -> Any:
    return dist.new_group(timeout=timedelta(seconds=5))


def group_destroyed(rank: int, function: Callable[..., Any]) -> tuple[str, str, float]:
    group, x = new_group(), torch.ones(3)
    assert function(x, group).eq(5).all()
    dist.barrier()
    dist.destroy_process_group(group)
    return error_of(lambda: function(x, group))


def all_destroyed(rank: int, function: Callable[..., Any]) -> tuple[str, str, float]:
    """Groups that are made again are used, too."""
    x, store = torch.ones(3), dist.distributed_c10d._get_default_store()
    assert function(x).eq(5).all()
    dist.barrier()
    dist.destroy_process_group()
    found = error_of(lambda: function(x))
    again = dist.PrefixStore(function.__module__, store)
    dist.init_process_group("gloo", store=again, rank=rank, world_size=2)
    assert function(x).eq(5).all()
    return found


def mesh_too_large(rank: int, function: Callable[..., Any]) -> tuple[str, str, float]:
    return error_of(lambda: function(torch.ones(3)))


def on_larger_mesh(x: torch.Tensor) -> torch.Tensor:
    return x * init_device_mesh("cpu", (4,)).size()


def both(rank: int, case: Callable[..., Any], function: Callable[..., Any]) -> list[tuple[str, str, float]]:
    return [case(rank, function), case(rank, dynamo.compile(function))]


@pytest.mark.parametrize(("case", "function"), [
    (group_destroyed, returned), (all_destroyed, written), (all_destroyed, returned), (mesh_too_large, on_larger_mesh),
])
def test_error_of_eager(tmp_path: Path, case: Callable[..., Any], function: Callable[..., Any]) -> None:
    for (*eager, _), (*mine, seconds) in run_ranks(both, tmp_path, case, function, seconds=HARD_LIMIT):
        assert mine == eager and mine[0] != "none" and seconds < LATE


def killed(rank: int, function: Callable[..., Any], compiled: bool) -> tuple[str, str, float]:
    call, group = dynamo.compile(function) if compiled else function, new_group()
    call(torch.ones(3), group)
    if rank == 1:
        os._exit(1)
    return error_of(lambda: call(torch.ones(3), group))


def unequal(rank: int, function: Callable[..., Any], compiled: bool) -> tuple[str, str, float]:
    """gloo ends the rank whose tensor is too small."""
    call, group = dynamo.compile(function) if compiled else function, new_group()
    call(torch.ones(4), group)
    return error_of(lambda: call(torch.ones(4 + 4 * rank), group))


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
@pytest.mark.parametrize("function", [written, returned, spread])
@pytest.mark.parametrize(("case", "ends"), [(killed, 1), (unequal, 0)])
def test_rank_that_ends(
    tmp_path: Path, case: Callable[..., Any], ends: int, function: Callable[..., Any], compiled: bool
) -> None:
    answers = run_ranks(case, tmp_path, function, compiled, seconds=HARD_LIMIT, ends=(ends,))
    name, _, seconds = answers[1 - ends]
    assert name == "RuntimeError" and seconds < LATE
