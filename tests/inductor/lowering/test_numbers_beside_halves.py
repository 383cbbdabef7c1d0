"""A number beside half precision is rounded to it before eager's kernels compare with it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import dynamo

Program = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
PROGRAMS: dict[str, Program] = {
    "ge": lambda x, t: x >= 0.1, "eq": lambda x, t: x == 0.1, "ge of a constant": lambda x, t: x >= torch.tensor(0.1),
    "ge of a tensor": lambda x, t: x >= t, "lt on the right": lambda x, t: t < x, "fmod": lambda x, t: torch.fmod(x, 0.1),
    "fmod of a tensor": torch.fmod, "remainder": lambda x, t: x % 0.1, "where": lambda x, t: torch.where(x > 0.3, x, 0.1),
    "product": lambda x, t: x * t, "maximum": torch.maximum, "wide": lambda x, t: x.float() >= t,
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", PROGRAMS)
def test_as_eager(name: str, dtype: torch.dtype) -> None:
    dynamo.reset()
    program = PROGRAMS[name]
    x = torch.cat([torch.tensor([0.1, 0.3, 0.2]), torch.rand(61)]).to(dtype)
    found, wanted = dynamo.compile(program, fullgraph=True)(x, torch.tensor(0.1)), program(x, torch.tensor(0.1))
    assert found.dtype is wanted.dtype and torch.equal(found, wanted)
