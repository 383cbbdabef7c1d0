"""What every step reads has been written: checked before any code is generated.

In: a loop graph and the steps of its schedule. Out: nothing, or VerifyError. All kernels with all
their loads, stores and locals are known here, and what was decided before (fusion, which values are
handed on in registers, which stages were cut) has to agree in them:

- a step reads inputs, constants and what earlier steps have written;
- a later stage of a kernel reads of what an earlier one has stored only its own row, of a local
  only its own place; no stage reads what it stores itself;
- what is read, outputs too, has got all of its elements, which several kernels may have stored.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from dynamo.base.errors import VerifyError
from inductor.ir.body import LoopBody, Op
from inductor.ir.extent import divide_out, hint_of, surely_less
from inductor.ir.graph import ExternKernel, Layout, LoopGraph, ViewRef
from inductor.scheduler.domain import flat_position, loop_names, product
from inductor.scheduler.schedule import (
    Generated,
    Kernel,
    Local,
    Step,
    local_position,
)


def verify_steps(graph: LoopGraph, steps: Sequence[Step]) -> None:
    """Raise VerifyError unless each step reads only what has been written before it.

    That the parts of a buffer make up the whole is an assumption where it can't be proved.
    """
    written = {b.name for b in graph.inputs if b is not None} | {b.name for b in graph.constants}
    found = _Written(graph.layouts(), written)
    for step in steps:
        if isinstance(step, Kernel):
            found.need(step.name, _wanted(step))
            for name, count in _Checker(step, found.layouts, written).run().items():
                found.add(name, count)
        elif isinstance(step, Generated):
            found.need(step.name, step.reads())
            written.update(step.writes())
        else:
            mutated = step.mutates if isinstance(step, ExternKernel) else ()
            found.need(step.name, (*step.reads(), *mutated))
            written.add(step.name)
    found.need("the caller", [o.buffer for o in graph.outputs if isinstance(o, ViewRef)])


@dataclass(slots=True)
class _Written:
    """whole: names of buffers that are written; parts: elements of those that kernels write."""

    layouts: Mapping[str, Layout]
    whole: set[str]
    parts: dict[str, int] = field(default_factory=dict)

    def add(self, name: str, count: int) -> None:
        """A kernel has stored into so many places of the buffer."""
        count = self.parts[name] = self.parts.get(name, 0) + count
        if count == _elements(self.layouts[name]):
            self.whole.add(name)

    def need(self, reader: str, names: Iterable[str]) -> None:
        for name in names:
            if name in self.whole:
                continue
            count = self.parts.get(name, 0)
            if name not in self.parts or not _are_equal(count, _elements(self.layouts[name])):
                raise VerifyError(f"{reader} reads {name}, of which {count} elements are written")
            self.whole.add(name)


def _are_equal(count: int, whole: int) -> bool:
    part = count - whole
    return hint_of(part) == 0 and not part


def _wanted(kernel: Kernel) -> Iterator[str]:
    """What earlier steps must have written: what it reads, or changes here and there."""
    for stage in kernel.stages:
        for op in stage.ops:
            if op.name == "load" and op.buffer not in kernel.nodes:
                yield op.buffer
            elif op.name == "store" and (op.imm != "set" or is_scattered(op)):
                yield op.buffer


def is_scattered(store: Op) -> bool:
    """Whether its place is found in data."""
    assert store.index is not None
    return any(var.name.startswith("t") for var in store.index.variables())


class _Checker:
    """The stages of one kernel, in order. stored: the stores so far, by name."""

    def __init__(self, kernel: Kernel, layouts: Mapping[str, Layout], written: set[str]) -> None:
        self.kernel = kernel
        self.layouts = layouts
        self.written = written
        self.locals = {local.name: local for local in kernel.locals}
        self.stored: dict[str, list[Op]] = {}

    def run(self) -> dict[str, int]:
        """How many elements of buffers that are not written yet it stores."""
        kernel = self.kernel
        for stage in kernel.stages:
            if 0 not in (*kernel.outer, *stage.ranges, *stage.reduction_ranges):
                stores = {op.buffer: op for op in stage.stores()}
                for op in stage.loads():
                    self._load(stage, op, stores.get(op.buffer))
            for op in stage.stores():
                if op.buffer in self.locals:
                    self._is_own_place(stage, op, self.locals[op.buffer])
                self.stored.setdefault(op.buffer, []).append(op)
        return {
            name: sum(map(_places, stored))
            for name, stored in self.stored.items()
            if name not in self.locals and name not in self.written
        }

    def _load(self, stage: LoopBody, op: Op, store: Op | None) -> None:
        name = op.buffer
        stored = self.stored.get(name, [])
        if name in self.written:
            own = None if store is None else store.index
            if (stored or store is not None) and op.index != own:
                raise self._error(op, "reads what another iteration overwrites")
        elif store is not None:
            raise self._error(op, "reads what the same loop stores")
        elif not stored:
            raise self._error(op, "reads what nothing has written")
        elif name in self.locals:
            self._is_own_place(stage, op, self.locals[name])
        else:
            for other in (*stored, op):
                self._is_own_row(other)
            if not _are_equal(sum(map(_places, stored)), _elements(self.layouts[name])):
                raise self._error(op, "reads what is stored in part only")

    def _is_own_place(self, stage: LoopBody, op: Op, local: Local) -> None:
        if local.elements == 1:
            good = op.index == 0
        else:
            size = product(stage.ranges) * product(stage.reduction_ranges)
            good = size == local.elements and op.index == local_position(stage)
        if not good:
            raise self._error(op, f"is not at its own place of {local.elements}")

    def _is_own_row(self, op: Op) -> None:
        outer = self.kernel.outer
        size, rest = divide_out(_elements(self.layouts[op.buffer]), product(outer))
        row = flat_position(loop_names("o", outer), outer)
        assert op.index is not None
        column = op.index - row * size
        if rest != 0 or not (surely_less(-1, column.low) and surely_less(column.high, size)):
            raise self._error(op, f"is not in its own row of {size}")

    def _error(self, op: Op, what: str) -> VerifyError:
        return VerifyError(f"{self.kernel.name}: {op} {what}")


def _elements(layout: Layout) -> int:
    """How many different elements a tensor has."""
    steps = zip(layout.size, layout.stride, strict=True)
    return product([size for size, step in steps if step != 0])


def _places(store: Op) -> int:
    """How many different places it stores at, in all iterations."""
    assert store.index is not None
    return product([var.size for var in store.index.variables()])
