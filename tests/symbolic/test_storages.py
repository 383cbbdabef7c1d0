"""What only a tensor's storage tells: whether it is a view, and whether another has the same place."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import dynamo


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("dynamic", [False, True, None])
def test_a_tensor_is_set_to_itself(dynamic: bool | None, backend: str) -> None:
    def program(x: torch.Tensor) -> Any:
        x.transpose_(0, 1)
        part = x.split(2)[0]
        return part * 1, part.is_set_to(part), part.is_set_to(x), x.is_set_to(x[:])

    compiled = dynamo.compile(program, backend=backend, dynamic=dynamic)
    for rows in (4, 6, 7, 2):
        x = torch.arange(float(rows * 4)).view(rows, 4)
        other = x.clone()
        found, wanted = compiled(x), program(other)
        assert found[1:] == wanted[1:], rows
        torch.testing.assert_close(found[0], wanted[0])


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "inductor"])
@pytest.mark.parametrize("keepdim", [False, True])
def test_a_reduction_gives_no_view(keepdim: bool, backend: str) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return x.logsumexp(1, keepdim)

    x = torch.randn(4, 5, dtype=torch.double)
    found, wanted = dynamo.compile(program, backend=backend)(x), program(x)
    torch.testing.assert_close(found, wanted)
    assert found._is_view() is wanted._is_view() is False
    assert found.detach_().stride() == wanted.stride()
