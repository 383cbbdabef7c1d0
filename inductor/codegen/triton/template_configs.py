"""Blocks of product templates: what is tried, and what is likely to beat the library unmeasured.

The figures are those of a large device (132 multiprocessors, 228 KiB of shared memory each).
"""

from __future__ import annotations

from dataclasses import replace

from inductor.codegen.triton.configs import power_of_two
from inductor.config import config
from inductor.ir.extent import hint_of, up_to_multiple
from inductor.scheduler.schedule import Blocks, Product, TemplateKernel

LARGE = (Blocks(128, 128, 64, 4, 3), Blocks(128, 256, 64, 8, 3), Blocks(64, 128, 64, 4, 4))
DESCRIBED = (  # where `config.descriptors` allows it
    Blocks(128, 256, 64, 8, 4, descriptors=True),
    Blocks(128, 256, 64, 8, 4, persistent=True, descriptors=True),
    Blocks(128, 128, 64, 4, 3, persistent=True, resident=2, descriptors=True),
)  # fmt: skip
PAIR = (Blocks(128, 128, 64, 8, 3), Blocks(128, 64, 64, 4, 3))  # two products in one tile
FEW_ROWS = (Blocks(16, 32, 256, 4, 4), Blocks(16, 64, 128, 4, 4), Blocks(16, 32, 128, 2, 5))
SINGLE = (Blocks(64, 64, 32, 4, 3), Blocks(128, 64, 32, 8, 3))  # float32
FEW = 16
MOST_SHARED = 224 << 10
MOST_REGISTERS = 128  # of a thread, for what is accumulated
LEAST, MOST = 16, 256  # of rows, columns, depth
MULTIPROCESSORS = 132
MOST_SPLITS = 8
LEAST_STEPS = 4  # of a program that shares a sum
ALIGNMENT = 16  # bytes, of what a descriptor describes


def is_worth_asking(template: TemplateKernel) -> bool:
    """Not a product of many rows alone: the library is faster by a tenth."""
    alone = not template.epilogues() and len(template.parts) == 1
    return not alone or hint_of(template.products()[0].m) <= FEW


def candidate_blocks(template: TemplateKernel) -> tuple[Blocks, ...]:
    """What is tried first for a template."""
    first = template.products()[0]
    found: tuple[Blocks, ...]
    if first.dtype.itemsize == 4:
        found = SINGLE
    elif hint_of(first.m) <= FEW:
        found = FEW_ROWS
    else:
        found = PAIR if _width(template) > 1 else LARGE
        if config.descriptors and _width(template) == 1 and can_describe(template):
            found += DESCRIBED
    widest = max(LEAST, power_of_two(max(hint_of(each.n) for each in template.products())))
    deepest = max(LEAST, power_of_two(hint_of(first.k)))
    clipped = (
        replace(b, columns=min(b.columns, widest), depth=min(b.depth, deepest)) for b in found
    )
    tried = list(dict.fromkeys(clipped))
    shared = [replace(b, splits=count) for b in tried[:2] if (count := _splits(b, template)) > 1]
    return (*tried, *shared)


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
    return len(products) == 1 and one.batch == 1 and known


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
    return tuple(blocks for blocks in found if _fits(blocks, template))


def _fits(blocks: Blocks, template: TemplateKernel) -> bool:
    """Whether the device can hold it, and Triton print it."""
    sides = (blocks.rows, blocks.columns, blocks.depth)
    if min(sides) < LEAST or max(sides) > MOST or blocks.warps not in (2, 4, 8):
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
    if len(template.parts) != 1:
        return False
    for one in template.products():
        for view in (one.left, one.right):
            size = one.dtype.itemsize
            steps = sorted(view.stride[-2:])
            known = all(type(n) is int for n in (*view.size, *view.stride, view.offset))
            if one.batch != 1 or not known or steps[0] != 1 or 1 in view.size[-2:]:
                return False
            if steps[1] * size % ALIGNMENT or view.offset * size % ALIGNMENT:
                return False
    return True


def _moves_in_words(one: Product) -> bool:
    """Whether the right operand comes 16 bytes at a time."""
    dense, step = sorted(one.right.stride[-2:], key=hint_of)
    return dense == 1 and hint_of(step) * one.dtype.itemsize % ALIGNMENT == 0


def likely_blocks(template: TemplateKernel) -> TemplateKernel | None:
    """The template with blocks with which it is surely faster; None where that is not known."""
    first = template.products()[0]
    if first.dtype.itemsize != 2 or hint_of(first.m) > FEW or first.batch != 1:
        return None
    if not template.epilogues() and len(template.parts) == 1:
        return None
    if not all(_moves_in_words(product) for product in template.products()):
        return None
    # What reads weights once is as fast as memory is; the launches of other kernels are saved.
    if _width(template) > 1:
        blocks = Blocks(16, 64, 128, 4, 4)
    elif len(template.parts) > 1:
        blocks = Blocks(16, 32, 128, 2, 5)
    else:
        blocks = Blocks(16, 32, 256, 4, 4)
    return replace(template, blocks=blocks)
