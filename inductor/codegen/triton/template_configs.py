"""Blocks of product templates: what is tried, and what is likely to beat the library unmeasured.

The figures are those of a large device (132 multiprocessors, 228 KiB of shared memory each).
"""

from __future__ import annotations

from inductor.ir.extent import hint_of
from inductor.scheduler.schedule import Blocks, TemplateKernel

LARGE = (
    Blocks(128, 128, 64, 4, 3), Blocks(128, 256, 64, 8, 3), Blocks(128, 256, 64, 8, 4),
    Blocks(64, 128, 64, 4, 4), Blocks(128, 64, 64, 4, 4), Blocks(64, 256, 64, 4, 3),
    Blocks(128, 128, 64, 8, 3), Blocks(128, 128, 32, 4, 4),
)  # fmt: skip
PAIR = (  # two products in one tile
    Blocks(128, 128, 64, 8, 3), Blocks(128, 64, 64, 4, 3), Blocks(64, 128, 64, 4, 3),
    Blocks(128, 64, 64, 8, 3),
)  # fmt: skip
FEW_ROWS = (
    Blocks(16, 32, 256, 4, 4), Blocks(16, 64, 128, 4, 4), Blocks(16, 64, 256, 4, 3),
    Blocks(16, 128, 128, 8, 4), Blocks(16, 32, 128, 2, 5),
)  # fmt: skip
SINGLE = (
    Blocks(64, 64, 32, 4, 3), Blocks(128, 64, 32, 8, 3), Blocks(64, 128, 32, 8, 3),
    Blocks(32, 64, 32, 4, 3),
)  # fmt: skip
FEW = 16


def candidate_blocks(template: TemplateKernel) -> tuple[Blocks, ...]:
    """What may be tried for a template."""
    first = template.products()[0]
    if first.dtype.itemsize == 4:
        found = SINGLE
    elif hint_of(first.m) <= FEW:
        found = FEW_ROWS
    elif any(len(part.products) > 1 for part in template.parts):
        found = PAIR
    else:
        found = LARGE
    return found


def likely_blocks(template: TemplateKernel) -> TemplateKernel | None:
    """The template with blocks with which it is surely faster; None where that is not known."""
    return None
