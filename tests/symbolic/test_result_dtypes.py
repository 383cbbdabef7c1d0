"""torch's `out_dtype` in one graph, with eager's values; what it refuses breaks the graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._higher_order_ops.out_dtype import out_dtype

import dynamo

aten = torch.ops.aten


def of_bytes(a: Tensor, b: Tensor) -> Tensor:
    return out_dtype(aten.mm.default, torch.int32, a, b) + 1


def of_floats(a: Tensor, b: Tensor) -> Tensor:
    return out_dtype(aten.mm.default, torch.int32, a.float(), b.float())


def wider(a: Tensor, b: Tensor) -> Tensor:
    return out_dtype(aten.linear.default, torch.float64, a.half(), b.half().t())


@pytest.mark.parametrize("program", [of_bytes, of_floats, wider], ids=lambda f: f.__name__)
def test_one_graph(program: Callable[..., Any]) -> None:
    compiled = dynamo.compile(program, fullgraph=True)
    for _ in range(2):
        a, b = (torch.randint(-128, 128, size, dtype=torch.int8) for size in ((32, 64), (64, 16)))
        expected, found = program(a, b), compiled(a, b)
        assert found.dtype is expected.dtype
        torch.testing.assert_close(found, expected)


def test_what_torch_refuses() -> None:
    a = torch.randn(1, 4, 4)
    for program in (
        lambda a: out_dtype(aten.relu.default, torch.float64, a), lambda a: out_dtype(aten.bmm.default, torch.float64, a, a)):
        for call in (program, dynamo.compile(program)):
            with pytest.raises(ValueError, match="only allows the following operators"):
                call(a)
