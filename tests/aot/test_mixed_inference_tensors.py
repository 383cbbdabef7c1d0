"""Programs of whose results some are inference tensors."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import dynamo
from dynamo.testing import assert_compiled
from tests.aot.compare import differentiated


def beside(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    with torch.inference_mode():
        inner = x.exp()
    return inner, x * 2, inner[1:], inner


def of_each_other(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    y = x.sin()
    with torch.inference_mode():
        most = y.max(0)
    return most.values, y, most.indices, most.values.t()


def written(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    with torch.inference_mode():
        inner = x.exp()
    with torch.no_grad():
        x.add_(inner)
    return (inner,)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("learns", [False, True])
@pytest.mark.parametrize("program", [beside, of_each_other, written])
def test_equals_eager(
    program: Callable[..., tuple[torch.Tensor, ...]], learns: bool, dynamic: bool, backend: str
) -> None:
    dynamo.reset()
    found = []
    for call in (program, dynamo.compile(program, backend=backend, dynamic=dynamic)):
        x = torch.linspace(-1, 1, 12).view(4, 3).requires_grad_(learns)
        results, gradients = differentiated(call, x)
        facts = [(value.is_inference(), value.requires_grad, value.stride()) for value in results]
        with torch.inference_mode():
            results[0].mul_(2)
        found.append((facts, [*results, x, gradients]))
    assert found[1][0] == found[0][0]
    torch.testing.assert_close(found[1][1], found[0][1])
    assert_compiled()


def test_autograd_refuses_them_as_in_eager() -> None:
    for call in (beside, dynamo.compile(beside)):
        inner, other, *_ = call(torch.ones(3, requires_grad=True))
        with pytest.raises(RuntimeError, match="Inference tensors cannot be saved"):
            inner * other
