"""What is fused, what is not and why; values that never reach memory; order of effects."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import dynamo
from dynamo.aot.capture import capture_forward
from dynamo.base.errors import VerifyError
from inductor.config import config
from inductor.ir.graph import ComputedBuffer, LoopGraph
from inductor.lowering.run import lower_graph
from inductor.scheduler import fuse as fuse_module
from inductor.scheduler.assemble import assemble
from inductor.scheduler.fuse import _Fuser, fuse
from inductor.scheduler.memory import plan_memory
from inductor.scheduler.run import schedule_graph
from inductor.scheduler.schedule import Kernel, Schedule

THREADS = 4


def scheduled(function: Callable[..., Any], *inputs: torch.Tensor) -> tuple[LoopGraph, Schedule]:
    module = torch.fx.symbolic_trace(function)
    captured = capture_forward(module, list(inputs), epilogue_in_graph=True)
    graph = lower_graph(captured.module).graph
    return graph, schedule_graph(graph, THREADS)


def kernels(function: Callable[..., Any], *inputs: torch.Tensor) -> list[Kernel]:
    return list(scheduled(function, *inputs)[1].kernels())


X = torch.randn(32, 64)


def residual_norm(x: Any, y: Any, w: Any, b: Any) -> Any:
    s = x + y
    return s, F.layer_norm(s, (64,), w, b)


ONE_KERNEL: list[tuple[str, Callable[..., Any], list[torch.Tensor]]] = [
    ("pointwise chain", lambda x: F.gelu(x * 2 + 1) - x.tanh(), [X]),
    ("softmax", lambda x: (x * 0.5).softmax(-1), [X]),
    ("log softmax", lambda x: x.log_softmax(-1), [X]),
    ("layer norm", lambda x: F.layer_norm(x, (64,)), [X]),
    ("residual and layer norm", residual_norm, [X, X, X[0], X[0]]),
    ("independent results of the same input", lambda x: (x.exp(), x.sin() + 1), [X]),
    ("several reductions of one input", lambda x: (x.sum(1), x.amax(1), x.exp().mean(1)), [X]),
    ("reduction and its use", lambda x: x - x.mean(1, keepdim=True), [X]),
    ("views in between", lambda x: (x + 1).view(8, 4, 64).exp().view(32, 64) * 2, [X]),
    ("two halves", lambda x: torch.cat([x[:, 32:], -x[:, :32]], 1) * x, [X]),
    ("broadcast bias", lambda x, b: (x + b).relu() * b, [X, X[0]]),
]  # fmt: skip


@pytest.mark.parametrize(("function", "inputs"), [pytest.param(*r[1:], id=r[0]) for r in ONE_KERNEL])
def test_one_kernel(function: Any, inputs: list[torch.Tensor]) -> None:
    assert len(kernels(function, *inputs)) == 1


def test_what_nobody_reads_is_no_kernel() -> None:
    """Operators without users are lowered for their errors; those that have none to raise compute nothing."""
    captured = capture_forward(torch.fx.symbolic_trace(lambda x, y: x + 1), [X[0], X])
    nodes = captured.module.graph
    _, y = nodes.find_nodes(op="placeholder")
    with nodes.inserting_after(y):
        unread = nodes.call_function(torch.ops.aten.sin.default, (y,))
        unread.meta["val"] = captured.fakes[1]
    graph = lower_graph(captured.module).graph
    assert len(graph.nodes) == 2
    [kernel] = schedule_graph(graph, THREADS).kernels()
    assert kernel.writes() == (graph.outputs[0].buffer,)


def test_values_inside_of_a_kernel_have_no_memory() -> None:
    graph, schedule = scheduled(lambda x: F.layer_norm((x + 1).exp(), (64,)), X)
    [kernel] = schedule.kernels()
    assert kernel.reads() == ("arg0",)
    assert len(kernel.writes()) == 1
    plan = plan_memory(graph, schedule)
    assert plan.arena_bytes == 0
    assert sorted(place.kind for place in plan.places.values()) == ["input", "output"]


def test_another_direction_is_another_kernel() -> None:
    _, schedule = scheduled(lambda x: (x.exp() + 1).sum(0) + (x.exp() + 1).sum(1)[:1], X)
    assert len(list(schedule.kernels())) > 1
    assert schedule.refusals
    assert all(why for _, _, why in schedule.refusals)


def test_a_library_call_in_between_separates() -> None:
    graph, schedule = scheduled(lambda x, w: (x.relu() @ w + x.relu()).exp(), X, torch.randn(64, 64))
    kinds = [type(step).__name__ for step in schedule.steps]
    assert kinds == ["Kernel", "ExternKernel", "Kernel"]


def test_fusion_makes_no_cycle() -> None:
    """c needs b, b needs a through a GEMM: a and c may not share a kernel."""

    def program(x: Any, w: Any) -> Any:
        a = x.exp()
        b = a @ w
        return a.sum(1) + (b * a).sum(1), a

    made = kernels(program, torch.rand(64, 64), torch.rand(64, 64))
    assert len(made) == 2
    first, second = (set(kernel.nodes) for kernel in made)
    assert not first & second


def test_readers_of_an_input_run_before_it_is_written() -> None:
    def program(x: Any, y: Any) -> Any:
        before = x.sum(1)
        x.add_(y)
        return before, x * 2

    _, schedule = scheduled(program, X.clone(), X)
    order = list(schedule.kernels())
    writer = next(n for n, kernel in enumerate(order) if "arg0" in kernel.writes())
    readers = [n for n, kernel in enumerate(order) if "arg0" in kernel.reads()]
    assert all(reader <= writer for reader in readers)


def test_large_graphs_are_cut_into_kernels_of_bounded_size() -> None:
    def program(x: Any) -> Any:
        for step in range(1200):
            x = x * 1.01 + float(step)
        return x

    made = kernels(program, X)
    assert len(made) > 1
    assert max(len(stage.ops) for kernel in made for stage in kernel.stages) <= 2100


def polynomials(x: Any, y: Any) -> Any:
    """Some 1300 operations, whose values are wanted again much later."""
    known = []
    for step in range(200):
        x = x * (0.9 + step * 1e-4) + y * float(step % 7)
        known.append(x)
        if step % 5 == 4:
            x = x - known[step // 2].sin()
    return x


def test_long_chains_of_values_that_are_wanted_often_keep_them_in_registers() -> None:
    x, y = torch.randn(2, 37, 19, dtype=torch.float64)
    graph, schedule = scheduled(polynomials, x, y)
    assert len(list(schedule.kernels())) == 1
    assert plan_memory(graph, schedule).arena_bytes == 0
    torch.testing.assert_close(dynamo.compile(polynomials)(x, y), polynomials(x, y))


def test_arena_memory_is_used_again() -> None:
    def program(x: Any, w: Any) -> Any:
        for _ in range(6):
            x = (x @ w).relu()
        return x

    graph, schedule = scheduled(program, torch.randn(64, 64), torch.randn(64, 64))
    plan = plan_memory(graph, schedule)
    assert plan.arena_bytes <= 3 * 64 * 64 * 4


def test_conditions_on_the_loop_are_gone() -> None:
    [kernel] = kernels(lambda x: F.pad(x, (2, 3)) * 2, X)
    assert not [op for stage in kernel.stages for op in stage.ops if op.name in ("where", "lt", "ge")]
    assert [stage.ranges[-1] for stage in kernel.stages] == [2, 64, 3]


def test_every_record_can_be_printed() -> None:
    graph, schedule = scheduled(lambda x: F.layer_norm(x @ x.t(), (32,)), X)
    assert "reduction" in str(graph)
    assert "kernel" in str(schedule)
    assert "aten.mm" in str(schedule)


def test_norms_behind_each_other_are_no_list() -> None:
    """On a GPU: each of one row with what follows it; many norms side by side are lists."""
    def chain(x: Any, weights: Any) -> Any:
        for k in range(10):
            x = x + F.linear(F.rms_norm(x, (64,)), weights[k])
        return x

    def side_by_side(xs: Any) -> Any:
        return [xs[k] / xs[k].norm() for k in range(10)]

    def groups(function: Callable[..., Any], *inputs: torch.Tensor) -> list[int]:
        graph = replace(scheduled(function, *inputs)[0], device=torch.device("cuda"))
        fused = fuse(graph, THREADS)
        computed = [n for n, node in enumerate(fused.nodes) if isinstance(node, ComputedBuffer)]
        return [len(group) for group in fused.groups if group[0] in computed]

    weights = torch.randn(10, 64, 64)
    assert groups(chain, torch.randn(1, 64), weights).count(1) < 5
    assert groups(side_by_side, weights) == [10, 10]  # all norms, all quotients


@pytest.mark.parametrize("most", [1, 1 << 20])
def test_sums_of_a_list_and_what_reads_the_same_are_one_where_that_is_much(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU: a launch for all sums and one for all products, or one pass over each tensor."""
    def program(xs: Any, ys: Any) -> Any:
        return [(xs[k] * ys[k], (xs[k] + ys[k]).sum()) for k in range(10)]

    monkeypatch.setattr(fuse_module, "MUCH_IN_COMMON", most)
    x = torch.randn(10, 64, 64)
    captured = capture_forward(torch.fx.symbolic_trace(lambda xs, ys: sum(program(xs, ys), ())), [x, x], epilogue_in_graph=True)
    graph = replace(lower_graph(captured.module).graph, device=torch.device("cuda"))
    groups = [group for group in fuse(graph, THREADS).groups if len(group) > 1]
    assert [len(group) for group in groups] == ([20] if most == 1 else [10, 10])


@pytest.mark.parametrize(("rows", "gpu", "count"), [
    (1024, "H200", 2), (200, "H200", 1), (200, "sm_80", 2), (180, "sm_80", 1), (130, "sm_89", 2), (64, "sm_89", 1), (64, "gfx942", 2)])
def test_what_reads_across_long_rows_is_apart_on_a_gpu(rows: int, gpu: str, count: int) -> None:
    """A copy in another order beside one result of all elements; small ones stay in the cache."""
    x = torch.randn(rows, 256).bfloat16()
    graph, _ = scheduled(lambda x: (x.relu().t().contiguous(), x.abs().amax()), x)
    with config.patch(gpu=gpu):
        on_gpu = fuse(replace(graph, device=torch.device("cuda")), THREADS)
    assert len(on_gpu.groups) == count
    refusals = [why for _, _, why in on_gpu.refusals]
    assert any("reads across long rows" in why for why in refusals) == (count == 2)
    assert len(fuse(graph, THREADS).groups) == 1


@pytest.mark.parametrize(("heads", "tokens", "count"), [(16, 64, 2), (16, 2, 1), (2, 64, 1)])
def test_what_reads_across_rows_that_no_tile_has_together_is_apart_on_a_gpu(heads: int, tokens: int, count: int) -> None:
    """Sums over rows beside their transposed addend: of each sector of memory, one element."""
    def program(x: Any, y: Any) -> Any:  # x: chunks, tokens, heads, elements; y: .., elements, tokens
        return x + y.permute(0, 3, 1, 2), (x * 2).sum(-1)

    rows = 1 << 12
    x, y = torch.zeros(rows // (tokens * heads), tokens, heads, 64), torch.zeros(rows // (tokens * heads), heads, 64, tokens)
    graph, _ = scheduled(program, x, y)
    there = replace(graph, device=torch.device("cuda"))
    assert len(fuse(there, THREADS).groups) == 1  # it is little
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fuse_module, "MANY_ACROSS", rows * 64)
        fused = fuse(there, THREADS)
    assert len(fused.groups) == count
    assert any("far from each other" in why for _, _, why in fused.refusals) == (count == 2)


@pytest.mark.parametrize(("program", "count"), [
    (lambda x, y, z: (x * 2, y.exp() + z), 2), (lambda x, y, z: (x * y[:, None], y.exp() + z), 1)],
    ids=["nothing in common", "numbers of the rows"])  # fmt: skip
def test_numbers_of_many_rows_are_apart_from_elements_on_a_gpu(program: Any, count: int) -> None:
    """Threads that share a row would all compute its number."""
    graph, _ = scheduled(program, torch.randn(64, 80), torch.randn(64), torch.randn(64))
    there = replace(graph, device=torch.device("cuda"))
    assert len(fuse(there, THREADS).groups) == len(fuse(graph, THREADS).groups)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fuse_module, "MANY_NUMBERS", 64)
        assert len(fuse(there, THREADS).groups) == count


def test_a_copy_shares_the_loop_of_a_sum_that_waits_on_a_gpu() -> None:
    """The sum reads a number of each row, which another loop makes; the copy needs none."""
    def program(x: Any, y: Any) -> Any:
        each = y.sin()
        return x.clone(), each.sum(), each, (x * each[:, None]).sum()

    given = torch.randn(1 << 12, 64), torch.randn(1 << 12)
    graph, _ = scheduled(program, *given)
    there = replace(graph, device=torch.device("cuda"))
    groups = fuse(there, THREADS).groups
    nodes = [[there.nodes[member] for member in group] for group in groups]
    first = next(group for group in nodes if len(group) > 1)
    assert len(first) == 4 and len(nodes) == 1
    kernel = assemble("kernel", first, 1, frozenset(node.name for node in first))
    assert [len(list(stage.stores())) for stage in kernel.stages] == [2, 2]
    assert len(fuse(graph, THREADS).groups) == 2  # a CPU's threads share one loop of a kernel


def leads_back(x: Any, y: Any, w: Any) -> Any:
    """exp and the first product read x; between them are sin, a GEMM, and what sin shares a kernel
    with, which needs exp in turn."""
    a, h = x.exp(), y.sin()
    b = (h @ w) * x
    c = b @ w
    return a, c, (a @ w) * h


SQUARE = [torch.randn(64, 64) for _ in range(3)]


def test_kernels_never_wait_for_each_other_by_way_of_later_ones() -> None:
    graph, _ = scheduled(leads_back, *SQUARE)
    fused = fuse(graph, THREADS)
    kernel_of = {member: n for n, group in enumerate(fused.groups) for member in group}
    for member, before in enumerate(fused.dependencies.before):
        assert all(kernel_of[other] <= kernel_of[member] for other in before)
    names = [{fused.nodes[member].name for member in group} for group in fused.groups]
    assert any(len(group) == 2 for group in names)  # sin and what reads it
    for got, want in zip(dynamo.compile(leads_back)(*SQUARE), leads_back(*SQUARE), strict=True):
        torch.testing.assert_close(got, want)


def test_kernels_that_wait_for_each_other_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Fuser, "_between", lambda *args: False)
    with pytest.raises(VerifyError, match="waits for itself"):
        scheduled(leads_back, *SQUARE)


@pytest.mark.parametrize("threads", [1, 8])
@pytest.mark.parametrize("program", [
    lambda x, s: x * (x * x).sum().rsqrt(),
    lambda x, s: (scale := x[0, 0].exp(), x * scale),
    lambda x, s: (x * s.exp(), s.exp()),
], ids=["of a sum", "of a number", "beside a number"])
def test_one_program_of_a_gpu_is_not_left_with_everything(program: Any, threads: int) -> None:
    """Whatever the threads of the host: `torchrun` sets one."""
    inputs = [torch.randn(64, 1024), torch.tensor(0.5)]
    captured = capture_forward(torch.fx.symbolic_trace(program), inputs, epilogue_in_graph=True)
    graph = replace(lower_graph(captured.module).graph, device=torch.device("cuda"))
    with config.patch(gpu="sm_90"):
        assert len(fuse(graph, threads).groups) == 2
