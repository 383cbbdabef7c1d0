"""Outputs that are views with other elements than their base has: parts of complex numbers, conjugates, bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import dynamo
from dynamo.base.counters import counters
from tests.aot.compare import check


def both_parts(x: Tensor, y: Tensor) -> Any:
    z = torch.complex(x, y) * 2
    return z, z.real, z.imag[1:], torch.view_as_real(z)[1]


def without_the_whole(x: Tensor, y: Tensor) -> Any:
    z = torch.complex(x, y).exp()
    return z.real, z.imag


def conjugate_and_whole(x: Tensor, y: Tensor) -> Any:
    z = torch.complex(x, y).exp()
    return z, z.conj(), z.conj()[1:], z.conj().imag


def bits_after_a_write(x: Tensor, y: Tensor) -> Any:
    with torch.no_grad():
        x.mul_(2)
    return x.view(torch.int32)[1:], y.sin()


def bits_of_a_result(x: Tensor, y: Tensor) -> Any:
    z = x * y
    return z.detach().view(torch.int32), z, z.view(torch.int32)


PROGRAMS: dict[str, Callable[..., Any]] = {
    "both parts": both_parts, "without the whole": without_the_whole, "conjugate and whole": conjugate_and_whole,
    "a conjugate": lambda x, y: torch.complex(x, y).exp().conj(), "a negative": lambda x, y: torch.complex(x, y).conj().imag,
    "bits of an input": lambda x, y: (x.view(torch.int32), x[2:].view(torch.int32), x * y), "bits after a write": bits_after_a_write,
    "bits of a result": bits_of_a_result,
}  # fmt: skip


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
@pytest.mark.every_combination
def test_values(program: Callable[..., Any], backend: str, grad: bool) -> None:
    dynamo.reset()
    counters["not_compiled"].clear()
    compiled = dynamo.compile(program, backend=backend)

    def inputs() -> tuple[Tensor, ...]:
        return torch.randn(12)[4:10].requires_grad_(grad), torch.randn(6).requires_grad_(grad)

    for _ in range(2):
        check(program, compiled, inputs, views=False, exact=backend != "inductor")
    assert not counters["not_compiled"]


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_gradients(program: Callable[..., Any], backend: str) -> None:
    dynamo.reset()
    x, y = torch.randn(6), torch.randn(6)
    found = []
    for run in (program, dynamo.compile(program, backend=backend)):
        leaves = [given.clone().requires_grad_() for given in (x, y)]
        results = run(*[leaf * 1 for leaf in leaves])
        results = results if isinstance(results, tuple) else (results,)
        sum((each * (2 - 3j)).abs().square().sum() * (at + 1) for at, each in enumerate(results) if each.requires_grad).backward()
        found.append([leaf.grad for leaf in leaves])
    # Of exp, the squares do not depend on `y`: what is left of its gradient is rounding of large terms.
    largest = max(float(grad.abs().max()) for grad in found[0] if grad is not None)
    torch.testing.assert_close(found[1], found[0], rtol=1.3e-6, atol=max(1e-5, 1e-6 * largest))


def test_a_conjugate_that_comes_and_goes() -> None:
    dynamo.reset()
    counters["not_compiled"].clear()
    program = lambda z: (z.conj(), z[1:], z * 2)
    compiled = dynamo.compile(program)
    for make in (lambda z: z, torch.conj):
        z = make(torch.randn(4, dtype=torch.complex64))
        assert not counters["not_compiled"]
        for got, want in zip(compiled(z), program(z), strict=True):
            torch.testing.assert_close(got, want)
            assert got.is_conj() == want.is_conj()


def test_writes_are_seen_through_them() -> None:
    dynamo.reset()
    compiled = dynamo.compile(both_parts)
    z, real, part, _ = compiled(torch.ones(4), torch.ones(4))
    z.fill_(3 + 5j)
    assert real.tolist() == [3] * 4 and part.tolist() == [5] * 3
