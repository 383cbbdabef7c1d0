"""Blocks of product templates: what is tried, and what is likely to beat the library unmeasured.

The figures are those of a large device (132 multiprocessors, 228 KiB of shared memory each).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

from inductor.codegen.triton.configs import power_of_two
from inductor.codegen.triton.tiling import SLOW
from inductor.codegen.triton.window import can_describe_window, takes_taps, terms_of
from inductor.config import config
from inductor.ir.extent import hint_of, up_to_multiple
from inductor.ir.graph import Layout
from inductor.scheduler.schedule import Blocks, Kernel, Product, TemplateKernel

LARGE = (Blocks(128, 128, 64, 4, 3), Blocks(128, 256, 64, 8, 3), Blocks(64, 128, 64, 4, 4))
DESCRIBED = (  # all of them where `config.descriptors` is set
    Blocks(128, 256, 64, 8, 4, descriptors=True),
    Blocks(128, 256, 64, 8, 4, persistent=True, descriptors=True),
    Blocks(128, 128, 64, 4, 3, persistent=True, resident=2, descriptors=True),
)  # fmt: skip
FULL_DEVICE = DESCRIBED[1]
PAIR = (Blocks(128, 128, 64, 8, 3), Blocks(128, 64, 64, 4, 3))  # two products in one tile
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
DEEPEST_BOX = 64
SINGLE = (Blocks(64, 64, 32, 4, 3), Blocks(128, 64, 32, 8, 3))  # float32
WINDOWS = (  # convolutions
    Blocks(128, 128, 64, 8, 3),
    Blocks(128, 128, 64, 4, 4),
    Blocks(128, 64, 64, 4, 4),
    Blocks(64, 128, 64, 4, 4),
    Blocks(256, 64, 64, 8, 3),
    Blocks(128, 256, 64, 8, 3),
)
FEW = 16
MOST_SHARED = 224 << 10
MOST_REGISTERS = 128  # of a thread, for what is accumulated
LEAST, MOST = 16, 256  # of rows, columns, depth
MULTIPROCESSORS = 132
MOST_SPLITS = 8
FEWEST_ELEMENTS = 16  # of a tile, for each thread
LEAST_STEPS = 4  # of a program that shares a sum
ALIGNMENT = 16  # bytes, of what a descriptor describes
# In a microsecond: operations of products, the library's and ours, bytes, instructions of a lane.
LIBRARY_RATE, OWN_RATE = 650e6, 480e6
BANDWIDTH, OWN_BANDWIDTH = 4.2e6, 3.4e6
LANES = 28e6
# Of convolutions through windows, by the columns of a tile (64 channels or more; measured alike).
WINDOW_RATES = {32: (200e6, 200e6), 64: (417e6, 343e6), 128: (530e6, 517e6), 256: (530e6, 600e6)}
# Of persistent programs through descriptors with something behind the product.
DESCRIBED_RATE, DESCRIBED_LANES, DESCRIBED_GAIN = 577e6, 42e6, 0.93
ALONE_ON_CHIP = 1.18  # times the rate, where tiles do not fill the device
FEW_CHANNELS_RATES = (99e6, 121e6)
LAUNCH = 2.0  # microseconds
CACHED = 24 << 20  # bytes that are still in the cache when the next kernel reads them
RESIDENT = 2  # programs of a multiprocessor
SHALLOW = 32  # terms of a sum
SUMS_OF_THREAD = 64
GAIN = 0.75  # of the library's time, as the estimates are rough
WINDOW_GAIN = 0.93
ALL_CHANNELS = 64  # of a step
SLOW_OPERATION = 8


def is_alone(template: TemplateKernel) -> bool:
    """Whether it is a product and nothing else."""
    fused = template.epilogues() or template.prologues()
    return not fused and len(template.parts) == 1


def why_not(template: TemplateKernel) -> str:
    """Why sizes that are known at a call only do not allow a template; "" where they do."""
    for one in template.products():
        if any(type(size) is not int for size in (one.n, one.k)):
            return "its columns, or the terms of its sums, are known at a call only"
    return ""


def keep_to_rows(template: TemplateKernel) -> None:
    """Blocks for few rows are for few alone, others for more: assumes it of a number of rows that
    is known at a call only, and that there is something to do."""
    one = template.products()[0]
    # What can't be proved is decided by the hint, which is noted.
    _ = one.m > FEW, one.m > 0, one.batch > 0


def candidate_blocks(template: TemplateKernel) -> tuple[Blocks, ...]:
    """What is tried first for a template."""
    first = template.products()[0]
    found: tuple[Blocks, ...]
    boxed: tuple[Blocks, ...] = ()
    if first.dtype.itemsize == 4:
        found = SINGLE
    elif hint_of(first.m) <= FEW:
        found = FEW_ROWS
    elif first.window is not None and _width(template) == 1:
        found = WINDOWS
        boxed = _boxed(first) if can_describe(template) else ()
    else:
        found = PAIR if _width(template) > 1 else LARGE
        if _width(template) == 1 and can_describe(template):
            found += DESCRIBED if config.descriptors else (FULL_DEVICE,)
    widest = max(LEAST, power_of_two(max(hint_of(each.n) for each in template.products())))
    deepest = max(LEAST, power_of_two(_terms(first)))
    clipped = (
        replace(b, columns=min(b.columns, widest), depth=min(b.depth, deepest)) for b in found
    )
    tried = list(dict.fromkeys((*clipped, *boxed)))
    shared = [replace(b, splits=count) for b in tried[:2] if (count := _splits(b, template)) > 1]
    return (*tried, *shared)


def _boxed(one: Product) -> tuple[Blocks, ...]:
    """Blocks for a convolution through descriptors."""
    channels = one.left.size[-1]
    depth = next(each for each in (64, 32, 16) if channels % each == 0)
    widest = max(FEWEST_OF_UNITS, power_of_two(one.n))
    found = (replace(b, columns=min(b.columns, widest), depth=depth) for b in BOXED)
    return tuple(dict.fromkeys(found))


def _terms(one: Product) -> int:
    """How many terms of a sum may be one step: of a convolution the channels, unless a step has
    several places of the window."""
    in_steps = one.window is not None and not takes_taps(one)
    return hint_of(one.left.size[-1] if in_steps else one.k)


def _splits(blocks: Blocks, template: TemplateKernel) -> int:
    """How many programs share a tile's sum where the tiles do not fill the device."""
    if not _can_split(template):
        return 1
    one = template.products()[0]
    tiles = up_to_multiple(one.m, blocks.rows) * up_to_multiple(one.n, blocks.columns)
    return min(MOST_SPLITS, MULTIPROCESSORS // tiles, one.k // (LEAST_STEPS * blocks.depth))


def _can_split(template: TemplateKernel) -> bool:
    products = template.products()
    one = products[0]
    known = all(type(size) is int for size in (one.m, one.n, one.k))
    return len(products) == 1 and one.batch == 1 and known and not template.prologues()


def neighbours(best: Blocks, template: TemplateKernel) -> tuple[Blocks, ...]:
    """Blocks that differ from the best in one number."""
    found = [replace(best, stages=best.stages + step) for step in (1, -1)]
    for factor in (2.0, 0.5):
        if best.splits > 1:
            found.append(replace(best, splits=int(best.splits * factor)))
        found += [
            replace(best, warps=int(best.warps * factor)),
            replace(best, depth=int(best.depth * factor)),
            replace(best, columns=int(best.columns * factor)),
        ]
        if hint_of(template.products()[0].m) > FEW:
            found.append(replace(best, rows=int(best.rows * factor)))
    return tuple(b for b in found if _fits(b, template) and _is_sensible(b, best, template))


def _is_sensible(blocks: Blocks, best: Blocks, template: TemplateKernel) -> bool:
    """Whether it may be faster than the best so far: not where tiles are larger than the operands,
    threads have nearly nothing to do, stages outnumber the steps, or most of the device is idle."""
    one = template.products()[0]
    sides = ((blocks.rows, one.m), (blocks.columns, one.n), (blocks.depth, _terms(one)))
    if any(side > max(LEAST, power_of_two(hint_of(size))) for side, size in sides):
        return False
    steps = up_to_multiple(hint_of(one.k), blocks.depth * blocks.splits)
    if blocks.stages > max(2, steps, best.stages - 1):
        return False
    if blocks.rows * blocks.columns < FEWEST_ELEMENTS * blocks.warps * 32 and hint_of(one.m) > FEW:
        return False
    return _programs(blocks, one) >= min(_programs(best, one), MULTIPROCESSORS // 2)


def _programs(blocks: Blocks, one: Product) -> int:
    tiles = up_to_multiple(hint_of(one.m), blocks.rows)
    tiles *= up_to_multiple(hint_of(one.n), blocks.columns)
    return tiles * hint_of(one.batch) * blocks.splits


def _fits(blocks: Blocks, template: TemplateKernel) -> bool:
    """Whether the device can hold it, and Triton print it."""
    sides = (blocks.rows, blocks.columns, blocks.depth)
    if min(sides) < LEAST or max(sides) > MOST or blocks.warps not in (2, 4, 8):
        return False
    one = template.products()[0]
    if blocks.descriptors and one.window is not None:
        if blocks.columns < FEWEST_OF_UNITS or one.left.size[-1] % blocks.depth:
            return False
        if blocks.depth > DEEPEST_BOX:
            return False
    if blocks.splits > 1 and (blocks.splits - 1) * blocks.depth >= template.products()[0].k:
        return False  # somebody would have nothing to do
    width = _width(template)
    itemsize = template.products()[0].dtype.itemsize
    shared = blocks.stages * (blocks.rows + width * blocks.columns) * blocks.depth * itemsize
    registers = blocks.rows * blocks.columns * width // (blocks.warps * 32)
    return 2 <= blocks.stages <= 6 and shared <= MOST_SHARED and registers <= MOST_REGISTERS


def _width(template: TemplateKernel) -> int:
    return max(len(part.products) for part in template.parts)


def can_describe(template: TemplateKernel) -> bool:
    """Whether operands can come through descriptors: one axis is dense, the other in steps of 16
    bytes, and all numbers are known."""
    if len(template.parts) != 1 or template.prologues():
        return False
    if any(one.window is not None for one in template.products()):
        return all(can_describe_window(one) for one in template.products())
    for one in template.products():
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


def _moves_in_words(one: Product) -> bool:
    """Whether the right operand comes 16 bytes at a time."""
    dense, step = sorted(one.right.stride[-2:], key=hint_of)
    return dense == 1 and hint_of(step) * one.dtype.itemsize % ALIGNMENT == 0


def likely_blocks(
    template: TemplateKernel, layouts: Mapping[str, Layout] | None = None
) -> TemplateKernel | None:
    """The template with blocks with which it is surely faster; None where that is not known.
    layouts: of the buffers that it touches; without them, many rows are not looked at."""
    first = template.products()[0]
    if first.dtype.itemsize != 2 or first.batch != 1 or template.prologues():
        return None  # a prologue is seldom faster than the kernel that it is
    if not template.epilogues() and len(template.parts) == 1:
        return None
    if first.window is not None:
        return None if layouts is None else _for_window(template, layouts)
    if not all(_moves_in_words(product) for product in template.products()):
        return None
    if hint_of(first.m) > FEW:
        return None if layouts is None else _for_many_rows(template, layouts)
    # What reads weights once is as fast as memory is; the launches of other kernels are saved.
    if _width(template) > 1:
        blocks = Blocks(16, 64, 128, 4, 4)
    elif len(template.parts) > 1:
        blocks = Blocks(16, 32, 128, 2, 5)
    else:
        blocks = Blocks(16, 32, 256, 4, 4)
    return replace(template, blocks=blocks)


def _for_many_rows(
    template: TemplateKernel, layouts: Mapping[str, Layout]
) -> TemplateKernel | None:
    """Products that wait for memory, as 1x1 convolutions of few channels: their result does not
    have to be stored and read again for what follows. And larger ones that fill the device, with
    GELU behind them, say: about as fast as the library's."""
    one = template.products()[0]
    if len(template.products()) != 1 or any(type(n) is not int for n in (one.n, one.k)):
        return None
    tried = [(_for_memory(one), GAIN)]
    if can_describe(template):
        tried.append((FULL_DEVICE, DESCRIBED_GAIN))
    for blocks, gain in tried:
        if _programs(blocks, one) < MULTIPROCESSORS:
            continue  # latency decides, of which nothing is known
        made = replace(template, blocks=blocks)
        library, own = estimates(made, layouts)
        if own < gain * library:
            return made
    return None


def _for_window(
    template: TemplateKernel, layouts: Mapping[str, Layout]
) -> TemplateKernel | None:
    """Convolutions, which are about as fast as the library's: what is saved is that the result is
    stored and read again for what follows."""
    one = template.products()[0]
    numbers = (*one.left.size, *one.right.stride, one.n)
    if len(template.products()) != 1 or any(type(number) is not int for number in numbers):
        return None
    if not takes_taps(one) and (one.left.size[-1] % ALL_CHANNELS or not _moves_in_words(one)):
        return None
    widest = max(32, min(256, power_of_two(one.n)))
    found = []
    for columns in (min(128, widest),) if takes_taps(one) else (32, 64, 128, 256):
        if columns <= widest:
            warps, stages = (4, 4) if columns == 32 or takes_taps(one) else (8, 3)
            blocks = Blocks(128, columns, ALL_CHANNELS, warps, stages)
            library, own = estimates(replace(template, blocks=blocks), layouts)
            found.append((own / library, columns, blocks))
    ratio, _, blocks = min(found)
    return replace(template, blocks=blocks) if ratio < WINDOW_GAIN else None


def _for_memory(one: Product) -> Blocks:
    """Small tiles, of which many run at once: 64 sums for each thread (measured with the 1x1
    convolutions of EfficientNet, m from 25,000 to 1.6 million)."""
    depth = min(64, max(LEAST, power_of_two(one.k)))
    columns = min(128 if one.k > SHALLOW else 32, max(LEAST, power_of_two(one.n)))
    rows = 64 if columns >= 64 else 128
    warps = max(2, rows * columns // (32 * SUMS_OF_THREAD))
    return Blocks(rows, columns, depth, warps, 3 if one.k > depth else 2)


def estimates(template: TemplateKernel, layouts: Mapping[str, Layout]) -> tuple[float, float]:
    """Microseconds that the library and the kernel behind it need, and those of the template: by
    the bytes that go through memory, the operations of products and of the epilogue, and by how
    full the device is in its last round. (At the hints of sizes that are known at a call only.)"""
    (one,), (kernel,) = template.products(), template.epilogues()
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
    kept = bytes_of_result * (one.name in template.writes())
    again = bytes_of_result / (2 if bytes_of_result < CACHED else 1)
    work = 2 * m * one.n * one.k
    library_rate, own_rate = _rates(one, blocks)
    scalar = m * one.n * _lane_operations(kernel, one.name) / LANES
    library = max(work / library_rate, (operands + bytes_of_result) / BANDWIDTH)
    library += max(scalar, (again + others) / BANDWIDTH) + LAUNCH
    tiles = up_to_multiple(m, blocks.rows) * up_to_multiple(one.n, blocks.columns)
    resident = blocks.resident if _is_described(one, blocks) else RESIDENT
    if one.window is not None:  # tiles with as much to do whether they are full or not
        resident = 1
        work = 2 * tiles * blocks.rows * blocks.columns * terms_of(one, blocks.depth)
    own = max(work / own_rate, (operands + others + kept) / OWN_BANDWIDTH)
    own += scalar * LANES / DESCRIBED_LANES if _is_described(one, blocks) else scalar / 4
    if one.window is not None and tiles <= MULTIPROCESSORS:
        own /= ALONE_ON_CHIP
    rounds = tiles / (MULTIPROCESSORS * resident)
    return library, own * math.ceil(rounds) / rounds


def _is_described(one: Product, blocks: Blocks) -> bool:
    return one.window is None and blocks.persistent and blocks.descriptors


def _rates(one: Product, blocks: Blocks) -> tuple[float, float]:
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
