"""Continuations run in plain CPython: they go on in the middle of a function, whatever is around."""

from __future__ import annotations

import sys
import types
from typing import Any

import pytest
import torch

import dynamo
from dynamo.bytecode.decode import decode
from dynamo.codegen.continuation import Continuations, Layout
from dynamo.symbolic.core.context import CodeCache


def after_call(function: types.FunctionType, number: int = 0) -> int:
    calls = [item for item in decode(function.__code__).instructions if item.op == "CALL"]
    return calls[number].index + 1


def make(
    function: types.FunctionType, instruction: int, layout: Layout, form: str = "after", **cells: Any
) -> types.FunctionType:
    made = Continuations(CodeCache().decode).get(function.__code__, instruction, layout, form)
    closure = tuple(cells[name] for name in made.code.co_freevars) or None
    return types.FunctionType(made.code, function.__globals__, made.code.co_name, None, closure)


def test_straight_code() -> None:
    def f(g, x):  # type: ignore[no-untyped-def]
        y = x * 2
        z = g(x)
        return y + z

    resume = make(f, after_call(f), Layout(("value",), ("y",), (), ()))
    assert resume(3, 4) == 7
    assert resume.__name__ == "f" and resume.__code__.co_qualname.startswith("__resume_")


def test_in_a_loop_with_an_iterator_on_the_stack() -> None:
    def f(g, xs):  # type: ignore[no-untyped-def]
        total = 0
        for x in xs:
            total += g(x)
        return total

    layout = Layout(("value", "value", "value"), ("g", "total"), (), ())
    resume = make(f, after_call(f), layout)
    assert resume(lambda x: x * 10, 0, iter([1, 2]), 5, 7) == 5 + 7 + 30


def test_null_on_the_stack() -> None:
    def f(g, h, x):  # type: ignore[no-untyped-def]
        return g(1, h(x))

    # stack: NULL, g, 1 in some order, then the result of h
    decoded = decode(f.__code__)
    call = next(item for item in decoded.instructions if item.op == "CALL")
    from dynamo.bytecode.versions import VERSION

    kinds = ("null", "value") if VERSION.null_first else ("value", "null")
    layout = Layout((*kinds, "value", "value"), (), (), ())
    resume = make(f, call.index + 1, layout)
    assert resume(lambda a, b: (a, b), 1, 9) == (1, 9)


def test_cells_become_free_variables() -> None:
    def f(g, x):  # type: ignore[no-untyped-def]
        n = x

        def inner():  # type: ignore[no-untyped-def]
            nonlocal n
            n += 1
            return n

        g(x)
        return inner() + n

    cell = types.CellType(10)

    def inner() -> int:
        cell.cell_contents += 1
        return int(cell.cell_contents)

    resume = make(f, after_call(f), Layout(("value",), ("inner",), (), ("n",)), n=cell)
    assert resume(inner, None) == 22


def test_exception_goes_to_the_original_handler() -> None:
    def f(g, log):  # type: ignore[no-untyped-def]
        try:
            g(1)
        except ValueError as error:
            log.append(str(error))
            return "handled"
        finally:
            log.append("finally")
        return "no error"

    index = after_call(f) - 1
    log: list[str] = []
    resume = make(f, index, Layout((), ("log",), (), ()), "raise")
    assert resume(log, ValueError("x")) == "handled"
    assert log == ["x", "finally"]


def test_handled_exception_is_current_again() -> None:
    def f(g):  # type: ignore[no-untyped-def]
        try:
            raise KeyError(1)
        except KeyError:
            g(2)
            return sys.exc_info()[1]

    calls = [item for item in decode(f.__code__).instructions if item.op == "CALL"]
    index = calls[1].index + 1
    error = KeyError("real")
    resume = make(f, index, Layout(("saved", "value"), (), (), ()))
    assert resume(error, None) is error
    assert sys.exc_info()[1] is None


def test_one_continuation_per_place_and_layout() -> None:
    def f(g, x):  # type: ignore[no-untyped-def]
        y = g(x)
        return g(y)

    made = Continuations(CodeCache().decode)
    first = made.get(f.__code__, after_call(f), Layout(("value",), ("g",), (), ()), "after")
    again = made.get(f.__code__, after_call(f), Layout(("value",), ("g",), (), ()), "after")
    assert first is again
    second = decode(first.code).instructions
    calls = [item.index for item in second if item.op == "CALL"]
    origin = made.origin(first.code, calls[1])
    assert origin == (f.__code__, after_call(f, 1) - 1)


class Adds:
    def step(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1


class InCell(Adds):
    """`super()` without arguments where `self` lies in a cell."""

    def step(self, x: torch.Tensor) -> Any:
        kept = lambda: self
        for _ in range(2):
            y = x * 2
            dynamo.graph_break()
            x = super().step(y)
        dynamo.graph_break()
        return super().step(x), kept() is self


@pytest.mark.parametrize("form", ["method", "inlined"])
def test_super_with_self_in_a_cell(form: str) -> None:
    target = InCell()
    f = target.step if form == "method" else lambda x: target.step(x)
    x = torch.rand(3)
    want, got = f(x), dynamo.compile(f, backend="eager")(x)
    assert torch.equal(want[0], got[0]) and got[1] and not dynamo.counters["internal_errors"]
