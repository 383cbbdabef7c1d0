"""Loops of sums that go along memory where more bytes lie so, with the sums that they had."""

from __future__ import annotations

import pytest
import torch

from inductor.ir.body import LoopBody, trace_body
from inductor.ir.index import floordiv, mod
from inductor.ir.interpret import interpret_body
from inductor.lowering.loop_order import in_better_order

ROWS, COLUMNS = 6, 8


def body(kind: str, crossed: bool = True) -> LoopBody:
    def total(ops, i, r):  # type: ignore[no-untyped-def]
        place = mod(r[0], COLUMNS) * ROWS + floordiv(r[0], COLUMNS) if crossed else r[0]
        value = ops.mul(ops.load("a", place, torch.float32), ops.load("b", r[0], torch.float32))
        position = (ops.index_expr(r[0]),) if kind == "argmax" else ()
        ops.store("c", i[0], ops.reduction(kind, value, *position))

    return trace_body((1,), (ROWS * COLUMNS,), total)


@pytest.mark.parametrize("kind", ["sum", "max"])
def test_sums_are_the_same(kind: str) -> None:
    before = body(kind)
    after = in_better_order(before, {"a": 200, "b": 100})
    assert after.reduction_ranges == (COLUMNS, ROWS)
    buffers = {"a": torch.randn(48), "b": torch.randn(48), "c": torch.zeros(1)}
    others = {name: value.clone() for name, value in buffers.items()}
    interpret_body(before, buffers)
    interpret_body(after, others)
    torch.testing.assert_close(others["c"], buffers["c"])


def test_others_stay() -> None:
    for one, read in ((body("sum"), {"a": 100, "b": 200}), (body("argmax"), {"a": 200, "b": 100}),
                      (body("sum", crossed=False), {"a": 200, "b": 100})):
        assert in_better_order(one, read) is one
