"""Equal kernels are generated once: the layers of a model mostly repeat one another.

In: the kernels of a schedule. Out: for each one the kernel whose text it shares, written over
placeholder buffers `b0`, `b1`, .., and the buffers that it passes for them, from where it begins to
touch them: so kernels for other parts of a buffer are equal, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from inductor.ir.body import Op
from inductor.ir.graph import Layout, Origins
from inductor.scheduler.schedule import Kernel


@dataclass(frozen=True, slots=True)
class Shared:
    """name: of the kernel in the schedule; kernel: over placeholders; buffers, and the elements
    before those that it touches: by placeholder."""

    name: str
    kernel: Kernel
    buffers: Mapping[str, str]
    begins: Mapping[str, int]


def share_kernels(kernels: Iterable[Kernel]) -> list[Shared]:
    """Equal kernels get one and the same `kernel` (named after the first of them)."""
    known: dict[Kernel, Kernel] = {}
    found = []
    for kernel in kernels:
        general, buffers, begins = _generalised(kernel)
        general = known.setdefault(general, replace(general, name=kernel.name))
        found.append(Shared(kernel.name, general, buffers, begins))
    return found


def _generalised(kernel: Kernel) -> tuple[Kernel, dict[str, str], dict[str, int]]:
    names: dict[str, str] = {}
    for number, value in enumerate(kernel.locals):
        names[value.name] = f"l{number}"
    places: dict[str, str] = {}
    for stage in kernel.stages:
        for op in stage.ops:
            if op.buffer and op.buffer not in names:
                names[op.buffer] = f"b{len(places)}"
                places[names[op.buffer]] = op.buffer
    begins = {place: _begin(kernel, name) for place, name in places.items()}
    stages = tuple(
        replace(
            stage,
            ops=tuple(_moved(op, names, begins) if op.buffer else op for op in stage.ops),
        )
        for stage in kernel.stages
    )
    local = tuple(replace(local, name=names[local.name]) for local in kernel.locals)
    # immediates compare equal to others (0.0 and -0.0, variables of one name and two sizes), so the
    # text of the operations that have one is part of the name
    exact = [[str(op) for op in stage.ops if op.imm is not None] for stage in stages]
    return Kernel(repr(exact), kernel.outer, stages, local, (), Origins()), places, begins


def _begin(kernel: Kernel, buffer: str) -> int:
    """What all indices into the buffer have in common."""
    indices = [op.index for stage in kernel.stages for op in stage.ops if op.buffer == buffer]
    offsets = [index.offset for index in indices if index is not None]
    if len(offsets) < len(indices) or not all(type(offset) is int for offset in offsets):
        return 0
    return max(min(offsets), 0)


def _moved(op: Op, names: Mapping[str, str], begins: Mapping[str, int]) -> Op:
    place = names[op.buffer]
    begin = begins.get(place, 0)
    index = op.index - begin if op.index is not None and begin else op.index
    return replace(op, buffer=place, index=index)


def placeholder_layouts(shared: Shared, layouts: Mapping[str, Layout]) -> dict[str, Layout]:
    """Layouts by placeholder."""
    return {place: layouts[name] for place, name in shared.buffers.items()}
