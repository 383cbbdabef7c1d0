"""Second derivatives through autograd Functions whose backward is not linear in its gradient: they
are eager's, or raise. Those of linear ones are eager's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import dynamo
from dynamo.testing import assert_compiled
from tests.aot.compare import differentiated

Tensor = torch.Tensor
BACKENDS = ("aot_eager", "inductor")


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    dynamo.reset()
    yield
    dynamo.reset()


class Squares(torch.autograd.Function):
    """Its backward is a formula of the gradient and the input."""

    formula: Callable[[Tensor, Tensor], Tensor]

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * x

    @classmethod
    def of(cls, formula: Callable[[Tensor, Tensor], Tensor]) -> Any:
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return formula(grad, ctx.saved_tensors[0])

        return type("Squares", (cls,), {"backward": staticmethod(backward)})


NONLINEAR = {
    "one more": lambda g, x: g + 1,
    "with a tensor": lambda g, x: 2 * x * g + x,
    "clipped softly": lambda g, x: g.tanh(),
    "squared": lambda g, x: g * g,
    "over its norm": lambda g, x: g / g.norm(),
    "filled": lambda g, x: g.masked_fill(x > 0, 1.0),
    "padded": lambda g, x: torch.cat([g[:2], x[2:]]),
}
LINEAR = {
    "times": lambda g, x: 2 * x * g,
    "chosen": lambda g, x: torch.where(x > 0, g * x, 0.1 * g),
    "filled": lambda g, x: g.masked_fill(x > 0, 0.0),
    "sums": lambda g, x: (g - g.mean()) / x.exp() + g.cumsum(0).flip(0),
    "views": lambda g, x: g.view(2, 2).t().reshape(-1)[torch.tensor([1, 3, 0, 2])],
    "parts": lambda g, x: torch.cat([g[:2] * x[:2], torch.zeros_like(x[2:])]),
    "matmul": lambda g, x: torch.addmm(g.view(2, 2), x.view(2, 2), g.view(2, 2)).view(4),
    "written": lambda g, x: g.clone().mul_(x).neg_(),
    "of a softmax": lambda g, x: torch.autograd.functional.vjp(
        lambda y: y.softmax(0), x, g, create_graph=True)[1],
    "spread": lambda g, x: torch.zeros_like(x).index_add(0, torch.tensor([3, 1, 1, 0]), g),
}


def derivatives(call: Any, take_loss: Callable[..., Tensor]) -> list[Tensor]:
    """The first gradient, and that of its square."""
    x = torch.tensor([0.3, -0.7, 1.1, 0.4], dtype=torch.double, requires_grad=True)
    results = call(x)
    (first,) = torch.autograd.grad(take_loss(*results), x, create_graph=True)
    return [first.detach(), *torch.autograd.grad(first.square().sum(), x)]


def sum_of_all(*results: Tensor) -> Tensor:
    return torch.stack([result.sum() for result in results]).sum()


def squares_of_all(*results: Tensor) -> Tensor:
    return sum_of_all(*[result.square() for result in results])


def programs(apply: Any) -> dict[str, tuple[Any, Any]]:
    """Programs of which a second derivative meets the function in both runs of the program."""

    def of_result(x: Tensor) -> Any:
        return (apply(x.sin()).exp(),)

    def of_inner(x: Tensor) -> Any:
        y = apply(x.sin())
        return y + 1, y * y * y

    def chained(x: Tensor) -> Any:
        return (apply(apply(x.sin()) * x),)

    return {"result": (of_result, sum_of_all), "inner": (of_inner, squares_of_all),
            "chained": (chained, squares_of_all)}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", ("result", "inner", "chained"))
@pytest.mark.parametrize("name", LINEAR)
def test_linear_ones(name: str, program: str, backend: str) -> None:
    function, take_loss = programs(Squares.of(LINEAR[name]).apply)[program]
    wanted = derivatives(function, take_loss)
    found = derivatives(dynamo.compile(function, backend=backend), take_loss)
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)
    assert_compiled(but="second derivative")


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", ("inner", "chained"))
@pytest.mark.parametrize("name", NONLINEAR)
def test_nonlinear_ones(name: str, program: str, backend: str) -> None:
    function, take_loss = programs(Squares.of(NONLINEAR[name]).apply)[program]
    compiled = dynamo.compile(function, backend=backend)
    with pytest.raises(RuntimeError, match="is not linear in its gradient") as raised:
        derivatives(compiled, take_loss)
    assert __file__ in str(raised.value).splitlines()[0]


@pytest.mark.parametrize("name", NONLINEAR)
def test_the_first_derivative_is_right(name: str) -> None:
    apply = Squares.of(NONLINEAR[name]).apply
    for function, _ in programs(apply).values():
        dynamo.reset()
        found = [differentiated(call, torch.linspace(-1, 1, 4).requires_grad_())
                 for call in (function, dynamo.compile(function, fullgraph=True))]  # fmt: skip
        torch.testing.assert_close(found[1], found[0])


@pytest.mark.parametrize("name", NONLINEAR)
def test_one_run_is_enough(name: str) -> None:
    """The gradient hangs on the function in one of the runs alone."""
    apply = Squares.of(NONLINEAR[name]).apply

    def in_second_run(x: Tensor) -> Any:
        return (apply(apply(x.sin()) * x),)

    def in_own_node(x: Tensor) -> Any:
        return (apply(x.sin()),)

    for function, take_loss in ((in_second_run, sum_of_all), (in_own_node, squares_of_all)):
        dynamo.reset()
        wanted = derivatives(function, take_loss)
        found = derivatives(dynamo.compile(function, fullgraph=True), take_loss)
        torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)


def test_what_makes_zeros_of_zeros() -> None:
    """Backward of `exp` reads its result: the gradient goes through the program's own node."""
    apply = Squares.of(NONLINEAR["clipped softly"]).apply

    def function(x: Tensor) -> Any:
        return (apply(x.sin()).exp(),)

    wanted = derivatives(function, sum_of_all)
    found = derivatives(dynamo.compile(function, fullgraph=True), sum_of_all)
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)


def test_two_first_derivatives() -> None:
    """Each runs the program again, and their sum is differentiated."""
    apply = Squares.of(NONLINEAR["one more"]).apply

    def function(x: Tensor) -> Any:
        return (apply(x.sin()).square(),)

    x = torch.tensor([0.3, -0.7], dtype=torch.double, requires_grad=True)
    (result,) = dynamo.compile(function, fullgraph=True)(x)
    total = [torch.autograd.grad(result.sum(), x, create_graph=True)[0].sum() for _ in range(2)]
    with pytest.raises(RuntimeError, match="is not linear in its gradient"):
        torch.autograd.grad(total[0] + total[1], x, retain_graph=True)
    for one in total:  # by itself
        torch.autograd.grad(one, x, retain_graph=True)


class Twice(torch.autograd.Function):
    forward = staticmethod(lambda ctx, x: x * 2)
    backward = staticmethod(lambda ctx, grad: grad * 2)


@pytest.mark.parametrize("backend", BACKENDS)
def test_results_that_lead_to_other_inputs(backend: str) -> None:
    """The function's backward runs once for both, though one of the inputs is followed."""
    apply = Squares.of(NONLINEAR["one more"]).apply

    def function(a: Tensor, b: Tensor) -> Any:
        y = apply(b.sin())
        return y * a, y * 2

    def gradients(call: Any) -> Any:
        a, b = [torch.tensor([0.3, -0.7], dtype=torch.double, requires_grad=True) for _ in "ab"]
        followed = Twice.apply(a)  # type: ignore[no-untyped-call]
        return torch.autograd.grad(sum_of_all(*call(followed, b)), (a, b))

    wanted = gradients(function)
    found = gradients(dynamo.compile(function, backend=backend))
    torch.testing.assert_close(found, wanted, rtol=1e-12, atol=1e-12)


def test_beside_what_has_no_derivative() -> None:
    """Backward can't be recorded; the function's runs once for both other results."""
    apply = Squares.of(NONLINEAR["one more"]).apply

    def function(x: Tensor) -> Any:
        y = apply(x.sin())
        return y * 2, y * 3, torch.igamma(y.abs() + 1, y.detach() + 1)

    found = []
    for call in (function, dynamo.compile(function)):
        x = torch.tensor([0.3, -0.7], dtype=torch.double, requires_grad=True)
        found.append(torch.autograd.grad(sum_of_all(*call(x)[:2]), x))
    torch.testing.assert_close(found[1], found[0], rtol=1e-12, atol=1e-12)
