"""What users decide about functions and about compiling as a whole."""

from __future__ import annotations

import contextlib
import unicodedata
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import dynamo
from dynamo.testing import CompileCounter

CALLS: list[str] = []


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    CALLS.clear()
    dynamo.reset()
    yield
    dynamo.set_stance("default")


def black_box(x: torch.Tensor, scale: float = 2.0) -> Any:
    CALLS.append(type(x).__name__)
    return {"a": x * scale, "b": (x + 1, 3)}


def test_allowed_functions_are_one_node() -> None:
    def f(x: torch.Tensor) -> Any:
        found = black_box(x, scale=3.0)
        return found["a"] + found["b"][0] * found["b"][1]

    assert dynamo.allow_in_graph(black_box) is black_box
    counter, x = CompileCounter("eager"), torch.rand(3)
    compiled = dynamo.compile(f, backend=counter, fullgraph=True)
    assert torch.equal(compiled(x), f(x)) and torch.equal(compiled(-x), f(-x))
    targets = [node.target for node in counter.graphs[0].graph.nodes]
    assert targets.count(black_box) == 1 and counter.frame_count == 1
    assert dynamo.allow_in_graph([black_box, len]) == [black_box, len]


def test_allowed_functions_that_read_values_break() -> None:
    @dynamo.allow_in_graph
    def reads(x: torch.Tensor) -> torch.Tensor:
        return x * x.sum().item()

    def caught(x: torch.Tensor) -> torch.Tensor:
        try:
            return reads(x) + 1
        except Exception:
            return x

    x = torch.rand(3)
    assert torch.equal(dynamo.compile(caught, backend="eager")(x), caught(x))


def test_disallowed_functions_break() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return torch.atan(x * 2) + 1

    counter, x = CompileCounter("eager"), torch.rand(3)
    dynamo.disallow_in_graph(torch.atan)
    try:
        assert torch.equal(dynamo.compile(f, backend=counter)(x), f(x))
        assert counter.frame_count == 2
        with pytest.raises(dynamo.exc.Unsupported, match="atan"):
            dynamo.compile(f, backend="eager", fullgraph=True)(x)
    finally:
        dynamo.allow_in_graph(torch.atan)


def test_substitutes_are_traced() -> None:
    @dynamo.substitute_in_graph(unicodedata.digit, skip_signature_check=True)
    def digit(text: str, default: Any = None, /) -> Any:
        for value, known in enumerate("0123456789"):
            if known is text or known == text:
                return value
        return default

    def f(x: torch.Tensor) -> torch.Tensor:
        return x + unicodedata.digit("5") + digit("4")

    x = torch.rand(3)
    assert torch.equal(dynamo.compile(f, backend="eager", fullgraph=True)(x), f(x))
    assert digit("x", 1) == 1


def test_substitutes_have_the_same_signature() -> None:
    def original(a: int, b: int = 2) -> int:
        CALLS.append("original")
        return a + b

    with pytest.raises(TypeError, match="signature"):
        dynamo.substitute_in_graph(original)(lambda a: a)
    with pytest.raises(TypeError, match="callable"):
        dynamo.substitute_in_graph(3)  # type: ignore[arg-type]
    dynamo.substitute_in_graph(original, can_constant_fold_through=True)(lambda a, b=2: a * 100)
    compiled = dynamo.compile(lambda x: x + original(1, 2), backend="eager", fullgraph=True)
    assert compiled(torch.zeros(1)).item() == 3 and CALLS == ["original"]
    assert compiled(torch.ones(1)).item() == 4 and CALLS == ["original"]


def test_constant_results() -> None:
    class Settings:
        scale = 2.0

        @dynamo.assume_constant_result
        def factor(self) -> float:
            CALLS.append("factor")
            return self.scale

    settings = Settings()
    compiled = dynamo.compile(lambda x: x * settings.factor(), backend="eager", fullgraph=True)
    assert compiled(torch.ones(1)).item() == 2
    settings.scale = 5.0
    assert compiled(torch.ones(1)).item() == 2 and CALLS == ["factor"]
    assert settings.factor() == 5.0


@pytest.mark.parametrize("way", ["skip", "disable"])
def test_skipped_functions(way: str) -> None:
    def inner(x: torch.Tensor) -> torch.Tensor:
        CALLS.append("inner" if dynamo.is_compiling() else "inner as it is")
        return (x + 1) * 2

    def outer(x: torch.Tensor) -> torch.Tensor:
        CALLS.append("outer" if dynamo.is_compiling() else "outer as it is")
        return inner(x) - 1

    outer = dynamo.skip(outer) if way == "skip" else dynamo.disable(outer, recursive=False)
    counter, x = CompileCounter("eager"), torch.rand(3)
    assert torch.equal(dynamo.compile(outer, backend=counter)(x), (x + 1) * 2 - 1)
    assert CALLS == ["outer as it is", "inner"] and counter.frame_count == 1
    whole = dynamo.compile(lambda x: outer(x) * 3, backend=counter)
    assert torch.equal(whole(x), ((x + 1) * 2 - 1) * 3)
    assert CALLS[2:] == ["outer as it is", "inner"]


def counted() -> tuple[Any, CompileCounter]:
    counter = CompileCounter("eager")
    return dynamo.compile(lambda x, k: x * 2 + k, backend=counter), counter


def test_force_eager() -> None:
    compiled, counter = counted()
    x = torch.rand(3)

    def runs_compiled() -> bool:
        hits = dynamo.hook.counters()["hits"]  # type: ignore[attr-defined]
        assert torch.equal(compiled(x, 1), x * 2 + 1)
        return bool(dynamo.hook.counters()["hits"] > hits)  # type: ignore[attr-defined]

    with dynamo.set_stance("force_eager"):
        assert not runs_compiled() and counter.frame_count == 0
    runs_compiled()
    assert runs_compiled() and counter.frame_count == 1
    dynamo.set_stance("force_eager")
    assert not runs_compiled()
    dynamo.set_stance("default")
    assert runs_compiled()
    assert not dynamo.set_stance("force_eager")(runs_compiled)() and runs_compiled()


def test_eager_on_recompile() -> None:
    compiled, counter = counted()
    x = torch.rand(3)
    compiled(x, 1)
    with dynamo.set_stance("eager_on_recompile"):
        assert torch.equal(compiled(x, 2), x * 2 + 2) and counter.frame_count == 1
        hits = dynamo.hook.counters()["hits"]  # type: ignore[attr-defined]
        compiled(x, 1)
        assert dynamo.hook.counters()["hits"] > hits  # type: ignore[attr-defined]
    compiled(x, 2)
    assert counter.frame_count == 2


def test_fail_on_recompile() -> None:
    compiled, counter = counted()
    other, _ = counted()
    x = torch.rand(3)
    compiled(x, 1)
    with dynamo.set_stance("fail_on_recompile"):
        assert torch.equal(compiled(x, 1), x * 2 + 1)
        with pytest.raises(dynamo.exc.RecompileError, match="k was 1, now it is 2"):
            compiled(x, 2)
        with pytest.raises(dynamo.exc.RecompileError, match="fail_on_recompile"):
            other(x, 1)
    assert torch.equal(compiled(x, 2), x * 2 + 2)


def test_forced_backend() -> None:
    compiled, counter = counted()
    forced = CompileCounter("eager")
    with dynamo.set_stance("default", force_backend=forced):
        compiled(torch.rand(3), 1)
    compiled(torch.rand(3), 2)
    assert (forced.frame_count, counter.frame_count) == (1, 1)


def test_wrong_stances() -> None:
    with pytest.raises(ValueError, match="eager_on_recompile"):
        dynamo.set_stance("lazy")
    with pytest.raises(ValueError, match="force_backend"):
        dynamo.set_stance("force_eager", force_backend="eager")
    with pytest.raises(ValueError, match="guards"):
        dynamo.set_stance(skip_guard_eval_unsafe=True)

    @dynamo.compile(backend="eager")
    def inside(x: torch.Tensor) -> torch.Tensor:
        with contextlib.suppress(ValueError):
            dynamo.set_stance("force_eager")
        return x + 1

    with pytest.raises(RuntimeError, match="inside"):
        inside(torch.rand(3))


class Tripled(torch.autograd.Function):
    """Its halves do what no graph can hold."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        print(end="", flush=True)
        ctx.factor = len(repr(ctx)) * 0 + 5.0
        return x * 3

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return grad * ctx.factor


class ByApply(Tripled):
    pass


@pytest.mark.parametrize("backend", ["eager", "inductor"])
@pytest.mark.parametrize("cls,given", [(Tripled, Tripled), (ByApply, ByApply.apply)])
def test_a_function_class_in_the_graph(backend: str, cls: Any, given: Any) -> None:
    """Neither half is looked at."""
    assert dynamo.allow_in_graph(given) is given
    compiled = dynamo.compile(lambda x: cls.apply(x).sum(), backend=backend, fullgraph=True)
    x = torch.rand(4, requires_grad=True)
    out = compiled(x)
    assert torch.equal(out, (x * 3).sum())
    assert torch.equal(torch.autograd.grad(out, x)[0], torch.full((4,), 5.0))
