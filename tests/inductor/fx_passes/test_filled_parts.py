"""Tensors that are filled part by part: joined, with eager's values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

import dynamo
from inductor.fx_passes.filled_parts import WRITE, join_filled_parts

aten = torch.ops.aten


def halves(x: Tensor, y: Tensor) -> Tensor:
    """As codes of four bits are unpacked."""
    out = torch.empty(2 * x.shape[0], x.shape[1])
    out[: x.shape[0]] = x.sin()
    out[x.shape[0] :] = y
    return out * 2


def thirds_out_of_order(x: Tensor, y: Tensor) -> Tensor:
    out = x.new_zeros(x.shape[0], 3 * x.shape[1])
    width = x.shape[1]
    out[:, 2 * width :], out[:, :width], out[:, width : 2 * width] = x, y, x + y
    return out


def narrower(x: Tensor, y: Tensor) -> Tensor:
    out = torch.empty(2 * x.shape[0], x.shape[1], dtype=torch.float16)
    out[: x.shape[0]], out[x.shape[0] :] = x, y[:1]
    return out


def from_the_end(x: Tensor, y: Tensor) -> Tensor:
    out = torch.empty_like(x)
    out[-2:] = y[:2]
    out[:-2] = x[:-2].exp()
    return out


def numbers_of_tensors(x: Tensor, y: Tensor) -> Tensor:
    """A part is filled, and reads what it fills for its size."""
    out = torch.empty_like(x)
    out[:2], out[2:] = x[:2], torch.tensor(3.0)
    return out


def something_is_left(x: Tensor, y: Tensor) -> Tensor:
    out = y.clone()
    out[:2], out[3:] = x[:2], x[3:] * 2
    return out


def overlapping(x: Tensor, y: Tensor) -> Tensor:
    out = torch.empty_like(x)
    out[:4] = x[:4]
    out[2:] = y[2:]
    return out


def wanted_in_between(x: Tensor, y: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    out[:3] = x[:3]
    half = out.clone()
    out[3:] = y[3:]
    return out + half


def second_axis_as_well(x: Tensor, y: Tensor) -> Tensor:
    out = torch.zeros_like(x)
    out[:3] = x[:3]
    out[:, 3:] = y[:, 3:]
    return out


JOINED = [halves, thirds_out_of_order, narrower, from_the_end]
LEFT = [numbers_of_tensors, something_is_left, overlapping, wanted_in_between, second_axis_as_well]
Program = Callable[[Tensor, Tensor], Tensor]


def functional(program: Program, *given: Tensor) -> Any:
    return make_fx(torch.func.functionalize(program), tracing_mode="fake")(*given)


@pytest.mark.parametrize("program", JOINED + LEFT, ids=lambda each: each.__name__)
def test_graphs(program: Program) -> None:
    x, y = torch.randn(6, 5), torch.randn(6, 5)
    module = functional(program, x, y)
    assert module.graph.find_nodes(op="call_function", target=WRITE)
    join_filled_parts(module)
    left = module.graph.find_nodes(op="call_function", target=WRITE)
    assert (not left) == (program in JOINED)
    found, wanted = module(x, y), program(x, y)
    assert found.dtype is wanted.dtype and found.stride() == wanted.stride()
    assert torch.equal(found, wanted)


@pytest.mark.parametrize("program", JOINED + LEFT, ids=lambda each: each.__name__)
def test_programs(program: Program) -> None:
    x, y = torch.randn(6, 5), torch.randn(6, 5)
    found, wanted = dynamo.compile(program, fullgraph=True)(x, y), program(x, y)
    assert found.dtype is wanted.dtype and found.stride() == wanted.stride()
    torch.testing.assert_close(found, wanted)


def swapped(x: Tensor) -> Tensor:
    a, b = x[:3] * 1, x[3:] * 1
    x[:3], x[3:] = b, a
    return x * 2


def seen_meanwhile(x: Tensor) -> Tensor:
    part = x[:3]
    x[:3] = x[3:] + 1
    x[3:] = 2 * part
    return part + 1


def shown(x: Tensor) -> tuple[Tensor, ...]:
    out = torch.zeros(6, 5)
    out[:3], out[3:] = x[:3], x[3:]
    return out, out[1:4], out.t()


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("program", [swapped, seen_meanwhile, shown], ids=lambda each: each.__name__)
def test_arguments_and_views(program: Callable[[Tensor], Any], turned: bool) -> None:
    """An argument that is overwritten by its own parts, and results that share memory."""
    x = torch.randn(5, 6).t() if turned else torch.randn(6, 5)
    y = x.clone(memory_format=torch.preserve_format)
    wanted, found = program(x), dynamo.compile(program, fullgraph=True)(y)
    torch.testing.assert_close((y, found), (x, wanted))
    if isinstance(wanted, tuple):
        assert [each.stride() for each in found] == [each.stride() for each in wanted]
        assert len({each.untyped_storage().data_ptr() for each in found}) == 1


def test_gradients() -> None:
    x, y = (torch.randn(4, 5, requires_grad=True) for _ in range(2))
    wanted = torch.autograd.grad(halves(x, y).square().sum(), (x, y))
    found = torch.autograd.grad(dynamo.compile(halves)(x, y).square().sum(), (x, y))
    torch.testing.assert_close(found, wanted)
