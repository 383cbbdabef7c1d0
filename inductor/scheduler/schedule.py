"""`Schedule`: which kernels run in which order, what each contains, and what lives how long.

In: made by `inductor.scheduler` from a `LoopGraph`. Out: read by code generation. Grammar:

    Schedule := steps(Step*)
    Step     := Kernel | ExternKernel | MultiOutput
    Kernel   := outer(extent*) stages(LoopBody*) locals(Local*) nodes(name*)

A kernel is a nest of outer loops `o0`, `o1`, .. (all iterations independent of each other: they may
run in parallel and in any order) around a sequence of stages. A stage is a `LoopBody`: its own
`i` and `r` loops stand inside of the outer loops, its indices use `o`, `i`, `r` and indirect
variables. Stages run one after the other for each outer iteration; a stage may read what an earlier
stage of the same outer iteration wrote, and nothing that another outer iteration wrote.

    for o0, o1 in outer:            # parallel
        for i.., r.. in stage 0: ...
        for i.., r.. in stage 1: ...

In a stage without reduction ranges every op runs for each i. With reduction ranges: ops that
depend on an r variable (through index or operands) run for each (i, r), stores among them too; a
`reduction` op gives one value for each i, and what depends on it without depending on r runs after
the r loops.
A stage never reads (other than through a value) an element that it stores itself.

A Local is memory of one outer iteration: `elements` is 1 (a scalar, index 0) or the number of
iterations of a stage, and then every load and store of it uses as index the row-major position of
the stage's own loops (`local_position`), in the same order of loops in all stages that touch it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch

from inductor.ir.body import LoopBody, short_dtype
from inductor.ir.graph import ExternKernel, MultiOutput, Origins
from inductor.ir.index import Index, constant, variable


@dataclass(frozen=True, slots=True)
class Local:
    """Memory inside of a kernel that nobody outside sees."""

    name: str
    dtype: torch.dtype
    elements: int


@dataclass(frozen=True, slots=True)
class Kernel:
    """One generated function. `nodes`: the buffers of the loop graph that it computes."""

    name: str
    outer: tuple[int, ...]
    stages: tuple[LoopBody, ...]
    locals: tuple[Local, ...] = ()
    nodes: tuple[str, ...] = ()
    origins: Origins = field(default=Origins(), compare=False)

    def reads(self) -> tuple[str, ...]:
        """Buffers loaded, locals left out, in order of first use."""
        return self._buffers("load")

    def writes(self) -> tuple[str, ...]:
        """Buffers stored into, locals left out; accumulating stores (mode "add") included."""
        return self._buffers("store")

    def _buffers(self, what: str) -> tuple[str, ...]:
        own = {local.name for local in self.locals}
        found = (op.buffer for stage in self.stages for op in stage.ops if op.name == what)
        return tuple(dict.fromkeys(name for name in found if name not in own))

    def may_fail(self) -> bool:
        """Whether an index of the data is checked in it."""
        return any(
            op.name == "indirect" and getattr(op.imm, "check", False)
            for stage in self.stages
            for op in stage.ops
        )

    def __str__(self) -> str:
        loops = ", ".join(f"o{n} < {extent}" for n, extent in enumerate(self.outer))
        lines = [f"{self.name}: {', '.join(self.nodes)}"]
        lines += [f"  local {x.name}: {short_dtype(x.dtype)}[{x.elements}]" for x in self.locals]
        lines.append(f"  for {loops}:" if loops else "  once:")
        for stage in self.stages:
            lines += ["    " + line for line in str(stage).splitlines()]
        return "\n".join(lines)


Step = Kernel | ExternKernel | MultiOutput


@dataclass(frozen=True, slots=True, eq=False)
class Schedule:
    """Steps in order of execution. refusals: (buffer, buffer, why they were not fused)."""

    steps: tuple[Step, ...]
    refusals: tuple[tuple[str, str, str], ...] = ()

    def kernels(self) -> Iterator[Kernel]:
        return (step for step in self.steps if isinstance(step, Kernel))

    def __str__(self) -> str:
        lines = []
        for step in self.steps:
            if isinstance(step, Kernel):
                lines.append(str(step))
            elif isinstance(step, ExternKernel):
                lines.append(f"{step.name} = {step.target}({', '.join(step.reads())})")
        return "\n".join(lines)


def outer_variables(outer: tuple[int, ...]) -> tuple[Index, ...]:
    """The index of each outer loop (constant 0 for an extent of 1)."""
    return tuple(variable(f"o{n}", extent) for n, extent in enumerate(outer))


def local_position(stage: LoopBody) -> Index:
    """Row-major position of the current (i, r) in the stage's own loops."""
    total = constant(0)
    loops = [(f"i{n}", size) for n, size in enumerate(stage.ranges)]
    loops += [(f"r{n}", size) for n, size in enumerate(stage.reduction_ranges)]
    for name, size in loops:
        total = total * size + variable(name, size)
    return total
