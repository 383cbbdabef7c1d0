"""Strides that torch's meta kernels tell otherwise than its kernels: batch norm of odd layouts, broadcasts with symbolic sizes."""

from __future__ import annotations

import itertools
import warnings
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import dynamo
from dynamo.aot.reference import ReferenceWorld

SHAPES = [(4, 3), (4, 3, 5), (2, 3, 4, 5), (1, 3, 4, 5), (2, 1, 4, 5)]


def permuted(shape: tuple[int, ...], order: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.randn([shape[axis] for axis in order]).to(dtype).permute([order.index(axis) for axis in range(len(order))])


def strides(x: torch.Tensor, *statistics: torch.Tensor) -> Any:
    x = x.detach().requires_grad_()
    y = F.batch_norm(x, *statistics, training=True)
    found = [y]
    for grad in (torch.ones_like(x), torch.ones_like(y).contiguous(), torch.ones_like(y[:1]).expand(y.shape)):
        found += torch.autograd.grad(y, x, grad, retain_graph=True)
    return [tuple(step for size, step in zip(t.shape, t.stride(), strict=True) if size > 1) for t in found]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", SHAPES)
def test_batch_norm(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    for order in itertools.permutations(range(len(shape))):
        x = permuted(shape, order, dtype)
        for statistics in ((None, None), (torch.zeros(shape[1], dtype=dtype), torch.ones(shape[1], dtype=dtype))):
            world = ReferenceWorld()
            given = [None if each is None else world.from_real(each) for each in (x, *statistics)]
            with world:
                found = strides(*given)  # type: ignore[arg-type]
            assert found == strides(x, *statistics), (order, statistics)  # type: ignore[arg-type]


def test_compiled_batch_norm_of_half_precision() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        return F.batch_norm(x - 2, None, None, training=True)

    x = permuted((2, 16), (1, 0), torch.bfloat16)
    for dynamic in (False, True):
        assert dynamo.compile(program, dynamic=dynamic)(x).stride() == program(x).stride() == (16, 1)


def test_broadcast_with_symbolic_sizes() -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.copysign(x, y)

    compiled = dynamo.compile(program, dynamic=True)
    for rows, columns in [(8, 16), (33, 2), (7, 5)]:
        x, y = permuted((rows, columns, 1), (1, 0, 2), torch.float32), torch.ones(columns, dtype=torch.uint8)
        assert compiled(x, y).stride() == program(x, y).stride()
        torch.testing.assert_close(compiled(x, y), program(x, y))


def test_a_division_by_a_size_that_is_zero_is_compiled() -> None:
    compiled = dynamo.compile(lambda x: (x * 4).long() // x.shape[0], dynamic=True)
    for size in ((2, 4), (0, 4), (3, 4)):
        x = torch.rand(size)
        assert torch.equal(compiled(x), (x * 4).long() // size[0] if size[0] else x.long())


@pytest.mark.parametrize("count", [0, 3, 5, 15])
@pytest.mark.parametrize("dynamic", [None, True])
def test_an_out_of_another_size_is_resized(count: int, dynamic: bool | None) -> None:
    def f(x: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        torch.mul(x, 2, out=out)
        return out + 1

    compiled = dynamo.compile(f, dynamic=dynamic)
    for size in (5, 6, 7):
        x, out, expected = torch.rand(size), torch.zeros(count), torch.zeros(count)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of resizing
            assert torch.equal(compiled(x, out), f(x, expected))
        assert torch.equal(out, expected)
