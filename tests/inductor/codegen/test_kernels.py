"""Kernels written by hand: each strategy of the printer against the interpreter."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

import pytest
import torch
from kernel_support import Runner, check, layouts_of

from inductor.codegen.cpp import work
from inductor.codegen.cpp.kernel import print_kernel
from inductor.codegen.cpp.prelude import BASE, PARTS, used_parts
from inductor.codegen.cpp.unit import print_units
from inductor.ir.body import trace_body
from inductor.ir.index import floordiv, mod
from inductor.runtime import __file__ as launcher_file
from inductor.runtime.build import build_library
from inductor.scheduler.schedule import Kernel, Local, local_position, outer_variables

F = torch.float32
PRELUDE = "\n".join([BASE, *(PARTS[name] for name in used_parts(PARTS))])  # all of it


@pytest.fixture(autouse=True)
def share_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "PARALLEL_WORK", 0)


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


@pytest.mark.parametrize("shape", [(3, 17), (64, 300), (1, 5000), (2, 4096), (5, 768)])
@pytest.mark.parametrize("threads", [1, 2, 4])
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


@pytest.mark.parametrize("rows,columns", [(20, 200), (5, 20000)])
def test_local_of_many_elements(runner: Runner, rows: int, columns: int) -> None:
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


@pytest.mark.parametrize("rows,columns", [(70, 50), (133, 77), (128, 192), (9, 1000)])
def test_transpose(runner: Runner, rows: int, columns: int) -> None:
    def body(ops, i, r):
        x = ops.load("x", i[0] * rows * columns + i[2] * rows + i[1], F)
        ops.store("out", i[0] * rows * columns + i[1] * columns + i[2], ops.add(x, x))

    kernel = Kernel("transpose", (), (trace_body((3, rows, columns), (), body),))
    count = 3 * rows * columns
    check(runner, kernel, {"x": torch.randn(count), "out": torch.zeros(count)})


@pytest.mark.parametrize("columns", [1, 5])
@pytest.mark.parametrize("kind", ["sum", "max", "min", "argmax", "argmin"])
@pytest.mark.parametrize("nan", [False, True])
def test_few_results_out_of_much(runner: Runner, columns: int, kind: str, nan: bool) -> None:
    """The reduced loop is shared among threads."""
    rows = 30001
    place = kind.startswith("arg")

    def body(ops, i, r):
        x = ops.load("x", r[0] * columns + i[0], F)
        value = ops.reduction(kind, x, ops.index_expr(r[0]) if place else None)
        after = value if place else ops.mul(value, ops.load("w", i[0], F))
        ops.store("out", i[0], after)

    x = torch.randn(rows * columns).mul(3).round()
    if nan:
        x[[17, columns * 20000, columns * 29999]] = float("nan")
    out = torch.zeros(columns, dtype=torch.int64 if place else F)
    kernel = Kernel("whole", (), (trace_body((columns,), (rows,), body),))
    check(runner, kernel, {"x": x, "w": torch.randn(columns), "out": out}, threads=3)


@pytest.mark.parametrize("over_rows", [False, True])
@pytest.mark.parametrize("dtype", [F, torch.float64])
def test_error_of_sums_is_that_of_eager(runner: Runner, over_rows: bool, dtype) -> None:
    rows, columns = (20000, 40) if over_rows else (40, 20000)

    def body(ops, i, r):
        row, column = (r[0], i[0]) if over_rows else (i[0], r[0])
        ops.store("out", i[0], ops.reduction("sum", ops.load("x", row * columns + column, dtype)))

    x = torch.rand(rows, columns, dtype=dtype)
    storages = {"x": x, "out": torch.zeros(40, dtype=dtype)}
    kernel = Kernel("total", (), (trace_body((40,), (20000,), body),))
    runner.compile(kernel, storages)(storages)
    axis = 0 if over_rows else 1
    exact = x.double().sum(axis) if dtype is F else storages["out"]
    ours = (storages["out"].double() - exact).abs().max()
    eager = (x.sum(axis).double() - exact).abs().max()
    unit = torch.finfo(dtype).eps * 10000
    assert ours <= 2 * eager + unit and torch.allclose(storages["out"], x.sum(axis))


def test_reduction_of_nothing_gives_neutral_elements(runner: Runner) -> None:
    def body(ops, i, r):
        x = ops.load("x", r[0] * 3 + i[0], F)
        ops.store("sum", i[0], ops.reduction("sum", x))
        ops.store("prod", i[0], ops.reduction("prod", x))
        ops.store("any", i[0], ops.reduction("any", ops.gt(x, ops.constant(0, F))))

    storages = {"x": torch.zeros(0), "sum": torch.ones(3), "prod": torch.zeros(3)}
    storages["any"] = torch.ones(3, dtype=torch.bool)
    kernel = Kernel("nothing", (), (trace_body((3,), (0,), body),))
    runner.compile(kernel, storages)(storages)
    assert storages["sum"].tolist() == [0] * 3 and storages["prod"].tolist() == [1] * 3
    assert not storages["any"].any()


def test_empty_ranges_do_nothing(runner: Runner) -> None:
    def body(ops, i, r):
        ops.store("out", i[1], ops.load("x", i[0] * 4 + i[1], F))

    storages = {"x": torch.zeros(0), "out": torch.ones(4)}
    for outer in ((), (0,), (2,)):
        kernel = Kernel("empty", outer, (trace_body((0, 4), (), body),) * 2)
        runner.compile(kernel, storages)(storages)
    assert storages["out"].tolist() == [1] * 4


@pytest.mark.parametrize("dtype", [F, torch.int64])
@pytest.mark.parametrize("width", [1, 3, 300])
def test_scatter_add(runner: Runner, dtype: torch.dtype, width: int) -> None:
    """Colliding places are added in order, so that floats come out as in eager."""

    def body(ops, i, r):
        t = ops.indirect(ops.load("index", i[0], torch.int64), 7)
        x = ops.load("x", i[0] * width + i[1], dtype)
        ops.store("out", t * width + i[1], x, "add")

    x = torch.randn(500, width).mul(9).to(dtype)
    index = torch.randint(-7, 7, (500,))
    want = torch.zeros(7, width, dtype=dtype)
    for row, place in zip(x, index.tolist()):
        want[place] += row
    storages = {"x": x, "index": index, "out": torch.zeros_like(want)}
    kernel = Kernel("scatter", (), (trace_body((500, width), (), body),))
    runner.compile(kernel, storages)(storages)
    assert torch.equal(storages["out"], want)


def test_masked_loads_read_nothing(runner: Runner) -> None:
    """A padded row: positions outside of the buffer are never touched."""

    def body(ops, i, r):
        place = ops.index_expr(i[0] - 5)
        inside = ops.bitwise_and(
            ops.ge(place, ops.constant(0, torch.int64)),
            ops.lt(place, ops.constant(100, torch.int64)),
        )
        far = (i[0] - 5) * 1_000_000_000
        value = ops.masked(inside, lambda: ops.load("x", i[0] - 5, F), 7.0)
        never = ops.constant(False, torch.bool)
        nothing = ops.masked(never, lambda: ops.load("x", far, F), 1.0)
        ops.store("out", i[0], ops.mul(value, nothing))

    x = torch.randn(100)
    storages = {"x": x, "out": torch.zeros(110)}
    runner.compile(Kernel("pad", (), (trace_body((110,), (), body),)), storages)(storages)
    assert torch.equal(storages["out"], torch.nn.functional.pad(x, (5, 5), value=7.0))


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


def test_divisions_become_loops(runner: Runner) -> None:
    """A view that splits a dimension: no division is left in the text."""

    def body(ops, i, r):
        high, low = floordiv(i[0], 32), mod(i[0], 32)
        x = ops.load("x", low * 20 + high + i[1] * 640, F)
        ops.store("out", i[0] * 3 + i[1], ops.add(x, ops.load("y", high, F)))

    kernel = Kernel("divided", (), (trace_body((640, 3), (), body),))
    storages = {"x": torch.randn(1920), "y": torch.randn(20), "out": torch.zeros(1920)}
    compiled = check(runner, kernel, storages)
    assert "% 32" not in compiled.source.text and "/ 32" not in compiled.source.text


def test_parameters_and_types() -> None:
    text = print_kernel(norm_kernel(8, 64), layouts_of({"x": torch.zeros(1), "out": torch.zeros(1)}), 2)
    assert text.parameters == ("x", "out") and text.types == ("const f32* __restrict__", "f32*")
    assert "const f32* __restrict__ x" in text.text


def test_arithmetic_in_half_precision_is_refused() -> None:
    half = torch.bfloat16

    def add(ops, i, r):
        x = ops.load("x", i[0], half)
        ops.store("out", i[0], ops.add(x, x))

    def top(ops, i, r):
        ops.store("out", 0, ops.reduction("max", ops.load("x", r[0], half)))

    layouts = layouts_of({"x": torch.zeros(4, dtype=half), "out": torch.zeros(4, dtype=half)})
    for body in (trace_body((4,), (), add), trace_body((), (4,), top)):
        with pytest.raises(TypeError, match="half precision"):
            print_kernel(Kernel("half", (), (body,)), layouts, 1)


def test_units_share_out_the_kernels(runner: Runner) -> None:
    def body(ops, i, r):
        ops.store("out", i[0], ops.exp(ops.load("x", i[0], F)))

    storages = {"x": torch.randn(9), "out": torch.zeros(9)}
    sources = [
        print_kernel(Kernel(f"k{n}", (), (trace_body((9,), (), body),)), layouts_of(storages), 1)
        for n in range(10)
    ]
    calls = " ".join(f"k{n}(rt, (const f32*)rt->data[0], (f32*)rt->data[1]);" for n in range(10))
    head = 'extern "C" __attribute__((visibility("default"))) int run(Runtime* rt)'
    units = print_units(sources, f"{head} {{ {calls} return 0; }}", cores=4, limit=3)
    assert len(units) == 4 and "run(" in units[0]
    built = build_library(units, runner.toolchain, runner.store)
    data = (ctypes.c_void_p * 2)(storages["x"].data_ptr(), storages["out"].data_ptr())
    runtime = (ctypes.c_int64 * 8)(ctypes.addressof(data))
    assert ctypes.CDLL(str(built.path)).run(ctypes.byref(runtime)) == 0
    torch.testing.assert_close(storages["out"], storages["x"].exp())


def test_whole_prelude_compiles(runner: Runner) -> None:
    assert all(part in PRELUDE for part in PARTS.values())
    build_library([PRELUDE], runner.toolchain, runner.store)


def test_runtime_struct_is_that_of_the_launcher() -> None:
    def fields(text: str) -> list[str]:
        inside = text[text.index("struct Runtime {") :]
        inside = re.sub(r"//[^\n]*", "", inside[: inside.index("};")])
        declared = [" ".join(piece.split()) for piece in inside.split(";")[:-1]]
        names = [re.sub(r"struct Runtime {", "", piece).strip() for piece in declared]
        return [re.sub(r"\bint64_t\b", "i64", x).replace("CallState*", "void*") for x in names]

    header = Path(launcher_file).parent / "csrc" / "launcher.h"
    assert fields(PRELUDE) == fields(header.read_text())
