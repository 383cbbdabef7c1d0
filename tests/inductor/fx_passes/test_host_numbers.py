"""Numbers on the CPU beside tensors on a GPU: one copy, few launches, eager's values."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

import dynamo
from dynamo.aot.api import functional_graph
from dynamo.aot.fakes import facts_of
from dynamo.shapes.fake import Fake
from inductor.config import config
from inductor.fx_passes.host_numbers import compute_numbers_on_gpu
from inductor.fx_passes.pipeline import rewritten
from inductor.fx_passes.table import decompositions
from inductor.ir.graph import ExternKernel, MultiOutput
from inductor.lowering.run import lower_graph
from inductor.operators.device_numbers import ADD_TO_NUMBERS, COMPUTE_NUMBERS, NUMBERS_ON
from inductor.scheduler.lists import join_lists
from inductor.scheduler.run import schedule_graph
from inductor.scheduler.schedule import KernelList

aten = torch.ops.aten
GPU = torch.device("cuda", 0)
Make = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
OPTIMIZERS: dict[str, Make] = {
    f"{name} {kind}": lambda ps, name=name, kind=kind, more=more: getattr(torch.optim, name)(
        ps, lr=0.01, foreach=kind == "foreach", **more)
    for name, more in {
        "Adam": {"amsgrad": True}, "AdamW": {}, "RAdam": {"weight_decay": 0.1}, "Adamax": {}, "Adagrad": {"lr_decay": 0.1},
        "RMSprop": {"momentum": 0.9}, "NAdam": {}, "ASGD": {"t0": 1},
    }.items()
    for kind in ("foreach", "loop")
}  # fmt: skip
DTYPES = (torch.float32, torch.float64, torch.int64, torch.int32, torch.bfloat16, torch.bool, torch.int8)
ON_THE_CPU = {"NAdam", "ASGD"}  # which keep results of their own on the CPU, for each parameter; ASGD here alone


def parameters(count: int = 9) -> list[nn.Parameter]:
    torch.manual_seed(0)
    return [nn.Parameter(torch.randn(6, 4)) for _ in range(count)]


def on_gpu(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Tensors with dimensions as if they were on a GPU, but for numbers that are put together."""
    for node in module.graph.nodes:
        value = node.meta.get("val")
        if type(value) is Fake and value.dim() and node.target is not aten.stack.default:
            node.meta["val"] = value.world.run(aten._to_copy.default, value, device=GPU)
    return module


class Backend:
    """Runs the graphs of steps as they are for a GPU, on the CPU. seen: these graphs, as recorded."""

    def __init__(self) -> None:
        self.seen: list[torch.fx.GraphModule] = []

    def __call__(self, gm: torch.fx.GraphModule, examples: list[Any]) -> Any:
        graph = functional_graph(gm, examples, decompositions=decompositions(), epilogue_in_graph=True)
        if graph.module.graph.output_node().args[0]:
            return gm  # the first step, which makes the state
        self.seen.append(graph.module)
        module = compute_numbers_on_gpu(on_gpu(fx.GraphModule(graph.module, copied(graph.module.graph))))
        for node in module.graph.find_nodes(op="call_function", target=NUMBERS_ON):
            node.args = (node.args[0], torch.device("cpu"))
        module.recompile()

        def call(*args: Any) -> tuple[()]:
            with torch.no_grad():
                module(*args)
            return ()

        return call


def copied(graph: fx.Graph) -> fx.Graph:
    made = fx.Graph()
    made.output(made.graph_copy(graph, {}))
    return made


def give_gradients(params: list[nn.Parameter], n: int) -> None:
    for p in params:
        p.grad = torch.sin(torch.arange(24.0) * (n + 1)).view(6, 4)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_steps(name: str) -> None:
    params, wanted = parameters(), parameters()
    ours, eager, backend = OPTIMIZERS[name](params), OPTIMIZERS[name](wanted), Backend()
    compiled = dynamo.compile(lambda: ours.step(), backend=backend)
    for n in range(4):
        give_gradients([*params, *wanted], n)
        compiled()
        eager.step()
        torch.testing.assert_close(params, wanted, atol=1e-6, rtol=1e-5)
        for p, q in zip(params, wanted, strict=True):
            torch.testing.assert_close(ours.state[p], eager.state[q], atol=1e-6, rtol=1e-5)
    assert backend.seen
    with config.patch(gpu="sm_90"):
        graph = lower_graph(rewritten(on_gpu(backend.seen[-1]))).graph
        steps = join_lists(graph, schedule_graph(graph, 8)).steps
    operators = {one.target for one in steps if isinstance(one, ExternKernel)}
    launches = [one for one in steps if not isinstance(one, (ExternKernel, MultiOutput))]
    assert all(isinstance(one, KernelList) for one in launches) and len(launches) <= 2
    written_by = COMPUTE_NUMBERS if name.split()[0] in ON_THE_CPU else ADD_TO_NUMBERS
    assert operators == {written_by} | ({NUMBERS_ON} if "RMSprop" not in name else set())


def program(x: Tensor, a: Tensor, b: Tensor, n: Tensor) -> Any:
    """Numbers that meet a GPU's tensors, among them some that are put together; one stays."""
    first, second = torch.stack([a * 2, b.sqrt()]).unbind()
    return x * first + second, torch.where(n > 2, x, a), a - b, x / (0.9 ** n.double())


def sampled(x: Tensor, sigmas: Tensor, at: Tensor) -> Any:
    """As schedulers of diffusion step: numbers out of a table on the CPU."""
    now, then = sigmas[2], sigmas[3]
    hat = now * 1.5
    x = x + (hat**2 - now**2) ** 0.5
    return x + (x / hat) * (then - hat), (sigmas[0] - 1).to(x.device) + at.to(x.device, torch.float64), sigmas * 2


def recorded(program: Callable[..., Any], examples: tuple[Tensor, ...]) -> torch.fx.GraphModule:
    found: list[torch.fx.GraphModule] = []

    def backend(gm: torch.fx.GraphModule, given: list[Any]) -> Any:
        found.append(functional_graph(gm, given, decompositions=decompositions()).module)
        return gm

    dynamo.compile(program, backend=backend)(*examples)
    return on_gpu(found[0])


def numbers() -> tuple[Tensor, ...]:
    return torch.randn(3, 5), torch.tensor(1.5), torch.tensor(0.3), torch.tensor(3)


def test_one_copy() -> None:
    module = compute_numbers_on_gpu(recorded(program, numbers()))
    (copy,) = module.graph.find_nodes(op="call_function", target=NUMBERS_ON)
    assert len(copy.args[0]) == 3 and copy.args[1] == GPU
    for node in module.graph.nodes:
        if node.op == "call_function" and node.target not in (NUMBERS_ON, operator.getitem):
            places = {facts_of(one.meta["val"]).device.type for one in node.all_input_nodes}
            assert places == {facts_of(node.meta["val"]).device.type}, node
    copy.args = (copy.args[0], torch.device("cpu"))
    module.recompile()
    again = dict(zip("xabn", numbers(), strict=True))
    given = [again[node.name[-1]] for node in module.graph.find_nodes(op="placeholder")]
    results = reversed(module(*given))  # the frontend takes what was made last first
    for mine, wanted in zip(results, program(*again.values()), strict=True):
        torch.testing.assert_close(mine, wanted)


def test_numbers_of_a_table() -> None:
    """On the CPU as the table; what is copied to the GPU is no number here, as all is on one device."""
    make = lambda: (torch.randn(3, 5), torch.arange(1.0, 7.0), torch.tensor(4))  # noqa: E731
    module = recorded(sampled, make())
    for node in module.graph.nodes:  # the table, and what is looked up in it, are on the CPU
        value = node.meta.get("val")
        if node.target is aten.select.int or value is not None and type(value) is Fake and value.shape == (6,):
            node.meta["val"] = value.world.run(aten._to_copy.default, value, device=torch.device("cpu"))
    module = compute_numbers_on_gpu(module)
    (copy,) = module.graph.find_nodes(op="call_function", target=NUMBERS_ON)
    assert {node.target for node in copy.args[0]} == {aten.select.int} and len(copy.args[0]) == 2
    copy.args = (copy.args[0], torch.device("cpu"))
    module.recompile()
    again = make()
    given = [dict(zip(("x", "sigmas", "at"), again, strict=True))[node.name.removeprefix("l_")]
             for node in module.graph.find_nodes(op="placeholder")]
    for mine, wanted in zip(reversed(module(*given)), sampled(*again), strict=True):
        torch.testing.assert_close(mine, wanted)


def test_without_a_gpu_nothing_changes() -> None:
    found: list[str] = []

    def backend(gm: torch.fx.GraphModule, given: list[Any]) -> Any:
        module = functional_graph(gm, given, decompositions=decompositions()).module
        before = str(module.graph)
        found.append(str(compute_numbers_on_gpu(module).graph))
        assert found[-1] == before
        return gm

    dynamo.compile(program, backend=backend)(*numbers())
    assert found


def test_numbers_on() -> None:
    given = [torch.tensor(n, dtype=dtype) for n, dtype in enumerate(DTYPES)]
    made = NUMBERS_ON(given, torch.device("cpu"))
    for one, wanted in zip(made, given, strict=True):
        torch.testing.assert_close(one, wanted)
        assert one.data_ptr() % 16 == 0 and one.data_ptr() != wanted.data_ptr()
    assert NUMBERS_ON([], torch.device("cpu")) == []
    with pytest.raises(RuntimeError, match="numbers on the CPU"):
        NUMBERS_ON([torch.ones(2)], torch.device("cpu"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.int32])
def test_add_to_numbers(dtype: torch.dtype) -> None:
    given = [torch.tensor(n, dtype=dtype) for n in range(5)]
    wanted = [one + 3 for one in given]
    ADD_TO_NUMBERS(given, 3)
    torch.testing.assert_close(given, wanted)
    with pytest.raises(RuntimeError, match="one dtype"):
        ADD_TO_NUMBERS([given[0], torch.tensor(1, dtype=torch.int16)], 1)
