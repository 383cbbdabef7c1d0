"""Parts of a buffer that one kernel may write: which meet, and which do not."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from inductor.ir.body import trace_body
from inductor.ir.graph import ComputedBuffer, Layout
from inductor.ir.index import floordiv
from inductor.scheduler.windows import Window, are_apart, window_of


def part(ranges: tuple[int, ...], place: Any, buffer: str = "b", reads: str = "a", mode: str = "set") -> ComputedBuffer:
    def body(ops: Any, i: Any, r: Any) -> None:
        ops.store(buffer, place(*i), ops.load(reads, i[0], torch.float32), mode)

    layout = Layout(torch.device("cpu"), torch.float32, (8, 24), (24, 1))
    return ComputedBuffer("n", layout, trace_body(ranges, (), body), "scatter", mutates=buffer)


FIRST = part((8, 10), lambda i, j: i * 24 + j)


@pytest.mark.parametrize("ranges, place, wanted", [
    ((8, 10), lambda i, j: i * 24 + j, (24, 0, 10)), ((8, 14), lambda i, j: i * 24 + j + 10, (24, 10, 14)),
    ((8,), lambda i: i * 24 + 3, (24, 3, 1)), ((2, 4, 10), lambda i, j, k: i * 96 + j * 24 + k + 96, (24, 0, 10)),
    ((10, 8), lambda i, j: i + j * 24, (24, 0, 10)),
    ((8, 10), lambda i, j: i * 24 + j + 20, None),  # it goes on in the next row
    ((8, 10), lambda i, j: i * 5 + j, None), ((8, 10), lambda i, j: i * 24, None), ((8,), lambda i: i, None),
    ((4, 4, 10), lambda i, j, k: i * 24 + j * 24 + k, None), ((80,), lambda i: floordiv(i, 10) * 24, None)])
def test_windows(ranges: tuple[int, ...], place: Any, wanted: Any) -> None:
    found = window_of(part(ranges, place))
    assert found == (None if wanted is None else Window("b", *wanted))


def test_sums_have_none() -> None:
    assert window_of(part((8, 10), lambda i, j: i * 24 + j, mode="add")) is None


@pytest.mark.parametrize("second, wanted", [
    (part((8, 14), lambda i, j: i * 24 + j + 10), True), (part((8, 14), lambda i, j: i * 24 + j + 9), False),
    (part((8, 10), lambda i, j: i * 24 + j), False), (part((4, 14), lambda i, j: i * 48 + j + 10), False),
    (part((8, 10), lambda i, j: i * 24 + j, buffer="c"), True), (part((8, 14), lambda i, j: i * 24 + j + 10, reads="b"), False)])
def test_apart(second: ComputedBuffer, wanted: bool) -> None:
    assert are_apart([FIRST, second], [FIRST, second]) is wanted


def test_others_may_neither_read_nor_write_there() -> None:
    assert are_apart([FIRST, part((8, 24), lambda i, j: i * 24 + j, buffer="c")], [FIRST])
    assert not are_apart([FIRST, part((8, 24), lambda i, j: i * 24 + j, buffer="c", reads="b")], [FIRST])
    assert not are_apart([FIRST, part((8, 24), lambda i, j: i * 24 + j)], [FIRST])
