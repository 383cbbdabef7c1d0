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


def unbacked(*sizes: int, axis: int = 0, **more: Any) -> torch.Tensor:
    x = torch.randint(-9, 9, sizes).float()
    dynamo.mark_unbacked(x, axis, **more)
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


def scores(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    y = torch.cat([x, x]) @ w
    return (y.unsqueeze(1) * y.unsqueeze(0)).sum(-1).t().contiguous() / x.size(0)


@pytest.mark.parametrize(("sizes", "training"), [((3, 1, 0, 5), True), ((0, 1, 4), False)])
def test_unbacked_0_and_1_are_compiled(sizes: tuple[int, ...], training: bool) -> None:
    dynamo.reset()
    compiled = dynamo.compile(scores)
    for size in sizes:
        x, w = unbacked(size, 3), torch.randn(3, 2, requires_grad=training)
        answer, expected = compiled(x, w), scores(x, w)
        torch.testing.assert_close(answer, expected)
        assert answer.stride() == expected.stride()
        if training:
            torch.testing.assert_close(
                *(torch.autograd.grad(y.square().sum(), w) for y in (answer, expected)))
    assert not counters["not_compiled"] and not counters["recompiles"]


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
        dynamo.compile(program, backend="eager")(unbacked(5, 3, strict=program is broadcasts))
    assert "needs it" in str(info.value) and "x.size(0)" in str(info.value)


def test_what_is_checked_may_be_decided() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        torch._check(x.size(0) > 3, lambda: "too few rows")
        return x * 2 if x.shape[0] > 3 else x

    compiled = dynamo.compile(program, backend="eager", fullgraph=True)
    assert_same(compiled(x := unbacked(5, 3)), x * 2)
    with pytest.raises(RuntimeError, match="too few rows"):
        compiled(unbacked(2, 3))


def test_what_fits_one_unbacked_size_is_compiled_for_it() -> None:
    counter = CompileCounter()
    compiled = dynamo.compile(broadcasts, backend=counter, fullgraph=True)
    for size in (5, 1, 5, 1):
        assert_same(compiled(x := unbacked(size, 3)), broadcasts(x))
    assert counter.frame_count == 2
    with pytest.raises(RuntimeError, match="must match"):
        compiled(unbacked(4, 3))


def added(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x + y


@pytest.mark.parametrize("more", [{}, {"strict": True}, {"shape_id": "rows"}])
def test_two_unbacked_sizes_that_must_be_equal(more: dict[str, Any]) -> None:
    counter = CompileCounter()
    compiled = dynamo.compile(added, backend=counter)
    for size in (4, 1, 0, 9):
        x, y = unbacked(size, 3, **more), unbacked(size, 3, **more)
        assert_same(compiled(x, y), x + y)
    assert counter.frame_count == 1
    if more:
        what = "needed here" if "strict" in more else "'rows' too, is 4"
        with pytest.raises(ConstraintViolation, match=what):
            compiled(unbacked(4, 3, **more), unbacked(5, 3, **more))
    else:
        with pytest.raises(RuntimeError, match="must match"):
            compiled(unbacked(4, 3), unbacked(5, 3))
        for sizes in ((1, 5), (5, 1), (0, 1)):
            x, y = unbacked(sizes[0], 3), unbacked(sizes[1], 3)
            assert_same(compiled(x, y), x + y)


def test_range_of_an_unbacked_size() -> None:
    compiled = dynamo.compile(branches, backend="eager", fullgraph=True)
    for size in (4, 9):
        assert_same(compiled(x := unbacked(size, 3, min=4, max=9)), branches(x))
    with pytest.raises(ConstraintViolation, match="is 3, outside of at least 4 and at most 9"):
        compiled(unbacked(3, 3, min=4, max=9))


# -- sizes that changed, or are named by settings ------------------------------------------------


@pytest.mark.parametrize(("program", "most"), [(scaled, 2), (branches, 5)])
def test_sizes_that_changed_are_unbacked(program: Callable[..., Any], most: int) -> None:
    counter = CompileCounter()
    with dynamo.config.patch(automatic_dynamic_shapes="unbacked"):
        compiled = dynamo.compile(program, backend=counter)
        for size in (4, 5, 1, 0, 7, 2):
            x = torch.randint(-9, 9, (size, 3)).float()
            assert_same(compiled(x), program(x))
    assert counter.frame_count <= most
    with pytest.raises(ValueError, match="may be unbacked"):
        dynamo.config.automatic_dynamic_shapes = "static"


NAMED = [("dynamic_sources", "x", 1), ("dynamic_sources", "L['x']:0", 1),
         ("dynamic_sources", r"L\['.'\]", 1), ("dynamic_sources", "y, L['x']:1", 3),
         ("unbacked_sources", "L['x']:0", 1)]


@pytest.mark.parametrize(("setting", "text", "graphs"), NAMED)
def test_names_of_symbolic_sizes(setting: str, text: str, graphs: int) -> None:
    counter = CompileCounter()
    with torch.compiler.config.patch({setting: text}):
        compiled = dynamo.compile(lambda x: x.sin() * 2, backend=counter, dynamic=False)
        for size in (4, 5, 1) if setting == "unbacked_sources" else (4, 5, 7):
            x = torch.randn(size, 3)
            assert torch.equal(compiled(x), x.sin() * 2)
    assert counter.frame_count == graphs


def test_name_of_a_symbolic_number() -> None:
    counter, x = CompileCounter(), torch.randn(2, 3)
    with torch.compiler.config.patch(dynamic_sources="L['n']"):
        compiled = dynamo.compile(lambda x, n: x[:n] * n, backend=counter)
        for n in (4, 5, 7):
            assert torch.equal(compiled(x, n), x * n)
    assert counter.frame_count == 1


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
        return x * 2, x.storage_offset(), torch.as_strided(x, (2, 3), (3, 1)), y * 2

    x, y = torch.randn(4, 3), marked(5)
    with pytest.raises(ConstraintViolation, match=r"y.size\(0\)"):
        for rows in (4, 5, 6):  # x becomes symbolic, which a read offset does not allow
            dynamo.compile(program, backend="eager", dynamic=True)(torch.randn(rows, 3), y)
    assert_same(dynamo.compile(program, backend="eager")(x, y.clone()), program(x, y))


def mapped_first(x: torch.Tensor, y: torch.Tensor) -> Any:
    return torch.func.vmap(torch.sin)(x * 2), y * 2


def mapped_last(x: torch.Tensor, y: torch.Tensor) -> Any:
    z = y * 2
    return torch.func.vmap(torch.cos)(x + 1), z + y.shape[0]


def gradient(x: torch.Tensor, y: torch.Tensor) -> Any:
    return torch.func.grad_and_value(lambda a: (a * a).sum())(y), y * x.sum()


@pytest.mark.parametrize("program", [mapped_first, mapped_last])
def test_vmap_beside_declared_sizes(program: Callable[..., Any]) -> None:
    counter = CompileCounter()
    compiled = dynamo.compile(program, backend=counter, fullgraph=True)
    for size in (5, 6, 7, 8):
        x, y = torch.randn(4, 3), marked(size)
        assert_same(compiled(x, y), program(x, y))
    assert counter.frame_count == 1


@pytest.mark.parametrize("program", [gradient])
def test_transforms_beside_declared_sizes(program: Callable[..., Any]) -> None:
    """The others break the graph, which keeps its symbolic sizes."""
    counter = CompileCounter()
    compiled = dynamo.compile(program, backend=counter)
    for size in (5, 6, 7, 8):
        x, y = torch.randn(4, 3), marked(size)
        assert_same(compiled(x, y), program(x, y))
        if size == 6:
            graphs = counter.frame_count
    assert counter.frame_count == graphs
    assert any("torch.func" in str(reason) for reason in dynamo.counters["graph_break"])
    with pytest.raises(dynamo.exc.DynamoError, match="torch.func"):
        dynamo.compile(program, backend="eager", fullgraph=True)(x, marked(5))


CHECKED: dict[str, Callable[..., Any]] = {
    "product": lambda x, z: torch._check(z.item() == x.size(0) * 1.0),
    "float": lambda x, z: torch._check(z.item() == float(x.size(0))),
    "sum": lambda x, z: torch._check(z.item() * 2 > x.size(0) + 0.5),
    "quotient": lambda x, z: torch._check(z.item() / 2 == x.size(0) / 2),
}


@pytest.mark.parametrize("check", CHECKED)
def test_a_check_of_a_value_and_a_size_fixes_no_size(check: str) -> None:
    def program(x: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        CHECKED[check](x, z)
        return x * 2

    counter = CompileCounter()
    compiled = dynamo.compile(program, backend=counter, fullgraph=True)
    for size in (4, 5, 7):
        x = torch.randn(size, 3)
        dynamo.mark_dynamic(x, 0)
        assert_same(compiled(x, torch.tensor(float(size))), x * 2)
        with pytest.raises(RuntimeError, match="Expected cond"):
            compiled(x, torch.tensor(-3.0))
    assert counter.frame_count == 1


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
