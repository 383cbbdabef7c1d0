"""What the default backend gives as on a GPU, in Triton's interpreter: values, views, and what kernels touch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
import triton
import triton.language as tl
from as_on_gpu import interpreting
from interpreter_addresses import check_addresses
from triton.runtime.errors import InterpreterError

import dynamo
from inductor import metrics


@pytest.fixture(autouse=True)
def fresh() -> None:
    dynamo.reset()


def written_through_a_view(x: torch.Tensor) -> torch.Tensor:
    y = x.softmax(-1)
    y.unflatten(0, (1, -1))[-1].mul_(2)
    return y


def rows_of_a_product(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([x, x], 1).reshape(-1, 4).exp()[2:]


@pytest.mark.parametrize("program", [written_through_a_view, rows_of_a_product])
def test_results_can_be_written_once_gradients_are_wanted(program: Callable[..., Any]) -> None:
    """Though a buffer has other sizes than the result that shows it."""
    weight, results = torch.full((4,), 3.0, requires_grad=True), []
    for function in (program, dynamo.compile(program)):
        with interpreting() as found, torch.no_grad():
            y = function(torch.arange(24.0).reshape(6, 4) / 7)
        assert y._is_view() == (program is rows_of_a_product and function is program)
        y = y.clone() if y._is_view() else y
        y.mul_(weight)
        y.sum().backward()
        results.append((y.detach(), weight.grad))
        weight.grad = None
    assert "view(" in found.texts[-1].partition("return (")[2]
    torch.testing.assert_close(results[1], results[0])


def test_a_backward_with_values_that_nobody_reads() -> None:
    """The gradient of a sign is zero, whatever it is computed from."""

    def program(x: torch.Tensor) -> torch.Tensor:
        (v,) = torch._foreach_sign([x.sin()])
        return F.silu(x), (v - v.mean(-1, keepdim=True)).exp()

    grads = []
    for function in (program, dynamo.compile(program)):
        x = torch.linspace(-2, 2, 27).reshape(3, 3, 3).requires_grad_()
        with interpreting() as found:
            sum(map(torch.sum, function(x))).backward()  # type: ignore[union-attr]
        grads.append(x.grad)
    torch.testing.assert_close(grads[1], grads[0])
    assert found.graphs == 2 and not dynamo.counters["not_compiled"]
    assert not any("(XBLOCK: tl.constexpr" in text for text in found.texts)


@triton.jit
def copied(in0, out1, count, XBLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    x = tl.arange(0, XBLOCK)
    tl.store(out1 + x, tl.load(in0 + x, x < count), x < count)


@pytest.mark.parametrize(("count", "fits"), [(5, True), (6, False)])
def test_reaching_beside_a_tensor_is_an_error(count: int, fits: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    check_addresses(monkeypatch)
    x, y = torch.arange(5.0), torch.zeros(8)
    if fits:
        copied[(1,)](x, y, count, XBLOCK=8)
        assert torch.equal(y[:5], x)
        return
    with pytest.raises((InterpreterError, IndexError), match="beside its tensors"):
        copied[(1,)](x, y, count, XBLOCK=8)


def state_and_its_sum(h: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    h.mul_(x).add_(x)
    return (h * x).sum(-1)


def state_and_its_softmax(h: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    new = h * x
    h.view(-1).copy_(new.view(-1))
    return new.softmax(-1)


def old_state_behind_a_maximum(h: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    new = h * x
    late = h - new.amax(-1, keepdim=True)
    h.copy_(new)
    return late


def state_that_is_written_twice(h: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    h.mul_(x)
    total = h.sum(-1)
    h.sub_(total[..., None])
    return h.amax(-1) + total


LOOPS = {"PERSISTENT_COLUMNS": 16, "PERSISTENT_WITH_LOCALS": 32, "LOOP_BLOCKS": ((8, 32, 1),)}


@pytest.mark.parametrize("limits", [{}, LOOPS], ids=["whole rows", "loops over rows"])
@pytest.mark.parametrize(("program", "kernels"), [
    (state_and_its_sum, 1), (state_and_its_softmax, 1), (old_state_behind_a_maximum, 2),
    (state_that_is_written_twice, 1)])  # fmt: skip
def test_rows_that_overwrite_what_they_read(
    program: Callable[..., Any], kernels: int, limits: dict[str, Any]
) -> None:
    """In the kernel that computes them, unless something else of the row reads the old contents, too."""
    for shape in ((2, 3, 16), (4, 100), (2, 3, 600)):
        h, x = torch.randn(shape), torch.randn(shape)
        wanted_h = h.clone()
        wanted = program(wanted_h, x)
        dynamo.reset()
        metrics.reset()
        with interpreting(limits=limits) as found, torch.no_grad():
            torch.testing.assert_close(dynamo.compile(program)(h, x), wanted, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(h, wanted_h, rtol=1e-4, atol=1e-4)
        assert not found.slow and not found.fallbacks and metrics.snapshot()["kernels"] == kernels
