"""Sizes that the user has declared: by marks on tensors, or by names in `dynamo.compile`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynamo
from dynamo import Dim
from dynamo.base.counters import counters
from dynamo.exc import ConstraintViolation
from dynamo.testing import CompileCounter
from tests.shapes.test_numbers import assert_same

BATCH = Dim("batch", min=2, max=64)


def scaled(x: torch.Tensor) -> Any:
    return x * 2 + x.sum(0), x.shape[0] * 2, x.shape, x.reshape(-1).cumsum(0), x.t().contiguous()


def unbacked(*sizes: int, axis: int = 0) -> torch.Tensor:
    x = torch.randint(-9, 9, sizes).float()
    dynamo.mark_unbacked(x, axis)
    return x


# -- mark_unbacked -------------------------------------------------------------------------------


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("backend", [None, "inductor"])
def test_unbacked_is_never_specialised(axis: int, backend: str | None) -> None:
    counter = CompileCounter()
    compiled = dynamo.compile(scaled, backend=backend or counter)
    for size in (0, 1, 5, 7, 1, 2):
        x = unbacked(*((size, 3) if axis == 0 else (3, size)), axis=axis)
        assert_same(compiled(x), scaled(x))
    assert counter.frame_count == (backend is None)


def branches(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    if x.shape[0] > 3:  # needs it
        return y * 2
    return y


def broadcasts(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    return y + torch.ones(5, 1)  # needs it


def loops(x: torch.Tensor) -> torch.Tensor:
    y = x + 1
    return sum(y[i] for i in range(len(y.chunk(2))))  # needs it


@pytest.mark.parametrize("program", [branches, broadcasts, loops])
def test_a_decision_on_an_unbacked_size_names_the_line(program: Callable[..., Any]) -> None:
    with pytest.raises(ConstraintViolation) as info:
        dynamo.compile(program, backend="eager")(unbacked(5, 3))
    assert "needs it" in str(info.value) and "x.size(0)" in str(info.value)


def test_what_is_checked_may_be_decided() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        torch._check(x.size(0) > 3, lambda: "too few rows")
        return x * 2 if x.shape[0] > 3 else x

    compiled = dynamo.compile(program, backend="eager", fullgraph=True)
    assert_same(compiled(x := unbacked(5, 3)), x * 2)
    with pytest.raises(RuntimeError, match="too few rows"):
        compiled(unbacked(2, 3))


def test_two_unbacked_sizes_that_must_be_equal() -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y

    counter = CompileCounter()
    compiled = dynamo.compile(program, backend=counter)
    for size in (4, 1, 0, 9):
        x, y = unbacked(size, 3), unbacked(size, 3)
        assert_same(compiled(x, y), x + y)
    assert counter.frame_count == 1
    with pytest.raises(ConstraintViolation, match=r"x.size\(0\) == y.size\(0\) is needed here"):
        compiled(unbacked(4, 3), unbacked(5, 3))


# -- mark_dynamic ------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1])
def test_dynamic_at_0_or_1_is_told(size: int) -> None:
    x = torch.randn(size, 3)
    dynamo.mark_dynamic(x, 0)
    with pytest.raises(ConstraintViolation, match=rf"x.size\(0\).*is {size}.*\n.*mark_unbacked"):
        dynamo.compile(scaled, backend="eager")(x)


def marked(rows: int) -> torch.Tensor:
    x = torch.randn(rows, 3)
    dynamo.mark_dynamic(x, 0, min=3, max=8)
    return x


def test_range_of_a_mark() -> None:
    counter = CompileCounter()
    compiled = dynamo.compile(scaled, backend=counter)
    for size in (3, 8, 5):
        assert_same(compiled(x := marked(size)), scaled(x))
    assert counter.frame_count == 1
    with pytest.raises(ConstraintViolation, match="is 9, outside of at least 3 and at most 8"):
        compiled(marked(9))
    with pytest.raises(ConstraintViolation, match="is 2, outside"):
        compiled(marked(2))
    x = torch.randn(9, 3)  # says nothing of itself
    assert_same(compiled(x), scaled(x))
    assert counter.frame_count == 2


def test_a_mark_is_not_lost_where_sizes_are_static() -> None:
    def program(x: torch.Tensor, y: torch.Tensor) -> Any:
        a = x * 2
        b = torch.func.vmap(torch.sin)(a)
        return b, y * 2

    x, y = torch.randn(4, 3), marked(5)
    with pytest.raises(ConstraintViolation, match=r"y.size\(0\)"):
        for rows in (4, 5, 6):  # x becomes symbolic, which a transform does not allow
            dynamo.compile(program, backend="eager", dynamic=True)(torch.randn(rows, 3), y)
    assert_same(dynamo.compile(program, backend="eager")(x, y.clone()), program(x, y))


# -- dynamic= ----------------------------------------------------------------------------------


def product(x: torch.Tensor, y: torch.Tensor, *, scale: float = 1.0) -> torch.Tensor:
    return x @ y.t() * scale


def test_names_share_sizes() -> None:
    counter = CompileCounter()
    dims = {"x": {0: BATCH}, "y": {0: BATCH}}
    compiled = dynamo.compile(product, backend=counter, dynamic=dims, fullgraph=True)
    for size in (4, 5, 64, 2):
        x, y = torch.randn(size, 3), torch.randn(size, 3)
        assert_same(compiled(x, y=y), product(x, y))
    assert counter.frame_count == 1
    with pytest.raises(ConstraintViolation, match=r"size\(0\).*is 4, while .*'batch' too, is 5"):
        compiled(torch.randn(4, 3), torch.randn(5, 3))
    with pytest.raises(ConstraintViolation, match="is 65, outside of batch: at least 2 and at most 64"):
        compiled(torch.randn(65, 3), torch.randn(65, 3))
    with pytest.raises(ConstraintViolation, match="is 1, and sizes 0 and 1"):
        compiled(torch.randn(1, 3), torch.randn(1, 3))


def test_different_names_may_differ() -> None:
    counter = CompileCounter()
    dims = {"x": {0: Dim("rows")}, "y": {0: Dim("columns")}}
    compiled = dynamo.compile(product, backend=counter, dynamic=dims)
    for rows, columns in ((4, 4), (4, 5), (9, 2)):
        x, y = torch.randn(rows, 3), torch.randn(columns, 3)
        assert_same(compiled(x, y), product(x, y))
    assert counter.frame_count == 1


def test_a_program_that_fixes_a_declared_size() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        return torch.eye(4) @ y  # fixes it

    compiled = dynamo.compile(program, backend="eager", dynamic={"x": {0: BATCH}})
    with pytest.raises(ConstraintViolation, match=r"fixes it\n.*x.size\(0\).*is fixed to 4"):
        compiled(torch.randn(4, 3))


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 4)

    def forward(self, first: torch.Tensor, second: Any = None) -> torch.Tensor:
        return self.linear(first).relu()


@pytest.mark.parametrize("way", ["twin", "in place", "method"])
def test_modules_and_methods(way: str) -> None:
    model, counter = Model(), CompileCounter()
    settings = {"backend": counter, "dynamic": {"first": {-2: BATCH}}}
    if way == "in place":
        compiled = dynamo.compile_in_place(model, **settings)
    else:
        compiled = dynamo.compile(model if way == "twin" else model.forward, **settings)
    for size in (4, 5, 64):
        x = torch.randn(size, 3)
        assert_same(compiled(first=x), Model.forward(model, x))
    assert counter.frame_count == 1
    with pytest.raises(ConstraintViolation, match="is 1, and"):
        compiled(torch.randn(1, 3))
    with pytest.raises(ConstraintViolation, match="of 1 dimensions"):
        compiled(torch.randn(3))


def test_wrong_declarations() -> None:
    with pytest.raises(ValueError, match="no parameter; there are x, y, scale"):
        dynamo.compile(product, dynamic={"z": {0: BATCH}})
    for wrong in ({"x": 0}, {"x": {0: "batch"}}, {0: {0: BATCH}}):
        with pytest.raises(TypeError, match="names of parameters"):
            dynamo.compile(product, dynamic=wrong)
    with pytest.raises(TypeError, match="a name"):
        Dim(3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no size is in the range"):
        Dim("batch", min=5, max=4)


def test_facts_that_no_longer_hold_compile_again() -> None:
    counter = CompileCounter()
    compiled = dynamo.compile(lambda x, y: torch.cat([x, y]) * x.shape[0], backend=counter, dynamic=True)
    for first, second in ((4, 4), (5, 5), (4, 6), (7, 3), (1, 9)):
        x, y = torch.randn(first, 3), torch.randn(second, 3)
        assert_same(compiled(x, y), torch.cat([x, y]) * first)
    assert counter.frame_count == 3  # equal sizes, different ones, and one row


def test_a_function_that_no_guard_computes_fixes_a_declared_size() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        if math.lgamma(x.shape[0]) > 1:  # fixes it
            return x + 1
        return x

    with pytest.raises(ConstraintViolation, match="fixes it\n.*is fixed to 4"):
        dynamo.compile(program, backend="eager", dynamic={"x": {0: BATCH}})(torch.randn(4, 3))


def broken_twice(x: torch.Tensor, y: torch.Tensor) -> Any:
    h = x * 2 + 1
    dynamo.graph_break()
    g = h.sin() + y
    dynamo.graph_break()
    return g.sum(0), torch.cat([h, x])[1:] * 2, [g.shape[0]]


def broken_first(x: torch.Tensor, y: torch.Tensor) -> Any:
    dynamo.graph_break()
    return x * y.size(0) + 1


class BrokenModule(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        h = torch.cat([x, y]).sin()
        dynamo.graph_break()
        return h[1:] + h.size(0)


@pytest.mark.parametrize(("program", "parts"), [
    (broken_twice, 3), (broken_first, 1), (BrokenModule(), 2)])
def test_declared_sizes_pass_graph_breaks(program: Any, parts: int) -> None:
    counter, batch = CompileCounter(), Dim("batch", min=2)
    dynamo.reset()
    compiled = dynamo.compile(program, backend=counter, dynamic={"x": {0: batch}, "y": {0: batch}})
    for size in (5, 7, 3, 9, 2):
        x, y = torch.randn(size, 3), torch.randn(size, 3)
        torch.testing.assert_close(compiled(x, y), program(x, y))
    assert counter.frame_count == parts and not counters["recompiles"]


def test_what_was_not_declared_is_learnt_behind_a_break() -> None:
    counter = CompileCounter()
    dynamo.reset()
    compiled = dynamo.compile(
        broken_twice, backend=counter, dynamic={"x": {1: Dim("width")}})
    for rows, width in ((5, 3), (5, 4), (6, 4)):
        x, y = torch.randn(rows, width), torch.randn(rows, width)
        torch.testing.assert_close(compiled(x, y), broken_twice(x, y))
    assert counters["recompiles"]
