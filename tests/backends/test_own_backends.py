"""Backends of the program's own: what they assume of symbolic sizes and numbers becomes guards."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._functorch.aot_autograd import aot_module_simplified, make_boxed_func
from torch.fx.experimental.proxy_tensor import make_fx

import dynamo
from dynamo.backends.check import check
from dynamo.backends.programs import PROGRAMS
from dynamo.testing import CompileCounter
from tests.parametrize import rotated

Backend = Callable[[torch.fx.GraphModule, list[Any]], Callable[..., Any]]


def by_aot(module: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    compiled: Callable[..., Any] = aot_module_simplified(
        module, inputs, fw_compiler=lambda graph, _: make_boxed_func(graph.forward))
    return compiled


def by_make_fx(module: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    return make_fx(module)(*inputs)


def by_interpreter(module: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    return lambda *given: torch.fx.Interpreter(module).run(*given)


def for_these_values(module: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    """One that has compiled for the first sizes and numbers alone."""
    wanted = [known(value) for value in inputs]

    def run(*given: Any) -> Any:
        assert wanted == [known(value) for value in given]
        return module(*given)

    return run


def known(value: Any) -> list[Any]:
    if isinstance(value, torch.Tensor):
        return [int(size) for size in value.shape]
    return [float(value) if isinstance(value, float | torch.SymFloat) else int(value)]


def by_jit(module: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.trace(module, tuple(inputs))  # type: ignore[no-untyped-call, no-any-return]


def scaled(x: torch.Tensor, y: torch.Tensor, n: Any) -> torch.Tensor:
    return torch.add(x, y, alpha=n)


def sized(x: torch.Tensor, y: torch.Tensor, n: Any) -> torch.Tensor:
    return (x * n + x.shape[0]).reshape(-1) + y.new_ones(y.shape[0], 3).reshape(-1)


def cut(x: torch.Tensor, y: torch.Tensor, n: Any) -> torch.Tensor:
    return x.reshape(-1)[: int(n)] * y.reshape(-1)[: int(n)]


BACKENDS = (by_aot, by_make_fx, by_interpreter, for_these_values)
NUMBERS = ((4, 4), (4, 5), (5, 9), (7, 3), (3, 7), (5, 2.5), (5, 3.5), (6, 3.5))


@rotated("backend", BACKENDS)
@rotated("f", (scaled, sized, cut))
@pytest.mark.parametrize("dynamic", [True, None, False])
def test_other_sizes_and_numbers(backend: Backend, f: Any, dynamic: bool | None) -> None:
    compiled = dynamo.compile(f, backend=backend, dynamic=dynamic, recompile_limit=20)
    for size, n in NUMBERS:
        pairs = [torch.randn(2, size, 3).unbind() for _ in range(1)]
        results = []
        for call in (f, compiled):
            leaves = [value.detach().clone().requires_grad_() for value in pairs[0]]
            result = call(*leaves, n)
            if backend is not by_make_fx:  # it does not differentiate
                result.square().sum().backward()
            results.append([result.detach(), *(leaf.grad for leaf in leaves)])
        for got, want in zip(results[1], results[0], strict=True):
            assert (got is None) == (want is None) or backend is by_make_fx
            assert got is None or torch.allclose(got, want)


def test_what_stays_open_is_compiled_once() -> None:
    counter = CompileCounter(by_aot)
    compiled = dynamo.compile(scaled, backend=counter, dynamic=True)
    for size in (3, 4, 5):
        x = torch.randn(size, 7)
        assert torch.equal(compiled(x, x, size), scaled(x, x, size))
    assert counter.frame_count == 1


def test_examples_are_symbols_where_guards_leave_them_open() -> None:
    seen: list[list[Any]] = []

    def backend(module: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        seen.append(inputs)
        return module.forward

    compiled = dynamo.compile(sized, backend=backend, dynamic=True)
    x = torch.randn(4, 3)
    compiled(x, x, 5)
    sizes = [value.shape for value in seen[0] if isinstance(value, torch.Tensor)]
    assert type(sizes[0][0]) is torch.SymInt and sizes[0][0] is not sizes[0][1]
    assert any(type(value) is torch.SymInt for value in seen[0])
    static = dynamo.compile(sized, backend=backend, dynamic=False)
    static(x, x, 5)
    assert seen[1][0] is x


def test_a_backend_that_takes_no_symbols_gets_real_tensors() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return x.reshape(-1) * 2 + x.shape[0]

    counter = CompileCounter(by_jit)
    compiled = dynamo.compile(f, backend=counter, dynamic=True)
    for size in (4, 5, 4):
        x = torch.randn(size, 3)
        assert torch.equal(compiled(x), f(x))


def test_our_backend_inside_of_another_stays_open() -> None:
    calls = []

    def backend(module: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        calls.append(1)
        return dynamo.lookup_backend("aot_eager")(module, inputs)

    compiled = dynamo.compile(scaled, backend=backend, dynamic=True)
    for size in (3, 4, 5):
        x = torch.randn(size, 7)
        assert torch.equal(compiled(x, x, size), scaled(x, x, size))
    assert len(calls) == 1


@pytest.mark.parametrize("some", [True, pytest.param(False, marks=pytest.mark.long)])
def test_the_check_of_backends_passes_for_torch_aot(
    some: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if some:
        opened = [program for program in PROGRAMS if program.dynamic or "number" in program.name]
        monkeypatch.setattr("dynamo.backends.check.PROGRAMS", opened)
    assert [row[:2] for row in check(by_aot) if row[1]] == []


def test_the_check_of_backends_finds_constants() -> None:
    """A backend that hides from the symbols that it has made sizes constant."""
    def backend(module: torch.fx.GraphModule, inputs: list[Any]) -> Any:
        numbers = [value.node.hint if isinstance(value, torch.SymInt) else value for value in inputs]

        def run(*given: Any) -> Any:
            return module(*(value if isinstance(value, torch.Tensor) else number
                            for value, number in zip(given, numbers, strict=True)))

        return run

    wrong = {row[0] for row in check(backend) if row[1]}
    assert {"a number that scales", "dynamic=True and numbers"} <= wrong
