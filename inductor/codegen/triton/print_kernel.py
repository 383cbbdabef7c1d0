"""Triton text of a kernel.

In: a `Kernel` and the layouts of the buffers that it touches. Out: a `TritonKernel`: the functions
to launch one after the other, and the scratch buffers that they need. The text of a function refers
to names of the generated module (`MODULE_HEAD`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from inductor.codegen.triton.configs import Config, choose_configs, power_of_two
from inductor.codegen.triton.launch import Launch, Scratch
from inductor.codegen.triton.plan import plan_kernel
from inductor.codegen.triton.print_stage import (
    Columns,
    Frame,
    Memory,
    StagePrinter,
    Writer,
    print_columns,
)
from inductor.codegen.triton.spelling import needs_int64
from inductor.ir.graph import Layout
from inductor.scheduler.schedule import Kernel

MODULE_HEAD = """\
import torch
import triton
import triton.language as tl

from inductor.codegen.triton.prelude import (
    k_add, k_argmax, k_argmin, k_floordiv, k_floordiv_index, k_fmod, k_isinf, k_maximum,
    k_minimum, k_mod_index, k_mul, k_neg, k_or, k_pow, k_remainder, k_shift_left, k_shift_right,
    k_sigmoid, k_sign, k_signbit, k_sqrt, k_truediv, libdevice,
)
"""


@dataclass(frozen=True, slots=True)
class TritonSource:
    """One Triton function.

    parameters: buffers in order; after them come XBLOCK and RBLOCK. configs: the default first.
    again: running it twice gives the same (it may be measured on the real buffers).
    """

    name: str
    text: str
    parameters: tuple[str, ...]
    configs: tuple[Config, ...]
    rows: int
    splits: int
    may_fail: bool
    again: bool

    def grid(self, config: Config) -> tuple[int, int, int]:
        """How many programs."""
        return (-(-self.rows // config.rows), self.splits, 1)


@dataclass(frozen=True, slots=True)
class TritonKernel:
    """What one `Kernel` becomes."""

    name: str
    sources: tuple[TritonSource, ...]
    scratch: tuple[Scratch, ...]


def print_kernel(kernel: Kernel, layouts: Mapping[str, Layout]) -> TritonKernel:
    """The functions of a kernel; raises NotPrintable for what Triton cannot do."""
    plan = plan_kernel(kernel)
    elements = {name: layout.storage_elements() for name, layout in layouts.items()}
    dtypes = {name: layout.dtype for name, layout in layouts.items()}
    for scratch in plan.scratch:
        elements[scratch.name] = scratch.elements
        dtypes[scratch.name] = scratch.dtype
    sources = tuple(
        print_launch(launch, elements, dtypes) for launch in plan.launches if launch.rows
    )
    return TritonKernel(kernel.name, sources, plan.scratch if sources else ())


def print_launch(
    launch: Launch, elements: Mapping[str, int], dtypes: Mapping[str, torch.dtype]
) -> TritonSource:
    """One function."""
    configs = choose_configs(launch)
    own = {local.name for local in launch.locals}
    touched = _touched(launch, "load", own) | _touched(launch, "store", own)
    written = set(_touched(launch, "store", own))
    wide = _is_wide(launch, max((elements[name] for name in touched), default=0))
    flat = all(stage.columns == 1 for stage in launch.stages) and launch.splits == 1
    block = max(config.rows for config in configs)
    frame = Frame(
        launch, wide, flat, "" if launch.rows % block == 0 else "xmask", frozenset(written),
        dict(dtypes),
    )
    writer = Writer()
    _print_rows(writer, frame)
    columns = _print_blocks(writer, frame, configs)
    memory = Memory()
    for stage in launch.stages:
        StagePrinter(stage, columns[stage.columns], frame, writer, memory).print()
    parameters = tuple(touched)
    signature = ", ".join((*parameters, "XBLOCK: tl.constexpr", "RBLOCK: tl.constexpr"))
    text = "\n".join(["@triton.jit", f"def {launch.name}({signature}):", *writer.lines, ""])
    return TritonSource(
        launch.name, text, parameters, configs, launch.rows, launch.splits,
        "tl.device_assert" in text, _is_repeatable(launch, own),
    )


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


def _is_wide(launch: Launch, elements: int) -> bool:
    limit = (1 << 31) - (1 << 16)  # the last block may reach over the end
    if max(elements, launch.rows, *(stage.columns for stage in launch.stages)) >= limit:
        return True
    return any(
        op.index is not None and needs_int64(op.index)
        for stage in launch.stages
        for op in stage.ops
    )


def _print_rows(writer: Writer, frame: Frame) -> None:
    program = "tl.program_id(0).to(tl.int64)" if frame.wide else "tl.program_id(0)"
    tail = "" if frame.flat else "[:, None]"
    writer.line(f"x = {program} * XBLOCK + tl.arange(0, XBLOCK){tail}")
    if frame.row_mask:
        writer.line(f"xmask = x < {frame.launch.rows}")
    if frame.launch.splits > 1:
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
        full = power_of_two(extent)
        if frame.launch.persistent:
            size, masked = str(full), extent != full
        else:
            greatest = max(min(config.columns, full) for config in configs)
            size = f"RBLOCK if RBLOCK < {full} else {full}"
            masked = extent % greatest != 0 or (
                frame.launch.splits > 1 and extent % frame.launch.chunk != 0
            )
        block, mask = f"R{number}BLOCK", f"rmask{number}" if masked else ""
        writer.line(f"{block}: tl.constexpr = {size}")
        found[extent] = Columns(f"r{number}", mask, block, extent)
        if frame.launch.persistent:
            print_columns(writer, found[extent], "", frame.wide, False)
    return found
