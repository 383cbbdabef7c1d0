"""Programs with marks, declared sizes and numbers out of data, as a user writes them: eager's results,
the promised number of graphs, and errors that name the line which fixed a size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import dynamo
from dynamo import Dim
from dynamo.exc import ConstraintViolation
from dynamo.testing import CompileCounter
from tests.shapes.test_numbers import assert_same

Program = Callable[..., Any]
Mark = Callable[[Tensor], None]


def outcome(function: Program, *args: Tensor) -> Any:
    """What it returns, or the error that it raises."""
    try:
        return function(*args)
    except Exception as error:
        return type(error), str(error)


def dynamic(*dims: int, low: int | None = None, high: int | None = None) -> Mark:
    def mark(x: Tensor) -> None:
        for dim in dims:
            dynamo.mark_dynamic(x, dim, min=low, max=high)

    return mark


def unbacked(x: Tensor) -> None:
    dynamo.mark_unbacked(x, 0)


def static(x: Tensor) -> None:
    dynamo.mark_static(x, 0)


def checked(x: Tensor) -> Any:
    n = x.size(0)
    torch._check(n >= 2)
    return x[:2] * n if n >= 1 else x


def padded(x: Tensor) -> Tensor:
    return F.pad(x, (0, 0, 0, -x.shape[0] % 4)).view(-1, 4, 3).amax(1)


def normed(x: Tensor) -> Any:
    n, m = x.shape
    return (x - x.mean(0)) / n**0.5, f"{n}x{m}", (n, m), {"rows": n}


def halves(x: Tensor) -> Any:
    middle = x.shape[0] // 2
    return torch.cat([x[middle:], x[:middle]]), len(x) - middle


def over_three(x: Tensor) -> Tensor:
    return x * 2 if x.shape[0] > 3 else x - 1


# program, mark, numbers of rows, graphs
MARKED: dict[str, tuple[Program, Mark, list[int], int]] = {
    "sums": (lambda x: (x.sum(0), x.relu()), dynamic(0), [5, 9, 3, 40], 1),
    "a range": (lambda x: x.cumsum(0), dynamic(0, low=3, high=9), [3, 9, 5], 1),
    "both": (lambda x: (x @ x.t()).tril() + x.shape[1], dynamic(0, 1), [5, 9, 4], 1),
    "padding": (padded, dynamic(0), [5, 9, 14], 1),
    "text": (normed, dynamic(0), [5, 9, 4], 1),
    "halves": (halves, dynamic(0), [5, 9, 4], 1),
    "a side": (over_three, dynamic(0), [5, 9, 12], 1),
    "two sides": (over_three, dynamic(0), [5, 9, 2, 3], 2),
    "a view": (lambda x: x.view(3, -1).sum(1), dynamic(0), [5, 8, 7], 1),
    "fixed": (lambda x: x * 2, static, [5, 9, 4], 3),
    "all sizes": (lambda x: (x.sum(0), x * x.size(0), x.t().sin()), unbacked, [5, 1, 0, 9], 1),
    "checked": (checked, unbacked, [5, 2, 9, 1, 0], 1),
    "maybe": (lambda x: x * 2 if x.shape[0] == 5 else x + 1,
              lambda x: dynamo.maybe_mark_dynamic(x, 0), [5, 9, 4], 2),
}  # fmt: skip


@pytest.mark.parametrize("name", MARKED)
def test_marked(name: str) -> None:
    program, mark, sizes, graphs = MARKED[name]
    counter = CompileCounter()
    compiled = dynamo.compile(program, backend=counter, fullgraph=True)
    for n in sizes:
        x = torch.randn(n, 3)
        mark(x)
        assert_same(outcome(compiled, x), outcome(program, x.clone()))
    assert counter.frame_count == graphs


def same_as_weights(x: Tensor) -> Tensor:
    y = x.relu()
    return y + torch.ones(5, 3)  # fixes it


def as_key(x: Tensor) -> Tensor:
    table = {5: 1.0, 7: 2.0}
    return x * table[x.shape[0]]  # fixes it


def row_by_row(x: Tensor) -> Tensor:
    total = x.new_zeros(3)
    for at in range(x.shape[0]):  # fixes it
        total = total + x[at]
    return total


def is_five(x: Tensor) -> Tensor:
    if x.shape[0] == 5:  # fixes it
        return x * 2
    return x


def reshaped(x: Tensor) -> Tensor:
    return x.reshape(15)  # fixes it


def unpacked(x: Tensor) -> Tensor:
    a, b, c, d, e = x  # fixes it
    return a + b * c - d / e


def multiplied(x: Tensor) -> Tensor:
    return torch.eye(5) @ x  # fixes it


@pytest.mark.parametrize(
    "program", [same_as_weights, as_key, row_by_row, is_five, reshaped, unpacked, multiplied])
@pytest.mark.parametrize("by_name", [False, True])
def test_what_fixes_a_size_is_named(program: Program, by_name: bool) -> None:
    x = torch.randn(5, 3)
    declared = {"x": {0: Dim("rows")}} if by_name else None
    if not by_name:
        dynamo.mark_dynamic(x, 0)
    with pytest.raises(ConstraintViolation) as info:
        dynamo.compile(program, backend="eager", dynamic=declared)(x)
    text = str(info.value)
    assert "fixes it" in text and "x" in text and "5" in text and __file__ in text


@pytest.mark.parametrize(("n", "word"), [(1, "1"), (0, "0"), (9, "8"), (2, "3")])
def test_a_size_out_of_the_range(n: int, word: str) -> None:
    x = torch.randn(n, 3)
    dynamo.mark_dynamic(x, 0, min=3, max=8)
    with pytest.raises(ConstraintViolation, match=rf"\b{word}\b"):
        dynamo.compile(lambda x: x * 2, backend="eager")(x)


def test_sizes_of_one_name_are_one() -> None:
    rows, counter = Dim("rows", max=64), CompileCounter()
    given = {"x": {0: rows}, "y": {0: rows}}
    compiled = dynamo.compile(lambda x, y: x + y.flip(0), dynamic=given, backend=counter)
    for n in (5, 9, 64):
        x, y = torch.randn(n, 3), torch.randn(n, 3)
        torch.testing.assert_close(compiled(x, y), x + y.flip(0))
    with pytest.raises(ConstraintViolation, match="y"):
        compiled(torch.randn(5, 3), torch.randn(6, 3))
    with pytest.raises(ConstraintViolation, match="64"):
        compiled(torch.randn(65, 3), torch.randn(65, 3))
    assert counter.frame_count == 1


def cut(x: Tensor, t: Tensor) -> Any:
    n = t[0].item()
    torch._check(n >= 0)
    torch._check(n <= x.size(0))
    return x.narrow(0, 0, n).sum(0), x[n:].shape[0] + n


def parts(x: Tensor, t: Tensor) -> Any:
    return [part.sum() for part in x.split(t.tolist())]


def kept(x: Tensor, t: Tensor) -> Any:
    positive = x[x[:, 0] > 0]
    return positive.sum(0), positive.shape[0], positive * positive.size(0)


def places(x: Tensor, t: Tensor) -> Any:
    at = (x > 0).nonzero()
    return at, at.shape[0] / x.numel(), torch.zeros(at.shape[0]) + 1.5


def cleared(x: Tensor, t: Tensor) -> Any:
    y = x.clone()
    y[y < 0] = 0.5
    return y, y.masked_select(y > 0.25).sort().values


def mean_of_some(x: Tensor, t: Tensor) -> Any:
    some = x[x > 2]
    return some.mean() if some.numel() > 0 else x.new_zeros(())


def looped(x: Tensor, t: Tensor) -> Any:
    for _ in range(int(t[0])):
        x = x.sin()
    return x


def repeated(x: Tensor, t: Tensor) -> Any:
    found = x[: len(t)].repeat_interleave(t, 0)
    return found, found.shape


def scaled(x: Tensor, t: Tensor) -> Any:
    factor, n = x.sum().item(), t.sum().item()
    return x * factor, factor * 2, x.new_full((n, 2), factor), max(n, 3)


def different(x: Tensor, t: Tensor) -> Any:
    values, counts = t.unique(return_counts=True)
    return values * counts, values.numel(), torch.where(t > 1)[0]


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize(
    "program", [cut, parts, kept, places, cleared, mean_of_some, looped, repeated, scaled, different])
def test_numbers_out_of_data(program: Program, captured: bool) -> None:
    names = ("capture_scalar_outputs", "capture_dynamic_output_shape_ops")
    with dynamo.config.patch(**dict.fromkeys(names, captured)):
        compiled = dynamo.compile(program, backend="eager")
        for counts in ([2, 3, 1], [0, 4, 2], [1, 1, 4], [7, 1, 1], [-1, 3, 4]):
            x, t = torch.randn(6, 3), torch.tensor(counts)
            assert_same(outcome(compiled, x, t), outcome(program, x, t))
