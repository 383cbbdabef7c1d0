"""`DistributedDataParallel` over two processes: eager's gradients, and buckets that leave while backward goes on."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

import dynamo
from dynamo.aot import chained_backward, training
from dynamo.testing import CompileCounter
from tests.ranks import run_ranks

WIDTH = 24
CAP = 4 * WIDTH * WIDTH / 2**20  # a bucket takes the weight of one layer


class Network(nn.Module):
    """Layers of several kinds; tied: two of them share their weight. again: parts are recomputed in backward. spare:
    a layer that the calls do not use."""

    def __init__(self, again: bool = False, spare: bool = False, tied: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, WIDTH)
        self.layers = nn.ModuleList([nn.Linear(WIDTH, WIDTH) for _ in range(4)])
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 10)
        if tied:
            self.head.weight = self.embedding.weight
        if spare:
            self.spare = nn.Linear(WIDTH, WIDTH)
        self.again = again

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.embedding(x)
        for layer in self.layers:
            if self.again:
                x = x + checkpoint(layer, x, use_reentrant=False).relu()
            else:
                x = x + layer(x).relu()
        return self.head(self.norm(x)), x.square().mean()


def hooked(module: DistributedDataParallel) -> None:
    """Averages are made by a hook of the program."""
    def average(state: Any, bucket: Any) -> Any:
        work = dist.all_reduce(bucket.buffer().div_(2), async_op=True)
        return work.get_future().then(lambda done: done.value()[0])

    average.__annotations__.clear()  # it may have none, or real ones
    module.register_comm_hook(None, average)


# Options of the network, of the wrapper, and what is done to it.
CASES: dict[str, tuple[dict[str, bool], dict[str, Any], Callable[[Any], None]]] = {
    "plain": ({}, {}, lambda module: None),
    "checkpoints": ({"again": True}, {}, lambda module: None),
    "tied": ({"tied": True}, {}, lambda module: None),
    "views": ({}, {"gradient_as_bucket_view": True}, lambda module: None),
    "unused": ({"spare": True}, {"find_unused_parameters": True}, lambda module: None),
    "static": ({"spare": True}, {"static_graph": True}, lambda module: None),
    "hook": ({}, {}, hooked),
    "compressed": ({}, {}, lambda module: module.register_comm_hook(None, fp16_compress_hook)),
}


def steps(rank: int, case: str, way: Callable[[nn.Module, Any], Any], quiet: bool) -> list[Any]:
    """Losses, gradients and parameters of some steps; quiet: each second one keeps its gradients to itself."""
    of_network, options, prepare = CASES[case]
    torch.manual_seed(1)
    inside = Network(**of_network)
    wrapped, call = way(inside, lambda given: DistributedDataParallel(given, bucket_cap_mb=CAP, **options))
    prepare(wrapped)
    optimizer = torch.optim.SGD(inside.parameters(), lr=0.01, momentum=0.9)
    draws, found = torch.Generator().manual_seed(rank), []
    for step in range(4):
        held = quiet and step % 2 == 0
        with wrapped.no_sync() if held else contextlib.nullcontext():
            scores, more = call(torch.randint(0, 10, (3, 5), generator=draws))
            loss = scores.square().mean() + (more if step != 2 else 0)  # an output without a gradient, once
            loss.backward()
        found += [loss.detach(), *[None if p.grad is None else p.grad.clone() for p in inside.parameters()]]
        if not held:
            optimizer.step()
            optimizer.zero_grad()
    return [*found, *[parameter.detach().clone() for parameter in inside.parameters()]]


def eager(inside: nn.Module, wrap: Any) -> Any:
    return (wrap(inside),) * 2


def around(inside: nn.Module, wrap: Any) -> Any:
    wrapped = wrap(inside)
    return wrapped, dynamo.compile(wrapped)


def within(inside: nn.Module, wrap: Any) -> Any:
    return (wrap(dynamo.compile(inside)),) * 2


def check(rank: int, cases: list[str]) -> int:
    """How many chains of nodes were made. AssertionError where a program differs from eager's."""
    chains, make = [], training._make_chain
    training._make_chain = lambda *args: chains.append(args) or make(*args)
    for case in cases:
        for quiet in (False,) if case == "static" else (False, True):  # eager's takes no `no_sync` there
            want = steps(rank, case, eager, quiet)
            for way in (around, within):
                dynamo.reset()
                torch.testing.assert_close(
                    steps(rank, case, way, quiet), want, rtol=1e-3, atol=1e-3 if case == "compressed" else 1e-5)
    return len(chains)


def left_alone(rank: int, way: Callable[[nn.Module, Any], Any]) -> str:
    """What the first rank's step raises when the other one has ended."""
    inside = Network()
    _, call = way(inside, lambda given: DistributedDataParallel(given, bucket_cap_mb=CAP))
    for step in range(3):
        if rank and step == 2:
            os._exit(0)
        try:
            scores, more = call(torch.zeros((3, 5), dtype=torch.long))
            (scores.square().mean() + more).backward()
        except Exception as error:
            return type(error).__name__
    return "nothing"


def test_a_rank_that_ends_is_an_error(tmp_path: Path) -> None:
    found = []
    for way in (eager, around):
        folder = tmp_path / way.__name__
        folder.mkdir()
        found.append(run_ranks(left_alone, folder, way, ends=(1,)))
    assert found[0] == found[1] and found[0][0] != "nothing"


def test_buckets_leave_while_backward_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """And forward is one graph, whatever the buckets."""
    happened: list[str] = []
    run = chained_backward.Part.run
    monkeypatch.setattr(chained_backward.Part, "run", lambda *args: (happened.append("part"), run(*args))[1])
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        inside = nn.Sequential(*[nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4)])
        wrapped = DistributedDataParallel(inside, bucket_cap_mb=CAP)

        def hook(state: Any, bucket: Any) -> Any:
            happened.append("bucket")
            done: torch.futures.Future[Any] = torch.futures.Future()
            done.set_result(bucket.buffer())
            return done

        hook.__annotations__.clear()
        wrapped.register_comm_hook(None, hook)
        counter = CompileCounter("inductor")
        compiled = dynamo.compile(wrapped, backend=counter, fullgraph=True)
        for _ in range(3):
            happened.clear()
            compiled(torch.randn(2, WIDTH)).sum().backward()
        assert happened == ["part", "bucket"] * 4
        happened.clear()
        monkeypatch.setattr(training, "bucket_limits", lambda: (1 << 60,))
        compiled(torch.randn(2, WIDTH)).sum().backward()
        assert happened == ["bucket"] * 4 and counter.frame_count == 1
    finally:
        dist.destroy_process_group()


def test_buckets_hold_what_eager_puts_there() -> None:
    """Hooks that compress see them, and the reducer fills them in the order in which gradients first come."""
    def buckets(way: Callable[[nn.Module, Any], Any], of_network: dict[str, bool], cap: float) -> list[Any]:
        inside, seen = Network(**of_network), []
        places = {id(parameter): at for at, parameter in enumerate(inside.parameters())}
        wrapped, call = way(inside, lambda given: DistributedDataParallel(given, bucket_cap_mb=cap))

        def hook(state: Any, bucket: Any) -> Any:
            seen.append([places[id(parameter)] for parameter in bucket.parameters()])
            done: torch.futures.Future[Any] = torch.futures.Future()
            done.set_result(bucket.buffer())
            return done

        hook.__annotations__.clear()
        wrapped.register_comm_hook(None, hook)
        for _ in range(3):
            scores, more = call(torch.zeros((3, 5), dtype=torch.long))
            (scores.square().mean() + more).backward()
        return seen

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        for of_network in ({}, {"tied": True}, {"again": True}):
            for cap in (25, 2 * CAP):
                assert buckets(around, of_network, cap) == buckets(eager, of_network, cap)
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("cases", [["plain"], *[pytest.param([case], marks=pytest.mark.long) for case in CASES if case != "plain"]])
def test_gradients(tmp_path: Path, cases: list[str]) -> None:
    assert all(made >= 2 for made in run_ranks(check, tmp_path, cases))
