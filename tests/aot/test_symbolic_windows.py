"""Windows over signals of many lengths, which overlap in memory: one graph for all of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

import dynamo

WINDOW = torch.hann_window(16)


def centred(x: Tensor) -> Tensor:
    return torch.stft(x, 16, 4, window=WINDOW, return_complex=True).abs()


def of_the_input(x: Tensor) -> Tensor:
    return torch.stft(x, 16, 4, window=WINDOW, return_complex=True, center=False).abs().log1p()


def of_a_value(x: Tensor) -> Tensor:
    return torch.stft(x.sin(), 16, 4, window=WINDOW, return_complex=True, center=False).abs()


def reflected(x: Tensor) -> Tensor:
    return F.pad(x.unsqueeze(0), (3, 3), mode="reflect").view(x.shape[0], -1).sin()


@pytest.mark.parametrize("program", [centred, of_the_input, of_a_value, reflected])
@pytest.mark.parametrize("requires_grad", [False, True])
def test_one_graph(program: Callable[[Tensor], Tensor], requires_grad: bool) -> None:
    dynamo.counters.clear()  # of other tests
    compiled, before = dynamo.compile(program), dynamo.counters["stats"]["graphs"]
    for count, length in zip((2, 3, 3, 4, 5, 6, 7, 8, 9, 10, 11), range(40, 200, 9), strict=False):
        x = torch.randn(count, length + 5)
        x = x.flatten()[5 * count :].view(count, length).requires_grad_(requires_grad)  # an offset
        found, wanted = compiled(x), program(x)
        torch.testing.assert_close(found, wanted)
        if requires_grad:
            grad = torch.randn_like(wanted)
            torch.testing.assert_close(
                torch.autograd.grad(found, x, grad), torch.autograd.grad(wanted, x, grad))
    assert dynamo.counters["stats"]["graphs"] - before <= 5  # of 11; the others have symbolic sizes
    assert not dynamo.counters["not_compiled"]


@pytest.mark.parametrize("program", [of_the_input, reflected])
def test_rows_with_gaps(program: Callable[[Tensor], Tensor]) -> None:
    compiled = dynamo.compile(program)
    for count, length in ((2, 40), (3, 57), (5, 73)):
        x = torch.randn(count, 2, length)[:, 1]
        torch.testing.assert_close(compiled(x), program(x))
