"""`nn.Buffer` and what else is registered on a module inside of compiled code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import dynamo


class Holder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("old", torch.zeros(2))
        self.weight = nn.Parameter(torch.ones(2))
        self.__dict__["given"] = nn.Buffer(torch.ones(2), persistent=False)


def made(m: Any, x: torch.Tensor) -> Any:
    m.b = nn.Buffer(x, persistent=False)
    m.b = nn.Buffer(x + 1)
    return m.b * 2


def written_over(m: Any, x: torch.Tensor) -> Any:
    m.old = nn.Buffer(x * 2, persistent=False)
    return m.old


def from_outside(m: Any, x: torch.Tensor) -> Any:
    m.b = m.given
    return m.b + x


def refused(m: Any, x: torch.Tensor) -> Any:
    try:
        m.weight = nn.Buffer(x)
    except TypeError as error:
        return str(error)


def several(m: Any, x: torch.Tensor) -> Any:
    m.child = nn.Module()
    m.child.b = nn.Buffer(x)
    m.child.p = nn.Parameter(x)
    m.register_buffer("r", x * 2, persistent=False)
    setattr(m, "named", nn.Buffer(x))  # noqa: B010
    del m.old
    return m.child.b + m.r


def state(m: Any, result: Any) -> Any:
    tensors = [(n, t.tolist()) for n, t in [*m.named_buffers(), *m.named_parameters()]]
    shown = result.tolist() if isinstance(result, torch.Tensor) else result
    return shown, tensors, list(m.state_dict()), sorted(m._non_persistent_buffers_set)


@pytest.mark.parametrize("f", [made, written_over, from_outside, refused, several])
def test_what_is_registered(f: Callable[..., Any]) -> None:
    compiled = dynamo.compile(f, backend="eager")
    for x in torch.randn(2, 2).unbind():
        results = []
        for call in (f, compiled):
            module = Holder()
            results.append(state(module, call(module, x)))
        assert results[0] == results[1]
