"""Calls whose results nobody reads: what they do is done, and what eager refuses is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx.node import has_side_effect

import dynamo
from dynamo import lazy

BACKENDS = ("eager", "aot_eager", "inductor")
told: list[Any] = []


@torch.library.custom_op("unread::tell", mutates_args=())
def tell(x: Tensor) -> Tensor:
    told.append(round(float(x.detach().sum()), 3))
    return x.clone()


@torch.library.custom_op("unread::say", mutates_args=())
def say(x: Tensor, number: int) -> None:
    told.append(number)


@torch.library.custom_op("unread::fill", mutates_args=("x",))
def fill(x: Tensor, number: float) -> None:
    told.append(number)
    x.fill_(number)


tell.register_fake(torch.empty_like)
tell.register_autograd(lambda ctx, grad: grad * 1)
library = torch.library.Library("unread_raw", "FRAGMENT")
library.define("write(Tensor(a!) x, Tensor y, int k=3) -> ()")
library.impl("write", lambda x, y, k=3: (x.copy_(y * k), None)[1], "CPU")
library.define("twice(Tensor x) -> Tensor")
doubled = dynamo.compile(lambda x: x * 2, backend="aot_eager", fullgraph=True)
library.impl("twice", lambda x: doubled(x), "CompositeExplicitAutograd")


class Telling(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.sin()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        torch.ops.unread.say(x, 7)
        torch.ops.unread.tell(grad)
        torch.ops.unread.tell(x)
        return grad * x.cos()


def unread(x: Tensor) -> Tensor:
    tell(x.sin())
    torch.ops.unread.say(x, 1)
    torch.ops.unread.tell(x)
    torch.ops.unread.say(x, 2)
    written = torch.zeros(3)
    fill(written, 4.0)
    return x * 2


def twice(x: Tensor) -> Tensor:
    say(x, 1)
    first = tell(x)
    torch.rand(2)
    second = tell(x)
    return (first.exp() * second.cos() + torch.rand(3)).sum()


def backward(x: Tensor) -> Tensor:
    return Telling.apply(x) * 2  # type: ignore[no-any-return, no-untyped-call]


def raw(x: Tensor) -> Tensor:
    made = x.detach() * 1
    torch.ops.unread_raw.write(made[1:], made[:-1].sin())
    return torch.ops.unread_raw.twice(made) + x


def story(program: Callable[..., Tensor]) -> list[Any]:
    """What is told in two calls with gradients, and the results."""
    told.clear()
    torch.manual_seed(0)
    for call in range(2):
        x = (torch.arange(3.0) + call).requires_grad_()
        result = program(x)
        told.append(-1)  # the call is over
        result.sum().backward()  # type: ignore[no-untyped-call]
        told.extend((result.detach(), x.grad))
    return list(told)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("program", [unread, twice, backward, raw])
def test_effects_happen_once_and_in_order(program: Callable[..., Tensor], backend: str) -> None:
    ours, eager = story(dynamo.compile(program, backend=backend)), story(program)
    torch.testing.assert_close(dict(enumerate(ours)), dict(enumerate(eager)))


def test_a_function_in_the_graph_is_called_for_its_effect() -> None:
    calls: list[int] = []

    @dynamo.allow_in_graph
    def note(x: Tensor) -> None:
        calls.append(len(x))

    def program(x: Tensor) -> Tensor:
        note(x)
        return x + 1

    compiled = dynamo.compile(program, backend="eager", fullgraph=True)
    compiled(torch.ones(2))
    before = len(calls)
    compiled(torch.ones(2))
    assert len(calls) == before + 1


def test_operators_that_were_registered_as_effects() -> None:
    has_side_effect(torch.ops.unread.tell.default)
    compiled = dynamo.compile(lambda x: (torch.ops.unread.tell(x), x * 2)[1], backend="inductor")
    told.clear()
    for _ in range(2):
        compiled(torch.ones(3))
    assert told == [3.0, 3.0]


def test_lazy_tensors_have_their_effects_at_once() -> None:
    told.clear()
    with lazy.mode(device="cpu", backend="eager"):
        x = torch.ones(3) + 1
        tell(x)
        torch.ops.unread.say(x, 5)
        lazy.mark_step()
    assert told == [6.0, 5]


REFUSED: dict[str, tuple[Callable[..., Any], tuple[int, ...], tuple[int, ...]]] = {
    "a rank": (lambda x, w: torch.ops.aten.reflection_pad3d(x, (2,) * 6), (3, 3, 3, 4, 4, 4), (1,)),
    "dilation": (lambda x, w: F.conv2d(x, w, dilation=0), (1, 3, 8, 8), (4, 3, 3, 3)),
    "padding": (lambda x, w: F.conv2d(x, w, padding=-1), (1, 3, 8, 8), (4, 3, 3, 3)),
    "channels": (F.conv_transpose2d, (1, 4, 5, 5), (2, 4, 3, 3)),
    "output padding": (
        lambda x, w: F.conv_transpose2d(x, w, output_padding=7), (1, 4, 5, 5), (4, 4, 3, 3)),
    "a number": (lambda x, w: F.huber_loss(x, w, delta=0.0), (3,), (3,)),
    "a value": (lambda x, w: x.long().masked_fill(x > 0, float("inf")), (3,), (1,)),
    "a part": (torch.diagonal_scatter, (10, 8), (10,)),
    "a reach": (lambda x, w: torch.as_strided(x, (9, 9), (1, 2)), (10,), (1,)),
    "bias": (lambda x, w: F.conv2d(x, w, x[0, 0, 0]), (1, 4, 5, 5), (4, 4, 3, 3)),
    "a broadcast": (F.soft_margin_loss, (5,), (1, 1, 5)),
    "a vector": (lambda x, w: torch.addmv(x, w, x[0]), (1, 4), (3, 4)),
    "nothing": (lambda x, w: F.interpolate(x, size=3, mode="area"), (2, 3, 4, 0), (1,)),
    "a dtype": (lambda x, w: torch.kthvalue(x > 0, 1), (3,), (1,)),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", REFUSED)
def test_errors_of_unread_results(name: str, dynamic: bool) -> None:
    function, *sizes = REFUSED[name]

    def program(x: Tensor, w: Tensor) -> int:
        function(x, w)
        return 1

    given = [torch.ones(size) for size in sizes]
    with pytest.raises((RuntimeError, NotImplementedError)) as eager:
        program(*given)
    with pytest.raises(eager.type):
        dynamo.compile(program, backend="eager", dynamic=dynamic)(*given)


def test_large_unread_masks_leave_the_graph() -> None:
    """What is too large to be tried on small tensors may fail no more than what is small."""
    seen: list[torch.fx.GraphModule] = []

    def backend(module: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        seen.append(module)
        return module.forward

    def f(x: torch.Tensor) -> torch.Tensor:
        mask = x > 0
        mask.to(x.device), mask.logical_and(mask), mask.long()
        return x * mask

    dynamo.compile(f, backend=backend)(torch.randn(300, 300))
    assert [node.op for node in seen[0].graph.nodes].count("call_method") == 0
