"""torch.func in traced programs: one graph, eager's values and gradients, and no level left behind."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import (
    functional_call,
    grad,
    grad_and_value,
    hessian,
    jacfwd,
    jacrev,
    jvp,
    vjp,
    vmap,
)

import dynamo
from dynamo.testing import CompileCounter

torch.manual_seed(0)
NET = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.LayerNorm(4), nn.Linear(4, 1)).double()
LEAF = torch.rand(3, dtype=torch.float64, requires_grad=True)
DEPTH = torch._C._functorch.get_dynamic_layer_stack_depth


def per_sample(x: torch.Tensor) -> Any:
    def loss(params: dict[str, torch.Tensor], row: torch.Tensor) -> torch.Tensor:
        return functional_call(NET, params, (row,)).square().sum()

    return vmap(grad(loss), in_dims=(None, 0))(dict(NET.named_parameters()), x)


def ensemble(x: torch.Tensor) -> Any:
    params = {name: torch.stack([p, p * 2]) for name, p in NET.named_parameters()}
    return vmap(lambda p, v: functional_call(NET, p, (v,)), (0, None))(params, x)


def through_break(x: torch.Tensor) -> Any:
    def f(a: torch.Tensor) -> torch.Tensor:
        dynamo.graph_break()
        return (a * a).sum()

    return vmap(f)(x * 2) + 1, jvp(f, (x,), (x,))


def reads_value(x: torch.Tensor) -> Any:
    y = x + 1
    try:
        return vmap(lambda a: a * a.sum().item())(y)
    except RuntimeError:
        return y - 1


def wrong_sizes(x: torch.Tensor) -> Any:
    try:
        return vmap(torch.add)(x, x.T)
    except ValueError as error:
        return x + 1, str(error).split("\n")[0][:40]


def mutates_input(x: torch.Tensor) -> Any:
    x = x.clone()
    y = x[0]
    vmap(lambda a: a.add_(1))(x)
    return x * 2, y


def modes(x: torch.Tensor) -> Any:
    with torch.no_grad():
        a = vmap(lambda v: v * LEAF)(x)
    return a, grad(lambda v: (v * LEAF).sum() + torch.is_grad_enabled())(x)


ONE_GRAPH: list[Callable[[torch.Tensor], Any]] = [
    lambda x: vmap(lambda a, b: (a * b).sum())(x, x + 1),
    lambda x: vmap(vmap(torch.dot), in_dims=(None, 0))(x, torch.stack([x, x])),
    lambda x: vmap(lambda a: {"s": a.sum(), "t": (a.T, a.max(0).values)}, in_dims=1)(x),
    lambda x: vmap(lambda a: F.softmax(a, -1) @ LEAF, out_dims=0, chunk_size=1)(x),
    lambda x: vmap(lambda a, b: a[0] * b["k"], in_dims=({"k": 0}, 0)[::-1])(x, {"k": x}),
    lambda x: vmap(lambda a: a + torch.rand(3), randomness="different")(x),
    lambda x: vmap(lambda a: F.dropout(a, 0.5), randomness="same")(x),
    lambda x: vmap(lambda a: a + torch.tensor([1.0, 2, 3]) + torch.arange(3))(x),
    lambda x: grad(lambda a: (a**3 * LEAF).sum())(x),
    lambda x: grad(grad(lambda a: a.sin().sum()))(x[0, 0]),
    lambda x: grad_and_value(lambda a, b: ((a * b).sum(), b), argnums=(0, 1), has_aux=True)(x, x + 1),
    lambda x: vjp(lambda a: a.exp() @ LEAF, x)[1](torch.ones(2, dtype=x.dtype)),
    lambda x: jvp(lambda a: a.sin() * LEAF, (x,), (x + 1,)),
    lambda x: (jacrev(torch.cos)(x[0]), jacfwd(torch.sin)(x[0]), hessian(lambda a: (a**3).sum())(x[0])),
    lambda x: vmap(lambda a: grad(lambda b: F.layer_norm(b, (3,), LEAF).sum())(a))(x),
    lambda x: vmap(lambda a: a.view(1, 3).expand(2, 3).t().contiguous().T.reshape(-1)[1:4])(x),
    lambda x: vmap(lambda a: (a * x.shape[0] + 1) / 3 - 2 * a.float() + a.sum() * 5)(x),
    lambda x: F.relu(vmap(lambda a: torch.where(a > 0.5, a, -a))(x)) * LEAF,
    per_sample, ensemble, mutates_input, modes,
]  # fmt: skip


def check(f: Callable[[torch.Tensor], Any], graphs: int | None) -> None:
    dynamo.reset()
    counter = CompileCounter("eager")
    compiled = dynamo.compile(f, backend=counter, fullgraph=graphs == 1)
    for call in range(3):
        results = []
        for run in (f, compiled):
            torch.manual_seed(call)
            LEAF.grad = None
            NET.zero_grad()
            found = run(torch.rand(2, 3, dtype=torch.float64))
            flat = torch.utils._pytree.tree_leaves(found)
            loss = sum(t.sum() for t in flat if isinstance(t, torch.Tensor) and t.requires_grad)
            if isinstance(loss, torch.Tensor):
                loss.backward()
            results.append([*flat, LEAF.grad, *(p.grad for p in NET.parameters())])
            assert DEPTH() == 0 and torch.is_grad_enabled()
        for want, got in zip(*results, strict=True):
            assert type(want) is type(got)
            if isinstance(want, torch.Tensor):
                torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)
                assert got.requires_grad == want.requires_grad and got.stride() == want.stride()
            else:
                assert want == got
    assert graphs is None or counter.frame_count == graphs


@pytest.mark.parametrize("f", ONE_GRAPH, ids=range(len(ONE_GRAPH)))
def test_one_graph(f: Callable[[torch.Tensor], Any]) -> None:
    check(f, 1)


@pytest.mark.parametrize("f", [through_break, reads_value, wrong_sizes])
def test_any_graphs(f: Callable[[torch.Tensor], Any]) -> None:
    check(f, None)


def test_nothing_of_transforms_is_left_in_the_graph() -> None:
    counter = CompileCounter("eager")
    dynamo.compile(per_sample, backend=counter)(torch.rand(2, 3, dtype=torch.float64))
    targets = [node.target for node in counter.graphs[0].graph.nodes if node.op == "call_function"]
    assert not [t for t in targets if "functorch" in str(t) or "pybind" in str(t)]


@pytest.mark.parametrize("transform", [torch.vmap, lambda f: torch.func.grad(lambda x: f(x).sum())])
def test_numbers_that_change(transform: Any) -> None:
    def f(x: torch.Tensor, scale: float) -> Any:
        return transform(lambda v: v * scale)(x)

    compiled, x = dynamo.compile(f, backend="eager"), torch.rand(3)
    for scale in (0.25, 0.5, 0.75, 2.0, 0.5):
        assert torch.equal(compiled(x, scale), f(x, scale))


OF_ONE: list[Callable[[torch.Tensor], Any]] = [
    lambda x: grad(lambda t: (t * LEAF).sum())(x),
    lambda x: vjp(lambda t: t * LEAF, x)[0],
    lambda x: vjp(lambda t: t * LEAF, x)[1](x)[0],
    lambda x: jvp(lambda t: t * LEAF, (x,), (x,))[1],
    lambda x: jacrev(lambda t: t * LEAF)(x),
    lambda x: jacfwd(lambda t: t.sin())(x),
    lambda x: vmap(lambda t, u: t * u)(x, LEAF),
]


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("f", OF_ONE, ids=range(len(OF_ONE)))
def test_a_transform_keeps_the_mode_around_it(
    f: Callable[[torch.Tensor], Any], inside: bool, mode: Any
) -> None:
    def within(x: torch.Tensor) -> Any:
        with mode():
            return f(x)

    program, around = (within, torch.enable_grad) if inside else (f, mode)
    x = torch.rand(3, dtype=torch.float64)
    with around():
        try:
            want = program(x)
        except RuntimeError:  # torch before 2.13 has no jacfwd in inference mode
            with pytest.raises(RuntimeError):
                dynamo.compile(program, backend="eager")(x)
            return
        got = dynamo.compile(program, backend="eager")(x)
    assert torch.equal(want, got)
    assert (want.requires_grad, want.is_inference()) == (got.requires_grad, got.is_inference())


def draws_per_row(x: torch.Tensor) -> tuple[()]:
    vmap(lambda t: t + torch.randn_like(t), randomness="different")(x)
    return ()


def draws_once(x: torch.Tensor) -> tuple[()]:
    grad(lambda t: F.dropout(t).sum())(x)
    return ()


def norms_unused(x: torch.Tensor) -> torch.Tensor:
    mean, var = x.new_zeros(3), x.new_ones(3)
    grad(lambda t: F.batch_norm(t, mean, var, training=True).square().sum())(x)
    return mean + var


@pytest.mark.parametrize("f", [draws_per_row, draws_once, norms_unused])
def test_what_an_unused_result_changes(f: Callable[[torch.Tensor], Any]) -> None:
    x, found = torch.rand(5, 3, dtype=torch.float64), []
    for program in (f, dynamo.compile(f, backend="eager")):
        torch.manual_seed(3)
        found.append((program(x), torch.rand(4)))
    torch.testing.assert_close(found[0], found[1])


def test_a_transformed_function_is_compiled_as_one_graph() -> None:
    """`compile(vmap(grad(f)))`: the function that is called is torch's own wrapper."""

    def loss(w: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return (w @ x).tanh().sum()

    w, x = torch.randn(3, 2), torch.randn(5, 2)
    for program in (
        vmap(grad(loss), in_dims=(None, 0)),
        vmap(grad_and_value(loss), in_dims=(None, 0)),
        vmap(jacrev(loss), in_dims=(None, 0)),
    ):
        counter = CompileCounter("eager")
        found = dynamo.compile(program, backend=counter, fullgraph=True)(w, x)
        torch.testing.assert_close(found, program(w, x))
        assert counter.frame_count == 1
