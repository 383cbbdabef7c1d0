"""Triton text of a list of kernels: one function, whatever the number of kernels.

In: a `KernelList` and the layouts of its buffers. Out: a `ListSource`. Its function gets two tables
on the device: `table` has the addresses of each kernel's buffers, a row for each kernel; `places` a
row of three numbers for each program: the kernel whose part it does, which part, and how many
iterations that kernel has. What is the same for all iterations of a kernel is computed once by each
program, before its loop over tiles.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from inductor.codegen.triton.launch import Launch, Stage
from inductor.codegen.triton.numbers import Numbers
from inductor.codegen.triton.print_kernel import title_of
from inductor.codegen.triton.print_stage import Memory, StagePrinter
from inductor.codegen.triton.relax import relax_stages
from inductor.codegen.triton.spelling import print_dtype
from inductor.codegen.triton.writer import Columns, Frame, Writer
from inductor.ir.body import Op
from inductor.ir.extent import up_to_multiple
from inductor.ir.graph import Layout
from inductor.runtime.gpu_properties import properties_of
from inductor.scheduler.domain import product
from inductor.scheduler.lists import EVEN, MOST_INT32, flat_ops, parameters_of
from inductor.scheduler.schedule import Kernel, KernelList

BLOCK, OF_A_WARP = 1024, 256  # elements
# Of a program where there would be so many with one each, on the device measured.
TILES, MANY_PROGRAMS = 4, 1 << 13
ALIGNED = 16  # bytes
PLACE = 3  # numbers for each program


@dataclass(frozen=True, slots=True)
class ListSource:
    """One Triton function and what it is called with.

    parameters: the buffers of all kernels, `width` for each. sizes: iterations of each kernel;
    tile: of these in a program. dtypes: of the two tables. vectors: which of the `width` buffers
    are passed along, so that their alignment matters.
    """

    name: str
    text: str
    parameters: tuple[str, ...]
    width: int
    sizes: tuple[int, ...]
    tile: int
    block: int
    warps: int
    dtypes: tuple[torch.dtype, torch.dtype]
    vectors: tuple[int, ...]

    def options(self, aligned: bool) -> dict[str, object]:
        """Constants of the function, and how it is run."""
        return {"XBLOCK": self.block, "RBLOCK": 1, "IS_ALIGNED": aligned, "num_warps": self.warps}


def print_list(step: KernelList, layouts: Mapping[str, Layout]) -> ListSource:
    """The function of a list; raises NotPrintable for what Triton cannot do."""
    first = step.kernels[0]
    names = parameters_of(first)
    sizes = tuple(map(_iterations, step.kernels))
    wide = any(
        layouts[name].storage_elements() >= MOST_INT32
        for kernel in step.kernels for name in parameters_of(kernel)
    ) or max(sizes) >= MOST_INT32
    block = min(BLOCK, 1 << (max(sizes) - 1).bit_length())
    gpu = properties_of(layouts[names[0]].device)
    many = sum(up_to_multiple(n, block) for n in sizes) >= gpu.scaled(MANY_PROGRAMS)
    tiles = TILES if many else 1
    (stage,) = relax_stages([Stage(flat_ops(first), 1, 1, False)], ())
    written = frozenset(first.writes())
    parameters = {
        name: f"{'out' if name in written else 'in'}{n}" for n, name in enumerate(names)}
    launch = Launch(first.name, sizes[0], (stage,))
    mask = "" if sizes[0] == 1 else "xmask"
    frame = Frame(launch, wide, True, mask, written, parameters, Numbers(wide))
    writer = Writer()
    _print_head(writer, frame, [layouts[name].dtype for name in names], max(sizes) == 1)
    _print_body(writer, frame, stage, tiles)
    head = "(table, places, XBLOCK: tl.constexpr, RBLOCK: tl.constexpr, IS_ALIGNED: tl.constexpr):"
    text = "\n".join([head, *writer.lines, ""])
    title = title_of(first.origins, first.name)
    name = f"{title}_list_{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    moving = {op.buffer for op in stage.ops if op.buffer and _varies(op)}
    return ListSource(
        name, f"@triton.jit\ndef {name}{text}",
        tuple(name for kernel in step.kernels for name in parameters_of(kernel)), len(names),
        sizes, block * tiles, block, max(1, block // OF_A_WARP),
        (torch.int64, torch.int64 if wide else torch.int32),
        tuple(n for n, name in enumerate(names) if name in moving),
    )


def _iterations(kernel: Kernel) -> int:
    (stage,) = kernel.stages
    return product((*kernel.outer, *stage.ranges))


def _print_head(
    writer: Writer, frame: Frame, dtypes: Sequence[torch.dtype], is_one: bool
) -> None:
    """The pointers of a program's kernel, and its part."""
    writer.line(f"at = places + tl.program_id(0) * {PLACE}")
    writer.line(f"row = table + tl.load(at) * {len(frame.parameters)}")
    if not is_one:
        writer.line("part = tl.load(at + 1)")
        writer.line("count = tl.load(at + 2)")
        if frame.launch.rows % EVEN == 0:
            writer.line(f"count = tl.multiple_of(count, {EVEN})")
    for n, (name, dtype) in enumerate(zip(frame.parameters.values(), dtypes, strict=True)):
        kind = print_dtype(dtype)
        writer.line(f"{name} = tl.load(row + {n}).to(tl.pointer_type({kind}))")
    moving = {op.buffer for stage in frame.launch.stages for op in stage.ops if _varies(op)}
    names = [name for buffer, name in frame.parameters.items() if buffer in moving]
    if names:
        with writer.block("if IS_ALIGNED:"):
            for name in names:
                writer.line(f"{name} = tl.multiple_of({name}, {ALIGNED})")


def _varies(op: Op) -> bool:
    """Whether an op goes by the number of the iteration itself."""
    return op.index is not None and op.index.depends_on("x")


def _print_body(writer: Writer, frame: Frame, stage: Stage, tiles: int) -> None:
    printer = StagePrinter(stage, Columns("", "", "1", 1), frame, writer, Memory())
    same = _same_for_all(stage.ops, frame)
    if len(same) == len(stage.ops) or frame.launch.rows == 1:
        printer.print_some(range(len(stage.ops)))
        return
    printer.print_some(same)
    rest = [n for n in range(len(stage.ops)) if n not in set(same)]
    if tiles == 1:
        _print_tile(writer, "part")
        printer.print_some(rest)
        return
    with writer.block(f"for tile in range(0, {tiles}):"):
        _print_tile(writer, f"(part * {tiles} + tile)")
        printer.print_some(rest)


def _print_tile(writer: Writer, number: str) -> None:
    writer.line(f"x = {number} * XBLOCK + tl.arange(0, XBLOCK)")
    writer.line("xmask = x < count")


def _same_for_all(ops: Sequence[Op], frame: Frame) -> list[int]:
    """Ops whose value is one for all iterations of a kernel."""
    found: list[int] = []
    for position, op in enumerate(ops):
        moves = op.name == "store" or _varies(op) or op.buffer in frame.written
        if not moves and all(arg in found for arg in op.args):
            found.append(position)
    return found

