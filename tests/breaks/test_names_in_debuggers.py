"""What a debugger shows where a compiled function breaks: the program's names."""

from __future__ import annotations

import inspect
import linecache
import sys
import traceback
from typing import Any

import pytest
import torch

import dynamo
from dynamo.base.generated import function_of


def look(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The locals of each frame that calls `breakpoint()`."""
    seen: list[dict[str, Any]] = []
    monkeypatch.setattr(sys, "breakpointhook", lambda: seen.append(dict(sys._getframe(1).f_locals)))
    return seen


def test_locals_have_their_names(monkeypatch: pytest.MonkeyPatch) -> None:
    def f(x: torch.Tensor, n: int) -> torch.Tensor:
        y = x * 2
        z = y + n
        pair = [y, z]
        gone = z.cos()
        w = gone.sin()
        breakpoint()
        return w + pair[0] + pair[1] * z

    seen = look(monkeypatch)
    x = torch.ones(2)
    torch.testing.assert_close(dynamo.compile(f, backend="eager")(x, 3), f(x, 3))
    compiled, eager = seen
    assert {"x", "n", "z", "pair", "w"} <= compiled.keys() <= eager.keys() | {
        name for name in compiled if name.startswith("__")}
    for name in ("z", "w", "n"):
        torch.testing.assert_close(compiled[name], eager[name])
    torch.testing.assert_close(compiled["pair"], eager["pair"])


def test_two_names_of_one_value(monkeypatch: pytest.MonkeyPatch) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        first = x * 2
        second = first
        x = x + 1
        breakpoint()
        return first * second + x

    seen = look(monkeypatch)
    torch.testing.assert_close(dynamo.compile(f, backend="eager")(torch.ones(2)), torch.full((2,), 6.0))
    assert "second" not in seen[0]
    torch.testing.assert_close(seen[0]["first"], torch.full((2,), 2.0))


def test_a_name_of_a_cell_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        z = x + 2
        breakpoint()
        return (lambda: y + z)() + z

    seen = look(monkeypatch)
    torch.testing.assert_close(dynamo.compile(f, backend="eager")(torch.ones(2)), torch.full((2,), 8.0))
    assert seen


def test_code_around_graphs_has_a_source() -> None:
    def f(x: torch.Tensor) -> Any:
        x.add_(1)
        return x * 2, x.view(-1)

    compiled = dynamo.compile(f, backend="aot_eager")
    compiled(torch.ones(3))
    files = {name: lines for name, (_, _, lines, _) in
             ((n, e) for n, e in linecache.cache.items() if len(e) == 4) if name.startswith("<dynamo wrapper ")}
    assert any("def call(" in "".join(lines) for lines in files.values())


def test_tracebacks_show_written_source() -> None:
    call = function_of("def call(x):\n    y = x + 1\n    return y / 0\n", "call", "test", {})
    with pytest.raises(ZeroDivisionError) as caught:
        call(1)
    assert "return y / 0" in "".join(traceback.format_exception(caught.value))
    assert inspect.getsource(call).startswith("def call(x):")
