"""Collectives of two ranks in compiled functions: eager's values and gradients, in one graph, also beside a rank that runs
eagerly."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.nn import functional as differentiable
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import loss_parallel

import dynamo
from tests.ranks import run_ranks

MAX = dist.ReduceOp.MAX
MESHES: list[DeviceMesh] = []


def rooms(x: torch.Tensor) -> list[torch.Tensor]:
    return [torch.empty_like(x) for _ in range(dist.get_world_size())]


def lists(x: torch.Tensor) -> torch.Tensor:
    parts, out = rooms(x), torch.empty_like(x)
    dist.all_gather(parts, x * 2)
    dist.reduce_scatter(out, [part + dist.get_rank() for part in parts], op=MAX)
    return parts[0] + out


def singles(x: torch.Tensor) -> torch.Tensor:
    both, out = torch.empty(2 * len(x), *x.shape[1:]), torch.empty_like(x)
    dist._all_gather_base(both, x * 2)
    dist._reduce_scatter_base(out, both.sin())
    return both[:1] + out


def exchanged(x: torch.Tensor) -> torch.Tensor:
    parts = rooms(x[:2])
    dist.all_to_all(parts, list((x * 2).chunk(2)), async_op=True).wait()
    return torch.cat(parts) + 1


def of_one_rank(x: torch.Tensor) -> torch.Tensor:
    y, out = x * 2, torch.empty_like(x)
    parts = rooms(y) if dist.get_rank() == 1 else None
    dist.gather(y, parts, dst=1)
    dist.scatter(out, parts, src=1)
    dist.reduce(y, 0, op=dist.ReduceOp.PRODUCT)
    dist.reduce(out, group_dst=1, async_op=True).wait()
    return out + y


def unread(x: torch.Tensor) -> torch.Tensor:
    """One rank does not look at what it has helped to compute."""
    summed = functional.all_reduce(x, "sum", dist.group.WORLD)
    parts = rooms(x) if dist.get_rank() == 0 else None
    dist.gather(x + 1, parts)
    return x if dist.get_rank() == 0 else summed + x


def without_history(x: torch.Tensor) -> torch.Tensor:
    """Autograd does not see what is written in place."""
    y = x * 2
    dist.all_reduce(y)
    parts = rooms(y)
    dist.all_gather(parts, y * 3)
    return y.sin() + parts[0] + parts[1]


def with_history(x: torch.Tensor) -> torch.Tensor:
    """Autograd functions of torch around collectives."""
    y = differentiable.all_reduce(x * 2) + differentiable.all_to_all_single(torch.empty_like(x), x.sin())
    return differentiable.broadcast(y, 0) * y


def with_history_of_lists(x: torch.Tensor) -> torch.Tensor:
    return torch.cat(differentiable.all_gather(x.sin()))[: len(x)]


class Enter(torch.autograd.Function):
    """Where a split layer begins: the gradients of its parts are summed."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(grad)
        return grad


class Leave(torch.autograd.Function):
    """Where it ends: the parts are summed, in place."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        dist.all_reduce(x)
        return x

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad


class Split(torch.autograd.Function):
    """A weight's gradient is computed while the input's is summed."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        x, weight = ctx.saved_tensors
        given = grad @ weight.t()
        work = dist.all_reduce(given, async_op=True)
        of_weight = x.t() @ grad
        work.wait()
        return given, of_weight


def split_layers(x: torch.Tensor) -> torch.Tensor:
    """Tensor parallelism that a program writes itself, with autograd functions of its own."""
    y = Enter.apply(x)  # the first operation of the graph
    weight = x.detach()[:3].sin() * (1 + dist.get_rank())
    y = Leave.apply(y.sin() @ weight)
    return Split.apply(y.relu(), weight + x[:3]) + y


def over_split_vocabulary(x: torch.Tensor) -> torch.Tensor:
    mesh = MESHES[0]
    labels = DTensor.from_local(torch.arange(4), mesh, [Replicate()])
    loss: Any = nn.functional.cross_entropy(DTensor.from_local(x * 2, mesh, [Shard(1)]), labels)
    return x * loss.to_local()


ONE_GRAPH = (lists, singles, of_one_rank, unread, without_history, with_history, split_layers, over_split_vocabulary)
if torch.__version__ >= "2.13":  # gloo had no all_to_all of lists before
    ONE_GRAPH += (exchanged,)


def between(x: torch.Tensor) -> torch.Tensor:
    """What runs between graphs, in its place among other collectives."""
    rank, y = dist.get_rank(), x * 2
    dist.all_reduce(y)
    dist.barrier()
    got = torch.empty_like(y)
    if rank == 0:
        dist.send(y + 1, 1)
        dist.recv(got, 1)
    else:
        dist.recv(got, 0)
        dist.send(got * 3, 0)
    dist.all_reduce(got)
    other = torch.empty_like(y)
    calls = [dist.P2POp(dist.isend, got + rank, 1 - rank), dist.P2POp(dist.irecv, other, 1 - rank)]
    for work in dist.batch_isend_irecv(calls):
        work.wait()
    objects: list[Any] = [None, None]
    dist.all_gather_object(objects, {"rank": rank})
    dist.broadcast(other, 1)
    return other + objects[1]["rank"] + got


def run(call: Callable[..., Any], x: torch.Tensor, trained: bool) -> list[torch.Tensor]:
    """The value, and the gradient."""
    x = x.clone().requires_grad_(trained)
    value = call(x)
    if not trained:
        return [value]
    (value * torch.arange(value.numel()).view(value.shape)).sum().backward()
    assert x.grad is not None
    return [value.detach(), x.grad]


@loss_parallel()
def check(rank: int) -> dict[str, Any]:
    """By program: graphs and breaks. AssertionError where one differs from eager's."""
    found = {}
    MESHES[:] = [init_device_mesh("cpu", (2,))]
    for function in (*ONE_GRAPH, with_history_of_lists, between):
        x = torch.arange(12.0).view(4, 3) + rank
        trained = function in (without_history, with_history, with_history_of_lists, split_layers, over_split_vocabulary)
        want = run(function, x, trained)
        for backend in ("eager", "inductor") if function in ONE_GRAPH else ("eager",):
            dynamo.reset()
            compiled = dynamo.compile(function, backend=backend)
            for call in (compiled, compiled, compiled if rank == 0 else function):
                torch.testing.assert_close(run(call, x, trained), want)
            counts = dynamo.counters
            found[function.__name__] = counts["stats"]["graphs"], counts["graph_break"].total()
    return found


def test_two_ranks(tmp_path: Path) -> None:
    for counts in run_ranks(check, tmp_path):
        assert all(counts[function.__name__] == (1, 0) for function in ONE_GRAPH), counts
