"""Sizes that change: at most two compiles, and eager's results whatever was assumed."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

import dynamo
from dynamo.exc import ConstraintViolation
from dynamo.testing import CompileCounter
from tests.parametrize import rotated
from tests.shapes.operators import OPERATORS
from tests.shapes.test_numbers import assert_same

SIZES = ((4, 6), (7, 6), (3, 6), (2, 6), (1, 6), (5, 8), (6, 6), (12, 2))
# Programs that need a size itself, or of which torch's kernels do.
FIXED = frozenset(("loop over rows", "loop over range", "text", "unbind"))


@rotated("name, dynamic", OPERATORS, [None, True, False])
def test_operator(name: str, dynamic: bool | None) -> None:
    program = OPERATORS[name]
    compiled = dynamo.compile(program, backend="eager", dynamic=dynamic)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for size in SIZES:
            x = torch.randn(size)
            try:
                wanted = program(x)
            except (RuntimeError, IndexError) as error:
                with pytest.raises(type(error)):
                    compiled(x)
                continue
            assert_same(compiled(x), wanted)


@pytest.mark.parametrize("name", sorted(set(OPERATORS) - FIXED))
def test_two_compiles(name: str) -> None:
    program, counter = OPERATORS[name], CompileCounter()
    compiled = dynamo.compile(program, backend=counter)
    branches = name.startswith("branch") or name == "fft"  # asks whether a size equals another
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for rows in range(4, 24, 3):
            x = torch.randn(rows, 6)
            assert_same(compiled(x), program(x))
    assert counter.frame_count <= 2 + branches


def test_twenty_sizes() -> None:
    def program(x: torch.Tensor) -> Any:
        scores = x @ x.transpose(1, 2) / x.shape[1] ** 0.5
        return (scores.softmax(-1) @ x).reshape(x.shape[0] * x.shape[1], -1)

    for axis in (0, 1):
        counter = CompileCounter()
        compiled = dynamo.compile(program, backend=counter)
        for size in range(2, 22):
            x = torch.randn((size, 5, 4) if axis == 0 else (3, size, 4))
            assert_same(compiled(x), program(x))
        assert counter.frame_count <= 2 + axis  # once where both sizes are equal by chance


def test_views_of_one_size_share_a_symbol() -> None:
    counter = CompileCounter()
    compiled = dynamo.compile(lambda x, y: x + y, backend=counter)
    for rows in (3, 4, 5):
        x, y = torch.randn(rows, 2), torch.randn(rows, 2)
        assert_same(compiled(x, y), x + y)
    assert counter.frame_count == 2
    x, y = torch.randn(6, 2), torch.randn(1, 2)
    assert_same(compiled(x, y), x + y)
    with pytest.raises(RuntimeError):
        compiled(torch.randn(6, 2), torch.randn(5, 2))


@pytest.mark.parametrize("layout", ["transposed", "sliced", "expanded", "channels last", "stepped"])
def test_strides(layout: str) -> None:
    make = {
        "transposed": lambda n: torch.randn(4, n).t(),
        "sliced": lambda n: torch.randn(n, 9)[:, 2:6],
        "expanded": lambda n: torch.randn(1, 4).expand(n, 4),
        "channels last": lambda n: torch.randn(2, 3, n, n).to(memory_format=torch.channels_last),
        "stepped": lambda n: torch.randn(2 * n, 4)[::2],
    }[layout]

    def program(x: torch.Tensor) -> Any:
        return (x * 2, x.relu().stride(), x.contiguous().view(-1), x.is_contiguous())

    compiled = dynamo.compile(program, backend="eager")
    for n in (3, 4, 5, 6, 7):
        for x in (make(n), make(n).contiguous()):
            found, wanted = compiled(x), program(x)
            assert_same(found, wanted)
            assert found[0].stride() == wanted[0].stride()


def test_gradients() -> None:
    counter = CompileCounter()
    weight = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    compiled = dynamo.compile(lambda x: (x @ weight).softmax(0).sum(1) / len(x), backend=counter)
    for rows in range(2, 9):
        x = torch.randn(rows, 3, dtype=torch.float64, requires_grad=True)
        found = torch.autograd.grad(compiled(x).square().sum(), [x, weight])
        wanted = torch.autograd.grad(
            ((x @ weight).softmax(0).sum(1) / len(x)).square().sum(), [x, weight])
        torch.testing.assert_close(found, wanted)
    assert counter.frame_count == 2


def test_break_between() -> None:
    def program(x: torch.Tensor) -> Any:
        n = x.shape[0]
        y = x * n
        dynamo.graph_break()
        return y.view(n * x.shape[1]) + n, n

    counter = CompileCounter()
    compiled = dynamo.compile(program, backend=counter)
    for rows in range(3, 15):
        x = torch.randn(rows, 4)
        assert_same(compiled(x), program(x))
    assert counter.frame_count <= 4


def test_mark_dynamic() -> None:
    counter = CompileCounter()
    compiled = dynamo.compile(lambda x: x.view(-1) * x.shape[0], backend=counter)
    for rows in (4, 9, 17):
        x = torch.randn(rows, 5)
        dynamo.mark_dynamic(x, 0)
        assert_same(compiled(x), x.view(-1) * rows)
    assert counter.frame_count == 1


def test_range_of_a_mark() -> None:
    counter = CompileCounter()
    compiled = dynamo.compile(lambda x: x * 2 if x.shape[0] <= 64 else x * 3, backend=counter)
    x = torch.randn(4)
    dynamo.mark_dynamic(x, 0, min=2, max=32)
    compiled(x)
    assert_same(compiled(torch.ones(32)), torch.ones(32) * 2)
    assert counter.frame_count == 1
    assert_same(compiled(torch.ones(33)), torch.ones(33) * 2)
    assert_same(compiled(torch.ones(65)), torch.ones(65) * 3)


def test_fixed_mark_names_the_line() -> None:
    def program(x: torch.Tensor) -> Any:
        y = x * 2
        return y.view(4, 2)  # fixes it

    for _ in range(2):
        x = torch.randn(8)
        dynamo.mark_dynamic(x, 0)
        with pytest.raises(ConstraintViolation, match=r"test_sizes.py:\d+ in program.*\n.*x.size"):
            dynamo.compile(program, backend="eager")(x)
    y = torch.randn(8)
    dynamo.maybe_mark_dynamic(y, 0)
    assert_same(dynamo.compile(program, backend="eager")(y), program(y))


def test_mark_static() -> None:
    counter = CompileCounter()
    compiled = dynamo.compile(lambda x: x * 2, backend=counter)
    for rows in (4, 5, 6):
        x = torch.randn(rows)
        dynamo.mark_static(x)
        compiled(x)
    assert counter.frame_count == 3


def test_int_as_a_size() -> None:
    def program(x: torch.Tensor, n: int) -> Any:
        return torch.zeros(n) + x[:n].sum(), x.narrow(0, 0, n) * n, torch.arange(n)

    counter = CompileCounter()
    compiled = dynamo.compile(program, backend=counter)
    x = torch.randn(40, 2)
    for n in (3, 4, 7, 1, 0, 12, 40):
        assert_same(compiled(x, n), program(x, n))
    assert counter.frame_count <= 4


def test_mutation_of_an_input() -> None:
    def program(x: torch.Tensor) -> Any:
        x[1:].mul_(x.shape[0])
        return x.sum(0), x.shape[0] - 1

    compiled = dynamo.compile(program, backend="eager")
    for rows in range(2, 8):
        x = torch.randn(rows, 3)
        y = x.clone()
        assert_same(compiled(x), program(y))
        assert_same(x, y)


@pytest.mark.parametrize("sizes", [[(3, 7), (5, 5), (4, 9), (6, 6)], [(2, 4), (8, 8), (9, 3)]])
def test_sizes_that_have_differed_do_not_share_a_symbol(sizes: list[tuple[int, int]]) -> None:
    counter = CompileCounter()
    compiled = dynamo.compile(lambda x: (x * x.shape[0]).sum(1), backend=counter)
    for rows, columns in sizes:
        x = torch.randn(rows, columns, dtype=torch.float64)
        torch.testing.assert_close(compiled(x), (x * rows).sum(1))
    assert counter.frame_count == 2


def test_sizes_that_were_equal_share_one() -> None:
    counter = CompileCounter()
    compiled = dynamo.compile(lambda x, y: x + y, backend=counter)
    for rows in (3, 5, 8):
        x, y = torch.randn(rows, 4), torch.randn(rows, 4)
        torch.testing.assert_close(compiled(x, y), x + y)
    assert counter.frame_count == 2
