"""`torch.autograd.Function` that reads more than tensors among its arguments: modules, globals."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

import dynamo
from dynamo.base.errors import Unsupported
from dynamo.testing import CompileCounter

BACKENDS = ["eager", "aot_eager", "inductor"]
WEIGHT = torch.randn(4)
NUMBERS = {"scale": 2.0, "count": 3}


class OfModule(Function):
    """Its module is an argument."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, module: nn.Linear, power: int) -> torch.Tensor:
        ctx.module, ctx.power = module, power
        ctx.save_for_backward(x)
        return module(x) * x**power

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return grad * x.sum() + ctx.module.weight.sum() * ctx.power, None, None


class Again(Function):
    """Computes the module again in backward, as reversible layers do."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, module: nn.Module) -> torch.Tensor:
        ctx.save_for_backward(x)
        ctx.module = module
        return module(x)  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        with torch.enable_grad():
            x = ctx.saved_tensors[0].detach().requires_grad_()
            y = ctx.module(x)
        return torch.autograd.grad(y, x, grad)[0], None


class OfGlobals(Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> Any:
        made = x.exp()
        ctx.save_for_backward(made)
        ctx.weight = WEIGHT
        return made * WEIGHT * NUMBERS["scale"], x > NUMBERS["count"]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: torch.Tensor, _: torch.Tensor) -> Any:
        (made,) = ctx.saved_tensors
        return grad * made + ctx.weight * WEIGHT * NUMBERS["scale"]


def same(f: Callable[..., Any], compiled: Callable[..., Any], *more: Any, size: int = 3) -> None:
    """Results and gradients, with gradients and without."""
    x = torch.randn(size, 4, requires_grad=True)
    y = x.detach().clone().requires_grad_()
    found, wanted = compiled(x, *more), f(y, *more)
    torch.testing.assert_close(found, wanted)
    found, wanted = (v[0] if isinstance(v, tuple) else v for v in (found, wanted))
    assert found.requires_grad == wanted.requires_grad
    found.square().sum().backward()
    wanted.square().sum().backward()
    torch.testing.assert_close(x.grad, y.grad, rtol=1e-5, atol=1e-4)  # sums that cancel
    with torch.no_grad():
        torch.testing.assert_close(compiled(x, *more), f(y, *more))
    plain = compiled(x.detach(), *more)
    plain = plain[0] if isinstance(plain, tuple) else plain
    assert not plain.requires_grad


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("function", [OfModule, Again])
def test_module_as_an_argument(function: Any, backend: str) -> None:
    dynamo.reset()
    module = nn.Linear(4, 4)
    more = (module, 2) if function is OfModule else (module,)

    def f(x: torch.Tensor, *more: Any) -> torch.Tensor:
        return function.apply(x * 2, *more) + 1  # type: ignore[no-any-return]

    counter = CompileCounter(backend)
    compiled = dynamo.compile(f, backend=counter, fullgraph=True)
    same(f, compiled, *more)
    graphs = counter.frame_count
    with torch.no_grad():
        module.weight.mul_(3)
    same(f, compiled, *more)
    module.weight.data = torch.randn(4, 4)
    same(f, compiled, *more)
    module.weight = nn.Parameter(torch.randn(4, 4))
    same(f, compiled, *more)
    assert counter.frame_count == graphs and module.weight.grad is None


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_globals_hold_may_change(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    dynamo.reset()

    def f(x: torch.Tensor) -> Any:
        value, large = OfGlobals.apply(x + 1)
        return value * 2, large

    compiled = dynamo.compile(f, backend=backend, fullgraph=True)
    for call in range(5):
        same(f, compiled, size=3 + call)
        monkeypatch.setitem(NUMBERS, "scale", 0.5 + call)
        monkeypatch.setitem(NUMBERS, "count", call)
        if call % 2:
            monkeypatch.setattr(f"{__name__}.WEIGHT", torch.randn(4))
        else:
            WEIGHT.data = torch.randn(4)


def test_second_backward_of_once_is_an_error() -> None:
    dynamo.reset()
    compiled = dynamo.compile(lambda x: OfGlobals.apply(x)[0].square().sum(), backend="eager",
                              fullgraph=True)  # fmt: skip
    x = torch.randn(4, requires_grad=True)
    (slope,) = torch.autograd.grad(compiled(x), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        slope.sum().backward()


class Writes(Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, module: nn.Module) -> torch.Tensor:
        WEIGHT.add_(1)
        return x * WEIGHT

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return grad, None


class Gives(Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, module: nn.Module) -> Any:
        return x * 2, WEIGHT

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor, _: torch.Tensor) -> Any:
        return grad, None


class Unfilled(Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, module: nn.Module) -> Any:
        ctx.set_materialize_grads(False)
        return x * WEIGHT, x * 3

    @staticmethod
    def backward(ctx: Any, grad: Any, other: Any) -> Any:
        return (grad if other is None else other) * 7, None


class Late(Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, module: nn.Module) -> Any:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return grad * NUMBERS["scale"], None


@pytest.mark.parametrize("function", [Writes, Gives, Unfilled, Late])
def test_others_run_as_they_are(function: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.WEIGHT", torch.randn(4))
    module = nn.Linear(4, 4)
    results = []
    start = WEIGHT.clone()
    for compiles in (False, True):
        dynamo.reset()
        torch.manual_seed(7)
        WEIGHT.copy_(start)

        def f(x: torch.Tensor) -> Any:
            return function.apply(x + 1, module)

        run = dynamo.compile(f, backend="aot_eager") if compiles else f
        found: list[Any] = []
        for scale in (2.0, 3.0, 4.0):
            monkeypatch.setitem(NUMBERS, "scale", scale)
            x = torch.randn(4, requires_grad=True)
            given = run(x)
            given = given if isinstance(given, tuple) else (given,)
            given[0].sum().backward()
            found += [*(part.detach().clone() for part in given), x.grad]
        results.append(found)
    torch.testing.assert_close(*results)
    if function is not Late:  # which only numbers that change keep out of graphs
        with pytest.raises(Unsupported, match=function.__name__):
            dynamo.reset()
            dynamo.compile(f, fullgraph=True)(x)


LATE = torch.tensor(2.0)


class ReadsLate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 3

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad * LATE


def test_a_tensor_that_is_bound_anew_before_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    """Backward alone reads it: eager takes what it is by then."""
    compiled = dynamo.compile(lambda x: ReadsLate.apply(x) + 1, backend="aot_eager")
    for number in (5.0, 7.0):
        monkeypatch.setattr(sys.modules[__name__], "LATE", torch.tensor(2.0))
        x = torch.randn(3, requires_grad=True)
        result = compiled(x)
        assert torch.equal(result, x * 3 + 1)
        monkeypatch.setattr(sys.modules[__name__], "LATE", torch.tensor(number))
        result.sum().backward()
        assert x.grad is not None and torch.equal(x.grad, torch.full((3,), number))
