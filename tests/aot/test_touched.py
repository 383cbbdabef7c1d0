"""Sizes of a view changed in place: the version counter of its input moves as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynamo

Change = Callable[[torch.Tensor], torch.Tensor]
VIEWS: dict[str, Change] = {
    "chunk": lambda x: x.chunk(2)[1],
    "slice": lambda x: x[1:],
    "view": lambda x: x.view(x.shape),
    "detach": lambda x: x.detach(),
    "data": lambda x: x.data,
}
CHANGES: dict[str, Change] = {
    "unsqueeze_": lambda x: x.unsqueeze_(0),
    "squeeze_": lambda x: x.squeeze_(),
    "transpose_": lambda x: x.transpose_(0, 1),
    "swapaxes_": lambda x: x.swapaxes_(0, 1),
    "t_": lambda x: x.t_(),
}


def facts(function: Callable[..., Any], x: torch.Tensor) -> Any:
    before = x._version
    result, view = function(x)
    return x._version - before, x.shape, view.shape, view.stride(), result


@pytest.mark.parametrize("dynamic", (False, True))
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("view", VIEWS)
def test_the_counter_moves(view: str, change: str, dynamic: bool) -> None:
    def f(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        part = VIEWS[view](x)
        changed = CHANGES[change](part)
        return changed * 2, part

    x = torch.randn(2, 3)
    want, got = facts(f, x), facts(dynamo.compile(f, dynamic=dynamic), x)
    assert got[:-1] == want[:-1]
    assert torch.equal(got[-1], want[-1])


def test_gradients_pass() -> None:
    """What the graph saves for its backward is saved after the counter has moved."""

    def f(x: torch.Tensor) -> torch.Tensor:
        x[1:].unsqueeze_(0)
        return x * x

    compiled = dynamo.compile(f)
    for _ in range(2):
        leaf, other = (torch.randn(3, 2, requires_grad=True) for _ in range(2))
        x, y = leaf * 1, other * 1
        f(x).sum().backward()
        compiled(y).sum().backward()
        assert x._version == y._version == 1
        torch.testing.assert_close(other.grad, 2 * other)


def test_sizes_and_data_changed() -> None:
    def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x[0].unsqueeze_(0)
        y[0].unsqueeze_(0).mul_(2)
        return x + y

    want = [torch.randn(2, 3) for _ in range(2)]
    got = [tensor.clone() for tensor in want]
    torch.testing.assert_close(dynamo.compile(f)(*got), f(*want))
    torch.testing.assert_close(got, want)
    assert all(tensor._version for tensor in got)
