"""The few rows of a GEMM in one row of the launch, so that each weight is loaded once.

In: a `Kernel` with a reduction of which one outer loop is short, while what most of the loads read
does not depend on it. Out: the same without that loop, all of whose iterations are written out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from inductor.ir.body import IndirectVar, LoopBody, Op
from inductor.ir.extent import hint_of
from inductor.ir.gpus import GpuProperties
from inductor.ir.index import Index, constant, variable
from inductor.scheduler.domain import product
from inductor.scheduler.schedule import Kernel

MOST_ROWS = 16  # chosen, not measured: bounds the code that is written out
MOST_OPS = 4096  # of a stage that is written out (chosen, not measured)
UNPACKED = ("above_one", "nibble", "nibbles_dot")
FEWEST_LEFT = 256  # iterations of the other outer loops, on the device measured


def share_rows(kernel: Kernel, gpu: GpuProperties) -> Kernel:
    """See the top of the file; the kernel as it is where no outer loop is such a one."""
    for axis, extent in enumerate(kernel.outer):
        if type(extent) is int and 1 < extent <= MOST_ROWS and _can_share(kernel, axis, gpu):
            return _written_out(kernel, axis)
    return kernel


def _can_share(kernel: Kernel, axis: int, gpu: GpuProperties) -> bool:
    others = product((*kernel.outer[:axis], *kernel.outer[axis + 1 :]))
    if hint_of(others) < gpu.scaled(FEWEST_LEFT):
        return False
    if any(local.elements != 1 for local in kernel.locals):
        return False
    ops = [op for stage in kernel.stages for op in stage.ops]
    if not any(_is_converted(op) for op in ops):
        return False  # only weights of 8 bits were measured, and tried on a GPU
    if any(isinstance(op.imm, IndirectVar) or op.imm == "add" for op in ops):
        return False
    if max(len(stage.ops) for stage in kernel.stages) * kernel.outer[axis] > MOST_OPS:
        return False
    if not set(kernel.reads()).isdisjoint(kernel.writes()):
        return False
    return any(_reads_weights(stage, axis) for stage in kernel.stages)


def _is_converted(op: Op) -> bool:
    """Whether these are weights of 8 bits, or of 4, which take longer to convert than to load."""
    return op.name in UNPACKED or op.name == "load" and op.dtype.itemsize == 1


def _reads_weights(stage: LoopBody, axis: int) -> bool:
    """Whether all that is read for each term of a sum and each other row is read again for each
    iteration of the loop."""
    if product(stage.ranges) != 1 or len(stage.reduction_ranges) == 0:
        return False
    found = False
    for index in _moving(stage):
        rows = {v.name for v in index.variables() if v.name.startswith("o")}
        if rows - {f"o{axis}"}:
            if f"o{axis}" in rows:
                return False
            found = True
    return found


def _moving(stage: LoopBody) -> Iterator[Index]:
    """Indices of what is loaded for each term of a sum."""
    for op in stage.loads():
        if op.index is not None and any(v.name.startswith("r") for v in op.index.variables()):
            yield op.index


def _written_out(kernel: Kernel, axis: int) -> Kernel:
    outer = (*kernel.outer[:axis], *kernel.outer[axis + 1 :])
    moved = {
        f"o{n + 1}": variable(f"o{n}", extent) for n, extent in enumerate(outer) if n >= axis
    }
    rows = range(kernel.outer[axis])
    values = [{**moved, f"o{axis}": constant(row)} for row in rows]
    own = {local.name for local in kernel.locals}
    stages = tuple(
        replace(stage, ops=_for_all(stage.ops, values, own)) for stage in kernel.stages
    )
    copies = tuple(
        replace(local, name=_own(local.name, row)) for local in kernel.locals for row in rows
    )
    return replace(kernel, outer=outer, stages=stages, locals=copies)


def _own(local: str, row: int) -> str:
    """The local of one row."""
    return f"{local}_{row}"


def _for_all(
    ops: tuple[Op, ...], values: list[dict[str, Index]], own: set[str]
) -> tuple[Op, ...]:
    """The ops for each row, those once that are the same."""
    found: list[Op] = []
    known: dict[tuple[object, ...], int] = {}
    for row, given in enumerate(values):
        at: list[int] = []
        for op in ops:
            made = _for_row(op, row, given, at, own)
            key = (made.name, made.args, made.dtype, made.buffer, made.index, repr(made.imm))
            if made.name == "store":
                at.append(len(found))
                found.append(made)
                continue
            if key not in known:
                known[key] = len(found)
                found.append(made)
            at.append(known[key])
    return tuple(found)


def _for_row(
    op: Op, row: int, values: Mapping[str, Index], at: list[int], own: set[str]
) -> Op:
    return replace(
        op, args=tuple(at[arg] for arg in op.args),
        buffer=_own(op.buffer, row) if op.buffer in own else op.buffer,
        index=None if op.index is None else op.index.substitute(values),
    )
