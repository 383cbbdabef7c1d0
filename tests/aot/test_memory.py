"""What lives how long between forward and backward, and what is saved at all."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

import dynamo
from dynamo import aot
from dynamo.aot import api
from dynamo.aot.boxed import call_with, picking_arguments, run_as_it_is, with_list
from dynamo.aot.budget import knapsack, within
from dynamo.aot.decompositions import default_decompositions
from dynamo.aot.fakes import bytes_of
from dynamo.aot.joint import SAVED
from dynamo.aot.min_cut import min_cut
from dynamo.aot.partition import Halves, Partition
from tests.aot.programs import captured

MIB = 1 << 20


class Classifier(nn.Module):
    """The loss reads logits that are an output, too."""

    def __init__(self, bias: bool = True) -> None:
        super().__init__()
        self.inner = nn.Linear(16, 16)
        self.head = nn.Linear(16, 50, bias=bias)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = self.head(F.gelu(self.inner(x)))
        return F.cross_entropy(logits.float(), y), logits


def layers(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
    for weight in weights:
        x = torch.sin(x @ weight)
    return x.sum()


def saved_bytes(seen: list[Partition], values: list[int]) -> int:
    """What is saved beside the program's own values."""
    total = 0
    for partition, count in zip(seen, values, strict=True):
        results: Any = partition.forward.graph.output_node().args[0]
        for half in partition.backwards:
            total += sum(
                bytes_of(results[at].meta["val"])
                for kind, at in half.saved if kind == "output" and at >= count
            )
    return total


@pytest.fixture
def partitions(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """Bytes that the graphs compiled in the test save."""
    seen: list[Partition] = []
    values: list[int] = []
    original = api.partition_joint

    def spying(joint: Any, *rest: Any, **options: Any) -> Partition:
        seen.append(original(joint, *rest, **options))
        values.append(joint.values)
        return seen[-1]

    monkeypatch.setattr(api, "partition_joint", spying)
    return lambda: saved_bytes(seen, values)


def watching(log: list[int]) -> Callable[..., Any]:
    """A backend whose backward notes how many saved tensors are alive when it has emptied its
    list, and before."""
    alive: list[weakref.ref[torch.Tensor]] = []

    def forward(module: torch.fx.GraphModule, fakes: list[Any]) -> Callable[..., Any]:
        count = module.meta["values"]

        def call(*inputs: torch.Tensor) -> Any:
            results = module.forward(*inputs)
            alive.extend(weakref.ref(value) for value in results[count:])
            return results

        return call

    def backward(module: torch.fx.GraphModule, fakes: list[Any]) -> Callable[..., Any]:
        run = run_as_it_is(module)

        def of_list(given: list[Any]) -> Any:
            copies = [value.clone() for value in given]
            log.append(sum(ref() is not None for ref in alive))
            given.clear()
            log.append(sum(ref() is not None for ref in alive))
            return call_with(run, copies)

        return with_list(lambda *args: of_list(list(args)), of_list)

    def compile_graph(gm: torch.fx.GraphModule, examples: list[Any]) -> Callable[..., Any]:
        return aot.compile_training(gm, examples, forward, backward)

    return compile_graph


def test_saved_tensors_die_when_backward_lets_go_of_them() -> None:
    log: list[int] = []
    weights = [torch.randn(8, 8, requires_grad=True) for _ in range(3)]
    x = torch.randn(4, 8)
    layers(x, *weights).backward()
    expected = [weight.grad for weight in weights]
    for weight in weights:
        weight.grad = None
    compiled = dynamo.compile(layers, backend=watching(log))
    compiled(x, *weights).backward()
    assert log[0] > 0 and log[1] == 0
    for weight, grad in zip(weights, expected, strict=True):
        torch.testing.assert_close(weight.grad, grad)


def test_a_retained_graph_keeps_them() -> None:
    log: list[int] = []
    weights = [torch.randn(8, 8, requires_grad=True) for _ in range(3)]
    loss = dynamo.compile(layers, backend=watching(log))(torch.randn(4, 8), *weights)
    loss.backward(retain_graph=True)
    assert log[0] == log[1] > 0
    first = [weight.grad.clone() for weight in weights]  # type: ignore[union-attr]
    loss.backward()
    assert log[3] == 0
    for weight, grad in zip(weights, first, strict=True):
        torch.testing.assert_close(weight.grad, 2 * grad)
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


def test_a_module_as_it_is_empties_its_list() -> None:
    module = torch.fx.symbolic_trace(lambda x, y: (x * y).sin() + y)
    run = run_as_it_is(module)
    x, y = torch.randn(3), torch.randn(3)
    given = [x, y]
    assert torch.equal(call_with(run, given), (x * y).sin() + y) and not given
    assert torch.equal(run(x, y), (x * y).sin() + y)
    chosen = picking_arguments(run, [2, 0])
    given = [y, None, x]  # type: ignore[list-item]
    assert torch.equal(call_with(chosen, given), (x * y).sin() + y) and not given


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_logits_are_saved_once(partitions: Callable[[], int], dtype: torch.dtype) -> None:
    model = Classifier().to(dtype)
    x, y = torch.randn(64, 16, dtype=dtype), torch.randint(50, (64,))
    loss, _ = dynamo.compile(model, backend="aot_eager")(x, y)
    loss.backward()
    assert 0 < partitions() < 64 * 50 * dtype.itemsize


WRITES: dict[str, Callable[[torch.Tensor], Any]] = {
    "not": lambda logits: None,
    "with numbers": lambda logits: logits.mul_(3.0),
    "through a view": lambda logits: logits.view(-1)[3:].zero_(),
    "with detach": lambda logits: logits.detach().fill_(7.0),
}


@pytest.mark.parametrize("how", WRITES)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("backend", ["inductor", "aot_eager"])
def test_a_program_may_write_into_logits(how: str, bias: bool, backend: str) -> None:
    """As eager does not save them, that changes no gradient and raises nothing."""
    model = Classifier(bias)
    x, y = torch.randn(12, 16), torch.randint(50, (12,))

    def step(function: Any) -> list[torch.Tensor]:
        model.zero_grad()
        loss, logits = function(x, y)
        with torch.no_grad():
            WRITES[how](logits)
        loss.backward()
        return [parameter.grad.clone() for parameter in model.parameters()]  # type: ignore

    for want, got in zip(step(model), step(dynamo.compile(model, backend=backend)), strict=True):
        torch.testing.assert_close(got, want)


def test_writes_into_logits_and_bias_are_told() -> None:
    model = Classifier()
    loss, logits = dynamo.compile(model)(torch.randn(12, 16), torch.randint(50, (12,)))
    with torch.no_grad():
        logits.zero_()
        model.head.bias.zero_()
    with pytest.raises(RuntimeError, match="modified by inplace operations"):
        loss.backward()


def test_writes_into_saved_weights_raise_as_in_eager() -> None:
    model = Classifier()
    loss, _ = dynamo.compile(model)(torch.randn(12, 16), torch.randint(50, (12,)))
    with torch.no_grad():
        model.head.weight.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
def test_softmaxes_over_rows(name: str, dtype: torch.dtype, dim: int) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        wide = torch.float32 if dtype is torch.bfloat16 else dtype
        return getattr(F, name)(x.to(wide) * 2, dim=dim).to(dtype).sin()

    torch.manual_seed(len(name) + dim)
    x = torch.randn(3, 70, 5, dtype=dtype)
    x[0, 0, 0] = float("-inf")
    inputs = [x.clone().requires_grad_() for _ in range(2)]
    results = [f(given) for f, given in zip((program, dynamo.compile(program)), inputs, strict=True)]
    for result in results:
        result.sum().backward()
    near: dict[str, Any] = {"equal_nan": True}
    if dtype is torch.bfloat16:
        near.update(rtol=5e-2, atol=2e-2)
    torch.testing.assert_close(results[1], results[0], **near)
    torch.testing.assert_close(inputs[1].grad, inputs[0].grad, **near)


def test_parts_of_a_tensor_are_saved_as_it(partitions: Callable[[], int]) -> None:
    """Once, and not part by part."""
    def program(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        q, k, v = (x @ weight).reshape(1, 8, 3, 1, 16).permute(2, 0, 3, 1, 4).unbind(0)
        return F.scaled_dot_product_attention(q, k, v).sum()

    x = torch.randn(8, 16, requires_grad=True)
    weight = torch.randn(16, 48, requires_grad=True)
    dynamo.compile(program, fullgraph=True)(x, weight).backward()
    result, lse = 8 * 16 * 4, 8 * 4
    assert partitions() == 8 * 48 * 4 + result + lse


def test_an_identity_is_not_saved(partitions: Callable[[], int]) -> None:
    """Signs of pairs, which a loss multiplies its logits by."""
    def program(x: torch.Tensor) -> torch.Tensor:
        return ((2 * torch.eye(16) - 1) * x.sin()).sum()

    x = torch.randn(16, 16, requires_grad=True)
    wanted = torch.autograd.grad(program(x), x)
    torch.testing.assert_close(torch.autograd.grad(dynamo.compile(program, fullgraph=True)(x), x), wanted)
    assert partitions() == 0


def of_root_mean_square(x: torch.Tensor, size: tuple[int, ...]) -> torch.Tensor:
    wide = x.double()
    return (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5)).to(x.dtype)


@pytest.mark.parametrize("norm", [F.layer_norm, of_root_mean_square])
def test_of_equal_cuts_the_last_is_taken(monkeypatch: pytest.MonkeyPatch, norm: Callable[..., Any]) -> None:
    """Residual sums are in memory anyway: with them backward adds nothing up again."""
    def program(x: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        for weight in weights:
            x = x + norm(x, (16,)) @ weight
        return x.sum()

    seen: list[Partition] = []
    original = api.partition_joint

    def spying(*arguments: Any, **options: Any) -> Partition:
        seen.append(original(*arguments, **options))
        return seen[-1]

    monkeypatch.setattr(api, "partition_joint", spying)
    inputs = [torch.randn(rows, 16, requires_grad=True) for rows in (8, 16, 16, 16)]
    dynamo.compile(program, fullgraph=True)(*inputs).backward()
    (half,) = seen[0].backwards
    products = [n for n in half.module.graph.nodes if n.target is torch.ops.aten.mm.default]
    sums = [n for n in half.module.graph.nodes if n.target is torch.ops.aten.add.Tensor and n.meta["val"].shape[-1] != 1]
    reached = {n for n in half.module.graph.nodes if n.name.startswith("tangent")}
    for node in half.module.graph.nodes:
        if not reached.isdisjoint(node.all_input_nodes):
            reached.add(node)
    assert products and not [node for node in sums if node not in reached]


def test_what_is_computed_twice_is_saved_once(partitions: Callable[[], int]) -> None:
    def program(x: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = (x @ x) * torch.cumsum(m, 0)
        return x

    x, m = torch.randn(32, 32, requires_grad=True), torch.randn(32, 32)
    dynamo.compile(program, backend="aot_eager")(x, m).sum().backward()
    each = 32 * 32 * 4
    assert partitions() <= 6 * each  # two for each step but the first, and one sum


def test_results_that_are_equal_stay_apart() -> None:
    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x.cumsum(0), x.cumsum(0)

    x = torch.randn(4, requires_grad=True)
    first, second = dynamo.compile(program)(x)
    first.data.zero_()
    assert torch.equal(second, x.cumsum(0)) and not torch.equal(first, second)


@pytest.mark.parametrize("budget", [0.0, 0.3, 0.5, 1.0])
@pytest.mark.parametrize("backend", ["inductor", "aot_eager"])
def test_a_budget_gives_the_same_gradients(
    budget: float, backend: str, partitions: Callable[[], int]
) -> None:
    weights = [(torch.randn(16, 16) / 4).requires_grad_() for _ in range(6)]
    x = torch.randn(256, 16)
    dynamo.compile(layers, backend="aot_eager")(x, *weights)
    most = partitions()
    layers(x, *weights).backward()
    expected = [weight.grad for weight in weights]
    for weight in weights:
        weight.grad = None
    options = {"activation_memory_budget": budget, "kernels": backend == "inductor"}
    dynamo.reset()
    dynamo.compile(layers, options=options)(x, *weights).backward()
    assert most > 0 and partitions() - most <= budget * most
    for weight, grad in zip(weights, expected, strict=True):
        torch.testing.assert_close(weight.grad, grad, rtol=1e-4, atol=1e-4)


def test_a_budget_draws_random_numbers_once() -> None:
    def program(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = F.dropout(x @ w, 0.5)
        return x.sum()

    x, w = torch.randn(64, 8), torch.randn(8, 8, requires_grad=True)
    torch.manual_seed(3)
    program(x, w).backward()
    expected, w.grad = w.grad, None
    torch.manual_seed(3)
    dynamo.compile(program, options={"activation_memory_budget": 0.0})(x, w).backward()
    torch.testing.assert_close(w.grad, expected)


def test_knapsack_takes_what_is_worth_most() -> None:
    assert knapsack([4, 3, 3], [5.0, 3.0, 3.0], 6) == [1, 2]
    assert knapsack([4, 3, 3], [7.0, 3.0, 3.0], 6) == [0]
    assert knapsack([4, 3], [1.0, 1.0], 0) == []
    assert within(1.0) is aot.min_cut.min_cut


def test_what_is_computed_again_stands_by_its_reader() -> None:
    """Not at the front of backward, where all of it would live at once."""
    weights = [torch.randn(16, 16, requires_grad=True) for _ in range(5)]
    gm, inputs = captured(layers, torch.randn(64, 16), *weights)
    found: list[torch.fx.GraphModule] = []

    def note(module: torch.fx.GraphModule, fakes: list[Any]) -> Callable[..., Any]:
        found.append(module)
        return module.forward

    call = aot.compile_training(
        gm, inputs, note, note, decompositions=default_decompositions()
    )
    result = call(*inputs)
    (result[0] if isinstance(result, (tuple, list)) else result).backward()
    places = [at for at, node in enumerate(found[1].graph.nodes) if "cos" in str(node.target)]
    assert len(places) == 5 and places[-1] - places[0] > 8


def halves_on_a_gpu(kind: str, differentiated: bool, count: int = 8) -> tuple[Halves, fx.Node, fx.Node]:
    """A joint graph in which backward reads a value made of inputs that eager saves: a copy of
    `count` images in another layout, which a convolution wants, or rows of a table plus other rows
    that it does not save. Gives that value, and what is smaller than it, too."""
    mode, gpu = FakeTensorMode(), torch.device("cuda", 0)
    graph = fx.Graph()

    def named(node: fx.Node, *size: int, dtype: torch.dtype = torch.bfloat16) -> fx.Node:
        node.meta["val"] = FakeTensor(mode, torch.empty(size, device="meta", dtype=dtype), gpu)
        return node

    aten = torch.ops.aten
    if kind == "layout":
        given = named(graph.placeholder("x"), count, 3, 64, 64)
        inputs = [given]
        value = small = named(graph.call_function(
            aten.clone.default, (given,), {"memory_format": torch.channels_last}), count, 3, 64, 64)
        tangent = named(graph.placeholder("tangent"), count, 3, 64, 64)
        reader = named(graph.call_function(aten.mm.default, (tangent, value)), count, 3, 64, 64)
    else:
        table, rows = named(graph.placeholder("table"), 900, 64), named(graph.placeholder("rows"), 8, 512)
        other = named(graph.placeholder("other"), 512, 64)
        inputs = [table, rows, other]
        given = table
        rows.meta["val"] = FakeTensor(mode, torch.empty(8, 512, device="meta", dtype=torch.int64), gpu)
        found = named(graph.call_function(aten.embedding.default, (table, rows)), 8, 512, 64)
        small = named(graph.call_function(aten.sin.default, (other,)), 512, 64)
        value = named(graph.call_function(aten.add.Tensor, (found, small)), 8, 512, 64)
        tangent = named(graph.placeholder("tangent"), 8, 512, 64)
        reader = named(graph.call_function(aten.mul.Tensor, (tangent, value)), 8, 512, 64)
        rows.meta[SAVED] = True
    given.meta[SAVED] = True
    graph.output((value, reader))
    module = fx.GraphModule(torch.nn.Module(), graph)
    available = [node for node in graph.nodes if node not in (tangent, reader) and node.op != "output"]
    halves = Halves(module, inputs, [tangent], [value], [], [reader], {tangent, reader}, available,
                    differentiated=frozenset(inputs[:1] if differentiated else []))  # fmt: skip
    return halves, value, small


def test_rows_of_a_table_that_eager_keeps_are_read_again() -> None:
    halves, value, small = halves_on_a_gpu("rows", True)
    saved = min_cut(halves)
    assert value not in saved and small in saved and halves.inputs[2] not in saved
    del halves.inputs[0].meta[SAVED]  # another program might write into the table
    assert min_cut(halves) == [value]


@pytest.mark.parametrize("scales", [True, False])
def test_modulated_norms_are_written_again_on_a_gpu(
    scales: bool, partitions: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """But not what is more than scaled and shifted: GELU's result costs arithmetic, too."""
    def program(x: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = F.layer_norm(x, (64,)) * (1 + scale[:, None]) + shift[:, None]
        return ((y if scales else F.gelu(y)) @ w).sin().sum()

    given = [torch.randn(size, requires_grad=True) for size in ((4, 16, 64), (4, 64), (4, 64), (64, 32))]
    program(*given).backward()
    wanted = [each.grad for each in given]

    def saved() -> int:
        for each in given:
            each.grad = None
        dynamo.reset()
        before = partitions()
        dynamo.compile(program)(*given).backward()
        for each, grad in zip(given, wanted, strict=True):
            torch.testing.assert_close(each.grad, grad, rtol=1e-4, atol=1e-4)
        return partitions() - before

    here = saved()
    monkeypatch.setattr(aot.min_cut, "_is_on_gpu", lambda node: True)
    rows, scale = 16 * 4 * 64 * 4, 4 * 64 * 4  # of which scales are saved instead
    assert here - saved() == (rows - scale if scales else 0)


def test_what_backward_alone_wants_is_made_by_it(partitions: Callable[[], int]) -> None:
    """A weight in another precision for the product of backward; eager saves the weight."""
    class Narrow(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(w)
            return x @ w

        @staticmethod
        def backward(ctx: Any, *grads: torch.Tensor) -> Any:
            (w,) = ctx.saved_tensors
            return grads[0] @ w.bfloat16().float().t(), None

    x, w = torch.randn(8, 32, requires_grad=True), torch.randn(32, 32)
    compiled = dynamo.compile(lambda x, w: Narrow.apply(x, w), backend="aot_eager")
    tangent = torch.randn(8, 32)
    expected = torch.autograd.grad(Narrow.apply(x, w), x, tangent)
    torch.testing.assert_close(torch.autograd.grad(compiled(x, w), x, tangent), expected)
    assert partitions() == 0
    total = compiled(x, w)
    w.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        total.backward(tangent)


def test_data_are_brought_into_another_layout_again() -> None:
    halves, value, _ = halves_on_a_gpu("layout", False)
    assert min_cut(halves) == halves.inputs
    halves, value, _ = halves_on_a_gpu("layout", True)
    assert min_cut(halves) == [value]  # of a weight
    halves, value, _ = halves_on_a_gpu("layout", True, aot.min_cut.LARGE_COPY // (3 * 64 * 64) + 1)
    assert min_cut(halves) == halves.inputs  # of a large one


@pytest.mark.parametrize("backend", ["inductor", "aot_eager"])
def test_a_copy_of_an_input_rather_than_its_float32(
    backend: str, partitions: Callable[[], int]
) -> None:
    """Eager saves what it makes of bfloat16 inputs in float32: a copy of them takes half of that,
    and the program may write into them before backward."""
    def program(x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(x.float(), labels, reduction="sum")

    labels = torch.randint(64, (32,))

    def gradient(function: Any) -> torch.Tensor:
        torch.manual_seed(0)
        leaf = torch.randn(32, 64, dtype=torch.bfloat16, requires_grad=True)
        x = leaf * 2
        loss = function(x, labels)
        with torch.no_grad():
            x.zero_()
        loss.backward()
        assert leaf.grad is not None
        return leaf.grad

    compiled = dynamo.compile(program, backend=backend, fullgraph=True)
    torch.testing.assert_close(gradient(compiled), gradient(program))
    assert partitions() < 32 * 64 * 3


def test_a_copy_of_an_input_whose_float32_waits_for_a_gemm(partitions: Callable[[], int]) -> None:
    """What waits is the input: it is converted where the GEMM's result is there."""
    a, b = torch.randn(32, 8), torch.randn(8, 64)

    def program(x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        return (wide.sigmoid() * (wide - a @ b).sin()).sum()

    x = torch.randn(32, 64, dtype=torch.bfloat16, requires_grad=True)
    found = torch.autograd.grad(dynamo.compile(program, fullgraph=True)(x), x)[0]
    torch.testing.assert_close(found, torch.autograd.grad(program(x), x)[0])
    assert partitions() == 32 * 64 * (4 + 2)  # the product and the copy


@pytest.mark.parametrize("each", [False, True])
def test_rows_that_are_gathered_are_read_again_on_a_gpu(
    each: bool, partitions: Callable[[], int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whose places are few; each: an element has a place of its own."""
    monkeypatch.setattr(aot.min_cut, "_is_on_gpu", lambda node: True)
    x, w, y = (torch.randn(size, requires_grad=True) for size in ((4, 8, 64), (64, 64), (4, 32, 64)))
    at = torch.randint(8, (4, 32, 64) if each else (4, 32, 1))

    def program(x: torch.Tensor, w: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return ((x @ w).gather(1, at.expand(-1, -1, 64)) * y).sum()

    given = (x, w, y)
    found = torch.autograd.grad(dynamo.compile(program, backend="aot_eager")(*given), given)
    torch.testing.assert_close(found, torch.autograd.grad(program(*given), given))
    assert partitions() == 4 * 64 * 4 * (32 if each else 8)


def test_second_derivatives_behind_a_copied_input() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x.float().softmax(1).square().sum()

    leaf = torch.randn(8, 16, dtype=torch.bfloat16, requires_grad=True)
    found = []
    for function in (program, dynamo.compile(program, fullgraph=True)):
        (first,) = torch.autograd.grad(function(leaf * 2), leaf, create_graph=True)
        found.append(torch.autograd.grad(first.float().square().sum(), leaf)[0])
    torch.testing.assert_close(found[1], found[0])
