"""Blocks of GEMM templates that are likely to beat the library, unmeasured.

The figures are those of an H200 (`MEASURED` in `inductor/ir/gpus.py`): GEMMs, arithmetic and
memory of another device are as much faster or slower as its maker says.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

from inductor.codegen.triton.launch import Stage
from inductor.codegen.triton.relax import PREFIX, RELAXED, relax_stages
from inductor.codegen.triton.template_configs import (
    ALIGNMENT,
    FEW,
    FULL_DEVICE,
    LEAST,
    can_describe,
    fitting,
    gpu_of,
    programs_of,
    splits_of,
    width_of,
)
from inductor.codegen.triton.template_weights import packing_of, stage_of_weight
from inductor.codegen.triton.tiling import SLOW
from inductor.codegen.triton.window import takes_taps, terms_of, tiles_of_columns
from inductor.ir.extent import hint_of, power_of_two, up_to_multiple
from inductor.ir.gpus import MEASURED, GpuProperties
from inductor.ir.graph import Layout
from inductor.ir.wide_groups import suits_template
from inductor.scheduler.schedule import Blocks, Gemm, Kernel, TemplateKernel

# In a microsecond: operations of GEMMs, the library's and ours, bytes, instructions of a lane.
LIBRARY_RATE, OWN_RATE = 650e6, 480e6
BANDWIDTH, OWN_BANDWIDTH = 4.2e6, 3.4e6
LANES = 28e6
# Of convolutions through windows, by the columns of a tile (64 channels or more; measured alike).
WINDOW_RATES = {32: (200e6, 200e6), 64: (417e6, 343e6), 128: (530e6, 517e6), 256: (530e6, 600e6)}
# Of persistent programs through descriptors with something behind the GEMM.
DESCRIBED_RATE, DESCRIBED_LANES, DESCRIBED_GAIN = 577e6, 42e6, 0.93
ALONE_ON_CHIP = 1.18  # times the rate, where tiles do not fill the device
FEW_CHANNELS_RATES = (99e6, 121e6)
LAUNCH = 2.0  # microseconds
CACHED = 0.48  # of the cache: bytes that are still in it when the next kernel reads them
RESIDENT = 2  # programs of a multiprocessor
SHALLOW = 32  # terms of a sum
SUMS_OF_THREAD = 64
GAIN = 0.75  # of the library's time, as the estimates are rough
WINDOW_GAIN = 0.93
ALL_CHANNELS = 64  # of a step
BLOCKS_OF_GROUPS = (
    *(Blocks(128, columns, ALL_CHANNELS, 8, 3) for columns in (64, 128, 256)),
    *(Blocks(64, columns, ALL_CHANNELS, 4, 4) for columns in (64, 128)),
    Blocks(128, 32, ALL_CHANNELS, 4, 4),
)
SLOW_OPERATION = 8
FEW_ROWS_OF_WEIGHTS = (Blocks(16, 32, 256, 4, 4), Blocks(16, 32, 128, 4, 4))  # one GEMM, two
# The same of words of several numbers, of which a thread unpacks as many as that is worth (by the
# instructions that ptxas makes for sm_90: 10.8 a number of GPTQ's in any order of groups, 12.5 with
# a step of 128).
FEW_ROWS_OF_WORDS = (Blocks(16, 32, 256, 4, 3), Blocks(16, 32, 128, 4, 3))
# What may follow a full tile: functions without a branch (where there is one, a tile's values wait
# in registers until all have taken it), in half precision; sums and tiles that are read with them
# have so many registers of a thread.
WITHOUT_BRANCH = frozenset(
    "load store to_dtype constant add sub mul fma neg abs sign maximum minimum where"
    " eq ne lt le gt ge bitwise_and bitwise_or bitwise_not logical_not isnan sqrt rsqrt".split()
).union(f"{PREFIX}{name}" for name in RELAXED)
# Of 255 a thread has. Measured: with 128 sums and tanh's branch behind them they do not suffice
# (GELU's derivative behind a 128 x 256 tile took 360 us on an H200, 57 us in a kernel of its own).
MOST_WAITING = 200


def _moves_in_words(one: Gemm) -> bool:
    """Whether the right operand comes 16 bytes at a time."""
    dense, step = sorted(one.right.stride[-2:], key=hint_of)
    return dense == 1 and hint_of(step) * one.dtype.itemsize % ALIGNMENT == 0


def likely_blocks(
    template: TemplateKernel, layouts: Mapping[str, Layout] | None = None
) -> TemplateKernel | None:
    """The template with blocks with which it is surely faster; None where that is not known.
    layouts: of the buffers that it touches; without them, many rows are not looked at."""
    first = template.gemms()[0]
    if first.dtype.itemsize != 2 or first.batch != 1:
        return None
    if template.weights():
        return _for_weights(template, layouts)
    if template.prologues():
        return None  # it is seldom faster than the kernel that it is
    if first.groups > 1:
        return None if layouts is None else _for_groups(template, layouts)
    if not template.epilogues() and len(template.parts) == 1:
        return None
    if first.window is not None:
        return None if layouts is None else _for_window(template, layouts)
    if not all(_moves_in_words(gemm) for gemm in template.gemms()):
        return None
    if hint_of(first.m) > FEW:
        return None if layouts is None else _for_many_rows(template, layouts)
    # What reads weights once is as fast as memory is; the launches of other kernels are saved.
    if width_of(template) > 1:
        blocks = Blocks(16, 64, 128, 4, 4)
    elif len(template.parts) > 1:
        blocks = Blocks(16, 32, 128, 2, 5)
    else:
        blocks = Blocks(16, 32, 256, 4, 4)
    return _with_fitting(template, blocks)


def _with_fitting(template: TemplateKernel, blocks: Blocks) -> TemplateKernel | None:
    """The template with these blocks, or smaller ones where its device has no place for them."""
    found = fitting([blocks], template)
    return replace(template, blocks=found[0]) if found else None


def _for_weights(
    template: TemplateKernel, layouts: Mapping[str, Layout] | None
) -> TemplateKernel | None:
    """A few rows with weights that are stored in fewer bytes than they have here: these are read
    once, where the kernel that makes them reads them, too, stores them, and the library reads them
    again."""
    first = template.gemms()[0]
    if layouts is None or hint_of(first.m) > FEW or len(template.prologues()) > width_of(template):
        return None
    for kernel, one in zip(template.weights(), template.gemms(), strict=True):
        read = sum(
            layouts[name].storage_elements() * layouts[name].dtype.itemsize
            for name in kernel.reads()
        )
        if hint_of(read) >= one.n * one.k * one.dtype.itemsize:
            return None
    (kernel, *_), (one, *_) = template.weights(), template.gemms()
    _, packed = packing_of(stage_of_weight(kernel, one), one.k, one.n)
    blocks = FEW_ROWS_OF_WORDS if packed > 1 else FEW_ROWS_OF_WEIGHTS
    return _with_fitting(template, blocks[width_of(template) - 1])


def _for_many_rows(
    template: TemplateKernel, layouts: Mapping[str, Layout]
) -> TemplateKernel | None:
    """GEMMs that wait for memory, as 1x1 convolutions of few channels: their result does not
    have to be stored and read again for what follows. And larger ones that fill the device, with
    GELU behind them, say: about as fast as the library's."""
    one = template.gemms()[0]
    if len(template.gemms()) != 1 or any(type(n) is not int for n in (one.n, one.k)):
        return None
    gpu = gpu_of(template)
    tried = [(_for_memory(one, gpu), GAIN)]
    if can_describe(template) and _stays_in_registers(template, FULL_DEVICE, layouts):
        tried.append((FULL_DEVICE, DESCRIBED_GAIN))
    for wanted, gain in tried:
        made = _with_fitting(template, wanted)
        if made is None or made.blocks is None:
            continue
        if programs_of(made.blocks, one) < gpu.multiprocessors:
            continue  # latency decides, of which nothing is known
        library, own = estimates(made, layouts)
        if own < gain * library:
            return made
    return None


def _stays_in_registers(
    template: TemplateKernel, blocks: Blocks, layouts: Mapping[str, Layout]
) -> bool:
    """Whether what follows the GEMM surely needs no more registers than a thread has, and is
    short. Where it needs more, they are stored and loaded again around each operation: tanh's
    derivative of GELU took ten times as long with a tile of 128 x 256. Where a tile is read with
    the GEMM, SiLU's and GELU's derivatives were 4 % slower than the library and a kernel, and
    a sum 15 to 25 % faster."""
    (one,), (kernel,) = template.gemms(), template.epilogues()
    (stage,) = relax_stages((Stage(kernel.stages[0].ops, 1, one.n, False),), ())
    if any(op.name not in WITHOUT_BRANCH for op in stage.ops):
        return False
    if any(layouts[name].dtype.itemsize != 2 for name in kernel.writes()):
        return False
    sums = blocks.rows * blocks.columns // (blocks.warps * gpu_of(template).warp)
    whole = hint_of(one.m) * one.n
    read = [layouts[name] for name in set(kernel.reads()) - {one.name}]
    tiles = sum(each.dtype.itemsize for each in read if hint_of(each.numel()) >= whole)
    if tiles and not SLOW.isdisjoint(op.name for op in kernel.stages[0].ops):
        return False
    return sums + sums * tiles // 4 <= MOST_WAITING


def _for_window(
    template: TemplateKernel, layouts: Mapping[str, Layout]
) -> TemplateKernel | None:
    """Convolutions, which are about as fast as the library's: what is saved is that the result is
    stored and read again for what follows."""
    one = template.gemms()[0]
    numbers = (*one.left.size, *one.right.stride, one.n)
    if len(template.gemms()) != 1 or any(type(number) is not int for number in numbers):
        return None
    if not takes_taps(one) and (one.left.size[-1] % ALL_CHANNELS or not _moves_in_words(one)):
        return None
    widest = max(32, min(256, power_of_two(one.n)))
    found: list[tuple[float, int, Blocks]] = []
    for columns in (min(128, widest),) if takes_taps(one) else (32, 64, 128, 256):
        if columns <= widest:
            warps, stages = (4, 4) if columns == 32 or takes_taps(one) else (8, 3)
            blocks = Blocks(128, columns, ALL_CHANNELS, warps, stages)
            if blocks not in fitting([blocks], template):
                continue
            if not _stays_in_registers(template, blocks, layouts):
                continue
            library, own = estimates(replace(template, blocks=blocks), layouts)
            found.append((own / library, columns, blocks))
    if not found:
        return None
    ratio, _, blocks = min(found)
    return replace(template, blocks=blocks) if ratio < WINDOW_GAIN else None


def _for_groups(
    template: TemplateKernel, layouts: Mapping[str, Layout]
) -> TemplateKernel | None:
    """Convolutions with wide groups, with or without something behind them: whatever blocks they
    have, they are faster than a copy and a convolution for each group. Of the blocks those that
    take the least time by what was measured of convolutions without groups."""
    one = template.gemms()[0]
    channels = one.left.size[-1]
    numbers = (*one.left.size, *one.right.stride, one.n)
    if len(template.gemms()) != 1 or any(type(number) is not int for number in numbers):
        return None
    if not suits_template(channels, one.columns) or not _moves_in_words(one):
        return None
    depth = min((ALL_CHANNELS, 32), key=lambda each: up_to_multiple(channels, each) * each)
    widest = max(32, power_of_two(one.columns))
    tried = [replace(b, depth=depth) for b in BLOCKS_OF_GROUPS if b.columns <= widest]
    found = [
        replace(blocks, splits=splits) for blocks in fitting(tried, template)
        if not template.epilogues() or _stays_in_registers(template, blocks, layouts)
        for splits in {1, max(1, splits_of(blocks, template))}
    ]
    if not found:
        return None
    gpu = gpu_of(template)
    return replace(template, blocks=min(found, key=lambda b: _microseconds(one, b, gpu)))


def _microseconds(one: Gemm, blocks: Blocks, gpu: GpuProperties) -> float:
    """Of a convolution with groups: of the rounds of its programs, and of the parts of sums where
    these are split. A tile of half the rows is taken to be as slow as one of half the columns."""
    tiles = up_to_multiple(one.m, blocks.rows) * tiles_of_columns(one, blocks.columns)
    work = 2 * blocks.rows * blocks.columns * terms_of(one, blocks.depth) / blocks.splits
    rate = WINDOW_RATES[max(32, blocks.rows * blocks.columns // 128)][1]
    rate *= gpu.gemms / MEASURED.gemms / gpu.multiprocessors
    found = math.ceil(tiles * blocks.splits / gpu.multiprocessors) * work / rate
    if blocks.splits > 1:
        parts = 2 * 4 * blocks.splits * one.m * one.n  # stored and loaded, in float32
        found += LAUNCH + parts / (BANDWIDTH * gpu.bandwidth / MEASURED.bandwidth)
    return found


def _for_memory(one: Gemm, gpu: GpuProperties) -> Blocks:
    """Small tiles, of which many run at once: 64 sums for each thread (measured with the 1x1
    convolutions of EfficientNet, m from 25,000 to 1.6 million)."""
    depth = min(64, max(LEAST, power_of_two(one.k)))
    columns = min(128 if one.k > SHALLOW else 32, max(LEAST, power_of_two(one.n)))
    rows = 64 if columns >= 64 else 128
    warps = max(2, rows * columns // (gpu.warp * SUMS_OF_THREAD))
    return Blocks(rows, columns, depth, warps, 3 if one.k > depth else 2)


def estimates(template: TemplateKernel, layouts: Mapping[str, Layout]) -> tuple[float, float]:
    """Microseconds that the library and the kernel behind it need, and those of the template: by
    the bytes that go through memory, the operations of GEMMs and of the epilogue, and by how
    full the device is in its last round. (At the hints of sizes that are known at a call only.)"""
    (one,), (kernel,) = template.gemms(), template.epilogues()
    blocks = template.blocks
    assert blocks is not None

    def size(names: Iterable[str]) -> int:
        found = (layouts[name] for name in names)
        return sum(hint_of(each.storage_elements()) * each.dtype.itemsize for each in found)

    m = hint_of(one.m)
    bytes_of_result = m * one.n * one.dtype.itemsize
    left = size([one.left.buffer]) if one.window is not None else m * one.k * one.dtype.itemsize
    operands = left + one.n * one.k * one.dtype.itemsize
    others = size(set(kernel.reads()) - {one.name}) + size(kernel.writes())
    stored_bytes = bytes_of_result * (one.name in template.writes())
    gpu = gpu_of(template)
    read_bytes = bytes_of_result / (2 if bytes_of_result < CACHED * gpu.cache else 1)
    work = 2 * m * one.n * one.k
    gemms, memory = gpu.gemms / MEASURED.gemms, gpu.bandwidth / MEASURED.bandwidth
    library_rate, own_rate = (rate * gemms for rate in _rates(one, blocks))
    lanes = LANES * (gpu.scalars / MEASURED.scalars)
    scalar = m * one.n * _lane_operations(kernel, one.name) / lanes
    library = max(work / library_rate, (operands + bytes_of_result) / (BANDWIDTH * memory))
    library += max(scalar, (read_bytes + others) / (BANDWIDTH * memory)) + LAUNCH
    tiles = up_to_multiple(m, blocks.rows) * up_to_multiple(one.n, blocks.columns)
    resident = blocks.resident if _is_described(one, blocks) else RESIDENT
    if one.window is not None:  # tiles with as much to do whether they are full or not
        resident = 1
        work = 2 * tiles * blocks.rows * blocks.columns * terms_of(one, blocks.depth)
    own = max(work / own_rate, (operands + others + stored_bytes) / (OWN_BANDWIDTH * memory))
    own += scalar * LANES / DESCRIBED_LANES if _is_described(one, blocks) else scalar / 4
    if one.window is not None and tiles <= gpu.multiprocessors:
        own /= ALONE_ON_CHIP
    rounds = tiles / (gpu.multiprocessors * resident)
    return library, own * math.ceil(rounds) / rounds


def _is_described(one: Gemm, blocks: Blocks) -> bool:
    return one.window is None and blocks.persistent and blocks.descriptors


def _rates(one: Gemm, blocks: Blocks) -> tuple[float, float]:
    """Operations in a microsecond, the library's and ours."""
    if one.window is None:
        return LIBRARY_RATE, DESCRIBED_RATE if _is_described(one, blocks) else OWN_RATE
    if takes_taps(one):
        return FEW_CHANNELS_RATES
    of_library = max(32, min(256, power_of_two(one.n)))
    return WINDOW_RATES[of_library][0], WINDOW_RATES[blocks.columns][1]


def _lane_operations(kernel: Kernel, result: str) -> int:
    """Instructions for each element of the result that the kernel reads, roughly."""
    found, reached = 0, set[int]()
    (stage,) = kernel.stages
    for at, op in enumerate(stage.ops):
        if op.name == "load" and op.buffer == result or not reached.isdisjoint(op.args):
            reached.add(at)
            found += SLOW_OPERATION if op.name in SLOW else 1
    return found
