"""Names of torch.compiler and torch._dynamo that need little or nothing here, and the backend that
is taken where none is given."""

from __future__ import annotations

import functools
import types
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import dynamo
import inductor
from dynamo.testing import CompileCounter


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    dynamo.reset()
    with dynamo.config.patch(suppress_errors=False):
        yield
    dynamo.set_default_backend(None)


def doubled(x: torch.Tensor) -> torch.Tensor:
    return x * 2


def test_the_default_backend() -> None:
    counter = CompileCounter("eager")
    earlier = dynamo.compile(doubled, backend="eager")
    assert dynamo.get_default_backend() == "inductor"
    dynamo.set_default_backend(counter)
    assert dynamo.get_default_backend() is counter
    earlier(torch.ones(2))
    assert counter.frame_count == 0
    dynamo.compile(doubled)(torch.ones(2))
    assert counter.frame_count == 1
    with pytest.raises(dynamo.exc.InvalidBackend, match="nosuch"):
        dynamo.set_default_backend("nosuch")
    with pytest.raises(TypeError, match="name or a callable"):
        dynamo.set_default_backend(3)  # type: ignore[arg-type]
    assert dynamo.get_default_backend() is counter
    dynamo.set_default_backend(None)
    assert dynamo.get_default_backend() == "inductor"


def test_options_of_the_default_backend() -> None:
    options = inductor.list_options()
    assert all(options.values())
    for name, value in (("verify", False), ("background", False), ("background_calls", 0)):
        assert name in options
        dynamo.compile(doubled, options={name: value})
    for mode, chosen in inductor.list_mode_options().items():
        assert inductor.list_mode_options(mode) == chosen and chosen.keys() <= options.keys()
        dynamo.compile(doubled, mode=mode)
    with pytest.raises(ValueError, match="reduce-overhead"):
        inductor.list_mode_options("fast")


@dynamo.nested_compile_region
def block(x: torch.Tensor) -> torch.Tensor:
    return torch.sin(x) * 2


@torch.compiler.nested_compile_region
def block_of_torch(x: torch.Tensor, scale: float = 2.0) -> torch.Tensor:
    return torch.sin(x) * scale


class Block(torch.nn.Module):
    @torch.compiler.nested_compile_region
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return block_of_torch(x, scale=3.0) + 1


def marks(x: torch.Tensor) -> torch.Tensor:
    dynamo.mark_static_address(x)
    dynamo.cudagraph_mark_step_begin()
    torch.compiler.cudagraph_mark_step_begin()
    return x * 2


ROWS: dict[str, Any] = {
    "region": block, "region of torch": block_of_torch, "nested regions": Block(),
    "a region twice": torch.compiler.nested_compile_region(block_of_torch), "marks": marks,
}


@pytest.mark.parametrize("row", ROWS)
def test_one_graph(row: str) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        return ROWS[row](ROWS[row](x + 1)) - 1

    counter, x = CompileCounter("eager"), torch.rand(3)
    compiled = dynamo.compile(f, backend=counter, fullgraph=True)
    assert torch.equal(compiled(x), f(x)) and torch.equal(compiled(-x), f(-x))
    assert counter.frame_count == 1


def of_kind(x: torch.Tensor, scale: float) -> torch.Tensor:
    return torch.sin(x) * scale


def test_kinds_of_calls_of_a_region_have_a_limit() -> None:
    def calls(block: Any) -> Any:
        def f(x: torch.Tensor) -> torch.Tensor:
            for scale in (1.5, 2.5, 1.5, 3.5):
                x = block(x, scale)
            return x

        return f

    x = torch.rand(3)
    for marker in (dynamo.nested_compile_region, torch.compiler.nested_compile_region):
        for most, fits in ((2, False), (3, True)):
            f = calls(marker(copied(of_kind), max_reuse_entries=most))
            compiled = dynamo.compile(f, backend="eager")
            if fits:
                assert torch.equal(compiled(x), f(x))
                continue
            with pytest.raises(RuntimeError, match="more than 2 kinds.*max_reuse_entries"):
                compiled(x)


def copied(function: Any) -> Any:
    return types.FunctionType(function.__code__, function.__globals__)


def test_run_compiles_nothing_new() -> None:
    counter, x = CompileCounter(), torch.rand(3)
    compiled = dynamo.compile(lambda x: x.sin() * 2, backend=counter)

    @dynamo.run()
    def call(x: torch.Tensor) -> torch.Tensor:
        return compiled(x)

    assert torch.equal(call(x), x.sin() * 2) and counter.frame_count == 0
    compiled(x)
    with dynamo.run():
        assert torch.equal(compiled(x), x.sin() * 2) and counter.op_count == 2
        compiled(torch.rand(4))
    assert counter.frame_count == 1 and dynamo.base.decisions.decisions.stance.name == "default"
    compiled(torch.rand(4))
    assert counter.frame_count == 2


def test_what_only_looks_like_a_region() -> None:
    @functools.wraps(block_of_torch)
    def other(x: torch.Tensor) -> torch.Tensor:
        return block_of_torch(x) + 5

    x = torch.rand(3)
    assert torch.equal(dynamo.compile(other, backend="eager", fullgraph=True)(x), other(x))


@pytest.mark.parametrize("made", [dynamo.compile, dynamo.disable], ids=("compiled", "disabled"))
def test_what_is_behind_a_module(made: Any) -> None:
    module = torch.nn.Linear(2, 2)
    behind = dynamo.run(made(made(module)))
    assert type(behind) is torch.nn.Linear and behind.__dict__ is module.__dict__
    assert dynamo.run(module) is module and dynamo.run(made(doubled)) is doubled


def test_a_break_in_an_inlined_call_is_told_once() -> None:
    @dynamo.disable
    def apart(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    def inner(x: torch.Tensor) -> torch.Tensor:
        return apart(x) - 1

    def f(x: torch.Tensor) -> torch.Tensor:
        return inner(x + 1) * 2

    report = dynamo.explain(f)(torch.ones(2))
    assert list(report.breaks.values()) == [1] and len(report.costs) == 1
    assert "1 graph break," in str(report)
    report = dynamo.explain(lambda x: apart(apart(x + 1)) - 1)(torch.ones(2))
    assert list(report.breaks.values()) == [2] and len(report.costs) == 2


def test_steps_are_told_to_torch() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        torch.compiler.cudagraph_mark_step_begin()
        return x + 1

    torch.compiler.cudagraph_mark_step_begin()  # imports what counts
    box = torch._inductor.cudagraph_trees.MarkStepBox
    compiled = dynamo.compile(f, backend="eager", fullgraph=True)
    for _ in range(2):
        before = box.mark_step_counter
        compiled(torch.ones(2))
        assert box.mark_step_counter == before - 1


def test_what_is_shown_of_a_wrapped_function() -> None:
    assert repr(dynamo.compile(doubled)) == f"<compiled {doubled!r}>"
    assert repr(dynamo.disable(doubled)) == f"<disabled {doubled!r}>"
