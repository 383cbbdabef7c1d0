"""Outputs whose derivative is zero by structure: they require grad as in eager, and give inputs what eager gives (None or zeros)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynamo


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
    seen, grads = _facts(dynamo.compile(PROGRAMS[name]), which)
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
