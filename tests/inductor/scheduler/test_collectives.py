"""Plans of collectives: which are sent together, when they start, how long their operands are held."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.testing._internal.distributed.fake_pg import FakeStore

import dynamo
from dynamo.aot.api import simplify
from dynamo.aot.capture import capture_forward
from dynamo.aot.worlds import capture_in_world
from inductor.collectives.buckets import join_collectives
from inductor.collectives.holds import hold_operands
from inductor.collectives.machine import GPU, Machine, machine_of
from inductor.collectives.overlap import Planned, plan_collectives
from inductor.collectives.timeline import Compute, Start, Wait, simulate
from inductor.config import check_options
from inductor.fx_passes.pipeline import decompositions
from inductor.ir.graph import ExternKernel, LoopGraph
from inductor.lowering.run import lower_graph
from inductor.scheduler.memory import plan_memory
from inductor.scheduler.run import schedule_graph
from inductor.scheduler.schedule import Schedule, Step

Tensor = torch.Tensor
o: Any = torch.ops._c10d_functional
WIDTH = 256
SLOW = machine_of("cuda", {"between_bandwidth": 1e6, "inside_bandwidth": 1e6, "per_host": 1})


@pytest.fixture(params=[8, 64, 1024], autouse=True)
def ranks(request: pytest.FixtureRequest) -> Iterator[int]:
    dist.init_process_group("fake", store=FakeStore(), rank=3, world_size=request.param)
    yield request.param
    dist.destroy_process_group()


def captured(program: Callable[..., Any], count: int, device: str = "cuda") -> fx.GraphModule:
    mode, place = FakeTensorMode(), torch.device(device)
    made = [torch.empty((WIDTH, WIDTH), device="meta") for _ in range(count)]
    fakes = [FakeTensor(mode, x, place) for x in made]
    module = fx.symbolic_trace(program)
    graph, world = capture_in_world(
        lambda world: capture_forward(module, fakes, world=world), module, fakes, False
    )
    return simplify(graph.module, decompositions(), world)


def scheduled(
    program: Callable[..., Any], count: int, device: str = "cuda"
) -> tuple[LoopGraph, Schedule]:
    graph = hold_operands(lower_graph(captured(program, count, device)).graph)
    return graph, schedule_graph(graph, 1)


def planned(program: Callable[..., Any], count: int, machine: Machine = GPU) -> Planned:
    found = plan_collectives(*scheduled(program, count), machine)
    assert found is not None
    return found


def words(steps: tuple[Step, ...]) -> list[str]:
    """`mm all_reduce kernel wait`: one word a step."""
    names = [s.target._opname if isinstance(s, ExternKernel) else "kernel" for s in steps]
    return [name.removesuffix("_tensor").removesuffix("_into") for name in names]


def gather(x: Tensor) -> Tensor:
    return o.wait_tensor(o.all_gather_into_tensor(x, dist.get_world_size(), "0")).narrow(0, 0, WIDTH)


def reduce(x: Tensor) -> Tensor:
    return o.wait_tensor(o.all_reduce(x, "sum", "0"))


def layers(x: Tensor, first: Tensor, second: Tensor) -> Tensor:
    return x @ gather(first) @ gather(second)


def gradients(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return reduce(x @ y), reduce(y @ x), (x @ x) @ y


def blocked(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    return reduce(x @ y) @ x, y @ y


ORDERS = {
    # The next layer's parameters are on their way while this one computes.
    layers: "all_gather all_gather wait mm wait mm",
    # Each gradient leaves when it is made, and nobody waits before the end.
    gradients: "mm all_reduce mm all_reduce mm mm wait wait",
    # What does not need the sum runs first.
    blocked: "mm all_reduce mm wait mm",
}


@pytest.mark.parametrize("program", ORDERS)
def test_started_early_and_waited_for_late(program: Callable[..., Any]) -> None:
    found = planned(program, program.__code__.co_argcount, SLOW)
    assert words(found.schedule.steps) == ORDERS[program].split()
    assert found.forecast.exposed < found.of_program.exposed
    assert found.forecast.communication == found.of_program.communication


def test_nothing_is_early_without_memory(ranks: int) -> None:
    none = machine_of("cuda", {"megabytes": 0, "per_host": 1})
    found = planned(layers, 3, none)
    assert words(found.schedule.steps) == "all_gather wait mm all_gather wait mm".split()
    assert found.forecast == found.of_program
    one = 4 * WIDTH * WIDTH * ranks / 1e6  # what the second one makes
    for room, early in ((one * 0.9, False), (one * 1.1, True)):
        found = planned(layers, 3, machine_of("cuda", {"megabytes": room}))
        assert (found.forecast.exposed < found.of_program.exposed) == early
        assert found.forecast.peak <= found.of_program.peak + room * 1e6


def test_operands_are_let_go_where_memory_is_short(ranks: int) -> None:
    """Gradients of all layers would wait for the end, each as a whole."""
    def program(x: Tensor) -> list[Tensor]:
        sent, y = [], x
        for _ in range(6):
            y = torch.relu(y @ x)
            grad = (y @ y).repeat(dist.get_world_size(), 1)
            made = o.reduce_scatter_tensor(grad, "sum", dist.get_world_size(), "0")
            sent.append(o.wait_tensor(made))
        return sent

    one = 4 * WIDTH * WIDTH * ranks
    for room in (1.5, 20):
        found = planned(program, 1, machine_of("cuda", {"megabytes": room * one / 1e6}))
        first = words(found.schedule.steps).index("wait")
        assert (first < len(found.schedule.steps) - 6) == (room < 6)
        assert found.forecast.peak <= found.of_program.peak + room * one


def test_groups_keep_their_order(ranks: int) -> None:
    """Collectives of one group do not pass each other; those of another one may."""
    other = dist.new_group(list(range(ranks))).group_name
    for group in ("0", other):

        def program(x: Tensor, y: Tensor, group: str = group) -> tuple[Tensor, Tensor]:
            late = o.all_reduce(x @ x @ x, "sum", "0")
            early = o.all_reduce(y, "max", group)
            return o.wait_tensor(late), o.wait_tensor(early) @ x

        steps = planned(lambda x, y: program(x, y), 2).schedule.steps
        ops = [s.args[1] for s in steps if isinstance(s, ExternKernel) and "reduce" in s.target._opname]
        assert ops == (["sum", "max"] if group == "0" else ["max", "sum"])


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_operands_are_held(device: str) -> None:
    """Nobody gets the memory of an operand before the wait, and what is written then is a copy."""
    def program(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        sent = o.all_gather_into_tensor(x.sin(), dist.get_world_size(), "0")
        made = (y.cos() @ y).tanh() @ y
        return made, o.wait_tensor(sent)

    graph, schedule = scheduled(program, 2, device)
    found = plan_collectives(graph, schedule, SLOW)
    assert found is not None
    wait = found.schedule.steps[-1]
    assert isinstance(wait, ExternKernel)
    (operand,) = wait.holds
    lives = {life.name: life for life in plan_memory(graph, found.schedule).lives}
    assert lives[operand].last == len(found.schedule.steps) - 1

    start, other = (next(n for n in graph.nodes if words((n,)) == [word]) for word in ("all_gather", "mm"))
    lost = tuple(node for node in graph.nodes if node is not wait)
    written = ExternKernel("write", None, torch.ops.aten.zero_.default, other.args[:1], (), (operand,))
    between = tuple(x for node in graph.nodes for x in ((written, node) if node is wait else (node,)))
    for nodes in (lost, between):  # nobody waits here; it is written before the wait
        copied = hold_operands(replace(graph, nodes=nodes)).nodes
        (copy,) = [node.name for node in copied if words((node,)) == ["clone"]]
        assert [node.reads() for node in copied if node.name == start.name] == [(copy,)]


def test_small_neighbours_are_sent_together() -> None:
    def program(x: Tensor, y: Tensor) -> list[Tensor]:
        casts = [gather(z.to(torch.bfloat16)) for z in (x, y)]
        sums = [reduce(z.sum(0)) for z in (x, y)]
        needs = reduce(sums[0] * 2)
        return [*casts, *sums, needs, o.wait_tensor(o.all_reduce(x, "max", "0")), reduce(x.double())]

    for machine, sizes in ((GPU, [2, 2]), (machine_of("cuda", {"inside_latency": 1e-12, "inside_hop": 1e-15,
                                                              "between_latency": 1e-12, "between_hop": 1e-15}), [])):
        module = captured(program, 2)
        assert [len(names) for names in join_collectives(module, machine)] == sizes
        kinds = [str(node.target) for node in module.graph.nodes if "coalesced" in str(node.target)]
        assert len(kinds) == len(sizes)
    graph = hold_operands(lower_graph(module).graph)
    assert plan_collectives(graph, schedule_graph(graph, 1), GPU) is not None


def test_the_simulator() -> None:
    events = [Start("a", "x", 4), Start("b", "y", 3), Compute(2), Wait("b"), Start("c", "x", 1), Compute(1), Wait("c")]
    found = simulate(events)
    assert (found.seconds, found.exposed, found.communication) == (5, 2, 8)


def test_what_the_option_takes() -> None:
    check_options(None, {"collectives": {"megabytes": 0, "per_host": 4}})
    for wrong in ({"latency": 1}, {"launch": -1}, {"launch": "fast"}):
        with pytest.raises(ValueError, match="^collectives: "):
            check_options(None, {"collectives": wrong})


@pytest.mark.parametrize("fullgraph, same_graphs", [(True, 0), (False, 1)])
def test_joined_where_the_program_says_that_graphs_are_the_same(fullgraph: bool, same_graphs: int) -> None:
    """What one rank sees says nothing of another's graph, also where both are whole."""
    seen: list[str] = []

    class Sum(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return reduce(x)

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return reduce(grad)

    options = {"collectives": {"same_graphs": same_graphs}, "post_grad_custom_post_pass": (
        lambda graph: seen.extend(str(node.target) for node in graph.nodes if "reduce" in str(node.target)))}
    function = dynamo.compile(
        lambda x, y: (Sum.apply(x).sin(), Sum.apply(y).sin()), fullgraph=fullgraph, options=options)
    given = [torch.randn(4, requires_grad=True) for _ in range(2)]
    sum(result.sum() for result in function(*given)).backward()
    name = "_c10d_functional.all_reduce"
    assert seen == ([f"{name}_coalesced.default"] * 2 if same_graphs else [f"{name}.default"] * 4)
