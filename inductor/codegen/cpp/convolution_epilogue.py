"""What follows a convolution of our own, as a C++ function for a part of the result.

    static void NAME(void** at, i64 x0, i64 x1, i64 r0, i64 r1)

In: a kernel of one stage over placeholders, and the sizes of the result: `x` counts its pixels, `r`
its channels. Out: its text; `at` are the buffers in the order of the parameters. The memory of the
result may be that of a buffer that the kernel stores at the same places.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from inductor.codegen.cpp.kernel import KernelSource
from inductor.codegen.cpp.nest import Loop, Nest, find_dependences
from inductor.codegen.cpp.scope import Scope, Writer
from inductor.codegen.cpp.types import memory_type
from inductor.ir.body import Op
from inductor.ir.graph import Layout
from inductor.ir.index import Index, print_cpp, variable
from inductor.scheduler.gemms import epilogue_ops
from inductor.scheduler.schedule import Kernel

USUAL = """
#if defined(__AVX512F__)
  enum { usual = 32 };
#elif defined(__AVX__)
  enum { usual = 16 };
#else
  enum { usual = 8 };
#endif
"""
"""Channels of most tiles: a loop over them has a version of constant length."""
CACHE_LINE = 64


def print_convolution_epilogue(
    kernel: Kernel, layouts: Mapping[str, Layout], result: str, pixels: int, channels: int
) -> KernelSource:
    """See the top of the file; result: what the convolution has stored."""
    written = kernel.writes()
    parameters = tuple(dict.fromkeys((*kernel.reads(), *written)))
    types = tuple(f"{memory_type(layouts[name].dtype)}*" for name in parameters)
    flat = variable("x", pixels) * channels + variable("r", channels)
    ops = epilogue_ops(kernel, flat)
    beside = [op for op in ops if op.name == "load" and op.buffer != result and op.index == flat]
    loops = (Loop("x", pixels, "i"), Loop("r", channels, "i"))
    nest = Nest(loops, ops, find_dependences(ops))
    writer = Writer()
    for number, (name, kind) in enumerate(zip(parameters, types, strict=True)):
        writer.line(f"{kind} const {name} = ({kind})at[{number}];")
    writer.lines.extend(USUAL.strip().splitlines())
    with writer.block("if (r1 - r0 == usual) {"):
        _print_loops(Scope(nest, writer, _element), "r0 + usual", beside)
    with writer.block("else {"):
        _print_blocks(Scope(nest, writer, _element))
    name = f"{kernel.name}_{pixels}_{channels}_epilogue"
    head = f"static void {name}(void** at, i64 x0, i64 x1, i64 r0, i64 r1) {{"
    text = "\n".join([head, *writer.lines, "}"]) + "\n"
    return KernelSource(name, text, parameters, types)


def _print_loops(scope: Scope, end: str, beside: Sequence[Op]) -> None:
    """beside: what is read from memory; that of the next but one tile is fetched now, into the
    second cache: the first one waits for no more than some twenty lines at a time, and those of the
    next tile's result and left side are among them."""
    count, writer = range(len(scope.nest.ops)), scope.writer
    with writer.block("for (i64 x = x0; x < x1; ++x) {"), scope.nested("x"):
        scope.print_ready(count)
        _, channels = scope.nest.loops
        for op in beside:
            place = f"(x + 2 * (x1 - x0)) * {channels.extent} + r0 + r"
            writer.line(f"for (int r = 0; r < usual; r += {CACHE_LINE // op.dtype.itemsize})")
            writer.line(f"  __builtin_prefetch({op.buffer} + {place}, 0, 2);")
        writer.line("#pragma omp simd")
        with writer.block(f"for (i64 r = r0; r < {end}; ++r) {{"), scope.nested("r"):
            scope.print_ready(count, stores=True)


def _print_blocks(scope: Scope) -> None:
    """Any number of channels: blocks of half as many as usual, and the rest."""
    count, writer = range(len(scope.nest.ops)), scope.writer
    with writer.block("for (i64 x = x0; x < x1; ++x) {"), scope.nested("x"):
        scope.print_ready(count)
        writer.line("i64 begin = r0;")
        for head, end in (
            ("for (; begin + usual / 2 <= r1; begin += usual / 2) {", "begin + usual / 2"),
            ("{", "r1"),
        ):
            with writer.block(head), scope.nested("r"):
                writer.line("#pragma omp simd")
                with writer.block(f"for (i64 r = begin; r < {end}; ++r) {{"):
                    scope.print_ready(count, stores=True)


def _element(buffer: str, index: Index) -> str:
    return f"{buffer}[{print_cpp(index)}]"
