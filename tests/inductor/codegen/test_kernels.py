"""Kernels written by hand: each strategy of the printer against the interpreter."""

from __future__ import annotations

import pytest
import torch
from kernel_support import Runner, check

from inductor.ir.body import trace_body
from inductor.scheduler.schedule import Kernel, Local, local_position, outer_variables

F = torch.float32


def norm_kernel(rows: int, columns: int) -> Kernel:
    """Layer normalization without weights: two sums and a pointwise stage, a row per iteration."""
    (o,) = outer_variables((rows,))

    def mean(ops, i, r):
        x = ops.load("x", o * columns + r[0], F)
        total = ops.reduction("sum", x)
        ops.store("mean", 0, ops.truediv(total, ops.constant(columns, F)))

    def variance(ops, i, r):
        d = ops.sub(ops.load("x", o * columns + r[0], F), ops.load("mean", 0, F))
        total = ops.reduction("sum", ops.mul(d, d))
        ops.store("rstd", 0, ops.rsqrt(ops.truediv(total, ops.constant(columns, F))))

    def normalize(ops, i, r):
        d = ops.sub(ops.load("x", o * columns + i[0], F), ops.load("mean", 0, F))
        ops.store("out", o * columns + i[0], ops.mul(d, ops.load("rstd", 0, F)))

    stages = (
        trace_body((), (columns,), mean),
        trace_body((), (columns,), variance),
        trace_body((columns,), (), normalize),
    )
    return Kernel("norm", (rows,), stages, (Local("mean", F, 1), Local("rstd", F, 1)))


@pytest.mark.parametrize("shape", [(3, 17), (64, 300), (1, 5000)])
@pytest.mark.parametrize("threads", [1, 2])
def test_norm(runner: Runner, shape: tuple[int, int], threads: int) -> None:
    rows, columns = shape
    storages = {"x": torch.randn(rows * columns) * 3 + 1, "out": torch.zeros(rows * columns)}
    check(runner, norm_kernel(rows, columns), storages, threads, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("rows,columns", [(7, 33), (1000, 100), (4, 4000)])
@pytest.mark.parametrize("kind", ["sum", "max", "min", "prod", "argmax", "argmin"])
def test_column_and_row(runner: Runner, rows: int, columns: int, kind: str) -> None:
    def reduce(over_rows: bool):
        def body(ops, i, r):
            row, column = (r[0], i[0]) if over_rows else (i[0], r[0])
            x = ops.load("x", row * columns + column, F)
            place = ops.index_expr(r[0]) if kind.startswith("arg") else None
            value = ops.reduction(kind, x, place)
            ops.store("out", i[0], value)

        sizes = (rows, columns)
        ranges, inner = (sizes[1:], sizes[:1]) if over_rows else (sizes[:1], sizes[1:])
        return trace_body(ranges, inner, body)

    dtype = torch.int64 if kind.startswith("arg") else F
    x = torch.randn(rows * columns)
    x = x.mul_(0.01).add_(1) if kind == "prod" else x
    if kind in ("max", "min") or kind.startswith("arg"):
        x = x.mul(4).round()
        x[rows * columns // 2] = float("nan")
    for over_rows in (True, False):
        count = columns if over_rows else rows
        storages = {"x": x, "out": torch.zeros(count, dtype=dtype)}
        kernel = Kernel(f"k_{kind}", (), (reduce(over_rows),))
        check(runner, kernel, storages, rtol=2e-5, atol=2e-5)


def test_local_of_many_elements(runner: Runner) -> None:
    rows, columns = 20, 200
    (o,) = outer_variables((rows,))

    def total(ops, i, r):
        x = ops.exp(ops.load("x", o * columns + r[0], F))
        ops.store("e", place[0], x)
        ops.store("s", 0, ops.reduction("sum", x))

    def scale(ops, i, r):
        ops.store("out", o * columns + i[0], ops.truediv(ops.load("e", i[0], F), ops.load("s", 0, F)))

    place = [local_position(trace_body((), (columns,), lambda ops, i, r: None))]
    stages = (trace_body((), (columns,), total), trace_body((columns,), (), scale))
    kernel = Kernel("soft", (rows,), stages, (Local("e", F, columns), Local("s", F, 1)))
    storages = {"x": torch.randn(rows * columns), "out": torch.zeros(rows * columns)}
    check(runner, kernel, storages)


def test_transpose(runner: Runner) -> None:
    def body(ops, i, r):
        x = ops.load("x", i[1] * 70 + i[0], F)
        ops.store("out", i[0] * 50 + i[1], ops.add(x, x))

    kernel = Kernel("transpose", (), (trace_body((70, 50), (), body),))
    check(runner, kernel, {"x": torch.randn(3500), "out": torch.zeros(3500)})


@pytest.mark.parametrize("bad", [None, 10, -11, -(2**63)])
def test_embedding(runner: Runner, bad: int | None) -> None:
    def body(ops, i, r):
        t = ops.indirect(ops.load("index", i[0], torch.int64), 10)
        ops.store("out", i[0] * 300 + i[1], ops.load("table", t * 300 + i[1], F))

    kernel = Kernel("embedding", (), (trace_body((100, 300), (), body),))
    index = torch.randint(-10, 10, (100,))
    storages = {"table": torch.randn(3000), "index": index, "out": torch.zeros(30000)}
    if bad is None:
        check(runner, kernel, storages)
        return
    index[77] = bad
    code, error = runner.compile(kernel, storages)(storages)
    assert code != 0 and error[0] == 1 and error[2] == 10
    assert error[1] == max(bad, -(2**63) + 1)
