"""A sample of random programs over changing sizes and numbers against eager."""

from __future__ import annotations

import random
import warnings

import pytest
import torch

import dynamo
from tests.shapes.random_programs import check


@pytest.mark.draws
@pytest.mark.parametrize("dynamic", [None, True])
def test_sample(dynamic: bool | None) -> None:
    with warnings.catch_warnings(), dynamo.config.patch(suppress_errors=False):
        warnings.simplefilter("ignore")
        for _ in range(3):
            seed = random.randrange(10**9)
            difference = check(seed, dynamic)
            assert difference is None, f"seed {seed}\n{difference}"


def test_offsets_are_guarded() -> None:
    def program(x: torch.Tensor) -> object:
        return x + 1, x[1:].storage_offset(), x.as_strided((2,), (1,)) * 2

    x = torch.randn(12)
    for make in (lambda n: x[n:], lambda n: x[n : n + 3], lambda n: x[: n + 2]):
        compiled = dynamo.compile(program, backend="eager")
        for n in range(5):
            found, wanted = compiled(make(n)), program(make(n))
            assert found[1] == wanted[1]
            assert torch.equal(found[0], wanted[0]) and torch.equal(found[2], wanted[2])
