"""Traces that end before any instruction, and names that are unbound at some calls only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynamo
from dynamo.testing import CompileCounter


def loops(x: torch.Tensor, d: dict[str, int]) -> Any:
    """Many kinds of instructions, with a cell, in a loop, in inlined calls and below a handler."""
    total, seen = x, []

    def more(value: torch.Tensor, *rest: int) -> torch.Tensor:
        return value + d["a"] + len(rest)

    for index, (left, right) in enumerate(zip(range(6), "abcdef", strict=True)):
        try:
            total = more(total, *range(index)) * (2 if left % 2 else 1)
            if left == 4:
                raise ValueError(right)
            seen.append(f"{left}{right!r}")
        except ValueError as error:
            seen.append(str(error))
        finally:
            seen += [left < 3 <= left + 1, {**d, "left": left}, [i for i in seen[:2]]]
    return total, seen


# The loop comes to each instruction six times, so every third step by default.
@pytest.mark.parametrize("steps", [
    pytest.param(steps, marks=pytest.mark.long if steps % 3 else ()) for steps in range(100, 160)])
def test_a_trace_may_end_before_any_instruction(steps: int) -> None:
    dynamo.reset()
    x, d = torch.randn(2), {"a": 3}
    with dynamo.config.patch(max_steps=steps, suppress_errors=False):
        found = dynamo.compile(loops, backend="eager")(x, d)
    wanted = loops(x, d)
    assert torch.equal(found[0], wanted[0]) and found[1] == wanted[1]


def cells() -> tuple[Callable[..., Any], Callable[[], None], Callable[[Any], None]]:
    value: Any = 1

    def read(x: torch.Tensor) -> Any:
        return x + value

    def clear() -> None:
        nonlocal value
        del value

    def put(new: Any) -> None:
        nonlocal value
        value = new

    return read, clear, put


@pytest.mark.parametrize("first_empty", [False, True])
def test_an_empty_cell_is_guarded_where_reading_it_leaves_the_function(first_empty: bool) -> None:
    dynamo.reset()
    read, clear, put = cells()
    compiled = dynamo.compile(read, backend="eager")
    x = torch.zeros(1)
    for call in range(6):
        if call % 2 == first_empty:
            put(call)
            assert compiled(x).item() == call
        else:
            clear()
            with pytest.raises(NameError, match="free variable 'value'"):
                compiled(x)
            put(0)


def test_a_deleted_variable_of_a_closure_that_breaks() -> None:
    def f(x: torch.Tensor, d: list[int]) -> Any:
        def inner() -> int:
            dynamo.graph_break()
            d.append(1)  # noqa: F821
            return len(d)  # noqa: F821

        first = inner()
        x = x + first
        del d
        return x, inner()

    compiled = dynamo.compile(f, backend="eager")
    for _ in range(3):
        given: list[int] = []
        with pytest.raises(NameError):
            compiled(torch.ones(1), given)
        assert given == [1]


def test_a_long_list_from_outside_grows_without_a_new_compile() -> None:
    """Its length does not count, and nothing of it is read."""
    history = [0.0] * 5000
    counter = CompileCounter()

    def f(x: torch.Tensor) -> torch.Tensor:
        y = x + 1
        history.append(1.0)
        return y * 2

    compiled = dynamo.compile(f, backend=counter)
    for call in range(5):
        assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 4.0))
        assert len(history) == 5001 + call
    assert counter.frame_count == 1
