"""Torch's modes in traced programs: they hold in the graph, after a break, and are put back."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynamo
from dynamo.testing import CompileCounter


def no_grad_around_break(x: torch.Tensor) -> Any:
    with torch.no_grad():
        y = x + 1
        dynamo.graph_break()
        z = y * x
    return y, z, z.requires_grad, (x * 2).requires_grad


def autocast_around_break(x: torch.Tensor) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = x @ x.t()
        dynamo.graph_break()
        z = y @ y
    return y, z, x @ x.t()


def generator_context(x: torch.Tensor) -> Any:
    @contextlib.contextmanager
    def doubled(value: torch.Tensor) -> Any:
        before = torch.is_grad_enabled()
        torch._C._set_grad_enabled(False)
        try:
            yield value * 2
        finally:
            torch._C._set_grad_enabled(before)

    with doubled(x) as y:
        z = y + x
    return z, z.requires_grad, (z + x).requires_grad


@pytest.mark.parametrize("f", [no_grad_around_break, autocast_around_break, generator_context])
def test_modes_hold_and_are_put_back(f: Callable[..., Any]) -> None:
    dynamo.reset()
    x = torch.randn(3, 3, requires_grad=True)
    want = f(x)
    got = dynamo.compile(f, backend="eager")(x)
    for a, b in zip(want, got, strict=True):
        if isinstance(a, torch.Tensor):
            assert a.dtype == b.dtype and torch.equal(a, b)
        else:
            assert a == b
    assert torch.is_grad_enabled() and not torch.is_autocast_enabled("cpu")


def test_a_graph_without_inputs() -> None:
    dynamo.reset()

    def f() -> torch.Tensor:
        return torch.ones(3) + torch.tensor([1, 2, 3])

    compiled = dynamo.compile(f, backend="eager")
    assert torch.equal(compiled(), f()) and torch.equal(compiled(), f())


def test_metaclass_call_reaches_type_call() -> None:
    dynamo.reset()

    class Meta(type):
        def __call__(cls, *args: Any) -> Any:
            made = super().__call__(*args)
            made.extra = 5
            return made

    class Made(metaclass=Meta):
        def __init__(self, q: Any) -> None:
            self.q = q

    def f(x: torch.Tensor) -> Any:
        made = Made(x)
        return made.q + made.extra  # type: ignore[attr-defined]

    x = torch.randn(2)
    assert torch.equal(dynamo.compile(f, backend="eager", fullgraph=True)(x), x + 5)


def test_sorting_a_new_set_needs_no_order() -> None:
    dynamo.reset()

    def f(x: torch.Tensor) -> Any:
        letters = {"a", "b", "c"} | {"q", "z"}
        letters.discard("b")
        return x + len(letters), sorted(letters)

    x = torch.randn(2)
    got, names = dynamo.compile(f, backend="eager", fullgraph=True)(x)
    assert torch.equal(got, x + 4) and names == ["a", "c", "q", "z"]


def fails_in_no_grad(x: torch.Tensor, index: torch.Tensor) -> Any:
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        return torch.index_select(x @ x.t(), 0, index)


def fails_in_inference_mode(x: torch.Tensor, index: torch.Tensor) -> Any:
    with torch.inference_mode():
        return torch.index_select(x, 0, index)


@pytest.mark.parametrize("f", [fails_in_no_grad, fails_in_inference_mode])
def test_errors_of_a_graph_leave_its_modes(f: Callable[..., Any]) -> None:
    counter = CompileCounter("eager")
    compiled = dynamo.compile(f, backend=counter, fullgraph=True)
    x = torch.rand(3, 3)
    assert torch.equal(compiled(x, torch.tensor([1])), f(x, torch.tensor([1])))
    for _ in range(2):
        with pytest.raises((IndexError, RuntimeError)) as caught:
            compiled(x, torch.tensor([9]))
        assert torch.is_grad_enabled() and not torch.is_inference_mode_enabled()
        assert not torch.is_autocast_enabled("cpu")
        del caught
    assert counter.frame_count == 1


def grow(w: torch.Tensor) -> None:
    with torch.no_grad():
        w.mul_(2)


def two_regions(w: torch.Tensor, x: torch.Tensor) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        a = x @ w
    grow(w)
    with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False):
        b = x @ w
    grow(w)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return a, b, x @ w


def nested_regions(w: torch.Tensor, x: torch.Tensor) -> Any:
    with torch.autocast("cpu", enabled=False):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            a = x @ w
        grow(w)
        region = torch.autocast("cpu", dtype=torch.bfloat16)
        region.__enter__()
        b = x @ w
        region.__exit__(None, None, None)
    grow(w)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return a, b, x @ w


def cache_cleared(w: torch.Tensor, x: torch.Tensor) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        a = x @ w
        grow(w)
        b = x @ w
        torch.clear_autocast_cache()
        return a, b, x @ w


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("f", [two_regions, nested_regions, cache_cleared])
def test_casts_are_forgotten_behind_the_outermost_region(
    f: Callable[..., Any], backend: str
) -> None:
    compiled = dynamo.compile(f, backend=backend, fullgraph=True)
    for around in (contextlib.nullcontext(), torch.autocast("cpu", enabled=False)):
        x = torch.randn(2, 2)
        weights = [torch.ones(2, 2, requires_grad=True) for _ in range(2)]
        results = []
        for call, w in zip((f, compiled), weights, strict=True):
            with around:
                results.append(call(w, x))
            sum(result.float().sum() for result in results[-1]).backward()
        for got, want in zip(results[1], results[0], strict=True):
            assert torch.equal(got, want) and got.dtype is want.dtype
        assert torch.equal(weights[0].grad, weights[1].grad)


def older_names(x: torch.Tensor) -> Any:
    before = torch.is_autocast_cpu_enabled(), torch.get_autocast_cpu_dtype()
    torch.set_autocast_cpu_enabled(True)
    torch.set_autocast_cpu_dtype(torch.float16)
    y = x @ x + torch.is_autocast_cpu_enabled()
    inside = torch.get_autocast_cpu_dtype(), torch.get_autocast_gpu_dtype()
    torch.set_autocast_cpu_enabled(before[0])
    torch.set_autocast_cpu_dtype(before[1])
    return y, inside, torch.is_autocast_cpu_enabled()


@pytest.mark.filterwarnings("ignore:.*autocast.*:DeprecationWarning")
def test_older_names_of_autocast() -> None:
    x = torch.randn(3, 3)
    want = older_names(x)
    got = dynamo.compile(older_names, backend="eager", fullgraph=True)(x)
    assert torch.equal(got[0], want[0]) and got[0].dtype is want[0].dtype
    assert got[1:] == want[1:]
