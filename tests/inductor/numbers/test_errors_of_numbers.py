"""Numbers that change where eager looks at them: its checks, rounding modes and gradients at NaN stay."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import dynamo

X = torch.tensor([-7.0, -2.0, 0.3, 1.7, 5.0])


def outcome(call: Callable[..., Any], number: float) -> Any:
    x = X.clone().requires_grad_()
    try:
        result = call(x, number)
        result.sum().backward()
    except (RuntimeError, ValueError) as error:
        return type(error)
    return result.detach(), x.grad


@pytest.mark.parametrize(("function", "numbers"), [
    (lambda x, n: F.hardtanh(x, -1.0, n), (1.5, 2.5, 3.5, -2.0)),
    (lambda x, n: F.softshrink(x, n), (0.5, 1.0, 1.5, -1.0)),
    (lambda x, n: F.celu(x, n), (0.5, 1.0, 1.5, 0.0)),
    (lambda x, n: F.leaky_relu(x * 1, n, True), (0.5, 0.1, 0.2, -0.5)),
    (lambda x, n: torch.div(n, x, rounding_mode="floor"), (1.5, 2.5, 3.5)),
    (lambda x, n: torch.div(n, x.half()), (1.5, 2.5, 3.5)),
])  # fmt: skip
def test_as_eager(function: Callable[..., Any], numbers: tuple[float, ...]) -> None:
    dynamo.reset()
    compiled = dynamo.compile(function)
    for number in numbers:
        expected, found = outcome(function, number), outcome(compiled, number)
        if isinstance(expected, type):
            assert found is expected, number
        else:
            torch.testing.assert_close(found, expected, rtol=5e-4, atol=1e-6)


def test_gradient_at_nan() -> None:
    compiled = dynamo.compile(lambda x, n: F.elu(x, n))
    for number in (0.5, 1.5, 2.5):
        x, y = (torch.tensor([float("nan"), 1.0, -1.0], requires_grad=True) for _ in range(2))
        F.elu(x, number).sum().backward()
        compiled(y, number).sum().backward()
        torch.testing.assert_close(y.grad, x.grad)


def test_an_operator_that_writes_one_tensor_twice() -> None:
    @torch.library.custom_op("dynamo_tests::written_twice", mutates_args=("a", "b"))
    def written_twice(a: torch.Tensor, b: torch.Tensor) -> None:
        a.add_(1)
        b.mul_(2)

    written_twice.register_fake(lambda a, b: None)

    def program(x: torch.Tensor) -> torch.Tensor:
        y = x * 1
        written_twice(y, y)
        return y

    assert torch.equal(dynamo.compile(program)(X), program(X))
