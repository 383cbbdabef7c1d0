"""`dynamo.comptime`: what it shows while compiling, and that it changes nothing."""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import dynamo
from dynamo import comptime
from dynamo.testing import CompileCounter


@pytest.fixture(autouse=True)
def clean() -> Iterator[None]:
    dynamo.reset()
    with dynamo.config.patch(suppress_errors=False):
        yield


def graph(x: torch.Tensor) -> torch.Tensor:
    y = x.sin()
    comptime.print_graph()
    return y.cos()


def lines(x: torch.Tensor) -> torch.Tensor:
    def inner(y: torch.Tensor) -> torch.Tensor:
        comptime.print_bt()
        return y * 2

    return inner(x)


def local_names(x: torch.Tensor) -> torch.Tensor:
    number, y = 3, x + 1
    comptime.print_locals()
    return (lambda: y * number)()


def stack(x: torch.Tensor) -> torch.Tensor:
    return torch.add(x, (comptime.print_value_stack(), 2)[1])


def guards(x: torch.Tensor) -> torch.Tensor:
    y = x * 2
    comptime.print_guards()
    return y


def values(x: torch.Tensor) -> torch.Tensor:
    comptime.print("here", 3, x)
    return x + 1


def function(x: torch.Tensor) -> torch.Tensor:
    scale = 3

    @comptime
    def look(ctx: Any) -> None:
        ctx.print("scale is", scale, len(ctx.graph().nodes))
        ctx.print_bt()

    return x * scale


ROWS: dict[str, tuple[Any, list[str], list[str]]] = {  # the function, what is shown, what is not
    "graph": (graph, ["l_x", "sin"], ["cos"]),
    "lines": (lines, ["in lines\n", "in inner\n"], ["in test_"]),
    "locals": (local_names, ["number = 3", "x = x, a tensor", "y = a tensor"], []),
    "stack": (stack, ["x, a tensor"], []),
    "guards": (guards, ["type(x) is Tensor", "metadata(x)"], []),
    "values": (values, ["'here'", "3", "x, a tensor"], []),
    "function": (function, ["scale is 3", "in function"], []),
}


@pytest.mark.parametrize("row", ROWS)
def test_what_is_shown(row: str, capsys: pytest.CaptureFixture[str]) -> None:
    f, wanted, others = ROWS[row]
    x = torch.rand(3)
    expected = f(x)
    assert capsys.readouterr().out == ""
    counter = CompileCounter("eager")
    compiled = dynamo.compile(f, backend=counter, fullgraph=True)
    assert torch.equal(compiled(x), expected)
    shown = capsys.readouterr().out
    assert all(text in shown for text in wanted), shown
    assert not any(text in shown for text in others), shown
    assert torch.equal(compiled(x), expected) and counter.frame_count == 1
    assert capsys.readouterr().out == ""


def test_the_fallback_runs_in_eager() -> None:
    ran: list[str] = []

    def f(x: torch.Tensor) -> torch.Tensor:
        comptime(lambda ctx: ran.append("compiling"), lambda: ran.append("eager"))
        return x + 1

    f(torch.ones(2))
    assert ran == ["eager"]


def test_the_debugger(monkeypatch: pytest.MonkeyPatch) -> None:
    stopped: list[str] = []
    monkeypatch.setattr(builtins, "breakpoint", lambda: stopped.append("here"))

    def f(x: torch.Tensor) -> torch.Tensor:
        comptime.breakpoint()
        return x + 1

    compiled = dynamo.compile(f, backend="eager", fullgraph=True)
    for _ in range(2):
        compiled(torch.ones(2))
    assert stopped == ["here"]


def test_a_function_that_fails_is_told() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        comptime(lambda ctx: ctx.print_graphs())
        return x + 1

    with pytest.raises(dynamo.exc.DynamoError, match=r"(?s)test_comptime.*print_graphs.*What to do") as info:
        dynamo.compile(f, backend="eager")(torch.ones(2))
    assert isinstance(info.value.__cause__, AttributeError)


def test_what_is_no_method_is_the_programs_error() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        comptime.print_everything()  # type: ignore[attr-defined]
        return x + 1

    with pytest.raises(AttributeError, match="print_everything"):
        dynamo.compile(f, backend="eager")(torch.ones(2))
