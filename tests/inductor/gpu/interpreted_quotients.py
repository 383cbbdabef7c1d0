"""Division by what a kernel calls, in Triton's interpreter."""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl

from inductor.codegen.triton.prelude import k_truediv_of_small


@triton.jit
def quotients(A, B, OUT, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.arange(0, BLOCK)
    tl.store(OUT + at, k_truediv_of_small(tl.load(A + at), tl.load(B + at)))


def test_quotients_of_small_numbers() -> None:
    """Zeros keep their signs, nothing overflows on the way, and the last bit at most differs."""
    ends = torch.tensor([0.0, -0.0, 1.0, -1.0, math.nan, math.inf, -math.inf, 1e-45, 3e38, 1e-38, 8e-28])
    a, b = ends.repeat_interleave(len(ends)), ends.repeat(len(ends))
    more = 1024 - len(a)
    powers = torch.randint(-149, 128, (2, more)).float().exp2() * (1 + torch.rand(2, more))
    a, b = torch.cat([a, powers[0]]), torch.cat([b, powers[1]])
    found, wanted = torch.empty_like(a), a / b
    quotients[(1,)](a, b, found, len(a))
    is_number = ~wanted.isnan()
    assert torch.equal(~found.isnan(), is_number)
    assert torch.equal(found.signbit()[is_number], wanted.signbit()[is_number])
    exact = is_number & ((a.abs() >= 2.0**-100) | (a == 0))
    assert torch.equal(found[exact], wanted[exact])
    torch.testing.assert_close(found[is_number], wanted[is_number], rtol=2.5e-7, atol=3e-45)
