"""Blocks of GEMM templates: what is tried where each is measured.

The lists are those that were fastest on an H200 (`MEASURED` in `inductor/ir/gpus.py`). What does
not fit the properties of the template's device is no candidate: it has fewer stages or smaller
tiles there, and what comes through a copy engine is left out where there is none.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from dataclasses import replace

from inductor.codegen.triton.configs import by_factor
from inductor.codegen.triton.template_weights import is_word, packing_of, stage_of_weight
from inductor.codegen.triton.window import can_describe_window, takes_taps, tiles_of_columns
from inductor.ir.extent import hint_of, power_of_two, up_to_multiple
from inductor.ir.gpus import MEASURED, GpuProperties, shrunk
from inductor.runtime.gpu_properties import properties_of
from inductor.scheduler.schedule import Blocks, Gemm, Kernel, TemplateKernel

LARGE = (Blocks(128, 128, 64, 4, 3), Blocks(128, 256, 64, 8, 3), Blocks(64, 128, 64, 4, 4))
FULL_DEVICE = Blocks(128, 256, 64, 8, 4, persistent=True, descriptors=True)
PAIR = (Blocks(128, 128, 64, 8, 3), Blocks(128, 64, 64, 4, 3))  # two GEMMs in one tile
FEW_ROWS = (Blocks(16, 32, 256, 4, 4), Blocks(16, 64, 128, 4, 4), Blocks(16, 32, 128, 2, 5))
BOXED = (  # the same through descriptors; columns are the rows of the matrix units
    Blocks(128, 128, 64, 8, 3, descriptors=True),
    Blocks(256, 128, 64, 8, 4, descriptors=True),
    Blocks(256, 128, 64, 8, 4, persistent=True, descriptors=True),
    Blocks(128, 128, 64, 4, 3, persistent=True, resident=2, descriptors=True),
    Blocks(128, 256, 64, 8, 4, persistent=True, descriptors=True),
    Blocks(128, 64, 64, 4, 4, persistent=True, resident=2, descriptors=True),
)
FEWEST_OF_UNITS = 64  # rows of the matrix units
DEEPEST_BOX = 64  # halves: 128 bytes, the widest pattern in which TMA stores a window's box
SINGLE = (Blocks(64, 64, 32, 4, 3), Blocks(128, 64, 32, 8, 3))  # float32
WINDOWS = (  # convolutions
    Blocks(128, 128, 64, 8, 3),
    Blocks(128, 128, 64, 4, 4),
    Blocks(128, 64, 64, 4, 4),
    Blocks(64, 128, 64, 4, 4),
    Blocks(256, 64, 64, 8, 3),
    Blocks(128, 256, 64, 8, 3),
)
FEW = 16  # rows of a GEMM that fit into one tile of matrix units
SPARE_SHARED = 3 << 10  # bytes of shared memory for all but the tiles of operands
MOST_SHARED = MEASURED.shared - SPARE_SHARED  # what the lists above were made to fill
MOST_REGISTERS = 128  # of a thread, for what is accumulated
LEAST, MOST = 16, 256  # of rows, columns, depth
MOST_SPLITS = 8  # programs that share a sum; chosen, not measured: bounds what is tried
FEWEST_ELEMENTS = 16  # of a tile, for each thread
LEAST_STAGES = 2  # with one, no load would run beside the products
LEAST_STEPS = 4  # of a program that shares a sum
ALIGNMENT = 16  # bytes, of what a descriptor describes


def is_alone(template: TemplateKernel) -> bool:
    """Whether it is a GEMM and nothing else."""
    fused = template.epilogues() or template.prologues()
    return not fused and len(template.parts) == 1


def why_not(template: TemplateKernel) -> str:
    """Why sizes that are known at a call only do not allow a template; "" where they do."""
    for one in template.gemms():
        if any(type(size) is not int for size in (one.n, one.k)):
            return "its columns, or the terms of its sums, are known at a call only"
    return ""


def keep_to_rows(template: TemplateKernel) -> None:
    """Blocks for few rows are for few alone, others for more: assumes it of a number of rows that
    is known at a call only, and that there is something to do."""
    one = template.gemms()[0]
    # What can't be proved is decided by the hint, which is noted.
    _ = one.m > FEW, one.m > 0, one.batch > 0


def candidate_blocks(template: TemplateKernel) -> tuple[Blocks, ...]:
    """What is tried first for a template."""
    first = template.gemms()[0]
    found: tuple[Blocks, ...]
    boxed: tuple[Blocks, ...] = ()
    if first.dtype.itemsize == 4:
        found = SINGLE
    elif hint_of(first.m) <= FEW:
        found = FEW_ROWS
    elif first.window is not None and width_of(template) == 1:
        found = WINDOWS
        boxed = _boxed(first) if can_describe(template) else ()
    else:
        found = PAIR if width_of(template) > 1 else LARGE
        if width_of(template) == 1 and can_describe(template):
            found += (FULL_DEVICE,)
    widest = max(LEAST, power_of_two(max(hint_of(each.columns) for each in template.gemms())))
    deepest = max(LEAST, power_of_two(_terms(first)))
    clipped = (
        replace(b, columns=min(b.columns, widest), depth=min(b.depth, deepest)) for b in found
    )
    tried = list(fitting((*clipped, *boxed), template))
    shared = [replace(b, splits=count) for b in tried[:2] if (count := splits_of(b, template)) > 1]
    return (*tried, *shared)


def fitting(candidates: Iterable[Blocks], template: TemplateKernel) -> tuple[Blocks, ...]:
    """The blocks that the template's device can run, or smaller ones in their place."""
    gpu = gpu_of(template)
    if not gpu.has_descriptors:
        candidates = [b for b in candidates if not b.descriptors]
    if gpu.shared - SPARE_SHARED < MOST_SHARED or template.weights():
        is_held = functools.partial(_is_held, template=template, gpu=gpu)
        candidates = [shrunk(b, is_held, LEAST_STAGES, LEAST) for b in candidates]
    return tuple(dict.fromkeys(b for b in candidates if shared_of(b, template) <= gpu.shared))


def _is_held(blocks: Blocks, template: TemplateKernel, gpu: GpuProperties) -> bool:
    return shared_of(blocks, template) <= gpu.shared - SPARE_SHARED


def shared_of(blocks: Blocks, template: TemplateKernel) -> int:
    """Bytes of shared memory for the tiles of operands, and of all that weights are made of where
    they are read."""
    itemsize = template.gemms()[0].dtype.itemsize
    weights: list[float] = [
        max(itemsize, _loaded_for_one(kernel, one))
        for kernel, one in zip(template.weights(), template.gemms(), strict=False)
    ]
    weights = weights or [itemsize] * width_of(template)
    of_term = blocks.rows * itemsize + blocks.columns * sum(weights)
    return math.ceil(blocks.stages * blocks.depth * of_term)


def _loaded_for_one(kernel: Kernel, one: Gemm) -> float:
    """Bytes that are loaded for an element; what is the same for whole rows or columns of a tile
    takes hardly any."""
    stage = stage_of_weight(kernel, one)
    _, packed = packing_of(stage, one.k, one.n)
    found = 0.0
    for op in stage.ops:
        if op.name != "load" or op.index is None:
            continue
        if op.index.depends_on("x") and op.index.depends_on("r"):
            found += op.dtype.itemsize / (packed if is_word(op, packed) else 1)
        elif {var.name for var in op.index.variables()} - {"x", "r"}:  # looked up
            found += op.dtype.itemsize
    return found


def gpu_of(template: TemplateKernel) -> GpuProperties:
    """The properties of the device that computes a template."""
    layout = template.gemms()[0].call.layout
    return properties_of(None if layout is None else layout.device)


def _boxed(one: Gemm) -> tuple[Blocks, ...]:
    """Blocks for a convolution through descriptors."""
    channels = one.left.size[-1]
    depth = next(each for each in (64, 32, 16) if channels % each == 0)
    widest = max(FEWEST_OF_UNITS, power_of_two(one.columns))
    found = (replace(b, columns=min(b.columns, widest), depth=depth) for b in BOXED)
    return tuple(dict.fromkeys(found))


def _terms(one: Gemm) -> int:
    """How many terms of a sum may be one step: of a convolution the channels, unless a step has
    several places of the window."""
    in_steps = one.window is not None and not takes_taps(one)
    return hint_of(one.left.size[-1] if in_steps else one.k)


def splits_of(blocks: Blocks, template: TemplateKernel) -> int:
    """How many programs share a tile's sum where the tiles do not fill the device."""
    if not _can_split(template):
        return 1
    one = template.gemms()[0]
    tiles = up_to_multiple(one.m, blocks.rows) * tiles_of_columns(one, blocks.columns)
    idle = gpu_of(template).multiprocessors // tiles
    return min(MOST_SPLITS, idle, one.k // (LEAST_STEPS * blocks.depth))


def _can_split(template: TemplateKernel) -> bool:
    gemms = template.gemms()
    one = gemms[0]
    known = all(type(size) is int for size in (one.m, one.n, one.k))
    return len(gemms) == 1 and one.batch == 1 and known and not template.prologues()


def neighbours(best: Blocks, template: TemplateKernel) -> tuple[Blocks, ...]:
    """Blocks that differ from the best in one number."""
    found = [replace(best, stages=best.stages + step) for step in (1, -1)]
    for factor in (2.0, 0.5):
        if best.splits > 1:
            found += by_factor(best, factor, "splits")
        found += by_factor(best, factor, "warps", "depth", "columns")
        if hint_of(template.gemms()[0].m) > FEW:
            found += by_factor(best, factor, "rows")
    return tuple(b for b in found if _fits(b, template) and _is_sensible(b, best, template))


def _is_sensible(blocks: Blocks, best: Blocks, template: TemplateKernel) -> bool:
    """Whether it may be faster than the best so far: not where tiles are larger than the operands,
    threads have nearly nothing to do, stages outnumber the steps, or most of the device is idle."""
    one = template.gemms()[0]
    sides = ((blocks.rows, one.m), (blocks.columns, one.columns), (blocks.depth, _terms(one)))
    if any(side > max(LEAST, power_of_two(hint_of(size))) for side, size in sides):
        return False
    steps = up_to_multiple(hint_of(one.k), blocks.depth * blocks.splits)
    if blocks.stages > max(2, steps, best.stages - 1):
        return False
    gpu = gpu_of(template)
    threads = blocks.warps * gpu.warp
    if blocks.rows * blocks.columns < FEWEST_ELEMENTS * threads and hint_of(one.m) > FEW:
        return False
    return programs_of(blocks, one) >= min(programs_of(best, one), gpu.multiprocessors // 2)


def programs_of(blocks: Blocks, one: Gemm) -> int:
    tiles = up_to_multiple(hint_of(one.m), blocks.rows)
    tiles *= hint_of(tiles_of_columns(one, blocks.columns))
    return tiles * hint_of(one.batch) * blocks.splits


def _fits(blocks: Blocks, template: TemplateKernel) -> bool:
    """Whether the device can hold it, and Triton print it."""
    sides = (blocks.rows, blocks.columns, blocks.depth)
    if min(sides) < LEAST or max(sides) > MOST or blocks.warps not in (2, 4, 8):
        return False
    one = template.gemms()[0]
    if blocks.descriptors and one.window is not None:
        if blocks.columns < FEWEST_OF_UNITS or one.left.size[-1] % blocks.depth:
            return False
        if blocks.depth > DEEPEST_BOX:
            return False
    if blocks.splits > 1 and (blocks.splits - 1) * blocks.depth >= template.gemms()[0].k:
        return False  # somebody would have nothing to do
    gpu = gpu_of(template)
    registers = blocks.rows * blocks.columns * width_of(template) // (blocks.warps * gpu.warp)
    held = _is_held(blocks, template, gpu) and registers <= MOST_REGISTERS
    return LEAST_STAGES <= blocks.stages <= 6 and held


def width_of(template: TemplateKernel) -> int:
    return max(len(part.gemms) for part in template.parts)


def can_describe(template: TemplateKernel) -> bool:
    """Whether operands can come through descriptors: one axis is dense, the other in steps of 16
    bytes, and all numbers are known."""
    if len(template.parts) != 1 or template.prologues():
        return False
    if any(one.window is not None for one in template.gemms()):
        return all(can_describe_window(one) for one in template.gemms())
    for one in template.gemms():
        for view in (one.left, one.right):
            size = one.dtype.itemsize
            known = all(type(n) is int for n in (*view.size, *view.stride, view.offset))
            if one.batch != 1 or not known:
                return False
            steps = sorted(view.stride[-2:])
            if steps[0] != 1 or 1 in view.size[-2:]:
                return False
            if steps[1] * size % ALIGNMENT or view.offset * size % ALIGNMENT:
                return False
    return True
