"""Collectives and DTensor in compiled functions: one graph, eager's values."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    loss_parallel,
    parallelize_module,
)

import dynamo
from dynamo.testing import CompileCounter
from tests.processes import run_python

BACKENDS = ["eager", "inductor"]


@pytest.fixture(scope="module")
def mesh() -> Iterator[DeviceMesh]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,), mesh_dim_names=("tp",))
    dist.destroy_process_group()


def in_place(x: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor:
    y = x * 2
    dist.all_reduce(y)
    dist.broadcast(y, 0)
    gathered, part = torch.empty_like(y), torch.empty_like(y)
    dist.all_gather_into_tensor(gathered, y)
    dist.reduce_scatter_tensor(part, gathered, op=dist.ReduceOp.MAX)
    exchanged = torch.empty_like(part)
    dist.all_to_all_single(exchanged, part)
    return exchanged + 1


def asynchronous(x: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor:
    y = x * 2
    works = [dist.all_reduce(y, async_op=True), dist.broadcast(y, src=0, async_op=True)]
    between = x.sin()
    for work in works:
        work.wait()
    return y + between if works[0].is_completed() else y


def round_trip(x: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor:
    sharded = DTensor.from_local(x.sin(), mesh, [Shard(0)], run_check=False)
    return sharded.redistribute(mesh, [Replicate()]).to_local() * mesh.size()


def ask(x: torch.Tensor, mesh: DeviceMesh) -> torch.Tensor:
    """What meshes and placements say is constant."""
    sharded = DTensor.from_local(x, mesh, [Shard(1)], run_check=False)
    is_first = sharded.placements == (Shard(1),) and mesh["tp"].get_local_rank() == 0
    named = sharded.device_mesh.mesh_dim_names == ("tp",)
    kinds = [isinstance(sharded.placements[0], kind) for kind in (Shard, Partial, (Replicate, Shard))]
    return sharded.to_local() + (1 if is_first and named and sharded.placements[0].is_shard() else 2) + sum(kinds)


PROGRAMS: dict[str, Callable[[torch.Tensor, DeviceMesh], Any]] = {
    "all_reduce": lambda x, mesh: functional.all_reduce(x * 2, "sum", dist.group.WORLD) + 1,
    "all_gather": lambda x, mesh: functional.all_gather_tensor(x.sin(), 0, (mesh, 0)).cos(),
    "in place": in_place,
    "asynchronous": asynchronous,
    "round trip": round_trip,
    "constants": ask,
    "group of a mesh": lambda x, mesh: functional.all_reduce(x, "max", mesh.get_group()) + dist.get_rank(mesh.get_group()),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_one_graph(mesh: DeviceMesh, name: str, backend: str) -> None:
    f, x = PROGRAMS[name], torch.randn(4, 3)
    compiled = dynamo.compile(f, backend=backend, fullgraph=True)
    for _ in range(2):
        torch.testing.assert_close(compiled(x, mesh), f(x, mesh))


@pytest.mark.parametrize("backend", BACKENDS)
def test_work_that_leaves_the_graph(mesh: DeviceMesh, backend: str) -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, Any, torch.Tensor]:
        y = x * 2
        work = dist.all_reduce(y, async_op=True)
        (written,) = work.get_future().wait()  # ends the graph
        work.wait()
        return written + 1, dist.all_reduce(y, async_op=True), y

    x, compiled = torch.randn(3), dynamo.compile(f, backend=backend)
    for _ in range(2):
        result, work, y = compiled(x)
        assert torch.equal(result, x * 2 + 1) and isinstance(work, dist.Work) and work.wait()
        assert work.get_future().value()[0] is y


def test_nothing_else_has_to_be_imported() -> None:
    """What says how results of collectives look is a module of torch that a program need not have imported."""
    source = """
import torch, torch.distributed as dist, dynamo
dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
def f(x):
    y = x * 2
    dist.all_reduce(y)
    return y + x.sin()
x = torch.randn(3)
assert torch.equal(dynamo.compile(f, fullgraph=True)(x), f(x))
"""
    done = run_python("-c", source, bare=True, DYNAMO_FULLGRAPH_COMPILES="1")
    assert done.returncode == 0, done.stderr


def test_placements_are_guarded(mesh: DeviceMesh) -> None:
    counter = CompileCounter()
    f = lambda x: (x * 2).sum(0)  # noqa: E731
    compiled = dynamo.compile(f, backend=counter, fullgraph=True)
    x = torch.randn(4, 3)
    for number, placement in enumerate([Shard(0), Shard(0), Replicate(), Partial()]):
        given = distribute_tensor(x, mesh, [Replicate()]).redistribute(mesh, [placement]) if (
            placement != Partial()) else DTensor.from_local(x, mesh, [placement])
        found, wanted = compiled(given), f(given)
        assert found.placements == wanted.placements
        torch.testing.assert_close(found.full_tensor(), wanted.full_tensor())
        assert counter.frame_count == max(number, 1)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(nn.functional.silu(self.up(self.norm(x))))


@pytest.mark.parametrize("backend", BACKENDS)
def test_tensor_parallel_training(mesh: DeviceMesh, backend: str) -> None:
    plain, model = nn.Sequential(Block(), Block()), nn.Sequential(Block(), Block())
    model.load_state_dict(plain.state_dict())
    for block in model:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    compiled = dynamo.compile(model, backend=backend, fullgraph=True)
    x = torch.randn(2, 8)
    for each in (plain, compiled):
        each(x).square().sum().backward()
    for mine, other in zip(model.parameters(), plain.parameters(), strict=True):
        grad = mine.grad
        assert grad is not None and type(grad) is (DTensor if isinstance(mine, DTensor) else type(grad))
        value = grad.full_tensor() if isinstance(grad, DTensor) else grad
        torch.testing.assert_close(value, other.grad)


def test_checkpointed_and_sharded_block(mesh: DeviceMesh) -> None:
    """The wrapper's frame is torch's own; behind hooks that aren't traced it is what is compiled."""
    plain, counter, x = Block(), CompileCounter(), torch.randn(2, 8)
    model = checkpoint_wrapper(Block(), early_stop=False)
    model.load_state_dict(plain.state_dict())
    dynamo.compile_in_place(model, backend=counter, fullgraph=True)
    fully_shard(model, mesh=mesh)
    for each in (plain, model):
        each(x).square().sum().backward()
    assert counter.frame_count == 1
    for mine, other in zip(model.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine.grad.full_tensor(), other.grad)


def pending(x: Any, labels: Any) -> Any:
    return x.square().sum(0)


def loss_of(x: Any, labels: Any) -> Any:
    return nn.functional.cross_entropy(x * 2, labels)


def loss_inside(x: Any, labels: Any) -> Any:
    with loss_parallel():
        return loss_of(x, labels)


decorated = loss_parallel()(loss_of)


def loss_decorated(x: Any, labels: Any) -> Any:
    return decorated(x, labels)


@pytest.mark.parametrize(("f", "dim", "inside"), [
    (pending, 0, ()), (loss_inside, 1, (1, 1)), (loss_decorated, 1, (1,)), (loss_of, 1, (1, 0, 1))])
def test_gradients_have_eagers_placements(mesh: DeviceMesh, f: Any, dim: int, inside: tuple[int, ...]) -> None:
    """Of sums that are pending, and of losses over split classes, whose backward runs inside of the context, too."""
    counter = CompileCounter("inductor")
    compiled = dynamo.compile(f, backend=counter, fullgraph=True)
    labels = distribute_tensor(torch.tensor([1, 0, 2, 2]), mesh, [Replicate()])
    for split in inside or (0,):
        found = []
        for call in (f, compiled):
            x = distribute_tensor(torch.arange(12.0).view(4, 3).sin(), mesh, [Shard(dim)]).requires_grad_()
            with loss_parallel() if split and f is loss_of else contextlib.nullcontext():
                value = call(x, labels)
            with loss_parallel() if split else contextlib.nullcontext():
                value.full_tensor().square().sum().backward()
            found.append((value.placements, x.grad.placements, value.full_tensor(), x.grad.full_tensor()))
        assert found[0][:2] == found[1][:2]
        torch.testing.assert_close(found[1][2:], found[0][2:])
    assert counter.frame_count == len(set(inside)) or not inside


def test_a_step_writes_into_gradients_that_share_a_buffer(mesh: DeviceMesh) -> None:
    """As `fully_shard` leaves them."""
    def step(parameters: list[nn.Parameter], grads: list[torch.Tensor]) -> torch.Tensor:
        with torch.no_grad():
            for parameter, grad in zip(parameters, grads, strict=True):
                grad.mul_(2)
                parameter.sub_(grad)
        return grads[0] + grads[1]

    dynamo.reset()
    found: list[Any] = []
    for call in (step, dynamo.compile(step, fullgraph=True)):
        buffer = torch.arange(8.0)
        parameters = [nn.Parameter(distribute_tensor(torch.ones(4), mesh, [Shard(0)])) for _ in range(2)]
        grads = [DTensor.from_local(part, mesh, [Shard(0)]) for part in buffer.split(4)]
        found.append([call(parameters, grads).full_tensor(), buffer, *(one.full_tensor().detach() for one in parameters)])
    torch.testing.assert_close(found[1], found[0])
    assert not dynamo.counters["not_compiled"]


class Split(nn.Linear):
    """As torchtitan splits a module: a closure of its own, over itself and placements, is its `forward`."""

    def split(self, mesh: DeviceMesh) -> None:
        forward, placements = self.forward, (Shard(-1),)

        def split_forward(x: torch.Tensor) -> torch.Tensor:
            return forward(DTensor.from_local(x, mesh, (Replicate(),))).redistribute(mesh, placements).to_local()

        self.weight, self.bias = (
            nn.Parameter(distribute_tensor(part.data, mesh, [Shard(0)])) for part in (self.weight, self.bias))
        self.forward = split_forward  # type: ignore[method-assign]


def test_blocks_with_closures_of_their_own_are_one_graph(mesh: DeviceMesh) -> None:
    counter, blocks, x = CompileCounter(), nn.Sequential(*(Split(4, 4) for _ in range(3))), torch.randn(2, 4)
    for block in blocks:
        block.split(mesh)
    expected = blocks(x)
    for block in blocks:
        dynamo.compile_in_place(block, backend=counter, fullgraph=True)
    with torch.no_grad():
        torch.testing.assert_close(blocks(x), expected)
    assert counter.frame_count == 1


def test_with_and_without_gradients_a_loop_over_blocks_ends_graphs_in_the_same_places(mesh: DeviceMesh) -> None:
    class Loop(nn.ModuleList):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for block in self:
                x = block(x)
            return x

    model, x = Loop([Block() for _ in range(3)]), torch.randn(2, 8)
    for part in (*model, model):
        fully_shard(part, mesh=mesh)
    compiled, ends = dynamo.compile(model, backend=CompileCounter()), dynamo.counters["between_graphs"]
    before = ends.total()
    for graded in (False, True):
        with torch.set_grad_enabled(graded):
            torch.testing.assert_close(compiled(x), model(x))
    assert ends.total() - before == 4  # before the loop and in it


def test_embeddings_split_by_rows(mesh: DeviceMesh) -> None:
    """Their mask lies in a placement, which all calls share: nothing of a trace stays there."""
    def reduced(places: torch.Tensor, weight: torch.Tensor) -> Any:
        value: Any = nn.functional.embedding(places, weight)
        return value.full_tensor() * (2 if value.placements != (Replicate(),) else 3)

    def broken(places: torch.Tensor, weight: torch.Tensor) -> Any:
        value: Any = nn.functional.embedding(places, weight)
        dynamo.graph_break()
        return value.full_tensor() * 2

    weight = distribute_tensor(torch.randn(6, 2), mesh, [Shard(0)]).requires_grad_()
    for f in (reduced, broken):
        compiled = dynamo.compile(f, fullgraph=f is reduced)
        for step in range(2):
            places = distribute_tensor(torch.arange(4) + step, mesh, [Replicate()])
            found = [torch.autograd.grad(y.sin().sum(), weight)[0].full_tensor()
                     for y in (f(places, weight), compiled(places, weight), f(places, weight))]
            torch.testing.assert_close(found[1:], found[:1] * 2)
