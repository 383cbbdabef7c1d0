"""`torch.autograd.Function` under torch.func's transforms: one graph, with the derivatives and the
rules for batches and tangents that the program gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.func import grad, jacfwd, jacrev, jvp, vjp, vmap

import dynamo
from dynamo.testing import CompileCounter

SETTINGS = {"scale": 2.0}
SEEN: list[Any] = []
DEPTH = torch._C._functorch.get_dynamic_layer_stack_depth


class Square(torch.autograd.Function):
    """Its gradient is not that of its value."""

    generate_vmap_rule = True

    @staticmethod
    def forward(a: torch.Tensor) -> torch.Tensor:
        return a * a

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        return g * ctx.saved_tensors[0] * 3 * SETTINGS["scale"]  # type: ignore[no-any-return]


class Batched(torch.autograd.Function):
    """Batches and tangents have rules of their own, which read what may change."""

    @staticmethod
    def forward(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return a.sin() * b

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        a, b = ctx.saved_tensors
        return g * a.cos() * b * 2, g * a

    @staticmethod
    def vmap(info: Any, in_dims: Any, a: torch.Tensor, b: torch.Tensor) -> Any:
        assert info.randomness == "error"
        a, b = (t if d is None else t.movedim(d, 0) for t, d in zip((a, b), in_dims, strict=True))
        if in_dims[1] is None:
            return Batched.apply(a, b) + SETTINGS["scale"], 0  # type: ignore[no-untyped-call]
        return Batched.apply(a, b) * info.batch_size, 0  # type: ignore[no-untyped-call]

    @staticmethod
    def jvp(ctx: Any, s: torch.Tensor, t: torch.Tensor) -> Any:
        a, b = ctx.saved_tensors
        return s * a.cos() * b * SETTINGS["scale"] + t


class Noisy(torch.autograd.Function):
    """Changes an object when it runs."""

    @staticmethod
    def forward(a: torch.Tensor) -> torch.Tensor:
        SEEN.append(1)
        return a * 2

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        return g


def square(a: torch.Tensor) -> torch.Tensor:
    return Square.apply(a)  # type: ignore[no-any-return, no-untyped-call]


def batched(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return Batched.apply(a, b)  # type: ignore[no-any-return, no-untyped-call]


ONE_GRAPH: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "grad": lambda x, y: grad(lambda a: square(a).sum())(x),
    "grad of grad": lambda x, y: grad(lambda b: grad(lambda a: square(a).sum())(b).sum())(x),
    "vjp": lambda x, y: vjp(square, x)[1](y),
    "jacrev": lambda x, y: jacrev(square)(x[0]),
    "a generated rule": lambda x, y: vmap(square)(x),
    "a generated rule and gradients": lambda x, y: vmap(grad(lambda a: square(a).sum()))(x),
    "a rule": lambda x, y: vmap(batched)(x, y),
    "a rule, one not batched": lambda x, y: vmap(batched, in_dims=(1, None))(x, y[:, 0]),
    "rules of two levels": lambda x, y: vmap(vmap(batched), in_dims=(0, None))(x, y[0]),
    "a rule and gradients": lambda x, y: vmap(grad(lambda a, b: batched(a, b).sum()))(x, y),
    "gradients of a rule": lambda x, y: grad(lambda a: vmap(batched)(a, y).sum())(x),
    "tangents": lambda x, y: jvp(batched, (x, y), (y, x)),
    "tangents inside": lambda x, y: jvp(lambda a: (batched(a, y) * a).sum(), (x,), (y,)),
    "jacfwd": lambda x, y: jacfwd(batched, argnums=1)(x[0], y[0]),
    "outside too": lambda x, y: (square(x), vmap(square)(x), square(y)),
}


def compare(f: Callable[..., Any], backend: Any) -> None:
    compiled = dynamo.compile(f, backend=backend, fullgraph=True)
    try:
        for scale in (2.0, 2.0, 3.0):  # what the functions read is guarded
            SETTINGS["scale"] = scale
            x, y = torch.rand(2, 2, 3, dtype=torch.float64)
            torch.testing.assert_close(compiled(x, y), f(x, y), rtol=1e-12, atol=1e-12)
            assert DEPTH() == 0
    finally:
        SETTINGS["scale"] = 2.0


@pytest.mark.parametrize("name", ONE_GRAPH)
def test_one_graph(name: str) -> None:
    counter = CompileCounter()
    compare(ONE_GRAPH[name], counter)
    assert 1 <= counter.frame_count <= 2  # one graph for each value of the setting


def test_the_default_backend() -> None:
    compare(ONE_GRAPH["a rule and gradients"], "inductor")


def test_what_torch_refuses() -> None:
    """A function without a rule for tangents raises eager's error."""

    def f(x: torch.Tensor) -> Any:
        try:
            return jvp(square, (x,), (x,))
        except RuntimeError as error:
            return x + 1, str(error)

    x = torch.rand(3)
    want, got = f(x), dynamo.compile(f, backend="eager")(x)
    assert want[1] == got[1] and torch.equal(want[0], got[0])


def test_one_with_effects_breaks_the_graph() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return grad(lambda a: Noisy.apply(a).sum())(x)  # type: ignore[no-any-return, no-untyped-call]

    x = torch.rand(3)
    compiled = dynamo.compile(f, backend="eager")
    for count in (1, 2):
        assert torch.equal(compiled(x), torch.ones(3)) and len(SEEN) == count
    SEEN.clear()


def test_gradients_of_graphs_inside_of_a_transform() -> None:
    """Behind a break in vmap a graph has plain tensors; its backward is no function for torch.func.
    """
    weight = torch.randn(5, 4, requires_grad=True)

    def one(row: torch.Tensor) -> torch.Tensor:
        first = (weight * 2).sin().sum(0)
        dynamo.graph_break()
        return row * first + (weight.cos() @ weight.new_ones(4)).sum()

    def all_rows(x: torch.Tensor) -> torch.Tensor:
        return torch.vmap(one)(x)

    compiled = dynamo.compile(all_rows)
    for count in (3, 3, 5):
        x = torch.randn(count, 4)
        found, wanted = compiled(x), all_rows(x)
        torch.testing.assert_close(found, wanted)
        torch.testing.assert_close(torch.autograd.grad(found.sum(), weight),
                                   torch.autograd.grad(wanted.sum(), weight))
    reasons = dynamo.counters["not_compiled"]
    assert list(reasons) == ["graph runs as captured: "
                             "gradients are wanted of it inside of a transform of torch.func"]


@pytest.mark.parametrize("f", [
    lambda x: vmap(square)(x),
    lambda x: vmap(lambda a: square(a) + a)(x) * 2,
    lambda x: vmap(batched)(x, x + 1),
    lambda x: vmap(vmap(batched), in_dims=(0, None))(x, x[0]),
    lambda x: grad(lambda a: square(a).sum())(x),
])  # fmt: skip
def test_gradients_of_autograd_outside(f: Any) -> None:
    """A function below a level is a node of autograd, too, where its arguments need gradients."""
    dynamo.reset()
    x = torch.randn(3, 4, 2, requires_grad=True)
    found = [function(x) for function in (f, dynamo.compile(f, backend="eager"))]
    assert found[1].requires_grad == found[0].requires_grad
    gradients = [torch.autograd.grad(result.square().sum(), x)[0] for result in found]
    torch.testing.assert_close(found[1], found[0])
    torch.testing.assert_close(gradients[1], gradients[0])
