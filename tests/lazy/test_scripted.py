"""Functions of TorchScript that have run in eager: their operations are recorded all the same."""

from __future__ import annotations

import pytest
import torch

from dynamo import lazy


def _scale(x: torch.Tensor, by: float = 2.0) -> torch.Tensor:
    return x * by


scale = torch.jit.script(_scale)


def _program(x: torch.Tensor, ys: list[torch.Tensor], by: float = 3.0, times: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    z = scale(x, by) + ys[0]
    for _ in range(times):
        z = torch.tanh(z) * by
    return z, z.sum()


@pytest.fixture
def program():
    """A function that TorchScript has optimized."""
    made = torch.jit.script(_program)
    x = torch.randn(4, requires_grad=True)
    for _ in range(4):
        made(x, [x])[1].backward()
    return made


@pytest.mark.parametrize("given", [{}, {"by": 0.5}, {"times": 3, "by": 2.0}], ids=str)
def test_operations_are_recorded_in_a_mode(program, given) -> None:
    x, y = torch.randn(4, requires_grad=True), torch.randn(4)
    expected, total = program(x, [y], **given)
    total.backward()
    grad, x.grad = x.grad, None
    before = lazy.metrics().operations
    with lazy.mode(backend="eager"):
        got, found = program(x, [y], **given)
        found.backward()
    assert lazy.metrics().operations - before >= 6
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(x.grad, grad)


def test_lazy_arguments_outside_of_a_mode(program) -> None:
    x, y = torch.randn(4), torch.randn(4)
    result, _ = program(x, [lazy.tensor(y)])
    assert isinstance(result, lazy.LazyTensor)
    torch.testing.assert_close(lazy.eager(result), program(x, [y])[0])


def test_writes_of_the_mode_come_first(program) -> None:
    x, y = torch.randn(4), torch.randn(4)
    expected = program(x * 2, [y + 1])[0]
    with lazy.mode(backend="eager"):
        x.mul_(2)
        result = program(x, [y + 1])[0]
    torch.testing.assert_close(result, expected)


@pytest.mark.parametrize("call", [
    lambda f, x: f(x), lambda f, x: f(x, [x], wrong=1), lambda f, x: f(x, [x], x=x),
])  # fmt: skip
def test_wrong_arguments_fail_as_in_eager(program, call) -> None:
    with pytest.raises(RuntimeError) as eager:
        call(program, torch.ones(4))
    with lazy.mode(backend="eager"), pytest.raises(RuntimeError) as recorded:
        call(program, torch.ones(4))
    assert str(recorded.value) == str(eager.value)
