"""One rank of Llama 3 70B, sharded over 64 x 8 ranks: captured, planned, its code printed, on a
machine without GPUs.

    python benchmarks/distributed_plan.py [--layers 80] [--fsdp 64] [--tp 8] [--rows 8192] [--eager]

The process group is torch's fake one and tensors have no data, so nothing is sent or computed. Each
parameter is split over `fsdp` ranks, gathered before it is used, forward and backward, and its
gradient reduced and scattered; blocks are split over `tp` ranks, sequences too. Printed: what the
simulator says of forward and backward in the program's order (each collective is waited for at
once; with --eager, none are sent together) and in ours, and seconds of the stages. The kernels are
the same in both orders.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives  # which says how results of collectives look
import torch.nn.functional as F
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.testing._internal.distributed.fake_pg import FakeStore

import dynamo
from dynamo.aot.api import partition_joint, simplify
from dynamo.aot.capture import capture_forward
from dynamo.aot.fakes import facts_of
from dynamo.aot.joint import capture_joint
from dynamo.aot.min_cut import min_cut
from dynamo.aot.worlds import capture_in_world
from inductor.collectives.holds import hold_operands
from inductor.collectives.machine import Machine, machine_of
from inductor.collectives.overlap import Planned, plan_collectives
from inductor.config import config
from inductor.driver.cuda import generate
from inductor.fx_passes.pipeline import decompositions, joint_laid_out, rewritten
from inductor.ir.graph import LoopGraph
from inductor.lowering.run import lower_graph
from inductor.scheduler.peak import with_less_held
from inductor.scheduler.run import schedule_graph

o: Any = torch.ops._c10d_functional
HALF = torch.bfloat16
GROUPS: dict[str, tuple[str, int]] = {}  # name and size of `fsdp` and `tp`


def gather(x: Tensor, axis: str) -> Tensor:
    name, size = GROUPS[axis]
    return o.wait_tensor(o.all_gather_into_tensor(x, size, name))


def scatter(x: Tensor, axis: str) -> Tensor:
    name, size = GROUPS[axis]
    return o.wait_tensor(o.reduce_scatter_tensor(x, "sum", size, name))


class Linear(torch.autograd.Function):
    """x @ weight.t(); the weight is gathered in forward and again in backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, shard: Tensor) -> Tensor:
        ctx.save_for_backward(x, shard)
        return x @ gather(shard.to(HALF), "fsdp").t()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        x, shard = ctx.saved_tensors
        weight = gather(shard.to(HALF), "fsdp")
        own = scatter((grad.t() @ x).float(), "fsdp")
        return grad @ weight, own


class Parameter(torch.autograd.Function):
    """A small parameter, gathered."""

    @staticmethod
    def forward(ctx: Any, shard: Tensor) -> Tensor:
        return gather(shard.to(HALF), "fsdp")

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return scatter(grad.float(), "fsdp")


class Spread(torch.autograd.Function):
    """All rows of a sequence that is split over `tp`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return gather(x, "tp")

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return scatter(grad, "tp")


class Reduced(torch.autograd.Function):
    """Sums of all ranks of `tp`, of which each keeps its rows."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return scatter(x, "tp")

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return gather(grad, "tp")


class Model:
    """Shapes and the program; parameters are a list, in the order in which they are made."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given = given
        self.heads, self.groups = 64 // given.tp, max(8 // given.tp, 1)
        self.parameters: list[Tensor] = []
        self.layers = [self._layer() for _ in range(given.layers)]
        vocabulary = 128256 // given.tp
        self.table, self.head = (self._made(vocabulary, given.width) for _ in range(2))
        self.norm = self._made(given.width)

    def _made(self, *size: int) -> int:
        rows = max(size[0] // self.given.fsdp, 1)
        self.parameters.append(torch.empty((rows, *size[1:]), device="meta", requires_grad=True))
        return len(self.parameters) - 1

    def _layer(self) -> dict[str, int]:
        width, inner, tp = self.given.width, self.given.inner, self.given.tp
        size = width // 64
        return {
            "norm": self._made(width), "q": self._made(self.heads * size, width),
            "k": self._made(self.groups * size, width), "v": self._made(self.groups * size, width),
            "out": self._made(width, self.heads * size), "norm2": self._made(width),
            "gate": self._made(inner // tp, width), "up": self._made(inner // tp, width),
            "down": self._made(width, inner // tp),
        }

    def inputs(self) -> tuple[Any, ...]:
        """What `run` takes: token numbers, targets, the table of positions, parameters."""
        rows, size = self.given.rows, self.given.width // 64
        numbers = [torch.empty(rows, dtype=torch.int64, device="meta") for _ in range(2)]
        turns = [torch.empty(rows, 1, size // 2, device="meta") for _ in range(2)]
        return (*numbers, *turns, self.parameters)

    def run(
        self, tokens: Tensor, targets: Tensor, cos: Tensor, sin: Tensor, weights: list[Tensor]
    ) -> Tensor:
        """The loss of the rank's own part of the vocabulary, in which all tokens lie."""
        table = Parameter.apply(weights[self.table])
        x = Reduced.apply(F.embedding(tokens, table))
        for layer in self.layers:
            x = self._block(x, cos, sin, {name: weights[at] for name, at in layer.items()})
        h = Spread.apply(norm(x, Parameter.apply(weights[self.norm])))
        logits = Linear.apply(h, weights[self.head]).float()
        return (logits.logsumexp(-1) - logits.gather(1, targets[:, None])[:, 0]).mean()

    def _block(self, x: Tensor, cos: Tensor, sin: Tensor, w: dict[str, Tensor]) -> Tensor:
        h = Spread.apply(norm(x, Parameter.apply(w["norm"])))
        q, k, v = (Linear.apply(h, w[name]) for name in "qkv")
        q, k, v = (y.view(1, len(h), -1, self.given.width // 64) for y in (q, k, v))
        q, k = turned(q, cos, sin), turned(k, cos, sin)
        k, v = (y.expand(-1, -1, self.heads // self.groups * y.shape[2], -1) if self.groups == 1
                else y.repeat_interleave(self.heads // self.groups, 2) for y in (k, v))
        mixed = torch.ops.aten._scaled_dot_product_flash_attention(
            q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), 0.0, True)[0]
        mixed = mixed.transpose(1, 2).reshape(len(h), -1)
        x = x + Reduced.apply(Linear.apply(mixed, w["out"]))
        h = Spread.apply(norm(x, Parameter.apply(w["norm2"])))
        inner = F.silu(Linear.apply(h, w["gate"])) * Linear.apply(h, w["up"])
        return x + Reduced.apply(Linear.apply(inner, w["down"]))


def norm(x: Tensor, weight: Tensor) -> Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5)).to(HALF) * weight


def turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.float().chunk(2, -1)
    return torch.cat([first * cos - second * sin, first * sin + second * cos], -1).to(HALF)


@contextmanager
def timed(times: dict[str, float], name: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    times[name] = times.get(name, 0.0) + time.perf_counter() - start


def captured(model: Model) -> tuple[fx.GraphModule, list[Any]]:
    """The whole program as one graph, and what it was captured with."""
    found: list[tuple[fx.GraphModule, list[Any]]] = []

    def keep(gm: fx.GraphModule, examples: list[Any]) -> Callable[..., Any]:
        found.append((gm, examples))
        return gm.forward

    dynamo.compile(model.run, backend=keep, fullgraph=True)(*model.inputs())
    (only,) = found
    return only


def halves_of(gm: fx.GraphModule, examples: list[Any]) -> list[tuple[fx.GraphModule, set[int]]]:
    """Forward and backward as ATen graphs, and which inputs of each nothing else holds."""
    joint, world = capture_in_world(
        lambda world: capture_joint(gm, examples, world), gm, examples, False)
    module = joint_laid_out(simplify(joint.module, decompositions(), world))
    halves = partition_joint(joint, module, min_cut, world.table())
    (backward,) = halves.backwards
    made = {at for at, (kind, _) in enumerate(backward.saved) if kind != "input"}
    return [(halves.forward, set()), (backward.module, made)]


def on_gpu(module: fx.GraphModule) -> fx.GraphModule:
    """The same graph of tensors on a GPU, which need not be there."""
    mode, gpu = FakeTensorMode(), torch.device("cuda", 0)
    examples = []
    for node in module.graph.find_nodes(op="placeholder"):
        facts = facts_of(node.meta["val"])
        meta = torch.empty_strided(facts.size, facts.stride, dtype=facts.dtype, device="meta")
        examples.append(FakeTensor(mode, meta, gpu))
    for node in module.graph.nodes:
        if "device" in node.kwargs:
            node.kwargs = {**node.kwargs, "device": gpu}
    module.recompile()
    graph, world = capture_in_world(
        lambda world: capture_forward(module, examples, world=world), module, examples, False)
    return simplify(graph.module, decompositions(), world)


def planned(module: fx.GraphModule, dying: set[int], machine: Machine) -> tuple[LoopGraph, Planned]:
    graph = hold_operands(lower_graph(rewritten(module)).graph)
    given = [one.name for one in graph.inputs if one is not None and one.position in dying]
    schedule = with_less_held(graph, schedule_graph(graph, 1), given)
    found = plan_collectives(graph, schedule, machine, given)
    assert found is not None
    return graph, found


def main(given: argparse.Namespace) -> None:
    changes = {"megabytes": given.megabytes, "between_bandwidth": given.gigabytes * 1e9,
               "same_graphs": 1}  # fmt: skip
    machine = machine_of("cuda", changes)
    times: dict[str, float] = {}
    start = time.perf_counter()
    with timed(times, "capture"):
        model = Model(given)
        gm, examples = captured(model)
    with timed(times, "backward and cut"):
        halves = halves_of(gm, examples)
    rows: list[tuple[str, Planned, Planned]] = []
    for name, (module, dying) in zip(("forward", "backward"), halves, strict=True):
        with timed(times, "operators"):
            operators = on_gpu(module)
        with timed(times, "lowering and plan"), config.patch(collectives=changes):
            graph, ours = planned(operators, dying, machine)
        with timed(times, "code"):
            text = generate(graph, ours.schedule).text
        times["all"] = time.perf_counter() - start
        print(f"{name}: {len(ours.schedule.steps)} steps, {len(ours.moved)} collectives, "
              f"{text.count('def fused_')} Triton functions, {len(text) >> 10} KB", flush=True)
        if given.eager:  # without buckets, and no part of the time
            with config.patch(collectives=changes, leave_out="buckets"):
                eager = planned(on_gpu(module), dying, machine)[1]
            start += time.perf_counter() - start - times["all"]
        else:
            eager = ours
        rows.append((name, eager, ours))
    held = sum(p.nbytes for p in model.parameters)
    print(f"{sum(p.numel() for p in model.parameters) / 1e6:.0f} million parameters of this rank, "
          f"{held / 1e6:.0f} MB beside the peaks")  # fmt: skip
    print("                     ms   exposed  collectives  peak MB")
    for name, eager, ours in rows:
        for order, found in (("eager", eager.of_program), ("ours", ours.forecast)):
            print(f"{name:9} {order:6} {found.seconds * 1e3:8.1f} {found.exposed * 1e3:9.1f} "
                  f"{found.communication * 1e3:12.1f} {found.peak / 1e6:8.0f}")  # fmt: skip
    print(", ".join(f"{name} {seconds:.1f} s" for name, seconds in times.items()))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for option, value in (("layers", 80), ("fsdp", 64), ("tp", 8), ("width", 8192),
                          ("inner", 28672), ("rows", 8192)):  # fmt: skip
        parser.add_argument(f"--{option}", type=int, default=value)
    parser.add_argument("--megabytes", type=float, default=512.0)
    parser.add_argument("--gigabytes", type=float, default=40.0)
    parser.add_argument("--eager", action="store_true", help="eager's order without buckets, too")
    options = parser.parse_args()
    ranks = options.fsdp * options.tp
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
    mesh = init_device_mesh("cpu", (options.fsdp, options.tp), mesh_dim_names=("fsdp", "tp"))
    for axis in ("fsdp", "tp"):
        GROUPS[axis] = mesh.get_group(axis).group_name, mesh[axis].size()
    main(options)
    dist.destroy_process_group()
