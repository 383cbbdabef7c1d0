"""What schedules for a GPU hold: their order, and results that are written over operands."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from dynamo.aot.api import simplify
from dynamo.aot.capture import capture_forward
from dynamo.aot.worlds import capture_in_world
from inductor.codegen.python_wrapper import print_python_wrapper
from inductor.codegen.triton.print_kernel import print_kernel
from inductor.config import config
from inductor.driver import cuda
from inductor.fx_passes.pipeline import decompositions
from inductor.ir.graph import LoopGraph
from inductor.lowering.registry import LOWERINGS
from inductor.lowering.run import lower_graph
from inductor.scheduler.lists import join_lists
from inductor.scheduler.peak import operand_under, peak_of, with_less_held
from inductor.scheduler.run import schedule_graph
from inductor.scheduler.schedule import KernelList, Schedule
from inductor.scheduler.verify import verify_steps

Tensor = torch.Tensor


def planned(
    program: Callable[..., Any], *sizes: tuple[int, ...], dtype: torch.dtype = torch.float32
) -> tuple[LoopGraph, Schedule]:
    """The program for tensors of these sizes on a GPU."""
    mode, gpu = FakeTensorMode(), torch.device("cuda", 0)
    fakes = [FakeTensor(mode, torch.empty(size, device="meta", dtype=dtype), gpu) for size in sizes]
    module = fx.symbolic_trace(program)
    graph, world = capture_in_world(
        lambda world: capture_forward(module, fakes, world=world), module, fakes, False
    )
    lowered = lower_graph(simplify(graph.module, decompositions(), world)).graph
    return lowered, schedule_graph(lowered, 8)


def written(graph: LoopGraph, schedule: Schedule) -> str:
    layouts = graph.layouts()
    kernels = {kernel.name: print_kernel(kernel, layouts) for kernel in schedule.kernels()}
    return print_python_wrapper(graph, schedule, kernels)


SIZES = ((512, 64), (512, 256), (512, 256), (64, 256))


def test_what_frees_more_than_it_makes_comes_first() -> None:
    def program(grad: Tensor, saved: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        inner = grad @ weight
        return (inner * torch.sigmoid(x)) @ weight.t(), saved.t() @ grad

    graph, schedule = planned(program, *SIZES)
    saved, x = graph.inputs[1].name, graph.inputs[2].name  # type: ignore[union-attr]
    dying = [saved, x]
    found = with_less_held(graph, schedule, dying)
    verify_steps(graph, found.steps)
    assert sorted(map(id, found.steps)) == sorted(map(id, schedule.steps))
    assert saved in found.steps[0].reads() and saved not in schedule.steps[0].reads()
    large, small = 512 * 256 * 4, 64 * 256 * 4
    assert peak_of(graph, schedule, dying) == 3 * large
    assert peak_of(graph, found, dying) == 2 * large + small
    assert with_less_held(graph, schedule) is schedule  # others hold them: nothing is gained


def test_a_result_lies_over_an_operand_that_dies() -> None:
    def program(x: Tensor, weight: Tensor, y: Tensor) -> Tensor:
        return torch.tanh(x @ weight * y) @ weight.t()

    graph, schedule = planned(program, (128, 32), (32, 256), (128, 256))
    (kernel,) = schedule.kernels()
    product = schedule.steps[0].name  # type: ignore[union-attr]
    assert operand_under(kernel, graph.layouts()) == (product, graph.inputs[2].name)  # type: ignore
    assert peak_of(graph, schedule) == (128 * 256 + 128 * 32) * 4
    text = written(graph, schedule)
    assert f"{kernel.nodes[-1]} = {product}\n" in text and text.count("new0()") == 0


def test_a_result_lies_over_an_operand_beside_a_sum_of_others() -> None:
    graph, schedule = planned(lambda x, y: x @ y * x.exp().sum(1, keepdim=True), (96, 96), (96, 96))
    (kernel,) = schedule.kernels()
    assert len(kernel.stages) == 2 and kernel.locals
    product = schedule.steps[0].name  # type: ignore[union-attr]
    assert operand_under(kernel, graph.layouts()) == (product,)
    assert f"{kernel.nodes[-1]} = {product}\n" in written(graph, schedule)


def more(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    product = x @ weight
    return torch.tanh(product) @ weight.t(), product @ weight.t()  # read later


def narrow(x: Tensor, weight: Tensor) -> Tensor:
    return (x @ weight).half()


def elsewhere(x: Tensor, weight: Tensor) -> Tensor:
    return (x @ weight).flip(0) * 2


def both(x: Tensor, weight: Tensor) -> Tensor:
    product = x @ weight
    return product + product.flip(1)


def returned(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    product = x @ weight
    return product, torch.tanh(product)


def given(x: Tensor, weight: Tensor) -> Tensor:
    return torch.tanh(x)


def through_rows(x: Tensor, weight: Tensor) -> Tensor:
    product = x @ weight
    return torch.softmax(product * 2, 1)  # several stages


def from_rows(x: Tensor, weight: Tensor) -> Tensor:
    product = x @ weight
    return product * product.exp().sum(1, keepdim=True)  # a sum of the operand itself


@pytest.mark.parametrize("program", [
    more, narrow, elsewhere, both, returned, given, through_rows, from_rows])
def test_nothing_else_is_written_over(program: Callable[..., Any]) -> None:
    graph, schedule = planned(program, (96, 32), (32, 96))
    text = written(graph, schedule)
    names = {name for kernel in schedule.kernels() for name in kernel.writes()}
    assert names and not any(f"{name} = buf" in text or f"{name} = arg" in text for name in names)


def test_a_broadcast_operand_is_not_written_over() -> None:
    def program(x: Tensor, weight: Tensor) -> Tensor:
        row = x.narrow(0, 0, 1) @ weight
        return row + x

    graph, schedule = planned(program, (64, 64), (64, 64))
    product = schedule.steps[0].name  # type: ignore[union-attr]
    found = [operand_under(kernel, graph.layouts()) for kernel in schedule.kernels()]
    assert found and all(product not in names for names in found)


STEPS: list[Callable[[Tensor, Tensor], Tensor]] = [
    lambda a, b: a @ b, lambda a, b: torch.sin(a) * b, lambda a, b: F.softmax(a, -1),
    lambda a, b: a + b.t(), lambda a, b: (a @ b.t()).relu(), lambda a, b: a.sum(0) + b,
]  # fmt: skip


def random_program(seed: int) -> Callable[..., Any]:
    rng = random.Random(seed)

    def program(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, ...]:
        values = [x, y, z]
        for _ in range(rng.randrange(6, 14)):
            a, b = rng.choice(values), rng.choice(values)
            values.append(rng.choice(STEPS)(a, b))
        return tuple(rng.sample(values[3:], 3))

    return program


@pytest.mark.parametrize("seed", range(12))
def test_random_programs_keep_their_dependencies(seed: int) -> None:
    graph, schedule = planned(random_program(seed), *[(64, 64)] * 3)
    dying = [b.name for b in graph.inputs if b is not None]
    found = with_less_held(graph, schedule, dying)
    verify_steps(graph, found.steps)
    assert set(map(id, found.steps)) == set(map(id, schedule.steps))
    assert peak_of(graph, found, dying) <= peak_of(graph, schedule, dying)
    made: dict[str, int] = {}
    for at, step in enumerate(found.steps):
        for name in getattr(step, "writes", lambda: (step.name,))():  # noqa: B023
            made.setdefault(name, at)
        assert all(made.get(name, -1) < at or name in step.writes() for name in step.reads()  # type: ignore
                   if name.startswith("buf"))  # fmt: skip


def test_a_reader_of_old_contents_stays_before_the_writer() -> None:
    def program(x: Tensor, weight: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        before = x @ weight
        x.add_(y)
        return before, (x @ weight).tanh() @ weight

    graph, schedule = planned(program, (512, 64), (64, 64), (512, 64))
    names = [b.name for b in graph.inputs if b is not None]
    found = with_less_held(graph, schedule, names[2:])
    verify_steps(graph, found.steps)
    writers = [at for at, step in enumerate(found.steps)
               if names[0] in getattr(step, "writes", tuple)()]  # fmt: skip
    readers = [at for at, step in enumerate(found.steps) if names[0] in step.reads()]
    assert not writers or min(readers) <= writers[0]


def test_views_of_a_call_with_several_results_hold_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `unbind` of what lies on the host, in an optimizer's step."""
    monkeypatch.delitem(LOWERINGS, torch.ops.aten.unbind.int)

    def program(x: Tensor) -> tuple[Tensor, Tensor]:
        one, two = torch.exp(x).unbind(0)
        return one + 1, two * 2

    graph, schedule = planned(program, (2, 256, 128))
    assert with_less_held(graph, schedule).steps
    assert peak_of(graph, schedule) == 4 * (2 + 2) * 256 * 128


def test_lists_that_would_hold_more_stay_apart() -> None:
    """Doubled weights would all lie beside all inputs, which die one by one; scales are small."""
    def program(x: Tensor, a: Tensor, b: Tensor, c: Tensor, d: Tensor,
                k: Tensor, m: Tensor, n: Tensor, o: Tensor) -> Tensor:
        for weight, scale in ((a, k), (b, m), (c, n), (d, o)):
            x = torch.mv(weight * 2, torch.mv(weight, x)) + torch.mv(weight, scale + 1)
        return x

    graph, schedule = planned(program, (2048,), *[(2048, 2048)] * 4, *[(2048,)] * 4)
    dying = [given.name for given in graph.inputs if given is not None]
    joined = join_lists(graph, schedule, (), dying)
    lists = [len(step.kernels) for step in joined.steps if isinstance(step, KernelList)]
    assert peak_of(graph, joined, dying) <= 1.02 * peak_of(graph, schedule, dying)
    assert lists == [4]


def test_large_results_with_little_in_common_are_made_one_by_one() -> None:
    def apart(scale: Tensor, x: Tensor, y: Tensor) -> Any:
        return (x * scale) @ x, (y * scale) @ y

    def kernels(program: Callable[..., Any], *sizes: tuple[int, ...]) -> int:
        return len(list(planned(program, *sizes)[1].kernels()))

    large, small = (4096, 4096), (256, 256)
    assert kernels(apart, (1,), large, large) == 2
    assert kernels(apart, (1,), small, small) == 1
    assert kernels(apart, large, large, large) == 1  # both read a large one
    graph, schedule = planned(apart, (1,), large, large)
    assert peak_of(graph, with_less_held(graph, schedule)) == 3 * 4 * 4096**2  # beside two results


def test_wrappers_batch_launches_unless_that_is_off() -> None:
    def text_with(cudagraphs: Any) -> str:
        graph, schedule = planned(lambda x: torch.softmax(torch.softmax(x, 0), 1), (64, 64))
        with config.patch(cudagraphs=cudagraphs):
            return cuda.generate(graph, schedule).text

    assert all("batched=True" in text_with(wanted) for wanted in ("batches", True))
    assert "batched" not in text_with(False)
