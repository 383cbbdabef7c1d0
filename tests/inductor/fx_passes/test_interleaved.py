"""Writes into each second element: one tensor whose elements alternate, with eager's values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import dynamo
from dynamo.aot.api import compile_training
from inductor.fx_passes.interleaved import SELECT, WRITE, interleave_writes


def rotated(x: Tensor, y: Tensor) -> Tensor:
    a, b = x.unflatten(-1, (-1, 2)).unbind(-1)
    out = torch.empty_like(x)
    out[..., 0::2] = a * y[..., 0::2] - b * y[..., 1::2]
    out[..., 1::2] = a * y[..., 1::2] + b * y[..., 0::2]
    return out


def of_three(x: Tensor, y: Tensor) -> Tensor:
    out = x.new_empty(9, 12)
    out[2::3], out[0::3], out[1::3] = x[:3, :12], y[:3, :12], x[3:6].cos()
    return out


def into_half(x: Tensor, y: Tensor) -> Tensor:
    out = torch.zeros_like(x, dtype=torch.bfloat16)
    out[:, 0::2] = x[:, :1]
    out[:, 1::2] = y[:, ::2].sin()
    return out.float() * y


def written_again(x: Tensor, y: Tensor) -> Tensor:
    out = torch.empty_like(x)
    out[:, 0::2], out[:, 1::2] = x[:, ::2], y[:, ::2]
    out[:, 0::2] = out[:, 1::2] * 2
    return out


def one_half(x: Tensor, y: Tensor) -> Tensor:
    out = y.clone()
    out[:, 0::2] = x[:, ::2]
    return out


def not_to_the_end(x: Tensor, y: Tensor) -> Tensor:
    out = y.clone()
    out[:, 0:6:2], out[:, 1::2] = x[:, :3], x[:, 1::2]
    return out


def of_odd_length(x: Tensor, y: Tensor) -> Tensor:
    out = y[:, :11].clone()
    out[:, 0::2], out[:, 1::2] = x[:, :6], x[:, :5]
    return out


def other_axes(x: Tensor, y: Tensor) -> Tensor:
    out = y.clone()
    out[0::2] = x[::2]
    out[:, 1::2] = x[:, ::2]
    return out


def by_columns(x: Tensor, y: Tensor) -> Tensor:
    out = torch.empty_like(x.t())
    out[:, 0::2], out[:, 1::2] = x.t()[:, ::2], y.t()[:, ::2]
    return out * 2


PROGRAMS: list[tuple[Callable[..., Any], int]] = [  # writes that are left
    (rotated, 0), (of_three, 0), (into_half, 0), (written_again, 0), (one_half, 1), (not_to_the_end, 2), (of_odd_length, 2),
    (other_axes, 2), (by_columns, 2),
]


@pytest.mark.parametrize(("program", "left"), PROGRAMS, ids=lambda value: getattr(value, "__name__", None))
def test_values(program: Callable[..., Any], left: int) -> None:
    found: list[int] = []

    def rewritten(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
        module = interleave_writes(module)
        found.append(len(module.graph.find_nodes(op="call_function", target=WRITE)))
        return module

    def backend(gm: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        run = lambda module, fakes: rewritten(module)  # noqa: E731
        return compile_training(gm, inputs, run, lambda module, fakes: module)

    for way in (backend, "inductor"):
        dynamo.reset()
        compiled = dynamo.compile(program, backend=way)
        x, y = (torch.randn(10, 12, requires_grad=True) for _ in range(2))
        expected, got = program(x, y), compiled(x, y)
        assert got.stride() == expected.stride() and got.dtype is expected.dtype
        torch.testing.assert_close(got, expected)
        tangent = torch.randn_like(expected)
        for one, other in zip(torch.autograd.grad(got, [x, y], tangent), torch.autograd.grad(expected, [x, y], tangent), strict=True):
            torch.testing.assert_close(one, other)
    assert found == [left]


def gated(x: Tensor, y: Tensor) -> Tensor:
    return torch.sigmoid(x[..., ::2]) * x[..., 1::2] + y[:, :6]


def last_of_two(x: Tensor, y: Tensor) -> Tensor:
    z = x.unflatten(-1, (-1, 2))
    return z[..., 0] * y[:, :6] - z[..., 1].sin()


def one_of_two(x: Tensor, y: Tensor) -> Tensor:
    return x[:, 1::2] * y[:, :6]


def thirds(x: Tensor, y: Tensor) -> Tensor:
    return x[:, ::3] * x[:, 1::3] + y[:, ::3] * y[:, 2::3]


def twice(x: Tensor, y: Tensor) -> Tensor:
    """The same elements are read again, in another way: no sum of parts alone."""
    return x[:, ::2] * x[:, 1::2] + x[:, :6] * y[:, :6]


GRADIENTS = [(gated, 0), (last_of_two, 0), (one_of_two, 0), (thirds, 0), (twice, 0)]  # writes that are left


@pytest.mark.parametrize(("program", "left"), GRADIENTS, ids=lambda value: getattr(value, "__name__", None))
def test_gradients(program: Callable[..., Any], left: int) -> None:
    found: list[int] = []

    def rewritten(module: torch.fx.GraphModule, fakes: list[Any]) -> torch.fx.GraphModule:
        module = interleave_writes(module)
        writes = [n for n in module.graph.nodes if n.target in (WRITE, SELECT)]
        found.append(len(writes))
        return module

    def backend(gm: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        return compile_training(gm, inputs, lambda module, fakes: module, rewritten)

    for dtype in (torch.float32, torch.bfloat16):
        for way in (backend, "inductor"):
            dynamo.reset()
            x, y = (torch.randn(10, 12, dtype=dtype, requires_grad=True) for _ in range(2))
            expected, got = program(x, y), dynamo.compile(program, backend=way)(x, y)
            tangent = torch.randn_like(expected)
            tangent[0], tangent[1] = 0.0, -0.0
            ours, eagers = (torch.autograd.grad(value, [x, y], tangent) for value in (got, expected))
            slack = {} if dtype is torch.float32 else {"rtol": 1.6e-2, "atol": 1e-2}  # eager rounds each product
            for one, other in zip(ours, eagers, strict=True):
                torch.testing.assert_close(one, other, **slack)
                assert torch.equal(one.signbit()[:2], other.signbit()[:2])
    assert found and set(found) == {left}
