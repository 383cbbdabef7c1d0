"""Convolutions of our own together with the kernels behind them.

In: a schedule. Out: the same where each such kernel that can is called by the convolution, for
pixels and channels that it has just stored (`schedule.py: FusedConvolution`).

A kernel may follow a convolution if it has one iteration for each element of the result and reads
it at its own place only. The convolution moves down to it, so nothing in between may read the
result or write what the convolution reads. Where nothing else wants the result, it is stored where
the kernel stores its own, which takes its place.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from inductor.ir.convolutions import is_own_convolution
from inductor.ir.graph import ExternKernel, LoopGraph
from inductor.ir.index import Index, variable
from inductor.scheduler.domain import product as total
from inductor.scheduler.gemms import epilogue_ops, is_plain
from inductor.scheduler.schedule import FusedConvolution, Kernel, Schedule, Step
from inductor.scheduler.uses import Uses, with_placed


def fuse_convolutions(graph: LoopGraph, schedule: Schedule) -> Schedule:
    """See the top of the file."""
    if not any(map(_is_ours, schedule.steps)):
        return schedule
    finder = _Finder(graph, schedule)
    placed: dict[int, FusedConvolution] = {}
    gone: set[int] = set()
    for position, step in enumerate(schedule.steps):
        found = finder.behind(step, position) if isinstance(step, Kernel) else None
        if found is not None:
            start, placed[position] = found
            gone.add(start)
    return with_placed(schedule, placed, gone)


def flat_place(call: ExternKernel) -> Index:
    """Where the element for pixel x and channel r lies."""
    assert call.layout is not None
    channels = call.layout.size[1]
    pixels = call.layout.numel() // channels
    return variable("x", pixels) * channels + variable("r", channels)


def bounds_of(fused: FusedConvolution) -> tuple[float, float] | None:
    """The least and the largest result, where all that follows is min(max(x, least), largest), as
    in ReLU: the convolution does that before it stores. None where it is anything else."""
    if fused.call.winograd or fused.target == fused.call.name:
        return None
    (stage,) = fused.epilogue.stages
    found: list[tuple[float, float] | float | None] = []
    for op in stage.ops:
        given = [found[at] for at in op.args]
        if op.name == "load":
            found.append((-math.inf, math.inf) if op.buffer == fused.call.name else None)
        elif op.name == "constant" and isinstance(op.imm, int | float):
            found.append(float(op.imm))
        elif op.name in ("maximum", "minimum"):
            found.append(_clamped(op.name, given))
        elif op.name == "store" and op.buffer == fused.target and isinstance(given[0], tuple):
            found.append(given[0])
        else:
            found.append(None)
    stores = [value for op, value in zip(stage.ops, found, strict=True) if op.name == "store"]
    if None in found or len(stores) != 1 or any(op.dtype is not torch.float32 for op in stage.ops):
        return None
    (bounds,) = stores
    return bounds if isinstance(bounds, tuple) else None


def _clamped(name: str, given: list[tuple[float, float] | float | None]) -> Any:
    """The bounds of a maximum or minimum with a number."""
    bounds = [each for each in given if isinstance(each, tuple)]
    numbers = [each for each in given if isinstance(each, float)]
    if len(bounds) != 1 or len(numbers) != 1 or math.isnan(numbers[0]):
        return None
    (least, largest), (number,) = bounds[0], numbers
    if name == "minimum":
        return least, min(largest, number)
    return max(least, number), max(largest, number)


def _is_ours(step: Step) -> bool:
    return isinstance(step, ExternKernel) and is_own_convolution(step)


HALF = (torch.float16, torch.bfloat16)
"""Their kernels convert many numbers at once, more than a tile has."""


class _Finder(Uses):
    def __init__(self, graph: LoopGraph, schedule: Schedule) -> None:
        super().__init__(graph, schedule)
        self.given = {b.name for b in (*graph.inputs, *graph.constants) if b is not None}
        self.calls: dict[str, tuple[int, ExternKernel]] = {}
        shown: set[str] = set()  # memory that has another name, too
        for position, step in enumerate(schedule.steps):
            if not isinstance(step, ExternKernel):
                continue
            if step.target.is_view:
                shown.update((step.name, *step.reads()))
            if is_own_convolution(step):
                self.calls[step.name] = (position, step)
        self.shown = shown

    def behind(self, kernel: Kernel, position: int) -> tuple[int, FusedConvolution] | None:
        """The last convolution that the kernel can follow, and where that stood."""
        if not is_plain(kernel) or self.given.intersection(kernel.writes()):
            return None
        if any(op.dtype in HALF for op in kernel.stages[0].ops):
            return None
        found = [self.calls[name] for name in kernel.reads() if name in self.calls]
        fit = [each for each in found if self._fits(*each, kernel, position)]
        if not fit:
            return None
        start, call = max(fit, key=lambda each: each[0])
        is_stored = call.name in self.outside or self.readers[call.name] != [position]
        target = call.name if is_stored else self._target(call, kernel)
        return start, FusedConvolution(call, kernel, target)

    def _fits(self, start: int, call: ExternKernel, kernel: Kernel, position: int) -> bool:
        assert call.layout is not None
        count = total((*kernel.outer, *kernel.stages[0].ranges))
        if count != call.layout.numel() or len(self.writers[call.name]) > 1:
            return False
        if min(self.readers[call.name]) < position or self.shown.intersection(call.reads()):
            return False
        if self.is_written(call.reads(), start, position):
            return False
        if call.name in self.shown or set(kernel.writes()) & set(call.reads()):
            return False
        flat = flat_place(call)
        ops = epilogue_ops(kernel, flat)
        return all(op.index == flat for op in ops if op.buffer == call.name)

    def _target(self, call: ExternKernel, kernel: Kernel) -> str:
        """Where the convolution stores its result: the kernel stores another one there."""
        flat = flat_place(call)
        ops = epilogue_ops(kernel, flat)
        loaded = max(at for at, op in enumerate(ops) if op.buffer == call.name)
        for op in ops[loaded:]:
            if op.name != "store" or op.index != flat:
                continue
            layout = self.layouts[op.buffer]
            if layout.dtype is torch.float32 and len(self.writers[op.buffer]) == 1:
                return op.buffer
        return call.name
