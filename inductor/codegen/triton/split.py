"""Cuts a reduction with few rows and many columns into two launches.

In: a `Launch`. Out: the same, or a launch whose programs reduce a chunk of columns each and leave
partial results in scratch buffers, and one that reduces those and does what comes after.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from inductor.codegen.triton.exact_sums import SUM_OR_EXACT
from inductor.codegen.triton.launch import Launch, Phases, Scratch, Stage
from inductor.codegen.triton.matrix_sums import find_matrix_sums
from inductor.codegen.triton.numbers import reaches
from inductor.codegen.triton.spelling import SUM_OF_EXP
from inductor.ir.body import OF_ROWS, Op
from inductor.ir.extent import Extent, hint_of, up_to_multiple
from inductor.ir.index import Index, variable

# Programs for each multiprocessor: enough for one launch, and where neighbouring rows are read
# together, in so many columns.
ENOUGH_PROGRAMS, ENOUGH_FOR_LONG, LONG = 4, 8, 1024
# Where there are less; where neighbouring rows are read together. The largest of 2^25 numbers in
# bfloat16 takes 22 us with four for each multiprocessor and 18 to 23 with 16 or 64 (H200), that of
# their SiLU 41 and 24, and where a product is stored in the same kernel 73 and 53.
WANTED_PROGRAMS = (16, 16)
ROWS_OF_A_PROGRAM = 32  # where neighbouring rows are read together
FEWEST_COLUMNS = (2048, 256)  # of a row; where neighbouring rows are read together
COLUMNS_OF_A_PROGRAM = (1024, 128)  # at least; the same
CHUNK_STEP = (1024, 128)  # a block of a chunk is no larger than the power of two that divides it
MOST_SHARED = 16  # rows that one program may take; chosen, not measured
MOST_SPLITS = 1 << 16  # they are counted in the second axis of the grid
EXTREMUM = {"argmax": "max", "argmin": "min"}


def split_columns(launch: Launch) -> tuple[list[Launch], list[Scratch]]:
    """Two launches where one would leave most of the device idle."""
    chunk = _chunk_of(launch)
    if not chunk:
        return [launch], []
    (stage,) = launch.stages
    splits = up_to_multiple(stage.columns, chunk)
    if splits == 1 or reaches(splits, MOST_SPLITS):
        return [launch], []
    cut = _Cut(launch, splits)
    first = replace(
        launch, name=f"{launch.name}_part", splits=splits, chunk=chunk, persistent=False,
        stages=(replace(stage, ops=cut.partial()),),
    )
    rest = Stage(cut.combined(), 1, splits, True)
    second = replace(
        launch, name=f"{launch.name}_rest", stages=(rest,), persistent=type(splits) is not Extent
    )
    return [first, second], list(cut.scratch.values())


def _chunk_of(launch: Launch) -> int:
    """Columns for each program; 0 for a launch that stays whole."""
    if len(launch.stages) != 1 or launch.rows == 0:
        return 0
    (stage,) = launch.stages
    by_rows = reads_along_rows(stage)
    if any(op.imm == SUM_OF_EXP for op in stage.ops):  # its parts are no sums
        return 0
    if not stage.reduction or stage.serial != 1 or launch.locals:
        return 0
    if any(op.name in OF_ROWS for op in stage.ops):
        return 0
    if by_rows and find_matrix_sums(launch) is not None:  # whose warps share the terms
        return 0
    rows, columns = hint_of(launch.rows), hint_of(stage.columns)
    if columns < FEWEST_COLUMNS[by_rows]:
        return 0
    programs = -(-rows // ROWS_OF_A_PROGRAM) if by_rows else rows
    if shares_columns(launch):
        programs = 1
    most = columns // COLUMNS_OF_A_PROGRAM[by_rows]
    count = launch.gpu.multiprocessors
    wanted = min(-(-WANTED_PROGRAMS[by_rows] * count // programs), most)
    enough = ENOUGH_FOR_LONG if by_rows and columns >= LONG else ENOUGH_PROGRAMS
    if programs >= enough * count or wanted < 2:
        return 0
    chunk = -(-columns // wanted)
    step = CHUNK_STEP[by_rows]
    return -(-chunk // step) * step


def shares_columns(launch: Launch) -> bool:
    """Whether a few rows are the products of tensors that have fewer rows each, as those of a small
    result of long factors are: each column is read for several of them."""
    if type(launch.rows) is not int or not 1 < launch.rows <= MOST_SHARED:
        return False
    strides = {
        op.index.stride_of("x") for op in launch.stages[0].ops
        if op.name == "load" and op.index is not None and op.index.depends_on("r")
    }
    return None in strides and strides <= {None, 0}


def reads_along_rows(stage: Stage) -> bool:
    """Whether neighbours in memory are neighbouring rows rather than columns, for most accesses."""
    score = 0
    for op in stage.ops:
        if op.name not in ("load", "store") or op.index is None:
            continue
        names = {var.name for var in op.index.variables()}
        steps = [op.index.step_of(name) for name in ("x", "r")]
        # Others occur once for each row or column, or for long runs of these.
        if {"x", "r"} <= names and 0 not in steps:
            score += (steps[0] == 1) - (steps[1] == 1)
    return score > 0


class _Cut:
    """The two lists of ops that one stage becomes."""

    def __init__(self, launch: Launch, splits: int) -> None:
        self.launch = launch
        self.ops = launch.stages[0].ops
        self.phases = Phases(launch.stages[0])
        self.splits = splits
        self.scratch: dict[tuple[int, str], Scratch] = {}

    def _scratch(self, value: int, kind: str, dtype: torch.dtype) -> Scratch:
        key = (value, kind)
        if key not in self.scratch:
            name = f"{self.launch.name}_part{len(self.scratch)}"
            self.scratch[key] = Scratch(name, dtype, self.launch.rows * self.splits)
        return self.scratch[key]

    def _place(self, last: Index) -> Index:
        return variable("x", self.launch.rows) * self.splits + last

    def partial(self) -> tuple[Op, ...]:
        """What runs before and inside of the loop, then the reductions into scratch."""
        found = _Copy(self.ops)
        place = self._place(variable("g", self.splits))
        for position, op in enumerate(self.ops):
            if op.name == "reduction":
                kinds = [str(op.imm)]
                if op.imm in EXTREMUM:
                    kinds.append(EXTREMUM[str(op.imm)])
                for kind in kinds:
                    value = op.args[0]
                    args = found.move(op.args if kind == op.imm else (value,))
                    dtype = op.dtype if kind == op.imm else self.ops[value].dtype
                    scratch = self._scratch(position, kind, dtype)
                    result = found.add(Op("reduction", args, dtype, imm=kind))
                    found.add(Op("store", (result,), dtype, scratch.name, place, "set"))
            elif self.phases.after[position]:
                continue
            elif op.name != "store" or self.phases.inside[position]:
                found.keep(position)
        return tuple(found.made)

    def combined(self) -> tuple[Op, ...]:
        """The reductions of the partial results, and what does not run inside of the loop."""
        found = _Copy(self.ops)
        place = self._place(variable("r", self.splits))
        for position, op in enumerate(self.ops):
            if op.name == "reduction":
                scratch = self._scratch(position, str(op.imm), op.dtype)
                kind = "sum" if op.imm == SUM_OR_EXACT else op.imm  # the parts are what they are
                args = [found.add(Op("load", (), op.dtype, scratch.name, place))]
                if op.imm in EXTREMUM:
                    dtype = self.ops[op.args[0]].dtype
                    scratch = self._scratch(position, EXTREMUM[str(op.imm)], dtype)
                    args.insert(0, found.add(Op("load", (), dtype, scratch.name, place)))
                found.at[position] = found.add(replace(op, args=tuple(args), imm=kind))
            elif not self.phases.inside[position]:
                found.keep(position)
        return tuple(found.made)


class _Copy:
    """Some ops of a list as a new list, with operands renumbered."""

    def __init__(self, ops: tuple[Op, ...]) -> None:
        self.ops = ops
        self.made: list[Op] = []
        self.at: dict[int, int] = {}

    def add(self, op: Op) -> int:
        self.made.append(op)
        return len(self.made) - 1

    def move(self, args: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(self.at[arg] for arg in args)

    def keep(self, position: int) -> None:
        op = self.ops[position]
        self.at[position] = self.add(replace(op, args=self.move(op.args)))
