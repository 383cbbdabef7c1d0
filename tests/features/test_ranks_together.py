"""One rank compiles and the other loads; a rank that compiles alone, fails or is gone keeps nobody waiting."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.distributed as dist
from torch import nn

import dynamo
from dynamo.base.config import config
from inductor import metrics
from inductor.cache import graph_cache, over_ranks
from inductor.driver import compile_fx
from tests.ranks import run_ranks

SECONDS = 2.0  # of patience
OPTIONS = {"graph_cache": True, "compile_on": f"rank0:{SECONDS}"}


class Refused(Exception):
    pass


def refuse(*args: Any, **kwargs: Any) -> Any:
    raise Refused("no compiler today")


def compiled_by(rank: int, folder: str, size: int = 8) -> tuple[list[torch.Tensor], float, int]:
    """Values and gradients, seconds, and how many graphs were loaded."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(size, size), nn.GELU())
    call = dynamo.compile(module, options=OPTIONS)
    x, start = torch.full((3, size), rank + 1.0), time.monotonic()
    loaded = metrics.snapshot()["graphs_reused"]
    want = torch.autograd.grad(module(x).sum(), [*module.parameters()])
    call(x).sum().backward()
    got = [parameter.grad for parameter in module.parameters()]
    torch.testing.assert_close(got, [*want])
    return got, time.monotonic() - start, metrics.snapshot()["graphs_reused"] - loaded


def check(rank: int, folder: str) -> dict[str, Any]:
    config.cache_dir = f"{folder}/cache{rank}"  # as on two machines
    found: dict[str, Any] = {}
    found["together"] = compiled_by(rank, folder)[2]
    if rank == 1:  # nobody compiles this for it
        found["alone"] = compiled_by(rank, folder, 9)[1:]
    dist.barrier()

    def f(x: torch.Tensor) -> torch.Tensor:
        return x.sin() * 3

    start = time.monotonic()
    with mock.patch.object(compile_fx, "_compile_program", refuse if rank == 0 else compile_fx._compile_program):
        with config.patch(suppress_errors=False), pytest.raises(Exception, match="no compiler today"):
            dynamo.compile(f, options=OPTIONS)(torch.ones(3))
    found["failed"] = time.monotonic() - start
    dist.barrier()
    ranks = over_ranks.Ranks(dist.distributed_c10d._get_default_store(), rank == 0, 0, SECONDS)
    if rank == 0:  # it dies while it compiles
        ranks._beat_once(over_ranks.PREFIX + "gone", 0)
    else:
        start = time.monotonic()
        assert not ranks.take("gone")
        found["gone"] = time.monotonic() - start
    assert graph_cache.ranks_now() is None  # no option says so
    return found


def test_ranks_together(tmp_path: Path) -> None:
    first, second = run_ranks(check, tmp_path, str(tmp_path))
    assert first["together"] == 0 and second["together"] == 2  # forward and backward
    seconds, loaded = second["alone"]
    assert loaded == 0 and seconds < 60
    assert max(first["failed"], second["failed"]) < 10 and SECONDS <= second["gone"] < 2 * SECONDS


def test_options_are_checked() -> None:
    for wrong in ("rank", "all"):
        with pytest.raises(ValueError, match="compile_on"):
            dynamo.compile(lambda x: x, options={"compile_on": wrong})


def beyond_the_limit(rank: int) -> None:
    """One rank is recompiled at each call; the small collectives of a graph are sent as one."""
    def f(x: torch.Tensor, how: str) -> torch.Tensor:
        y, z = x * len(how), x + 1
        dist.all_reduce(y)
        dist.all_reduce(z)
        return y.sin() @ z

    options = {"collectives": {"same_graphs": 1}}
    compiled, x = dynamo.compile(f, recompile_limit=2, options=options), torch.randn(8, 8)
    for count in (1, 2, 3, 4, 5):
        how = "a" * (count if rank == 1 else 1)
        torch.testing.assert_close(compiled(x, how), f(x, how))


def beyond_the_limit_in_parts(rank: int) -> None:
    """The same with a break between the two, where each is sent alone, or by eager."""
    def f(x: torch.Tensor, how: str) -> torch.Tensor:
        y, z = x * len(how), x + 1
        dist.all_reduce(y)
        dynamo.graph_break()
        dist.all_reduce(z)
        return y.sin() @ z

    compiled, x = dynamo.compile(f, recompile_limit=2), torch.randn(8, 8)
    for count in (1, 2, 3, 4, 5):
        how = "a" * (count if rank == 1 else 1)
        torch.testing.assert_close(compiled(x, how), f(x, how))


def test_rank_at_its_recompile_limit(tmp_path: Path) -> None:
    """It never sends what the other one does not expect."""
    run_ranks(beyond_the_limit, tmp_path, seconds=60)


def test_short_graphs_wait_without_the_gil(tmp_path: Path) -> None:
    """Threads of gloo free tensors of Python's while a graph of one collective is about to start the next one: one of
    three runs never ended."""
    for count in range(6):
        (folder := tmp_path / str(count)).mkdir()
        run_ranks(beyond_the_limit_in_parts, folder, seconds=60)
