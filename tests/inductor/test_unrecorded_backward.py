"""Programs whose backward can't be recorded: their forward is compiled, and their gradients, or the
errors in their place, are eager's."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.func import functional_call, grad
from torch.nn import functional as F

import dynamo

Tensor = torch.Tensor


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """What is counted here is of this test, and of no other one."""
    dynamo.reset()
    yield
    dynamo.reset()


class Attention(torch.nn.Module):
    """Eager's kernel for it, on a CPU, can be differentiated once."""

    def __init__(self) -> None:
        super().__init__()
        self.each, self.out = torch.nn.Linear(16, 48), torch.nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.each(x).view(2, 5, 3, 4, 4).permute(2, 0, 3, 1, 4)
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(2, 5, 16))


def gradients(model: torch.nn.Module) -> Callable[..., dict[str, Tensor]]:
    def loss(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        return functional_call(model, parameters, (x,)).square().sum()

    return grad(loss)


def test_a_gradient_that_has_none_itself() -> None:
    model = Attention()
    program = gradients(model)
    compiled = dynamo.compile(program, fullgraph=True)
    parameters = dict(model.named_parameters())
    for _ in range(2):
        x = torch.randn(2, 5, 16)
        found, wanted = compiled(parameters, x), program(parameters, x)
        assert found.keys() == wanted.keys()
        for name, value in found.items():
            torch.testing.assert_close(value, wanted[name], rtol=1e-4, atol=1e-5)
            assert value.requires_grad and not value._is_view()
            value.mul_(2)  # as an optimizer might
        with pytest.raises(RuntimeError, match="derivative for .* is not implemented"):
            wanted["each.weight"].sum().backward()
        with pytest.raises(RuntimeError, match="derivative for .* is not implemented"):
            found["each.weight"].sum().backward()
    assert not dynamo.counters["not_compiled"] and dynamo.counters["stats"]["graphs"] == 1


def lacks(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The second result has a derivative by `y` alone."""
    zeta = torch.special.zeta(x.square() + 2, y.square() + 1)
    return (x * y).sin(), zeta, (x * 2).cos(), x > y


def given() -> list[Tensor]:
    return [torch.randn(9, requires_grad=True) for _ in range(2)]


def test_what_has_a_derivative() -> None:
    """Once a gradient was wanted, and was there, the graph runs as captured: it would run twice."""
    compiled = dynamo.compile(lacks)
    for number in range(3):
        mine = given()
        theirs = [x.detach().clone().requires_grad_() for x in mine]
        found, wanted = compiled(*mine), lacks(*theirs)
        torch.testing.assert_close(list(found), list(wanted))
        assert [x.requires_grad for x in found] == [x.requires_grad for x in wanted]
        for out in (found[1], wanted[1]):
            with pytest.raises(RuntimeError, match="zeta.* is not implemented"):
                out.sum().backward(retain_graph=True)
        assert sum(dynamo.counters["not_compiled"].values()) == (number > 0)
        for at in (2, 0):
            found[at].sum().backward()
            wanted[at].sum().backward()
        torch.testing.assert_close([x.grad for x in mine], [x.grad for x in theirs])
        assert sum(dynamo.counters["not_compiled"].values()) == 1


def test_gradients_of_gradients() -> None:
    for _ in range(2):
        compiled = dynamo.compile(lacks)
        x, y = given()
        found, wanted = (
            torch.autograd.grad(
                torch.autograd.grad(f(x, y)[0].sum(), x, create_graph=True)[0].sum(), (x, y))
            for f in (compiled, lacks)
        )  # fmt: skip
        torch.testing.assert_close(found, wanted)
        dynamo.reset()


def test_what_draws_runs_as_captured() -> None:
    def draws(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return lacks(F.dropout(x), y)

    compiled = dynamo.compile(draws)
    x, y = given()
    torch.manual_seed(3)
    found = torch.autograd.grad(compiled(x, y)[0].sum(), (x, y))
    torch.manual_seed(3)
    torch.testing.assert_close(found, torch.autograd.grad(draws(x, y)[0].sum(), (x, y)))
    assert sum(dynamo.counters["not_compiled"].values()) == 1


def test_a_write_before_backward_is_an_error() -> None:
    compiled = dynamo.compile(lacks)
    for f in (lacks, compiled):
        x, y = given()
        out = f(x, y)[0]
        with torch.no_grad():
            x.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            out.sum().backward()


def test_a_whole_graph_says_that_its_gradient_is_not_compiled() -> None:
    compiled = dynamo.compile(lacks, fullgraph=True)
    out = compiled(*given())[0]
    with dynamo.config.patch(fullgraph_compiles=True):
        with pytest.raises(Exception, match="fullgraph=True allows no such thing"):
            out.sum().backward()


def test_an_operator_of_the_program_runs_once() -> None:
    seen: list[float] = []

    @torch.library.custom_op("backward_again::log", mutates_args=())
    def log(x: Tensor) -> Tensor:
        seen.append(float(x.sum()))
        return x.clone()

    @log.register_fake
    def fake(x: Tensor) -> Tensor:
        return torch.empty_like(x)

    def program(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        first, second, _, _ = lacks(x, y)
        return first + log(x.detach()), second

    compiled = dynamo.compile(program)
    for _ in range(2):
        x, y = given()
        seen.clear()
        found = torch.autograd.grad(compiled(x, y)[0].sum(), (x, y))
        assert len(seen) == 1
        torch.testing.assert_close(found, torch.autograd.grad(program(x, y)[0].sum(), (x, y)))


def test_a_defect_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> Any:
        raise AssertionError("a defect")

    monkeypatch.setattr(sys.modules["inductor.driver.compile_fx"], "compile_forward", fails)
    x, y = given()
    with pytest.warns(UserWarning, match="a defect"), dynamo.config.patch(suppress_errors=True):
        found = dynamo.compile(lacks)(x, y)
    torch.testing.assert_close(list(found), list(lacks(x, y)))
    assert sum(dynamo.counters["not_compiled"].values()) >= 1
