"""Kernels written by hand, one or more for each form, each with its input buffers."""

from __future__ import annotations

import torch

from inductor.ir.body import LoopBody, Ops, loop_variables
from inductor.ir.index import Index
from inductor.ir.scalar_ops import SCALAR_OPS, dtype_kind
from inductor.scheduler.schedule import Kernel, Local, outer_variables

F32, F64, I64 = torch.float32, torch.float64, torch.int64
Case = tuple[Kernel, dict[str, torch.Tensor]]


def stage(outer, ranges, reduction_ranges, function) -> LoopBody:
    """A stage from a function of (ops, outer indices, i indices, r indices)."""
    ops = Ops()
    function(ops, outer_variables(outer), loop_variables(ranges), loop_variables(reduction_ranges, "r"))
    return LoopBody(ranges, reduction_ranges, tuple(ops.recorded))


def chain() -> Case:
    """A pointwise chain with broadcasting."""
    def body(ops, o, i, r):
        x, y = ops.load("a", i[0] * 37 + i[1], F32), ops.load("b", i[1], F32)
        z = ops.tanh(ops.add(ops.mul(x, y), ops.constant(0.5, F32)))
        ops.store("c", i[0] * 37 + i[1], ops.sigmoid(z))

    buffers = {"a": torch.randn(20, 37), "b": torch.randn(37), "c": torch.zeros(20, 37)}
    return Kernel("chain", (), (stage((), (20, 37), (), body),)), buffers


def transpose() -> Case:
    def body(ops, o, i, r):
        ops.store("c", i[0] * 9 + i[1], ops.add(ops.load("a", i[1] * 13 + i[0], F32),
                                                ops.load("c2", i[0] * 9 + i[1], F32)))

    buffers = {"a": torch.randn(9, 13), "c2": torch.randn(13, 9), "c": torch.zeros(13, 9)}
    return Kernel("transpose", (13,), (stage((13,), (13, 9), (), body),)), buffers


def swapped() -> Case:
    """Long enough for a tile; three loops, of which the middle one is last in memory."""
    def body(ops, o, i, r):
        moved = ops.load("a", o[0] * 20 * 70 + i[1] * 20 + i[0], F32)
        ops.store("c", o[0] * 70 * 20 + i[0] * 70 + i[1], ops.add(moved, ops.load("b", i[1], F32)))
        ops.store("d", o[0] * 70 * 20 + i[0] * 70 + i[1], moved)

    buffers = {"a": torch.randn(3, 70, 20), "b": torch.randn(70), "c": torch.zeros(3, 20, 70), "d": torch.zeros(3, 20, 70)}
    return Kernel("swapped", (3,), (stage((3,), (20, 70), (), body),)), buffers


def half_chain() -> Case:
    def body(ops, o, i, r):
        x = ops.to_dtype(ops.load("a", o[0], torch.float16), F32)
        y = ops.to_dtype(ops.load("b", o[0], torch.bfloat16), F32)
        ops.store("c", o[0], ops.to_dtype(ops.mul(ops.exp(x), y), torch.bfloat16))
        ops.store("d", o[0], ops.to_dtype(ops.gt(x, y), torch.float16))
        ops.store("e", o[0], ops.gt(x, y))

    n = 100
    buffers = {"a": torch.randn(n).half(), "b": torch.randn(n).bfloat16(),
               "c": torch.zeros(n).bfloat16(), "d": torch.zeros(n).half(), "e": torch.zeros(n, dtype=torch.bool)}
    return Kernel("half_chain", (n,), (stage((n,), (), (), body),)), buffers


def padded() -> Case:
    """Masked loads: nothing is read outside."""
    def body(ops, o, i, r):
        place = ops.index_expr(i[0] - 3)
        inside = ops.bitwise_and(ops.ge(place, ops.constant(0, I64)), ops.lt(place, ops.constant(5, I64)))
        ops.store("c", i[0], ops.masked(inside, lambda: ops.load("a", i[0] - 3, F32), 7.0))

    return Kernel("padded", (), (stage((), (11,), (), body),)), {"a": torch.randn(5), "c": torch.zeros(11)}


def gather() -> Case:
    def body(ops, o, i, r):
        row = ops.indirect(ops.load("index", o[0], I64), 7)
        ops.store("c", o[0] * 5 + i[0], ops.load("a", row * 5 + i[0], F32))

    buffers = {"a": torch.randn(7, 5), "index": torch.randint(-7, 7, (12,)), "c": torch.zeros(12, 5)}
    return Kernel("gather", (12,), (stage((12,), (5,), (), body),)), buffers


def scatter() -> Case:
    def body(ops, o, i, r):
        row = ops.indirect(ops.load("index", o[0], I64), 4)
        ops.store("c", row * 5 + i[0], ops.load("a", o[0] * 5 + i[0], F32), "add")

    buffers = {"a": torch.randn(12, 5), "index": torch.randint(0, 4, (12,)), "c": torch.randn(4, 5)}
    return Kernel("scatter", (12,), (stage((12,), (5,), (), body),)), buffers


def softmax(rows: int = 6, columns: int = 50, name: str = "softmax") -> Case:
    """Three stages with scalar locals and one local for each element."""
    outer = (rows,)

    def greatest(ops, o, i, r):
        ops.store("m", Index_zero(), ops.reduction("max", ops.load("a", o[0] * columns + r[0], F32)))

    def total(ops, o, i, r):
        e = ops.exp(ops.sub(ops.load("a", o[0] * columns + r[0], F32), ops.load("m", Index_zero(), F32)))
        ops.store("e", r[0], e)
        ops.store("s", Index_zero(), ops.reduction("sum", e))

    def divide(ops, o, i, r):
        ops.store("c", o[0] * columns + i[0], ops.truediv(ops.load("e", i[0], F32), ops.load("s", Index_zero(), F32)))

    stages = (stage(outer, (), (columns,), greatest), stage(outer, (), (columns,), total),
              stage(outer, (columns,), (), divide))
    locals_ = (Local("m", F32, 1), Local("s", F32, 1), Local("e", F32, columns))
    buffers = {"a": torch.randn(rows, columns), "c": torch.zeros(rows, columns)}
    return Kernel(name, outer, stages, locals_), buffers


def unaligned_rows() -> Case:
    """Rows of 83 elements, none but the first at a multiple of 16 bytes; those of `d` lie 24
    elements further, and the first of `e` is no whole stretch away."""
    rows, columns, outer = 5, 83, (5,)
    half = torch.float16

    def reduced(ops, o, i, r):
        x = ops.to_dtype(ops.load("a", o[0] * columns + r[0], half), F32)
        position = ops.index_expr(r[0], I64)
        ops.store("p", o[0], ops.reduction("argmax", x, position))
        ops.store("s", Index_zero(), ops.reduction("sum", ops.mul(x, x)))

    def scaled(ops, o, i, r):
        x = ops.to_dtype(ops.load("a", o[0] * columns + i[0], half), F32)
        y = ops.add(ops.truediv(x, ops.load("s", Index_zero(), F32)), ops.to_dtype(ops.index_expr(i[0], I64), F32))
        ops.store("c", o[0] * columns + i[0], ops.to_dtype(y, half))
        ops.store("d", o[0] * columns + i[0] + 24, y)

    def apart(ops, o, i, r):
        x = ops.load("b", o[0] * columns + i[0] + 3, F32)
        ops.store("e", o[0] * columns + i[0] + 7, ops.mul(x, ops.load("s", Index_zero(), F32)))

    stages = (stage(outer, (), (columns,), reduced), stage(outer, (columns,), (), scaled),
              stage(outer, (columns,), (), apart))
    elements = rows * columns
    buffers = {
        "a": torch.randn(elements).to(half), "b": torch.randn(elements + 3),
        "p": torch.zeros(rows, dtype=I64), "c": torch.zeros(elements, dtype=half),
        "d": torch.zeros(elements + 30), "e": torch.zeros(elements + 20),
    }
    return Kernel("unaligned_rows", outer, stages, (Local("s", F32, 1),)), buffers


def unaligned_rows_alone(rows: int = 6, columns: int = 97) -> Case:
    """No reductions, but a value for each row."""
    half = torch.bfloat16

    def body(ops, o, i, r):
        x = ops.to_dtype(ops.load("a", i[0] * columns + i[1], half), F32)
        y = ops.mul(ops.exp(x), ops.load("b", i[0], F32))
        ops.store("c", i[0] * columns + i[1], ops.to_dtype(y, half))

    buffers = {"a": torch.randn(rows, columns).to(half), "b": torch.randn(rows), "c": torch.zeros(rows, columns, dtype=half)}
    return Kernel("unaligned_rows_alone", (), (stage((), (rows, columns), (), body),)), buffers


def unlike_rows() -> Case:
    """Rows of 97 elements that lie apart as far as they are long, or as rows of 104 do, and a
    weight for each column; one row is read backwards."""
    rows, columns, apart, outer, half = 6, 97, 104, (6,), torch.float16

    def reduced(ops, o, i, r):
        x = ops.mul(ops.to_dtype(ops.load("b", o[0] * apart + r[0], half), F32), ops.load("w", r[0], F32))
        ops.store("s", Index_zero(), ops.reduction("sum", ops.add(x, ops.load("a", o[0] * columns + r[0], F32))))

    def scaled(ops, o, i, r):
        x = ops.mul(ops.load("a", o[0] * columns + i[0], F32), ops.load("w", i[0], F32))
        y = ops.add(x, ops.to_dtype(ops.load("b", o[0] * apart + i[0], half), F32))
        y = ops.add(y, ops.load("w", i[0] * -1 + (columns - 1), F32))
        ops.store("c", o[0] * apart + i[0], ops.to_dtype(ops.mul(y, ops.load("s", Index_zero(), F32)), half))

    stages = (stage(outer, (), (columns,), reduced), stage(outer, (columns,), (), scaled))
    buffers = {
        "a": torch.randn(rows, columns), "b": torch.randn(rows, apart).to(half), "w": torch.randn(columns),
        "c": torch.zeros(rows, apart, dtype=half),
    }
    return Kernel("unlike_rows", outer, stages, (Local("s", F32, 1),)), buffers


def whole_rows_anywhere() -> Case:
    """Rows of 128 elements, which whole blocks are made of, at multiples of 129."""
    rows, columns, apart, outer = 6, 128, 129, (6,)

    def total(ops, o, i, r):
        ops.store("d", o[0], ops.reduction("sum", ops.load("a", o[0] * apart + r[0] + 1, F32)))

    def moved(ops, o, i, r):
        ops.store("c", o[0] * apart + i[0], ops.load("a", o[0] * apart + i[0] + 1, F32))

    stages = (stage(outer, (), (columns,), total), stage(outer, (columns,), (), moved))
    buffers = {"a": torch.randn(rows, apart), "c": torch.zeros(rows, apart), "d": torch.zeros(rows)}
    return Kernel("whole_rows_anywhere", outer, stages, ()), buffers


def Index_zero() -> Index:
    return loop_variables((1,))[0]


def long_softmax() -> Case:
    """With low limits the local is spilled."""
    return softmax(3, 70, "long_softmax")


def few_rows() -> Case:
    """With low limits each stage is a launch of its own."""
    return softmax(2, 90, "few_rows")


def row_reductions(rows: int = 3, columns: int = 30, name: str = "row_reductions") -> Case:
    def body(ops, o, i, r):
        x = ops.load("a", o[0] * columns + r[0], F32)
        ops.store("sum", o[0], ops.reduction("sum", x))
        ops.store("max", o[0], ops.reduction("max", x))
        place = ops.index_expr(r[0])
        ops.store("at", o[0], ops.reduction("argmax", x, place))
        ops.store("low", o[0], ops.reduction("argmin", x, place))
        ops.store("any", o[0], ops.reduction("any", ops.gt(x, ops.constant(2.5, F32))))
        ops.store("square", o[0] * columns + r[0], ops.mul(x, x))

    a = torch.randint(-3, 3, (rows, columns)).float()
    a[1, 3] = float("nan")
    buffers = {"a": a, "sum": torch.zeros(rows), "max": torch.zeros(rows),
               "at": torch.zeros(rows, dtype=I64), "low": torch.zeros(rows, dtype=I64),
               "any": torch.zeros(rows, dtype=torch.bool), "square": torch.zeros(rows, columns)}
    return Kernel(name, (rows,), (stage((rows,), (), (columns,), body),)), buffers


def long_rows() -> Case:
    return row_reductions(2, 50, "long_rows")


def split_rows() -> Case:
    return row_reductions(2, 64, "split_rows")


def column_sum(rows: int = 300, columns: int = 20, name: str = "column_sum") -> Case:
    def body(ops, o, i, r):
        ops.store("c", i[0], ops.truediv(ops.reduction("sum", ops.load("a", r[0] * columns + i[0], F64)),
                                         ops.constant(float(rows), F64)))

    buffers = {"a": torch.randn(rows, columns, dtype=F64), "c": torch.zeros(columns, dtype=F64)}
    return Kernel(name, (), (stage((), (columns,), (rows,), body),)), buffers


def long_column_sum() -> Case:
    return column_sum(3000, 6, "long_column_sum")


def total(count: int = 2000, name: str = "total") -> Case:
    def body(ops, o, i, r):
        ops.store("c", Index_zero(), ops.sqrt(ops.reduction("sum", ops.abs(ops.load("a", r[0], F64)))))

    return Kernel(name, (), (stage((), (), (count,), body),)), {
        "a": torch.randn(count, dtype=F64), "c": torch.zeros(1, dtype=F64)}


def serial_rows() -> Case:
    """Two stages, each with plain loops around its reduction; the local is in memory."""
    outer, heads, size = (3,), 4, 10

    def first(ops, o, i, r):
        x = ops.load("a", o[0] * 40 + i[0] * 10 + r[0], F32)
        ops.store("m", i[0], ops.reduction("sum", x))

    def second(ops, o, i, r):
        x = ops.mul(ops.load("a", o[0] * 40 + i[0] * 10 + r[0], F32), ops.load("a", o[0] * 40 + i[0] * 10 + r[0], F32))
        ops.store("c", o[0] * 4 + i[0], ops.mul(ops.reduction("sum", x), ops.load("m", i[0], F32)))

    buffers = {"a": torch.randn(3, 4, 10), "c": torch.zeros(3, 4)}
    stages = (stage(outer, (heads,), (size,), first), stage(outer, (heads,), (size,), second))
    return Kernel("serial_rows", outer, stages, (Local("m", F32, heads),)), buffers


def through_memory() -> Case:
    """A stage reads elsewhere what an earlier one wrote."""
    def first(ops, o, i, r):
        ops.store("b", o[0] * 8 + i[0], ops.exp(ops.load("a", o[0] * 8 + i[0], F32)))

    def second(ops, o, i, r):
        there, here = ops.load("b", o[0] * 8 + i[0] * -1 + 7, F32), ops.load("b", o[0] * 8 + i[0], F32)
        ops.store("c", o[0] * 8 + i[0], ops.sub(here, there))

    buffers = {"a": torch.randn(6, 8), "b": torch.zeros(6, 8), "c": torch.zeros(6, 8)}
    return Kernel("through_memory", (6,), (stage((6,), (8,), (), first), stage((6,), (8,), (), second))), buffers


def empty_rows() -> Case:
    def body(ops, o, i, r):
        ops.store("c", o[0], ops.reduction("sum", ops.load("a", o[0] * 0 + r[0], F32)))

    return Kernel("empty_rows", (4,), (stage((4,), (), (0,), body),)), {"a": torch.zeros(1), "c": torch.ones(4)}


CASES = [chain, transpose, swapped, half_chain, padded, gather, scatter, softmax, long_softmax, few_rows,
         row_reductions, long_rows, split_rows, column_sum, long_column_sum, total, serial_rows,
         through_memory, empty_rows, unaligned_rows, unaligned_rows_alone, unlike_rows, whole_rows_anywhere]


SMALL = torch.tensor([0, 1, 2, 3, 7, 100])
SPECIAL = torch.tensor([0.0, -0.0, 0.5, 1.0, -1.5, 2.5, 3.7, -7.25, 1e10, float("inf"), -float("inf"), float("nan")], dtype=F64)


def operands(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """All pairs of some interesting values."""
    if dtype is torch.bool:
        values = torch.tensor([False, True])
    elif dtype.is_floating_point:
        values = SPECIAL.to(dtype)
    else:
        values = SMALL.to(dtype) if dtype is torch.uint8 else torch.cat([SMALL, -SMALL]).to(dtype)
    a, b = torch.meshgrid(values, values, indexing="ij")
    return a.reshape(-1).contiguous(), b.reshape(-1).contiguous()


def every_operation(dtype: torch.dtype) -> Case:
    """All operations that take this dtype, on all pairs of values."""
    kind = dtype_kind(dtype)
    a, b = operands(dtype)
    if kind == "i":
        keep = b != 0  # division by zero is undefined
        a, b = a[keep], b[keep]
    buffers = {"a": a, "b": b}
    skipped = {"bitwise_not"} if dtype is torch.uint8 else set()  # the interpreter cannot
    rows = [row for row in SCALAR_OPS.values() if row.reference and kind in row.accepts and row.name not in skipped]

    def body(ops, o, i, r):
        x, y = ops.load("a", o[0], dtype), ops.load("b", o[0], dtype)
        distance = ops.bitwise_and(y, ops.constant(7, dtype)) if kind == "i" else y
        for row in rows:
            if row.name == "where":
                value = ops.where(ops.eq(x, y), x, y)
            elif row.name.startswith("shift"):
                value = ops.call(row.name, x, distance)
            else:
                value = ops.call(row.name, *(x, y, x)[: row.arity])
            buffers[row.name] = torch.zeros(len(a), dtype=value.dtype)
            ops.store(row.name, o[0], value)
        for goal in (F32, F64, torch.float16, torch.int32, torch.int64, torch.bool):
            if not (kind == "f" and goal in (torch.int32, torch.int64)):
                name = f"to_{str(goal)[6:]}"
                buffers[name] = torch.zeros(len(a), dtype=goal)
                ops.store(name, o[0], ops.to_dtype(x, goal))

    return Kernel("every_operation", (len(a),), (stage((len(a),), (), (), body),)), buffers
