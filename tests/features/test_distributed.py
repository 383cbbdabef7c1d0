"""Modules that spread their work over processes, and collectives, in compiled programs."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.testing._internal.distributed.fake_pg import FakeStore

import dynamo
from dynamo.testing import CompileCounter
from tests.ranks import run_ranks

BACKENDS = ["eager", "inductor"]


@pytest.fixture
def group() -> Iterator[None]:
    """A process group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.0), nn.Linear(8, 3))


def trained(call: Callable[[torch.Tensor], torch.Tensor], module: nn.Module, rank: int = 0) -> Any:
    """Losses and parameters after three steps."""
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    draws = torch.Generator().manual_seed(rank)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = call(torch.randn(4, 6, generator=draws)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return losses, [copy.deepcopy(parameter.detach()) for parameter in module.parameters()]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_distributed_module(group: None, backend: str) -> None:
    plain = network()
    expected = trained(DistributedDataParallel(plain), plain)

    inside = network()
    outer = dynamo.compile(DistributedDataParallel(inside), backend=backend)
    torch.testing.assert_close(trained(outer, inside), expected)
    assert isinstance(outer, DistributedDataParallel)

    inside = network()
    around = DistributedDataParallel(dynamo.compile(inside, backend=backend))
    torch.testing.assert_close(trained(around, inside), expected)

    inside = network()
    wrapped = DistributedDataParallel(inside)
    function = dynamo.compile(lambda x: wrapped(x) * 1.0, backend=backend)
    torch.testing.assert_close(trained(function, inside), expected)


def over_one_device(module: nn.Module) -> DataParallel:
    """Over several devices it refuses a module that lies on the CPU."""
    return DataParallel(module, [0] if torch.cuda.is_available() else None)


@pytest.mark.parametrize("spread", [DistributedDataParallel, over_one_device])
def test_the_module_inside_is_one_graph(
    group: None, spread: Callable[[nn.Module], nn.Module]
) -> None:
    counter = CompileCounter()
    module = dynamo.compile(spread(network()), backend=counter, fullgraph=True)
    for _ in range(3):
        module(torch.randn(4, 6))
    assert counter.frame_count == 1 and counter.op_count == 4

    called = spread(network())

    def f(x: torch.Tensor) -> torch.Tensor:
        return called(x.sin()).cos()

    found = dynamo.explain(f)(torch.randn(4, 6))
    assert found.graph_count == 3
    (only,) = found.breaks
    assert only.startswith("spreading_module: ")


def test_hooks_of_the_module_inside(group: None) -> None:
    seen: list[float] = []
    inside = network()
    inside.register_forward_hook(lambda module, args, result: seen.append(float(len(args))))
    module = dynamo.compile(DistributedDataParallel(inside), backend="eager")
    for _ in range(2):
        module(torch.randn(4, 6))
    assert seen == [1.0, 1.0]


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_sync_accumulates(group: None, backend: str) -> None:
    def gradients(compile_it: Callable[[nn.Module], Any]) -> list[torch.Tensor]:
        inside = network()
        module = compile_it(DistributedDataParallel(inside))
        draws = torch.Generator().manual_seed(1)
        with module.no_sync():
            module(torch.randn(4, 6, generator=draws)).sum().backward()
        module(torch.randn(4, 6, generator=draws)).sum().backward()
        return [parameter.grad for parameter in inside.parameters()]

    compiled = gradients(lambda module: dynamo.compile(module, backend=backend))
    torch.testing.assert_close(compiled, gradients(lambda module: module))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_sharded_module(group: None, backend: str) -> None:
    def sharded() -> nn.Module:
        module = network()
        mesh = init_device_mesh("cpu", (1,))
        for layer in (module[0], module[3]):
            fully_shard(layer, mesh=mesh)
        return fully_shard(module, mesh=mesh)

    def losses(module: nn.Module, call: Any) -> list[torch.Tensor]:
        return trained(call, module)[0]

    plain, module = sharded(), sharded()
    expected = losses(plain, plain)
    torch.testing.assert_close(losses(module, dynamo.compile(module, backend=backend)), expected)


@pytest.mark.parametrize("backend", BACKENDS)
def test_distributed_tensors(group: None, backend: str) -> None:
    mesh = init_device_mesh("cpu", (1,))
    given = distribute_tensor(torch.arange(12.0).reshape(4, 3), mesh, [Shard(0)])

    def f(x: torch.Tensor) -> torch.Tensor:
        return (x * 2 + 1).sum(0)

    result = dynamo.compile(f, backend=backend)(given)
    assert type(result) is type(f(given)) and result.placements == f(given).placements
    torch.testing.assert_close(result.full_tensor(), f(given).full_tensor())


def exchange(x: torch.Tensor) -> torch.Tensor:
    """Collectives that write into their arguments, with work before, between and behind."""
    summed = x * 2
    dist.all_reduce(summed)
    parts = [torch.empty_like(x) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, x.sin())
    work = dist.broadcast(parts[0], src=0, async_op=True)
    between = x.cos()
    work.wait()
    return summed + torch.stack(parts).sum(0) + between + dist.get_rank()


@pytest.mark.parametrize("backend", BACKENDS)
def test_collectives(group: None, backend: str) -> None:
    compiled = dynamo.compile(exchange, backend=backend)
    for _ in range(2):
        x = torch.randn(5)
        torch.testing.assert_close(compiled(x), exchange(x))


def check_training(rank: int, backend: str) -> None:
    plain = network()
    expected = trained(DistributedDataParallel(plain), plain, rank)
    inside = network()
    module = dynamo.compile(DistributedDataParallel(inside), backend=backend)
    torch.testing.assert_close(trained(module, inside, rank), expected)


def check_as_one_of_two(rank: int, backend: str) -> None:
    """What each of two processes does: raises where compiled programs differ."""
    check_training(rank, backend)
    x = torch.full((3,), float(rank))
    torch.testing.assert_close(dynamo.compile(exchange, backend=backend)(x), exchange(x))


@pytest.mark.long
@pytest.mark.parametrize("backend", BACKENDS)
def test_two_processes(tmp_path: Path, backend: str) -> None:
    run_ranks(check_as_one_of_two, tmp_path, backend)


def facts_of_groups(x: torch.Tensor, group: Any, mesh: Any) -> torch.Tensor:
    if dist.is_available() and dist.is_initialized() and dist.get_backend() == "gloo":
        x = x * (dist.get_world_size() + 1) + dist.get_rank() + dist.get_rank(group)
    x = x + group.size() + group.rank() + len(group.group_name) + dist.get_world_size(group=group)
    x = x + mesh.size() + mesh.get_local_rank("tp") + mesh["tp"].size() + mesh.get_rank()
    return x + mesh.get_group("dp").size() + dist.get_world_size(mesh.get_group("tp"))


def test_ranks_and_sizes_are_constants(group: None) -> None:
    mesh = init_device_mesh("cpu", (1, 1), mesh_dim_names=("dp", "tp"))
    compiled = dynamo.compile(facts_of_groups, backend="eager", fullgraph=True)
    x, own = torch.rand(3), dist.new_group([0])
    assert torch.equal(compiled(x, own, mesh), facts_of_groups(x, own, mesh))


def test_another_world() -> None:
    """A second process group has its own size and rank."""
    def place(x: torch.Tensor) -> torch.Tensor:
        return x * dist.get_world_size() + dist.get_rank() if dist.is_initialized() else x

    compiled = dynamo.compile(place, backend="eager", fullgraph=True)
    x = torch.rand(3)
    for rank, size in ((0, 1), (2, 4), (1, 4)):
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=size)
        assert torch.equal(compiled(x), x * size + rank)
        dist.destroy_process_group()
        assert torch.equal(compiled(x), x)
