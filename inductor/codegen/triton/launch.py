"""`Plan`: how one `Kernel` becomes Triton functions; its loops as rows and columns of tiles.

In: made by `plan`. Out: read by the printer. Grammar:

    Plan   := launches(Launch*) scratch(Scratch*)
    Launch := rows stages(Stage*) locals(register) splits chunk persistent longest tiled gpu
    Stage  := serial columns reduction ops(Op*)

A launch is one Triton function. Its rows are spread over the programs of the grid: variable `x`.
The columns of each stage (variable `r`) are one tile (`persistent`; where their number is known at
a call, up to `longest`) or a loop over tiles; they are
the reduction loops of the stage (`reduction`) or else its plain loops. `serial` (variable `s`)
counts plain loops that stand around reduction loops. In a `tiled` launch, whose stages all have
the same columns and no reductions, columns too are spread over programs. Where a reduction has few
rows and many columns, the columns of a row are shared by `splits` programs (variable `g`, each
takes `chunk` of them), which leave partial results in scratch buffers, and a second launch combines
those. Rows, columns, splits and serial may be extents: numbers known at a call. All indices are
written in x, s, r, g and indirect variables; a reduction op in a stage that is no `reduction` is
over one value. A local becomes a tile in registers where it can; otherwise its value is computed
again or kept in a scratch buffer in global memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from inductor.ir.body import OF_ROWS, IndirectVar, Op
from inductor.ir.gpus import MEASURED, GpuProperties
from inductor.ir.index import Index, constant, floordiv, mod
from inductor.scheduler.domain import product
from inductor.scheduler.schedule import Local


class NotPrintable(Exception):
    """The kernel holds something that Triton cannot do; the text says what."""


@dataclass(frozen=True, slots=True)
class Scratch:
    """Global memory that lives during one kernel only."""

    name: str
    dtype: torch.dtype
    elements: int


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage over the tile; see the top of the file."""

    ops: tuple[Op, ...]
    serial: int
    columns: int
    reduction: bool


@dataclass(frozen=True, slots=True)
class Launch:
    """One Triton function; see the top of the file."""

    name: str
    rows: int
    stages: tuple[Stage, ...]
    locals: tuple[Local, ...] = ()
    splits: int = 1
    chunk: int = 0
    persistent: bool = True
    longest: int = 0
    tiled: bool = False
    gpu: GpuProperties = MEASURED


@dataclass(frozen=True, slots=True)
class Plan:
    """The functions of one kernel, in order of execution."""

    launches: tuple[Launch, ...]
    scratch: tuple[Scratch, ...]


def positions(extents: Sequence[int], flat: Index) -> list[Index]:
    """The index of each loop when all are counted row-major by `flat`."""
    if 0 in extents:
        return [constant(0)] * len(extents)
    found = []
    for number, extent in enumerate(extents):
        inner = product(extents[number + 1 :])
        found.append(mod(floordiv(flat, inner), extent) if extent != 1 else constant(0))
    return found


class Phases:
    """When each op of a stage runs: `inside` of the loop over r, or `after` its reductions.

    What is neither runs before the loop. (A stage that is no `reduction` is not divided.)
    """

    def __init__(self, stage: Stage) -> None:
        self.inside: list[bool] = []
        self.after: list[bool] = []
        moving: set[str] = {"r"}
        late: set[str] = set()
        for op in stage.ops:
            names = () if op.index is None else tuple(v.name for v in op.index.variables())
            inside = any(self.inside[arg] for arg in op.args) or not moving.isdisjoint(names)
            after = any(self.after[arg] for arg in op.args) or not late.isdisjoint(names)
            if op.name == "reduction" and stage.reduction:
                inside, after = False, True
            elif op.name in OF_ROWS:
                inside = True
            elif inside and after:
                raise NotPrintable(f"{op} needs a reduction and runs for each element of it")
            if isinstance(op.imm, IndirectVar):
                if inside:
                    moving.add(op.imm.var.name)
                if after:
                    late.add(op.imm.var.name)
            self.inside.append(inside)
            self.after.append(after)
