"""Triton text of a kernel.

In: a `Kernel` and the layouts of the buffers that it touches. Out: a `TritonKernel`: the functions
to launch one after the other, and the scratch buffers that they need. The text of a function refers
to names of the generated module (`MODULE_HEAD`).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from inductor.codegen.triton.aligned import unaligned_rows
from inductor.codegen.triton.configs import Choices, Config, choose_configs, likely_columns
from inductor.codegen.triton.launch import Launch, NotPrintable, Scratch
from inductor.codegen.triton.matrix_sums import MatrixSums, find_matrix_sums
from inductor.codegen.triton.numbers import EVEN, MOST_INT32, Numbers, Parameter, reaches
from inductor.codegen.triton.online import tiles_of
from inductor.codegen.triton.plan import Plan, plan_kernel, plan_short_rows
from inductor.codegen.triton.print_matrix import printer_of
from inductor.codegen.triton.print_stage import Memory
from inductor.codegen.triton.relax import relax_stages, rounded_parts
from inductor.codegen.triton.spelling import needs_int64
from inductor.codegen.triton.writer import Columns, Frame, Writer, print_columns, program
from inductor.ir.extent import Extent, divides, up_to_multiple
from inductor.ir.gpus import GpuProperties
from inductor.ir.graph import Layout, Origins
from inductor.runtime.gpu_properties import properties_of
from inductor.scheduler.schedule import Kernel

LONGEST_TITLE = 60
MANY_ODD_ROWS = 1 << 16  # of which the text is worth having twice (chosen, not measured)
MODULE_HEAD = """\
import torch
import triton
import triton.language as tl

from inductor.codegen.triton.prelude import (
    k_above_one, k_add, k_argmax, k_argmin, k_floordiv, k_floordiv_index, k_fmod, k_from_byte,
    k_from_bytes, k_isinf, k_joined, k_keep, k_keep_four, k_logaddexp, k_maximum, k_minimum,
    k_mod_index, k_mul, k_neg, k_nibbles_dot, k_normal_cdf, k_one_plus_tanh, k_or, k_pow,
    k_quick_fraction, k_quick_sigmoid, k_quick_silu, k_quick_softplus, k_remainder,
    k_rounded_within, k_shift_left, k_shift_right, k_side, k_sigmoid, k_sign, k_signbit,
    k_sorted, k_sorted_places, k_sqrt, k_sum_of_exp, k_sum_of_four_exp, k_swapped,
    k_tanh_of_softplus, k_tanh_slope, k_to_e4m3, k_to_e5m2, k_truediv, k_truediv_of_small,
    libdevice,
)
from inductor.codegen.triton.prelude_units import (
    k_bytes_bf16, k_bytes_fp16, k_eight_bf16, k_eight_fp16, k_nibbles_bf16, k_nibbles_fp16,
)
"""


@dataclass(frozen=True, slots=True)
class TritonSource:
    """One Triton function.

    Equal functions have equal names: the name ends in a digest of the text. parameters: the buffers
    to call it with, in order; after them come numbers known at a call, XBLOCK and RBLOCK. again:
    running it twice gives the same (it may be measured on the real buffers). even: positions of
    the numbers that decide whether it is compiled for multiples of `EVEN` (if there are any, after
    RBLOCK comes a constant that says so); likely_even: whether the first compile's are.
    """

    name: str
    text: str
    parameters: tuple[str, ...]
    numbers: tuple[Parameter, ...]
    choices: Choices
    rows: int
    splits: int
    columns: int
    may_fail: bool
    repeatable: bool
    even: tuple[int, ...]
    likely_even: bool

    def grid(self, config: Config) -> tuple[int, int, int]:
        """How many programs. (columns: of a tiled launch, otherwise 0.)"""
        tiled = self.columns != 0
        second = up_to_multiple(self.columns, config.columns) if tiled else self.splits
        return (up_to_multiple(self.rows, config.rows), second, 1)


@dataclass(frozen=True, slots=True)
class TritonKernel:
    """What one `Kernel` becomes. short: what runs instead, alone and without scratch buffers, at
    calls with a class for their measure (rows that fit into a tile)."""

    name: str
    sources: tuple[TritonSource, ...]
    scratch: tuple[Scratch, ...]
    short: TritonSource | None = None

    def all_sources(self) -> tuple[TritonSource, ...]:
        """Those of both ways."""
        return self.sources if self.short is None else (*self.sources, self.short)


def print_kernel(kernel: Kernel, layouts: Mapping[str, Layout]) -> TritonKernel:
    """The functions of a kernel; raises NotPrintable for what Triton cannot do."""
    gpu = properties_of(next((layout.device for layout in layouts.values()), None))
    plan = plan_kernel(kernel, gpu)
    touched = dict.fromkeys((*kernel.reads(), *kernel.writes()))
    elements = {name: layouts[name].storage_elements() for name in touched}
    elements.update({scratch.name: scratch.elements for scratch in plan.scratch})
    title = title_of(kernel.origins, kernel.name)
    parts = rounded_parts(plan.launches, [scratch.name for scratch in plan.scratch])
    sources = tuple(
        print_launch(launch, elements, title, parts) for launch in plan.launches if launch.rows != 0
    )
    if not sources:
        return TritonKernel(kernel.name, (), ())
    short = _print_short(kernel, plan, elements, title, gpu)
    return TritonKernel(kernel.name, sources, plan.scratch, short)


def _print_short(
    kernel: Kernel, plan: Plan, elements: Mapping[str, int], title: str, gpu: GpuProperties
) -> TritonSource | None:
    """See `TritonKernel.short`; not for a kernel that is cut into launches to fill the device."""
    launch = plan_short_rows(kernel, gpu) if len(plan.launches) == 1 else None
    try:
        return None if launch is None else print_launch(launch, elements, title)
    except NotPrintable:
        return None


def title_of(origins: Origins, otherwise: str) -> str:
    """What a kernel does, in the words of its operators."""
    words: dict[str, None] = {}
    for target in origins.targets:
        parts = target.split(".")
        word = parts[1] if len(parts) > 1 else target
        words[re.sub(r"\W", "_", word).strip("_")] = None
    text = "_".join(words)
    return f"fused_{text[:LONGEST_TITLE].rstrip('_')}" if text else otherwise


def print_launch(
    launch: Launch, elements: Mapping[str, int], title: str, parts: Collection[str] = ()
) -> TritonSource:
    """One function, called by the title and a digest of its text. parts: see `relax_stages`."""
    own = {local.name for local in launch.locals}
    launch = replace(launch, stages=relax_stages(launch.stages, own, parts))
    choices = choose_configs(launch)
    configs = choices.all()
    sums = find_matrix_sums(launch)
    touched = _touched(launch, "load", own) | _touched(launch, "store", own)
    written = set(_touched(launch, "store", own))
    wide = _is_wide(launch, [elements[name] for name in touched])
    flat = all(stage.columns == 1 for stage in launch.stages) and launch.splits == 1
    block = max(config.rows for config in configs)
    numbers = Numbers(wide)
    frame = Frame(
        launch, wide, flat, "" if divides(block, launch.rows) else "xmask", frozenset(written),
        _parameter_names(touched, written), numbers, block if launch.tiled else 0, elements,
    )
    writer = Writer()
    in_two = flat and _ends_anywhere(frame)
    _print_rows(writer, replace(frame, row_mask="") if in_two else frame)
    columns = _print_blocks(writer, frame, configs)
    if in_two:
        _print_whole_blocks_apart(writer, frame, columns)
    else:
        _print_stages(writer, frame, columns, sums)
    known = tuple(numbers.parameters.values())
    even = () if flat else tuple(n for n, each in enumerate(known) if each.name in numbers.aligned)
    typed = [f'{number.name}: "{number.kind}"' for number in known]
    constants = ["XBLOCK: tl.constexpr", "RBLOCK: tl.constexpr"]
    if even:  # says it to Triton, which sees nothing in a number itself
        constants.append("IS_EVEN: tl.constexpr")
        names = [known[n].name for n in even]
        rounded = [f"        {name} = {name} // {EVEN} * {EVEN}" for name in names]
        writer.lines[:0] = ["    if IS_EVEN:", *rounded]
    signature = ", ".join((*frame.parameters.values(), *typed, *constants))
    text = "\n".join([f"({signature}):", *writer.lines, ""])
    name = f"{title}_{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    general = f"(do_not_specialize={[number.name for number in known]})" if known else ""
    text = f"@triton.jit{general}\ndef {name}{text}"
    return TritonSource(
        name, text, tuple(touched), known, choices, launch.rows, launch.splits,
        launch.stages[0].columns if launch.tiled else 0,
        "tl.device_assert" in text, _is_repeatable(launch, own), even,
        all(numbers.aligned[known[n].name] % EVEN == 0 for n in even),
    )


def _parameter_names(touched: Iterable[str], written: set[str]) -> dict[str, str]:
    """`in0`, `out1`, .. by position, so that the same work on other buffers has the same text."""
    return {
        name: f"{'out' if name in written else 'in'}{n}" for n, name in enumerate(touched)
    }


def _touched(launch: Launch, what: str, own: set[str]) -> dict[str, None]:
    found = (op.buffer for stage in launch.stages for op in stage.ops if op.name == what)
    return {name: None for name in found if name not in own}


def _is_repeatable(launch: Launch, own: set[str]) -> bool:
    """Whether a second run does the same: no accumulating, no overwriting of what was read."""
    if any(op.imm == "add" for stage in launch.stages for op in stage.ops if op.name == "store"):
        return False
    written: set[str] = set()
    for stage in launch.stages:
        stores = {op.buffer for op in stage.ops if op.name == "store"}
        loads = {op.buffer for op in stage.ops if op.name == "load"} - own
        if (loads - written) & (stores | _touched(launch, "store", own).keys()):
            return False
        written |= stores
    return True


def _is_wide(launch: Launch, elements: Iterable[int]) -> bool:
    """Whether positions need int64; that others do not is assumed of numbers known at a call."""
    counts = [*elements, launch.rows, *(stage.columns for stage in launch.stages)]
    if any(reaches(count, MOST_INT32) for count in counts):
        return True
    return any(
        op.index is not None and needs_int64(op.index)
        for stage in launch.stages
        for op in stage.ops
    )


def _ends_anywhere(frame: Frame) -> bool:
    """Whether there may be many rows, and a number of them that is no multiple of words."""
    rows = frame.launch.rows
    many = type(rows) is not int or rows >= frame.launch.gpu.scaled(MANY_ODD_ROWS)
    return many and frame.row_mask != "" and not divides(EVEN, rows)


def _print_whole_blocks_apart(
    writer: Writer, frame: Frame, columns: dict[int, Columns]
) -> None:
    """The same statements for blocks that are whole, which need no mask. Triton moves wide words
    where a mask is the same for all of a word, and otherwise element by element in the places of
    words: a copy of 59 million bytes into bfloat16 took 273 us on an H200, so it takes 68."""
    rows = frame.numbers.spell(frame.launch.rows, aligns=False)
    with writer.block(f"if {program(frame)} * XBLOCK + XBLOCK <= {rows}:"):
        _print_stages(writer, replace(frame, row_mask=""), columns, None)
    with writer.block("else:"):
        writer.line(f"{frame.row_mask} = x < {rows}")
        _print_stages(writer, frame, columns, None)


def _print_stages(
    writer: Writer, frame: Frame, columns: dict[int, Columns], sums: MatrixSums | None
) -> None:
    """All stages; sums: of the first one."""
    memory = Memory()
    printers = [
        printer_of(stage, columns[stage.columns], frame, writer, memory, sums if n == 0 else None)
        for n, stage in enumerate(frame.launch.stages)
    ]
    if printers[0].stage.reduction:
        for printer in printers[1:]:
            printer.print_early()
    for printer in printers:
        printer.print()


def _print_rows(writer: Writer, frame: Frame) -> None:
    tail = "" if frame.flat else "[:, None]"
    writer.line(f"x = {program(frame)} * XBLOCK + tl.arange(0, XBLOCK){tail}")
    if frame.row_mask:
        rows = frame.numbers.spell(frame.launch.rows, aligns=False)
        writer.line(f"{frame.row_mask} = x < {rows}")
    if frame.launch.splits != 1:
        writer.line("g = tl.program_id(1)" + (".to(tl.int64)" if frame.wide else ""))


def _print_blocks(
    writer: Writer, frame: Frame, configs: tuple[Config, ...]
) -> dict[int, Columns]:
    """Block constants for each number of columns; the variables too, unless there are loops."""
    found = {1: Columns("", "", "1", 1)}
    for stage in frame.launch.stages:
        extent = stage.columns
        if extent in found:
            continue
        number = len(found) - 1
        full = likely_columns(extent)
        if frame.launch.tiled:
            greatest = max(config.columns for config in configs)
            size, masked = "RBLOCK", not divides(greatest, extent)
        elif frame.launch.persistent:
            known = type(extent) is not Extent
            size, masked = str(full) if known else "RBLOCK", extent != full
        else:
            tiles = [tiles_of(each) for each in frame.launch.stages if each.columns == extent]
            greatest = max(min(config.columns, full) for config in configs) * max(tiles)
            size = f"RBLOCK if RBLOCK < {full} else {full}"
            masked = not divides(greatest, extent) or (
                frame.launch.splits != 1 and not divides(frame.launch.chunk, extent)
            )
            masked |= any(  # whose ends are a tile of their own
                each.columns == extent and unaligned_rows(frame.launch, each) is not None
                for each in frame.launch.stages)
        block, mask = f"R{number}BLOCK", f"rmask{number}" if masked else ""
        writer.line(f"{block}: tl.constexpr = {size}")
        found[extent] = Columns(f"r{number}", mask, block, extent)
        if frame.launch.tiled:
            base = f"tl.program_id(1) * {block}"
            print_columns(writer, found[extent], base, frame)
        elif frame.launch.persistent:
            print_columns(writer, found[extent], "", frame)
    return found
