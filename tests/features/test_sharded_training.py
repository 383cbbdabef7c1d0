"""`fully_shard` over two processes: blocks are one graph each, before and after they are sharded; eager's losses and
gradients, and no new compile where parameters are gathered again."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup
from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor
from torch.utils.checkpoint import checkpoint

import dynamo
from tests.ranks import run_ranks

WIDTH = 8


class Block(nn.Module):
    def __init__(self, again: bool) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.again = again

    def inner(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(self.norm(x))))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + (checkpoint(self.inner, x, use_reentrant=False) if self.again else self.inner(x))


class Network(nn.Module):
    def __init__(self, again: bool) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList([Block(again) for _ in range(3)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return x


HALF = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32, output_dtype=torch.float32)
# Options of `fully_shard`, and of this test.
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "kept": {"reshard_after_forward": False},
    "half": {"mp_policy": HALF},
    "checkpoints": {"again": True},
    "offloaded": {"offload_policy": CPUOffloadPolicy(pin_memory=False)},
    "accumulated": {"accumulated": True},
    "prefetches": {"prefetches": True},
}


def in_place(model: Network) -> None:
    for block in model.blocks:
        dynamo.compile_in_place(block, fullgraph=True)


def twins(model: Network) -> None:
    for number, block in enumerate(model.blocks):
        model.blocks[number] = dynamo.compile(block, fullgraph=True)


def nothing(model: Network) -> None:
    return None


# What is done before a model is sharded, behind it, and to the model as a whole.
WAYS: dict[str, tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]] = {
    "in place, then sharded": (in_place, nothing, nothing),
    "twins, then sharded": (twins, nothing, nothing),
    "sharded, then in place": (nothing, in_place, nothing),
    "sharded, then twins": (nothing, twins, nothing),
    "whole": (nothing, nothing, dynamo.compile),
}


@contextlib.contextmanager
def noting(events: list[tuple[str, int]]) -> Iterator[None]:
    """What is done to groups of parameters, by their order, in order."""
    groups: dict[int, int] = {}

    def noted(name: str) -> Callable[..., Any]:
        known = getattr(FSDPParamGroup, name)

        def call(group: Any, *args: Any, **kwargs: Any) -> Any:
            events.append((name, groups.setdefault(id(group), len(groups))))
            return known(group, *args, **kwargs)

        return call

    names = "unshard wait_for_unshard reshard pre_forward post_forward pre_backward post_backward".split()
    with mock.patch.multiple(FSDPParamGroup, **{name: noted(name) for name in names}):
        yield


def steps(rank: int, case: str, way: tuple[Callable[..., Any], ...]) -> tuple[list[Any], list[tuple[str, int]]]:
    """Losses and gradients of some steps, one of them without a gradient; then what is not trained. And what was done to
    parameters in the steps."""
    before, behind, whole = way
    options = dict(CASES[case])
    again, accumulated, prefetches = [options.pop(name, False) for name in ("again", "accumulated", "prefetches")]
    mesh, events = init_device_mesh("cpu", (2,)), list[tuple[str, int]]()
    torch.manual_seed(1)
    model = Network(again)
    before(model)
    for block in model.blocks:
        fully_shard(block, mesh=mesh, **options)
    behind(model)
    fully_shard(model, mesh=mesh, **options)
    for one, two in itertools.pairwise(model.blocks) if prefetches else ():
        one.set_modules_to_forward_prefetch([two])
        two.set_modules_to_backward_prefetch([one])
    call = whole(model) or model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    draws, found = torch.Generator().manual_seed(rank), []
    for step in range(4):
        last = not accumulated or step % 2 == 1
        model.set_requires_gradient_sync(last)
        with noting(events):
            loss = call(torch.randn(3, WIDTH, generator=draws)).square().mean()
            loss.backward()
        found.append(loss.detach())
        if last:
            found += [parameter.grad.full_tensor() for parameter in model.parameters()]
            optimizer.step()
            optimizer.zero_grad()
    model.reshard()
    with torch.no_grad():
        return [*found, call(torch.ones(1, WIDTH))], events


def check(rank: int, case: str) -> dict[str, tuple[int, int, int, int]]:
    """By way: graphs, recompiles, breaks, and places where hooks run between graphs. AssertionError where one differs from eager's."""
    (want, order), found = steps(rank, case, (nothing, nothing, nothing)), {}
    rough = {"rtol": 5e-2, "atol": 5e-2} if case == "half" else {"rtol": 1e-4, "atol": 1e-5}
    for name, way in WAYS.items():
        dynamo.reset()
        values, events = steps(rank, case, way)
        torch.testing.assert_close(values, want, **rough)
        assert events == order and len(order) > 50, (name, events[:30], order[:30])
        counts = dynamo.counters
        found[name] = (counts["stats"]["graphs"], counts["recompiles"].total(), counts["graph_break"].total(),
                       counts["between_graphs"].total())
    return found


@pytest.mark.parametrize("case", ["plain", *[pytest.param(case, marks=pytest.mark.long) for case in CASES if case != "plain"]])
def test_blocks_are_graphs(tmp_path: Path, case: str) -> None:
    for counts in run_ranks(check, tmp_path, case):
        whole = counts.pop("whole")
        assert whole[0] == 4, whole  # the blocks share two; so do the parts of the model around them
        assert whole[2] == 0 < whole[3] <= 5, whole  # with gradients and without: at the first block, and in the loop behind it
        # One that is trained, and one for the call without gradients; for each block where it is another module.
        assert counts == {way: (2, 1, 0, 0) if "in place" in way else (6, 3, 0, 0) for way in counts}


def whole(name: str) -> property:
    def read(layer: Any) -> torch.Tensor:
        gathered = layer._parameters[name].redistribute(placements=[Replicate()])
        return gathered.to_local(grad_placements=[Partial("sum")])

    return property(read)


class Gathering(nn.Linear):
    """A layer whose split parameters are gathered where they are read, so in the graph."""

    weight, bias = whole("weight"), whole("bias")  # type: ignore[assignment]

    @classmethod
    def made(cls, mesh: DeviceMesh) -> nn.Module:
        layer = nn.Linear(WIDTH, WIDTH)
        for name, value in [*layer._parameters.items()]:
            assert value is not None
            layer.register_parameter(name, nn.Parameter(distribute_tensor(value, mesh, [Shard(0)])))
        layer.__class__ = cls
        return layer


def gathered_in_the_graph(rank: int) -> tuple[int, int]:
    """Graphs and breaks. AssertionError where losses or gradients differ from eager's."""
    torch.manual_seed(0)
    mesh = init_device_mesh("cpu", (2,))
    model = nn.Sequential(*[Gathering.made(mesh) for _ in range(3)])
    compiled, found = dynamo.compile(model, fullgraph=True), []
    for call in (model, compiled):
        for step in range(2):
            loss = call(torch.linspace(-1, 1, 3 * WIDTH).view(3, WIDTH) + rank + step).sin().square().mean()
            loss.backward()
        found.append([loss.detach(), *[p.grad.full_tensor() for p in model.parameters()]])  # type: ignore[union-attr]
        model.zero_grad()
    torch.testing.assert_close(found[1], found[0])
    return dynamo.counters["stats"]["graphs"], dynamo.counters["not_compiled"].total()


def test_parameters_are_gathered_in_the_graph(tmp_path: Path) -> None:
    assert run_ranks(gathered_in_the_graph, tmp_path) == [(1, 0)] * 2
