"""Autograd functions whose backward looks at values, or writes into what it is given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import dynamo
from dynamo.aot.function_backwards import contexts_of
from dynamo.shapes.marks import marks_of


class Scaled(torch.autograd.Function):
    """A loss whose gradient is made in forward, and multiplied only where that changes it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        e = x.exp()
        ctx.save_for_backward(e)
        return e.sum()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (e,) = ctx.saved_tensors
        if torch.ne(grad, torch.tensor(1.0, device=grad.device)):
            e = e * grad
        return e


class ScaledInPlace(Scaled):
    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (e,) = ctx.saved_tensors
        if torch.equal(grad, torch.tensor(1.0, device=grad.device)):
            return e
        return e.mul_(grad)


class Twice(Scaled):
    """Two questions, of which the second stands in one branch."""

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (e,) = ctx.saved_tensors
        if grad > 1:
            return e * 2 if grad > 2.5 else e * 3
        return e * 5


class Counting(Scaled):
    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (e,) = ctx.saved_tensors
        ctx.calls = getattr(ctx, "calls", 0) + 1
        return e * ctx.calls if grad > 1 else e * -ctx.calls


class SometimesNone(Scaled):
    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (e,) = ctx.saved_tensors
        return e * grad if grad > 1 else None


class Gate(torch.autograd.Function):
    """silu(a) * b, whose backward writes the gradients over what it has kept."""

    @staticmethod
    def forward(ctx: Any, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(a, b)
        return torch.nn.functional.silu(a) * b

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        a, b = ctx.saved_tensors
        s = torch.sigmoid(a)
        of_b = grad * a * s
        a.copy_(grad * (s + a * s * (1 - s)) * b)
        b.copy_(of_b)
        return a, b


class Norm(torch.autograd.Function):
    """A norm whose backward writes over the gradient that it is given."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> Tensor:
        r = torch.rsqrt(x.pow(2).mean(-1, True) + 1e-6)
        ctx.save_for_backward(x, w, r)
        return x * r * w

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:
        x, w, r = ctx.saved_tensors
        m, of_w = grad * w, (grad * x * r).sum(0)
        grad.copy_(r * m - r**3 * x * (m * x).mean(-1, True))
        return grad, of_w


def leaves(count: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(count)
    return [torch.randn(4, 4, generator=generator).requires_grad_() for _ in range(count)]


def steps(f: Callable[..., Any], given: list[Tensor], seed: Tensor | None = None) -> list[Tensor]:
    """Values, gradients and what the inputs hold after each of two steps."""
    found = []
    for _ in range(2):
        for leaf in given:
            leaf.grad = None
        results = f(*given)
        first = results[0] if isinstance(results, tuple) else results
        mine = None if seed is None else seed.clone()
        first.backward(mine)
        others = results[1:] if isinstance(results, tuple) else ()
        found += [first, *others, *(leaf.grad for leaf in given), *given]
        found += [] if mine is None else [mine]
    return [tensor.detach().clone() for tensor in found]


def check(f: Callable[..., Any], count: int, seed: Tensor | None = None) -> None:
    """One graph that is compiled, and does what eager does."""
    expected = steps(f, leaves(count), seed)
    compiled = dynamo.compile(f, fullgraph=True)
    with dynamo.config.patch(suppress_errors=False):
        found = steps(compiled, leaves(count), seed)
    assert len(found) == len(expected)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)
    assert not dynamo.counters["not_compiled"]


@pytest.fixture(autouse=True)
def _clean() -> None:
    dynamo.reset()
    dynamo.counters.clear()


@pytest.mark.parametrize("function", [Scaled, ScaledInPlace, Twice, Counting])
@pytest.mark.parametrize("scale", [1.0, 2.0, 3.0])
@pytest.mark.every_combination
def test_backward_that_branches_on_its_gradient(function: Any, scale: float) -> None:
    check(lambda x: function.apply(x * 2) * scale + x.sum(), 1)


def test_both_branches_are_in_one_graph() -> None:
    factor = torch.ones(())
    f = dynamo.compile(lambda x, factor: Scaled.apply(x) * factor, fullgraph=True)
    (x,) = leaves(1)
    for scale in (1.0, 3.0):
        x.grad = None
        f(x, factor * scale).backward()
        torch.testing.assert_close(x.grad, x.detach().exp() * scale)
    assert dynamo.counters["stats"]["graphs"] == 1


def test_a_branch_without_gradient() -> None:
    check(lambda x: SometimesNone.apply(x * 2) * 3 + x.sum(), 1)
    check(lambda x: SometimesNone.apply(x * 2) + x.sum(), 1)


def test_backward_writes_over_inputs() -> None:
    check(lambda a, b: Gate.apply(a, b).square().sum(), 2)


def test_backward_writes_over_intermediates() -> None:
    check(lambda a, b: Gate.apply(a * 2, b + 1).square().sum(), 2)


def test_backward_writes_over_a_result() -> None:
    def f(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        kept = a * 2
        return Gate.apply(kept, b + 1).square().sum(), kept

    held: list[list[Tensor]] = []
    for g in (f, dynamo.compile(f, fullgraph=True)):
        given = leaves(2)
        loss, kept = g(*given)
        before = kept.detach().clone()
        loss.backward()
        assert not torch.equal(kept, before)
        held.append([kept.detach(), *(leaf.grad for leaf in given)])  # type: ignore[misc]
    for a, b in zip(*held, strict=True):
        torch.testing.assert_close(a, b)


def test_backward_writes_over_its_gradient() -> None:
    check(lambda x, y: Norm.apply(x * 2, y.sum(0)).square().sum(), 2)
    check(lambda x, y: (Norm.apply(x, y.sum(0)) + x).sin().sum(), 2)


def test_backward_writes_over_the_callers_gradient() -> None:
    check(lambda x, y: Norm.apply(x * 2, y.sum(0)), 2, torch.randn(4, 4))


class OverItsInput(torch.autograd.Function):
    """A loss that writes its gradient over what it was given, which it does not mark as dirty."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        loss = x.square().sum()
        x.mul_(2)
        ctx.save_for_backward(x.detach())
        return loss

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        if torch.equal(grad, torch.tensor(1.0)):
            return x
        return x.mul_(grad)


def test_forward_writes_over_an_intermediate() -> None:
    check(lambda x: OverItsInput.apply(x * 2) * 3, 1)
    check(lambda x: OverItsInput.apply(x * 2) + x.sum(), 1)

    def read_later(x: Tensor) -> Any:
        y = x * 2
        loss = OverItsInput.apply(y.view(16)) * 3
        return loss + (y * x).sum() + y.detach().sum(), y.detach()

    check(read_later, 1)


def test_forward_writes_over_what_backward_needs() -> None:
    def f(x: Tensor) -> Tensor:
        return OverItsInput.apply(x.exp())

    for g in (f, dynamo.compile(f)):
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            g(*leaves(1)).backward()


def test_forward_writes_over_an_input() -> None:
    def f(x: Tensor) -> Tensor:
        return OverItsInput.apply(x)

    x, y = (torch.ones(4, requires_grad=True) for _ in range(2))
    for g, leaf in ((f, x), (dynamo.compile(f), y)):
        with torch.no_grad():  # else a write into a leaf is an error
            g(leaf)
    torch.testing.assert_close(y, x)


class Factor:
    value = torch.full((4, 4), 3.0)


class Deciding(torch.autograd.Function):
    """It reads more than its arguments, and decides by values."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * Factor.value

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return torch.zeros_like(grad) if (grad == 0).all() else grad * Factor.value


def test_a_function_that_reads_more_and_decides() -> None:
    def f(x: Tensor) -> Tensor:
        return Deciding.apply(x * 2).sum()

    expected = steps(f, leaves(1))
    for a, b in zip(steps(dynamo.compile(f), leaves(1)), expected, strict=True):
        torch.testing.assert_close(a, b)


def test_forward_as_a_frame_of_its_own() -> None:
    """Behind a break, what is kept for backward is stored on the context."""
    class Breaking(Scaled):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Any:
            dynamo.graph_break()
            e = x.exp()
            e.sin()
            ctx.save_for_backward(e)
            ctx.mark_non_differentiable(positive := e > 1)
            return e.sum(), positive

        @staticmethod
        def backward(ctx: Any, grad: Tensor, _: Any) -> Tensor:
            return ctx.saved_tensors[0] * grad

    def f(x: Tensor) -> Tensor:
        loss, positive = Breaking.apply(x * 2)
        assert not positive.requires_grad
        return loss * 2

    expected = steps(f, leaves(1))
    for a, b in zip(steps(dynamo.compile(f), leaves(1)), expected, strict=True):
        torch.testing.assert_close(a, b)
    assert not any("to_save" in why or "non_diff" in why for why in dynamo.counters["graph_break"])


def test_marks_of_sizes_in_traced_code() -> None:
    def f(x: Tensor) -> Tensor:
        y = x * 2
        torch._dynamo.mark_dynamic(y, 1)
        dynamo.maybe_mark_dynamic(y, 0)
        return y.sin()

    (x,) = leaves(1)
    torch.testing.assert_close(dynamo.compile(f, fullgraph=True)(x), (x * 2).sin())
    assert not marks_of(x)


class Compiling(torch.autograd.Function):
    """Forward takes gradients of a function that it has compiled."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        both = torch.compile(torch.func.grad_and_value(lambda x: x.sin().square().sum()))
        grad, loss = both(x)
        ctx.save_for_backward(grad)
        return loss

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (own,) = ctx.saved_tensors
        return own * grad if torch.ne(grad, torch.tensor(1.0)) else own


def test_torch_compile_in_forward() -> None:
    (x,) = leaves(1)
    f = dynamo.compile(lambda x: Compiling.apply(x * 2) * 3, fullgraph=True)
    f(x).backward()
    torch.testing.assert_close(x.grad, 12 * (2 * x).sin() * (2 * x).cos())
    assert not dynamo.counters["not_compiled"]


def test_contexts() -> None:
    (x,) = leaves(1)
    names = [node.name() for node in contexts_of([Scaled.apply(x * 2) + Gate.apply(x, x).sum()])]
    assert sorted(names) == ["GateBackward", "ScaledBackward"]
