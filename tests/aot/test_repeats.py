"""What is saved so that no decision is made twice, and what is not saved for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, fx
from torch._subclasses.fake_tensor import FakeTensorMode

import dynamo
from dynamo.aot import api
from dynamo.aot.partition import Partition
from dynamo.aot.repeats import (
    EXACT,
    FUNCTIONS,
    SMOOTH,
    bounded_values,
    decided_by,
    decided_values,
    is_exact,
    name_of,
)
from tests.aot.programs import captured

aten = torch.ops.aten
OPERATORS = {name.split("::")[1].split(".")[0] for name in torch._C._dispatch_get_all_op_names()}


@pytest.fixture
def partitions(monkeypatch: pytest.MonkeyPatch) -> list[Partition]:
    """Filled while programs are compiled."""
    seen: list[Partition] = []
    original = api.partition_joint

    def spying(*args: Any, **options: Any) -> Partition:
        seen.append(original(*args, **options))
        return seen[-1]

    monkeypatch.setattr(api, "partition_joint", spying)
    return seen


def halves(seen: list[Partition], function: Callable[[Tensor], Tensor], x: Tensor) -> tuple[set[str], set[str]]:
    """The names of the operators of forward, and of backward."""
    seen.clear()
    function = dynamo.compile(function, backend="aot_eager")
    function(x.requires_grad_()).sum().backward()
    (one,) = seen
    graphs = one.forward.graph, one.backwards[0].module.graph
    forward, backward = ({str(n.target).split(".")[1] for n in g.nodes if n.op == "call_function"} for g in graphs)
    return forward, backward


@pytest.mark.parametrize("function", [
    lambda x: x.cos().amax(1), lambda x: x.sin().min(), lambda x: x.exp().clamp(max=1.5),
    lambda x: torch.where(x.tanh() > 0.5, x, 2 * x), lambda x: F.relu6(x.sigmoid() * 9), lambda x: x.cos().abs(),
    lambda x: F.smooth_l1_loss(x.cos(), x.detach()), lambda x: x.softmax(1).amax(1),
])  # fmt: skip
def test_backward_decides_nothing_by_functions(
    function: Callable[[Tensor], Tensor], partitions: list[Partition]
) -> None:
    halves(partitions, function, torch.randn(7, 300))
    (one,) = partitions
    for node in one.backwards[0].module.graph.nodes:
        for given in decided_by(node):
            work = [given]
            while work:
                found = work.pop()
                assert is_exact(found), f"{node} decides by {found}"
                work += found.all_input_nodes


def test_exact_values_are_computed_again(partitions: list[Partition]) -> None:
    forward, backward = halves(partitions, lambda x: F.relu6(x * x + 1), torch.randn(7, 300))
    assert {"le", "ge"} & backward and not {"le", "ge"} & forward


def test_a_decision_is_saved_and_not_its_values(partitions: list[Partition]) -> None:
    halves(partitions, lambda x: x.cos().amax(1), torch.randn(7, 300))
    (one,) = partitions
    results: Any = one.forward.graph.output_node().args[0]
    kept = [node.meta["val"] for node in results[1:]]
    assert [value.dtype for value in kept if value.numel() > 7] == [torch.bool]
    assert not any(value.is_floating_point() for value in kept)


@pytest.mark.parametrize("budget", [0.0, 0.5])
def test_a_budget_keeps_decisions(budget: float, partitions: list[Partition]) -> None:
    def f(x: Tensor) -> Tensor:
        return (x.cos().exp().amax(1, keepdim=True) * x.sin()).tanh().amax(1)

    x = torch.randn(7, 300, requires_grad=True)
    compiled = dynamo.compile(f, options={"activation_memory_budget": budget})
    (want,), (got,) = (torch.autograd.grad(g(x).sum(), x) for g in (f, compiled))
    torch.testing.assert_close(want, got)


def names_of(values: Callable[[fx.Graph], Any], f: Callable[[Tensor], Tensor]) -> set[str]:
    gm, inputs = captured(f, torch.randn(4, 5, dtype=torch.bfloat16))
    module: list[fx.GraphModule] = []
    api.compile_inference(gm, inputs, lambda graph, _: module.append(graph) or graph.forward)
    return {str(node.target).split(".")[1] for node in values(module[0].graph) if node.op == "call_function"}


def test_a_value_of_half_precision_is_rounded_up_to_its_loads() -> None:
    def f(x: Tensor) -> Tensor:
        y = x.sum(1, keepdim=True)
        z = (x * y).cos()
        return (z + 1).view(-1) > 0.5

    assert names_of(decided_values, f) == {"view", "add", "cos", "mul", "sum"}


def test_a_value_beside_its_maximum_is_rounded() -> None:
    """Else it may lie above: the root of the difference would be NaN."""
    def root(x: Tensor) -> Tensor:
        y = x.cos()
        return (y.view(2, 10).amax(1).view(2, 1) - y.view(2, 10)).sqrt()

    assert names_of(bounded_values, root) == {"cos"}
    assert not names_of(bounded_values, lambda x: x.cos().amax(1).sqrt())


def test_the_tables_name_operators() -> None:
    strangers = (EXACT | SMOOTH) - FUNCTIONS - OPERATORS
    assert not {name for name in strangers if not hasattr(torch.ops.prims, name) and not hasattr(torch.ops.dynamo_jit, name)}


BESIDE_EXTREMA: list[Callable[[Tensor], Tensor]] = [
    lambda v: torch.exp(v - v.amax(-1, keepdim=True)),
    lambda v: v - v.amin(-1, keepdim=True),
    lambda v: (v - v.amax(-1, keepdim=True)).amax(-1),
    lambda v: torch.round(v / v.abs().amax(-1, keepdim=True) * 127) + v,
    lambda v: v.amax(-1) * 2,
    lambda v: v.max() - v.min(),
]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("function", BESIDE_EXTREMA)
def test_both_halves_round_what_one_decides_by(function: Callable[[Tensor], Tensor], dtype: torch.dtype) -> None:
    """Backward finds the elements that forward took as extrema: their number is divided by."""
    dynamo.reset()

    def f(x: Tensor) -> Tensor:
        return function(x * x + x * 0.3 - x)

    compiled = dynamo.compile(f)
    for seed in range(4):
        for size in ((21,), (5, 40)):
            torch.manual_seed(seed)
            x = torch.randn(size).to(dtype)
            found = []
            for run in (f, compiled):
                given = x.clone().requires_grad_()
                result = run(given)
                result.backward(torch.linspace(1, 2, result.numel()).reshape(result.shape).to(dtype))
                found.append((result.detach(), given.grad))
            torch.testing.assert_close(found[0], found[1], rtol=3e-2, atol=6e-2)


@pytest.mark.parametrize("norm", [F.layer_norm, F.rms_norm, lambda x, size: F.softmax(x, -1)])
def test_results_of_norms_are_rounded_beside_their_maximum(norm: Callable[..., Tensor]) -> None:
    """Of an operator with several results, each is one value."""
    dynamo.reset()

    def f(x: Tensor) -> Tensor:
        v = norm(x, x.shape[-1:])
        return (v - v.amax(-1, keepdim=True)).amax(-1)

    compiled = dynamo.compile(f)
    for seed in range(4):
        torch.manual_seed(seed)
        x = torch.randn(3, 18).bfloat16()
        assert torch.equal(compiled(x), f(x))


def test_a_gemm_of_float8_decides_nothing() -> None:
    """Its operands may be cast again in backward, from what is saved of the layer before."""
    graph, mode = fx.Graph(), FakeTensorMode()
    x, w, one = (graph.placeholder(name) for name in "xwo")
    gemm = graph.call_function(aten._scaled_mm.default, (x, w, one, one))
    for node, dtype in ((x, torch.float8_e4m3fn), (w, torch.float8_e4m3fn), (one, torch.float32), (gemm, torch.bfloat16)):
        node.meta["val"] = mode.from_tensor(torch.empty(16, 16, dtype=dtype))
    assert not list(decided_by(gemm))
    assert set(decided_by(graph.call_function(aten.topk.default, (gemm, 2)))) == {gemm}


@pytest.mark.parametrize("function, decides", [
    (lambda x: torch.isinf(x.tanh() * 30), False), (lambda x: x.sigmoid().amax(1) / 8 == torch.inf, False),
    (lambda x: torch.isinf(x.exp()), True), (lambda x: x.tanh() * 1e30 == torch.inf, True),
    (lambda x: x.tanh() == 0.5, True), (lambda x: torch.isnan(x.tanh()), True),
])  # fmt: skip
def test_what_is_far_from_overflow_is_not_decided_by(function: Any, decides: bool) -> None:
    gm, inputs = captured(function, torch.randn(4, 5))
    module: list[fx.GraphModule] = []
    api.compile_inference(gm, inputs, lambda graph, _: module.append(graph) or graph.forward)
    found = decided_values(module[0].graph)
    assert any(name_of(node) in FUNCTIONS for node in found) is decides
