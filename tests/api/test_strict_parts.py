"""`error_on_graph_break`: where a break is an error, and where it is none."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import dynamo
from dynamo.exc import Unsupported
from dynamo.testing import CompileCounter

strictly, leniently = dynamo.error_on_graph_break(True), dynamo.error_on_graph_break(False)


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    dynamo.reset()
    with dynamo.config.patch(suppress_errors=False):
        yield


def breaks(x: torch.Tensor) -> torch.Tensor:
    dynamo.graph_break()
    return x + 1


def whole(x: torch.Tensor) -> torch.Tensor:
    with dynamo.error_on_graph_break(True):
        x = x * 2
    return x + 1


def outside(x: torch.Tensor) -> torch.Tensor:
    with strictly:
        x = x * 2
    dynamo.graph_break()
    return x + 1


def inside(x: torch.Tensor) -> torch.Tensor:
    x = x * 2
    with strictly:
        dynamo.graph_break()
        return x + 1


def called(x: torch.Tensor) -> torch.Tensor:
    with dynamo.error_on_graph_break():
        return breaks(x * 2)


def lenient(x: torch.Tensor) -> torch.Tensor:
    with strictly:
        with dynamo.error_on_graph_break(False):
            x = breaks(x * 2)
        return x + 1


def behind_lenient(x: torch.Tensor) -> torch.Tensor:
    with strictly:
        with leniently:
            x = breaks(x * 2)
        return breaks(x) + 1


def stacked(x: torch.Tensor) -> torch.Tensor:
    with strictly, contextlib.nullcontext(), leniently:
        return breaks(x * 2)


decorated = dynamo.error_on_graph_break(True)(breaks)
lenient_decorated = strictly(leniently(breaks))


def calls_decorated(x: torch.Tensor) -> torch.Tensor:
    return decorated(x * 2)


def calls_lenient(x: torch.Tensor) -> torch.Tensor:
    return lenient_decorated(x * 2)


def break_before(x: torch.Tensor) -> torch.Tensor:
    dynamo.graph_break()
    with strictly:
        return breaks(x * 2)


def loop(x: torch.Tensor) -> torch.Tensor:
    for turn in range(3):
        with leniently if turn < 2 else strictly:
            x = breaks(x)
    return x


ROWS: dict[str, tuple[Any, bool]] = {
    "no break": (whole, False), "outside": (outside, False), "inside": (inside, True),
    "in a call": (called, True), "lenient part": (lenient, False),
    "behind a lenient part": (behind_lenient, True), "among other blocks": (stacked, False),
    "decorated": (calls_decorated, True), "lenient decorated": (calls_lenient, False),
    "compiled itself": (decorated, True), "behind a break": (break_before, True),
    "in the last turn": (loop, True),
}


@pytest.mark.parametrize("row", ROWS)
def test_where_a_break_is_an_error(row: str) -> None:
    function, fails = ROWS[row]
    counter, x = CompileCounter("eager"), torch.rand(3)
    compiled = dynamo.compile(function, backend=counter)
    for _ in range(2):
        if fails:
            with pytest.raises(Unsupported, match=r"(?s)test_strict.*graph_break\(\).*error_on_graph_break\(True\)"):
                compiled(x)
        else:
            assert torch.equal(compiled(x), function(x))
    assert torch.equal(dynamo.compile(breaks, backend="eager")(x), x + 1)  # nothing is left behind


@pytest.mark.parametrize("part", [strictly, dynamo.error_on_graph_break(True)], ids=("shared", "own"))
def test_around_a_compiled_function(part: Any) -> None:
    compiled, x = dynamo.compile(breaks, backend="eager"), torch.rand(3)
    with part, pytest.raises(Unsupported, match="graph_break"):
        compiled(x)
    with part, leniently:
        assert torch.equal(compiled(x), x + 1)
    with part:
        assert torch.equal(compiled(x), x + 1)  # it is compiled already


def test_no_break_is_allowed_in_a_whole_graph() -> None:
    with pytest.raises(Unsupported, match="fullgraph"):
        dynamo.compile(leniently(breaks), fullgraph=True)(torch.rand(3))
    with pytest.raises(TypeError, match="True or False"):
        dynamo.error_on_graph_break(breaks)  # type: ignore[arg-type]


def test_errors_of_the_program_leave_the_part() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        with strictly:
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        dynamo.compile(f, backend="eager")(torch.rand(3))
    assert torch.equal(dynamo.compile(breaks, backend="eager")(torch.ones(2)), torch.full((2,), 2.0))
