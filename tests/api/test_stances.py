"""Stances that begin with a cheap first call, and those that torch's compiler was told."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import dynamo
from dynamo.testing import CompileCounter

RAN: list[str] = []


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    dynamo.reset()
    RAN.clear()
    with dynamo.config.patch(suppress_errors=False):
        yield
    dynamo.set_stance("default")
    torch.compiler.set_stance("default")


def told(name: str) -> None:
    RAN.append(f"{name} {'traced' if dynamo.is_compiling() else 'eager'}")


def inner(x: torch.Tensor, k: int) -> torch.Tensor:
    told("inner")
    return x * k


def outer(x: torch.Tensor, k: int) -> torch.Tensor:
    told("outer")
    return inner(x, k) + inner(x, k)


def test_eager_then_compile() -> None:
    counter, x = CompileCounter("eager"), torch.rand(3)
    compiled = dynamo.compile(outer, backend=counter)
    with dynamo.set_stance("eager_then_compile"):
        assert torch.equal(compiled(x, 2), outer(x, 2)) and counter.frame_count == 0
        assert RAN[:3] == ["outer eager", "inner eager", "inner eager"]
        RAN.clear()
        assert torch.equal(compiled(x, 2), x * 2 + x * 2) and counter.frame_count == 1
        assert RAN == ["outer traced", "inner traced", "inner traced"]
        RAN.clear()
        assert torch.equal(compiled(x, 2), x * 2 + x * 2) and counter.frame_count == 1
        assert RAN == ["outer traced", "inner traced", "inner traced"]  # told behind the graph


def holder(args: Any, kwargs: dict[str, Any]) -> torch.Tensor:
    return args[0] * args[1] + kwargs["y"].sum(0)


@pytest.mark.parametrize("size,k,y", [(5, 2, 4), (3, 3, 4), (3, 2, 6), (5, 3, 6), (3, 2.0, 4)])
def test_what_the_second_call_changes_is_symbolic(size: int, k: Any, y: int) -> None:
    counter = CompileCounter("eager")
    compiled = dynamo.compile(holder, backend=counter)
    with dynamo.set_stance("eager_then_compile"):
        for n, factor, rows in ((3, 2, 4), (size, k, y), (size + 4 * (size != 3), k + 4 * (k == 3), y + 4 * (y != 4))):
            args = (torch.rand(n), factor), {"y": torch.rand(rows, n)}
            assert torch.equal(compiled(*args), holder(*args))
    assert counter.frame_count == 1


def test_modules_and_breaks_wait_once() -> None:
    class Part(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            told("part")
            dynamo.graph_break()
            return x * 2

    model, counter, x = torch.nn.Sequential(Part(), Part()), CompileCounter("eager"), torch.rand(3)
    compiled = dynamo.compile(model, backend=counter)
    with dynamo.set_stance("eager_then_compile"):
        assert torch.equal(compiled(x), x * 4) and counter.frame_count == 0
        assert RAN == ["part eager"] * 2
        assert torch.equal(compiled(x), x * 4) and counter.frame_count >= 1
        count = counter.frame_count
        assert torch.equal(compiled(x), x * 4) and counter.frame_count == count


def test_a_recursive_function_waits_once() -> None:
    def f(x: torch.Tensor, n: int) -> torch.Tensor:
        told("f")
        return x if n == 0 else f(x + 1, n - 1)

    counter, x = CompileCounter("eager"), torch.rand(3)
    compiled = dynamo.compile(f, backend=counter)
    with dynamo.set_stance("eager_then_compile"):
        compiled(x, 3)
        assert counter.frame_count == 0 and RAN == ["f eager"] * 4
        assert torch.equal(compiled(x, 3), x + 1 + 1 + 1) and counter.frame_count == 1


def test_aot_eager_then_compile() -> None:
    counter, x = CompileCounter("eager"), torch.rand(3)
    compiled = dynamo.compile(inner, backend=counter)
    with dynamo.set_stance("aot_eager_then_compile"):
        for _ in range(2):
            assert torch.equal(compiled(x, 2), x * 2) and counter.frame_count == 0
        for k in (3, 4):
            assert torch.equal(compiled(x, k), x * k) and counter.frame_count == 1


@pytest.mark.parametrize("stance", ["force_eager", "eager_on_recompile"])
def test_stances_of_torch_that_compile_nothing(stance: str) -> None:
    counter, x = CompileCounter("eager"), torch.rand(3)
    compiled = dynamo.compile(inner, backend=counter)
    compiled(x, 2)
    with torch.compiler.set_stance(stance):
        assert torch.equal(compiled(x, 3), x * 3) and counter.frame_count == 1
        with dynamo.set_stance("default", force_backend="eager"):  # ours was told more
            assert torch.equal(compiled(x.double(), 3), x.double() * 3)
        assert RAN[-1] == "inner traced"
    assert torch.equal(compiled(x, 3), x * 3) and counter.frame_count == 2


def test_a_stance_of_torch_that_refuses() -> None:
    compiled, x = dynamo.compile(inner, backend="eager"), torch.rand(3)
    compiled(x, 2)
    with torch.compiler.set_stance("fail_on_recompile"):
        assert torch.equal(compiled(x, 2), x * 2)
        with pytest.raises(dynamo.exc.RecompileError, match="k was 2, now it is 3"):
            compiled(x, 3)
    assert torch.equal(compiled(x, 3), x * 3)
