"""Generated C++ kernels against eager torch with the same number of threads.

    python benchmarks/kernels_cpp.py [--threads N] [name ...]

Prints for each case the time of both in microseconds and eager's time over ours.
"""

from __future__ import annotations

import argparse
import ctypes
import math
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from dynamo.store.content import Store
from dynamo.store.toolchain import find_toolchain
from inductor.codegen.cpp.kernel import print_kernel
from inductor.codegen.cpp.unit import print_unit
from inductor.ir.body import trace_body
from inductor.ir.graph import Layout
from inductor.runtime.build import build_library
from inductor.scheduler.schedule import Kernel, Local, outer_variables

F = torch.float32


@dataclass
class Case:
    kernel: Kernel
    buffers: dict[str, torch.Tensor]
    eager: Callable[[], torch.Tensor]
    result: str = "out"


def pointwise(name, shape, function, inputs, eager) -> Case:
    """function(ops, loaded values) over contiguous buffers of one shape."""
    count = math.prod(shape)

    def body(ops, i, r):
        values = [ops.load(f"x{n}", i[0], F) for n in range(len(inputs))]
        ops.store("out", i[0], function(ops, *values))

    buffers = {f"x{n}": x for n, x in enumerate(inputs)} | {"out": torch.zeros(shape)}
    return Case(Kernel(name, (), (trace_body((count,), (), body),)), buffers, eager)


def gelu() -> Case:
    x = torch.randn(256, 3072)

    def function(ops, v):
        half = ops.mul(v, ops.constant(0.5, F))
        e = ops.erf(ops.mul(v, ops.constant(math.sqrt(0.5), F)))
        return ops.mul(half, ops.add(e, ops.constant(1, F)))

    return pointwise("gelu", x.shape, function, [x], lambda: torch.nn.functional.gelu(x))


def unary(name: str) -> Callable[[], Case]:
    def make() -> Case:
        x = torch.rand(256, 3072) + 0.1
        reference = getattr(torch, name)
        return pointwise(name, x.shape, lambda ops, v: ops.call(name, v), [x], lambda: reference(x))

    return make


def add_relu() -> Case:
    x, y = torch.randn(1024, 1024), torch.randn(1024, 1024)

    def function(ops, a, b):
        return ops.maximum(ops.add(a, b), ops.constant(0, F))

    return pointwise("add_relu", x.shape, function, [x, y], lambda: torch.relu(x + y))


def small_add() -> Case:
    x, y = torch.randn(4096), torch.randn(4096)
    return pointwise("small_add", x.shape, lambda ops, a, b: ops.add(a, b), [x, y], lambda: x + y)


def norm_stages(rows: int, n: int, load):
    (o,) = outer_variables((rows,))

    def mean(ops, i, r):
        total = ops.reduction("sum", load(ops, o * n + r[0]))
        ops.store("mean", 0, ops.truediv(total, ops.constant(n, F)))

    def variance(ops, i, r):
        d = ops.sub(load(ops, o * n + r[0]), ops.load("mean", 0, F))
        total = ops.truediv(ops.reduction("sum", ops.mul(d, d)), ops.constant(n, F))
        ops.store("rstd", 0, ops.rsqrt(ops.add(total, ops.constant(1e-5, F))))

    def normalize(ops, i, r):
        d = ops.sub(load(ops, o * n + i[0]), ops.load("mean", 0, F))
        y = ops.mul(ops.mul(d, ops.load("rstd", 0, F)), ops.load("w", i[0], F))
        ops.store("out", o * n + i[0], ops.add(y, ops.load("b", i[0], F)))

    return (
        trace_body((), (n,), mean), trace_body((), (n,), variance), trace_body((n,), (), normalize)
    )  # fmt: skip


def norm(name: str, residual: bool) -> Callable[[], Case]:
    def make() -> Case:
        rows, n = 4096, 768
        x, y = torch.randn(rows, n), torch.randn(rows, n)
        w, b = torch.randn(n), torch.randn(n)

        def load(ops, index):
            value = ops.load("x", index, F)
            return ops.add(value, ops.load("y", index, F)) if residual else value

        locals_ = (Local("mean", F, 1), Local("rstd", F, 1))
        kernel = Kernel(name, (rows,), norm_stages(rows, n, load), locals_)
        buffers = {"x": x, "y": y, "w": w, "b": b, "out": torch.zeros(rows, n)}
        layer_norm = torch.nn.functional.layer_norm
        return Case(kernel, buffers, lambda: layer_norm(x + y if residual else x, (n,), w, b))

    return make


def softmax() -> Case:
    shape = (2, 12, 128, 128)
    rows, n = math.prod(shape[:-1]), shape[-1]
    x = torch.randn(shape)
    (o,) = outer_variables((rows,))

    def greatest(ops, i, r):
        ops.store("top", 0, ops.reduction("max", ops.load("x", o * n + r[0], F)))

    def total(ops, i, r):
        e = ops.exp(ops.sub(ops.load("x", o * n + r[0], F), ops.load("top", 0, F)))
        ops.store("e", r[0], e)
        ops.store("total", 0, ops.reduction("sum", e))

    def divide(ops, i, r):
        e = ops.load("e", i[0], F)
        ops.store("out", o * n + i[0], ops.truediv(e, ops.load("total", 0, F)))

    reductions = [trace_body((), (n,), body) for body in (greatest, total)]
    stages = (*reductions, trace_body((n,), (), divide))
    locals_ = (Local("top", F, 1), Local("total", F, 1), Local("e", F, n))
    kernel = Kernel("softmax", (rows,), stages, locals_)
    return Case(kernel, {"x": x, "out": torch.zeros(shape)}, lambda: torch.softmax(x, -1))


def reduction(name, shape, over_rows, kind, eager) -> Callable[[], Case]:
    def make() -> Case:
        rows, columns = shape
        x = torch.randn(rows, columns)
        position = kind.startswith("arg")

        def body(ops, i, r):
            row, column = (r[0], i[0]) if over_rows else (i[0], r[0])
            value = ops.load("x", row * columns + column, F)
            place = ops.index_expr(r[0]) if position else None
            ops.store("out", i[0], ops.reduction(kind, value, place))

        sizes = ((columns,), (rows,)) if over_rows else ((rows,), (columns,))
        out = torch.zeros(sizes[0], dtype=torch.int64 if position else F)
        kernel = Kernel(name, (), (trace_body(*sizes, body),))
        return Case(kernel, {"x": x, "out": out}, lambda: eager(x))

    return make


def whole_sum() -> Case:
    x = torch.randn(2048, 2048)

    def body(ops, i, r):
        ops.store("out", 0, ops.reduction("sum", ops.load("x", r[0], F)))

    kernel = Kernel("whole_sum", (), (trace_body((), (x.numel(),), body),))
    return Case(kernel, {"x": x, "out": torch.zeros(())}, lambda: x.sum())


def transpose() -> Case:
    rows, columns = 2048, 1024
    x = torch.randn(rows, columns)

    def body(ops, i, r):
        ops.store("out", i[0] * rows + i[1], ops.load("x", i[1] * columns + i[0], F))

    kernel = Kernel("transpose", (), (trace_body((columns, rows), (), body),))
    out = torch.zeros(columns, rows)
    return Case(kernel, {"x": x, "out": out}, lambda: x.t().contiguous())


def heads() -> Case:
    """(batch, tokens, heads, width) to (batch, heads, tokens, width)."""
    b, t, h, d = 4, 256, 12, 64
    x = torch.randn(b, t, h, d)

    def body(ops, i, r):
        value = ops.load("x", i[0] * t * h * d + i[2] * h * d + i[1] * d + i[3], F)
        ops.store("out", i[0] * t * h * d + i[1] * t * d + i[2] * d + i[3], value)

    kernel = Kernel("heads", (), (trace_body((b, h, t, d), (), body),))
    out = torch.zeros(b, h, t, d)
    return Case(kernel, {"x": x, "out": out}, lambda: x.transpose(1, 2).contiguous())


def to_bfloat16() -> Case:
    x = torch.randn(1024, 1024)

    def body(ops, i, r):
        ops.store("out", i[0], ops.to_dtype(ops.load("x", i[0], F), torch.bfloat16))

    kernel = Kernel("to_bfloat16", (), (trace_body((x.numel(),), (), body),))
    out = torch.zeros(x.shape, dtype=torch.bfloat16)
    return Case(kernel, {"x": x, "out": out}, lambda: x.bfloat16())


def half_add(dtype: torch.dtype) -> Callable[[], Case]:
    def make() -> Case:
        x, y = torch.randn(1024, 1024).to(dtype), torch.randn(1024, 1024).to(dtype)

        def body(ops, i, r):
            a = ops.to_dtype(ops.load("x", i[0], dtype), F)
            b = ops.to_dtype(ops.load("y", i[0], dtype), F)
            ops.store("out", i[0], ops.to_dtype(ops.add(a, b), dtype))

        kernel = Kernel("half_add", (), (trace_body((x.numel(),), (), body),))
        return Case(kernel, {"x": x, "y": y, "out": torch.zeros_like(x)}, lambda: x + y)

    return make


def embedding() -> Case:
    table, index = torch.randn(30000, 768), torch.randint(0, 30000, (2048,))

    def body(ops, i, r):
        t = ops.indirect(ops.load("index", i[0], torch.int64), 30000)
        ops.store("out", i[0] * 768 + i[1], ops.load("table", t * 768 + i[1], F))

    kernel = Kernel("embedding", (), (trace_body((2048, 768), (), body),))
    buffers = {"table": table, "index": index, "out": torch.zeros(2048, 768)}
    return Case(kernel, buffers, lambda: torch.nn.functional.embedding(index, table))


def embedding_backward() -> Case:
    grad, index = torch.randn(2048, 768), torch.randint(0, 5000, (2048,))

    def body(ops, i, r):
        t = ops.indirect(ops.load("index", i[0], torch.int64), 5000)
        ops.store("out", t * 768 + i[1], ops.load("grad", i[0] * 768 + i[1], F), "add")

    kernel = Kernel("embedding_backward", (), (trace_body((2048, 768), (), body),))
    buffers = {"grad": grad, "index": index, "out": torch.zeros(5000, 768)}
    base = torch.zeros(5000, 768)
    return Case(kernel, buffers, lambda: base.index_add_(0, index, grad))


CASES: dict[str, Callable[[], Case]] = {
    "layernorm": norm("layernorm", False),
    "residual_layernorm": norm("residual_layernorm", True),
    "softmax": softmax,
    "gelu": gelu,
    "add_relu": add_relu,
    "small_add": small_add,
    "transpose": transpose,
    "heads": heads,
    "column_sum": reduction("column_sum", (4096, 768), True, "sum", lambda x: x.sum(0)),
    "column_max": reduction("column_max", (4096, 768), True, "max", lambda x: x.amax(0)),
    "narrow_column_sum": reduction("narrow_sum", (200000, 8), True, "sum", lambda x: x.sum(0)),
    "row_sum": reduction("row_sum", (4096, 768), False, "sum", lambda x: x.sum(1)),
    "row_max": reduction("row_max", (4096, 768), False, "max", lambda x: x.amax(1)),
    "row_argmax": reduction("row_argmax", (4096, 768), False, "argmax", lambda x: x.argmax(1)),
    "short_row_sum": reduction("short_row_sum", (100000, 8), False, "sum", lambda x: x.sum(1)),
    "whole_sum": whole_sum,
    "to_bfloat16": to_bfloat16,
    "bfloat16_add": half_add(torch.bfloat16),
    "float16_add": half_add(torch.float16),
    "embedding": embedding,
    "embedding_backward": embedding_backward,
    **{n: unary(n) for n in "exp log tanh sigmoid erf sin sqrt log1p expm1".split()},
}


def compile_case(case: Case, threads: int, store: Store) -> tuple[Callable[[], None], float]:
    """A function that runs the kernel, and the seconds the compiler took."""
    layouts = {
        name: Layout(x.device, x.dtype, tuple(x.shape), tuple(x.stride()))
        for name, x in case.buffers.items()
    }
    source = print_kernel(case.kernel, layouts, threads)
    types = [kind.replace("__restrict__", "") for kind in source.types]
    arguments = [f"({kind})rt->data[{n}]" for n, kind in enumerate(types)]
    tail = (
        'extern "C" __attribute__((visibility("default"))) int run(Runtime* rt) '
        f"{{ return {source.name}({', '.join(['rt', *arguments])}); }}"
    )
    start = time.perf_counter()
    built = build_library([print_unit([source], tail)], find_toolchain(store), store)
    seconds = time.perf_counter() - start
    function = ctypes.CDLL(str(built.path)).run
    data = (ctypes.c_void_p * 64)(*(case.buffers[name].data_ptr() for name in source.parameters))
    runtime = (ctypes.c_int64 * 8)(ctypes.addressof(data))
    pointer = ctypes.byref(runtime)
    return lambda: (function(pointer), data, runtime), seconds


def measure(function: Callable[[], object], budget: float = 0.25) -> float:
    """The best of many runs, in microseconds."""
    best, end = math.inf, time.perf_counter() + budget
    while time.perf_counter() < end:
        start = time.perf_counter()
        function()
        best = min(best, time.perf_counter() - start)
    return best * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("names", nargs="*")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    store = Store(Path(tempfile.mkdtemp()))
    print(f"{'case':20} {'eager us':>10} {'ours us':>10} {'ratio':>6} {'build s':>8}")
    for name in given.names or CASES:
        case = CASES[name]()
        run, seconds = compile_case(case, given.threads, store)
        run()
        want = case.eager()
        if name != "embedding_backward":
            torch.testing.assert_close(
                case.buffers["out"], want, rtol=1e-3, atol=2e-3, equal_nan=True
            )
        rounds = [(measure(case.eager), measure(run)) for _ in range(3)]
        eager, ours = (min(times) for times in zip(*rounds, strict=True))
        print(f"{name:20} {eager:10.1f} {ours:10.1f} {eager / ours:6.2f} {seconds:8.2f}")


if __name__ == "__main__":
    main()
