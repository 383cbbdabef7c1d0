"""A kernel as a function that our own GEMM calls for parts of its result.

    static void NAME(void* context, i64 r0, i64 r1, i64 j0, i64 j1) { rows r0.., columns j0.. }

The context is an array with the pointers of the kernel's buffers; the memory of the GEMM's
result may be that of a buffer that the kernel stores at the same places. The kernel has one stage,
with loops over the rows and the columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from inductor.codegen.cpp.kernel import KernelSource, pointer_type
from inductor.codegen.cpp.nest import Loop, Nest, find_dependences
from inductor.codegen.cpp.pointwise import plain_level, print_pointwise
from inductor.codegen.cpp.scope import Scope, Writer
from inductor.ir.graph import Layout
from inductor.ir.index import Index, print_cpp
from inductor.scheduler.schedule import Kernel


def print_epilogue(kernel: Kernel, layouts: Mapping[str, Layout]) -> KernelSource:
    """The function; `layouts`: dtype of each buffer that it touches."""
    (stage,) = kernel.stages
    written = kernel.writes()
    parameters = tuple(dict.fromkeys((*kernel.reads(), *written)))
    types = tuple(pointer_type(layouts[name].dtype, written=True) for name in parameters)
    rows, columns = (Loop(f"i{n}", size, "i") for n, size in enumerate(stage.ranges))
    nest = Nest((rows, columns), stage.ops, find_dependences(stage.ops))
    levels = [
        replace(plain_level(rows), begin="r0", end="r1"),
        replace(plain_level(columns), begin="j0", end="j1"),
    ]
    writer = Writer()
    for number, (name, kind) in enumerate(zip(parameters, types, strict=True)):
        plain = kind.replace("__restrict__", "").strip()
        writer.line(f"{kind} {name} = ({plain})((void**)context)[{number}];")
    print_pointwise(Scope(nest, writer, _memory), levels)
    head = f"static void {kernel.name}(void* context, i64 r0, i64 r1, i64 j0, i64 j1) {{"
    text = "\n".join([head, *writer.lines, "}", ""])
    return KernelSource(kernel.name, text, parameters, types)


def _memory(buffer: str, index: Index) -> str:
    return f"{buffer}[{print_cpp(index)}]"
