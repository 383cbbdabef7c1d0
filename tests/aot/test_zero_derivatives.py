"""Outputs whose derivative is zero by structure: they require grad as in eager, and give inputs what eager gives (None or zeros)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynamo
from dynamo.base.counters import counters


class Nothing(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> None:
        return None


def _pair(a: torch.Tensor, b: torch.Tensor) -> Any:
    return torch._foreach_sqrt([a.exp(), torch.ones(3, dtype=torch.int16), b.exp()])


PROGRAMS: dict[str, Callable[..., Any]] = {
    "a list with integers": _pair,
    "only the integers": lambda a, b: _pair(a, b)[1],
    "norm of order 0": lambda a, b: torch.linalg.vector_norm(a, 0),
    "norm of order 0 and more": lambda a, b: (torch.linalg.vector_norm(a, 0), a * b),
    "sgn": lambda a, b: (a.sgn(), a.sin()),
    "sgn in a sum": lambda a, b: (a.sgn() + b, a.sin()),
    "sgn of an input of its own": lambda a, b: (a.sgn() + b, b.sin()),
    "floor": lambda a, b: (a.floor(), b.sin()),
    "norms of order 0": lambda a, b: (torch.linalg.vector_norm(a, 0), torch.linalg.vector_norm(a * b, 0), b.sin()),
    "nothing of a function": lambda a, b: Nothing.apply(a),
    "nothing of a function beside others": lambda a, b: (Nothing.apply(a * b), b.sin()),
    "sgn of both": lambda a, b: (a.sgn() + b.sgn(), (a * b).sin()),
    "complex sgn": lambda a, b: (torch.complex(a, b).sgn().abs(), b.sin()),
    "rounded": lambda a, b: (a.round(), b.trunc() * a.ceil()),
    "zeros in the program": lambda a, b: (torch.zeros(3) + a, b.sin()),
}


def _facts(function: Callable[..., Any], which: int) -> Any:
    torch.manual_seed(1)
    a, b = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
    results = function(a, b)
    outputs = [results] if isinstance(results, torch.Tensor) else list(results)
    seen = [(out.requires_grad, out.grad_fn is None) for out in outputs]
    outputs[which % len(outputs)].sum().backward()
    return seen, [None if x.grad is None else (x.grad + 0).tolist() for x in (a, b)]


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.parametrize("name", PROGRAMS)
def test_as_in_eager(name: str, which: int) -> None:
    dynamo.reset()
    counters["not_compiled"].clear()
    seen, grads = _facts(dynamo.compile(PROGRAMS[name]), which)
    assert not counters["not_compiled"]
    want, expected = _facts(PROGRAMS[name], which)
    assert seen == want
    for grad, other in zip(grads, expected, strict=True):
        assert grad == (other if other is None else pytest.approx(other))


INF = float("inf")
BEHIND_SGN: list[Callable[..., Any]] = [
    lambda a, b: (a * b).sgn().sum(),
    lambda a, b: (a * b).sgn() * b + a.sin(),
    lambda a, b: (a / b).sgn() + b,
    lambda a, b: (a * INF).sgn() + b,
    lambda a, b: (a.exp() * b).sgn() + a,
    lambda a, b: a.log().sgn() + a,
    lambda a, b: (a.sqrt() + b.reciprocal()).sgn() + a,
    lambda a, b: (a * b + a / b).sgn() - a,
    lambda a, b: (a * b)[1:, None].sgn() + a,
    lambda a, b: (a * b).sum(0).sgn() + a,
    lambda a, b: (a * b).sign() + a,  # its derivative is zeros like others
]


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("at", range(len(BEHIND_SGN)))
def test_beside_infinities(at: int, backend: str) -> None:
    """A derivative that is known to be zero stays so, times an infinity as well."""
    found = []
    for f in (BEHIND_SGN[at], dynamo.compile(BEHIND_SGN[at], backend=backend)):
        a = torch.tensor([1.0, 0.0, INF, -INF, 2.0, -1.0]).requires_grad_()
        b = torch.tensor([INF, INF, 0.0, 1.0, 0.0, 3.0]).requires_grad_()
        f(a, b).sum().backward()
        found.append([x.grad if x.grad is None else x.grad + 0 for x in (a, b)])
    torch.testing.assert_close(found[1], found[0], equal_nan=True, atol=0, rtol=1e-6)


@pytest.mark.parametrize("symbolic", [False, True])
def test_without_gradient_backward_goes_where_eagers_does(symbolic: bool) -> None:
    """A node behind the outputs that gives nothing leads to the inputs of these outputs alone."""

    def program(a: torch.Tensor, b: torch.Tensor) -> Any:
        return torch.linalg.vector_norm(a, 0), a * 2 + b

    dynamo.reset()
    counters["not_compiled"].clear()
    for run in (program, dynamo.compile(program, dynamic=symbolic)):
        x, y = torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True)
        a, b = x.exp(), y.exp()
        b.sum().backward()  # what is behind b is freed
        norm, total = run(a, b)
        assert norm.grad_fn is not None
        norm.backward()
        assert x.grad is None and y.grad is not None
        with pytest.raises(RuntimeError, match="second time"):
            norm.backward()
        with pytest.raises(RuntimeError, match="second time"):
            total.sum().backward()
    assert not counters["not_compiled"]


def test_second_derivatives_beside_it() -> None:
    def program(a: torch.Tensor, b: torch.Tensor) -> Any:
        return torch.linalg.vector_norm(a, 0), (a * b).sgn() + a.sin() * b

    dynamo.reset()
    found = []
    for run in (program, dynamo.compile(program)):
        a, b = (torch.tensor([1.0, -2.0, 3.0]).requires_grad_() for _ in range(2))
        norm, other = run(a, b)
        slope, = torch.autograd.grad(norm + other.sum(), a, create_graph=True)
        found.append((slope, *torch.autograd.grad(slope.square().sum(), (a, b))))
    torch.testing.assert_close(found[1], found[0])


class Constant(torch.autograd.Function):
    """Gives the same gradient whatever comes."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return torch.ones(3)


@pytest.mark.parametrize("which", [0, -1])
@pytest.mark.parametrize("program", [
    lambda a, b: Constant.apply(a), lambda a, b: (Constant.apply(a), b.sin()), lambda a, b: (Constant.apply(a) * b, b.sin()),
], ids=["alone", "beside", "shared"])  # fmt: skip
def test_a_gradient_of_ones(program: Any, which: int) -> None:
    dynamo.reset()
    assert _facts(dynamo.compile(program), which) == _facts(program, which)
