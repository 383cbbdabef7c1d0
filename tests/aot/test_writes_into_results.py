"""Results of a graph that ATen's kernels give as views may be written into, as in eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import dynamo
from tests.parametrize import rotated

ENDS_IN_A_VIEW: dict[str, Callable[[Any], Any]] = {
    "adaptive_avg_pool1d": lambda x: F.adaptive_avg_pool1d(x[None], 2),
    "max_pool1d": lambda x: F.max_pool1d(x[None], 2),
    "conv1d": lambda x: F.conv1d(x, torch.ones(2, 3, 2)),
    "einsum": lambda x: torch.einsum("ij,ik->jk", x, x),
    "tensordot": lambda x: torch.tensordot(x, x, ([1], [1])),
    "transposed": lambda x: (x * 2).t(),
    "transposed, saved by backward": lambda x: x.exp().t(),
    "flattened": lambda x: (x * 2).flatten(),
    "diagonal": lambda x: (x * 2).diagonal(),
}


@pytest.mark.parametrize("backend", ("aot_eager", "inductor"))
@pytest.mark.parametrize("name", ENDS_IN_A_VIEW)
def test_a_result_is_written_into(name: str, backend: str) -> None:
    action = ENDS_IN_A_VIEW[name]

    def f(x: Any) -> Any:
        y = action(x)
        dynamo.graph_break()
        with torch.no_grad():
            y.add_(1)
        return y * 3

    def g(x: Any) -> Any:
        return action(x) * 3 + 3

    x = torch.randn(3, 4, requires_grad=True)
    y = dynamo.compile(f, backend=backend)(x)
    torch.testing.assert_close(y, g(x))
    [got] = torch.autograd.grad(y.sum(), x)
    [expected] = torch.autograd.grad(g(x).sum(), x)
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("backend", ("aot_eager", "inductor"))
def test_a_factor_with_a_gradient_is_written_into_a_result(backend: str) -> None:
    def f(x: Any, w: Any) -> Any:
        y = F.adaptive_avg_pool1d(x[None] * 2, 2)
        dynamo.graph_break()
        return y.mul_(w)

    x, w = torch.randn(3, 4, requires_grad=True), torch.tensor(3.0, requires_grad=True)
    compiled = dynamo.compile(f, backend=backend)
    found = [torch.autograd.grad(g(x, w).sum(), (x, w)) for g in (f, compiled)]
    torch.testing.assert_close(*found)


ONE_OF_MANY: dict[str, Callable[[Any], Any]] = {
    "chunk": lambda y: y.chunk(2)[1],
    "split": lambda y: y.split(3)[0],
    "split with sizes": lambda y: torch.split(y, [1, 3])[1],
    "unbind": lambda y: y.unbind(1)[2],
    "unpacked": lambda y: (lambda a, *rest: a)(*y),
    "of one of many": lambda y: y.t().chunk(2)[0],
    "with its base": lambda y: (y.chunk(2)[1], y)[0],
}
WRITABLE: dict[str, Callable[[Any], Any]] = {
    "tensor_split": lambda y: torch.tensor_split(y, 2)[0],
    "hsplit": lambda y: torch.hsplit(y, 2)[1],
    "unsafe_chunk": lambda y: y.unsafe_chunk(2)[1],
    "chunk of no grad": lambda y: y.detach().chunk(2)[1],
}


@rotated("name, backend, dynamic", (*ONE_OF_MANY, *WRITABLE), ("aot_eager", "inductor"), (False, True))
def test_one_of_many_views_is_written_into(name: str, backend: str, dynamic: bool) -> None:
    action = {**ONE_OF_MANY, **WRITABLE}[name]

    def inside(x: Any) -> Any:
        return action(x.sin()).mul_(2)

    def behind_a_break(x: Any) -> Any:
        y = x.sin()
        part = action(y)
        dynamo.graph_break()
        return part.mul_(2), y

    def made(x: Any) -> Any:
        y = x.sin()
        return (action(y), y) if name == "with its base" else action(y)

    def outside(x: Any, function: Any) -> Any:
        part = function(x)
        return (part[0] if isinstance(part, tuple) else part).mul_(2)

    x = torch.randn(4, 6, requires_grad=True)
    options: Any = {"backend": backend, "dynamic": dynamic}
    for function in (inside, behind_a_break):
        assert refusal(dynamo.compile(function, **options), x) == refusal(function, x)
    compiled = dynamo.compile(made, **options)
    assert refusal(outside, x, compiled) == refusal(outside, x, made) == (name in ONE_OF_MANY)
    if name in ONE_OF_MANY:
        grads = []
        for each in (made, compiled):
            part = each(x)
            part = part[0] if isinstance(part, tuple) else part
            assert part._is_view()
            grads += torch.autograd.grad((part * part).sum(), x)
        torch.testing.assert_close(*grads)


def refusal(function: Callable[..., Any], *args: Any) -> bool:
    try:
        function(*args)
    except RuntimeError as error:
        assert "is the output of a function that returns multiple views" in str(error)
        return True
    return False


def unsafe_chunk_written(x: Any) -> Any:
    y = x * 1
    part = torch.unsafe_chunk(y, 2)[0]
    part.mul_(3)
    return y, part + 1


def base_written(x: Any) -> Any:
    y = x * 1
    part = torch.unsafe_split(y, 1)[1]
    y.mul_(3)
    return part


def view_of_a_part_written(x: Any) -> Any:
    y = x.sin()
    part, _ = y.unsafe_split_with_sizes([1, 2])
    part.view(-1)[:2].add_(1)
    return y.sum(0), part


def operator_called(x: Any) -> Any:
    y = x.sin()
    torch.ops.aten.unsafe_split.Tensor(y, 2)[0].mul_(2)
    return y


def only_read(x: Any) -> Any:
    first, second = torch.unsafe_chunk(x.sin(), 2)
    return first.sum() * second


@pytest.mark.parametrize("backend", ("aot_eager", "inductor"))
@pytest.mark.parametrize("grad", (False, True))
@pytest.mark.parametrize("f", (
    unsafe_chunk_written, base_written, view_of_a_part_written, operator_called, only_read))
def test_parts_that_are_no_views(f: Callable[[Any], Any], grad: bool, backend: str) -> None:
    """Functionalization takes them for copies: what was written into one was lost in the others."""
    x = torch.randn(3, 4)
    torch.testing.assert_close(
        dynamo.compile(f, backend=backend)(x.clone().requires_grad_(grad)),
        f(x.clone().requires_grad_(grad)))
