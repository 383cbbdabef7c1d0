"""Computes values of locals again instead of keeping them.

In: a kernel. Out: the same without those locals of one element for each iteration whose values
are cheap to compute at the place where they are wanted: from few loads, and without reductions of
their own stage. Where such a local cannot stay in registers, this replaces a trip through global
memory. What something is decided by is recomputed only where that gives the same bits.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from inductor.codegen.triton.launch import positions
from inductor.codegen.triton.numbers import is_one
from inductor.ir.body import OF_ROWS, IndirectVar, LoopBody, Op
from inductor.ir.index import Index, constant
from inductor.ir.loop_repeats import decides_by_buffer, is_exact
from inductor.scheduler.assemble import drop_dead
from inductor.scheduler.schedule import Kernel, Local, local_position

# Of a value, so that making it again costs less than the two passes over memory that it saves; more
# loads cost as much as these. Both are chosen, not measured.
MOST_LOADS = 3
MOST_OPS = 40


def hand_on_row_values(kernel: Kernel) -> Kernel:
    """The kernel with a local for each value that a stage stores once for each row, for readers
    outside too: later stages read the local."""
    for name in kernel.writes():
        kernel = _handed_on(kernel, name)
    return kernel


def _handed_on(kernel: Kernel, name: str) -> Kernel:
    stores = [(at, op) for at, stage in enumerate(kernel.stages) for op in stage.stores()
              if op.buffer == name]  # fmt: skip
    loads = [(at, op) for at, stage in enumerate(kernel.stages) for op in stage.loads()
             if op.buffer == name]  # fmt: skip
    if len(stores) != 1 or not loads:
        return kernel
    first, store = stores[0]
    once = all(map(is_one, kernel.stages[first].ranges))
    if not once or store.imm != "set" or not _is_of_row(store.index):
        return kernel
    for at, load in loads:
        same = (load.index, load.args, load.dtype) == (store.index, (), store.dtype)
        if at <= first or not same:
            return kernel
    local = Local(f"{name}_row", store.dtype, 1)
    stages = []
    for at, stage in enumerate(kernel.stages):
        ops = [
            replace(op, buffer=local.name, index=constant(0))
            if op.name == "load" and op.buffer == name else op
            for op in stage.ops
        ]
        if at == first:
            ops.append(replace(store, buffer=local.name, index=constant(0)))
        stages.append(LoopBody(stage.ranges, stage.reduction_ranges, tuple(ops)))
    return replace(kernel, stages=tuple(stages), locals=(*kernel.locals, local))


def _is_of_row(index: Index | None) -> bool:
    return index is not None and all(var.name.startswith("o") for var in index.variables())


def recompute_locals(kernel: Kernel) -> Kernel:
    """The kernel with cheap locals computed where they are loaded."""
    for local in kernel.locals:
        if not is_one(local.elements):
            kernel = _without(kernel, local.name)
    return kernel


def _without(kernel: Kernel, name: str) -> Kernel:
    stores = [
        (stage, op) for stage in kernel.stages for op in stage.ops
        if op.name == "store" and op.buffer == name
    ]
    if len(stores) != 1:
        return kernel
    producer, store = stores[0]
    if store.imm != "set" or store.index != local_position(producer):
        return kernel
    chain = _chain(kernel, producer, store.args[0])
    readers = [s for s in kernel.stages if any(op.buffer == name for op in s.loads())]
    if chain is None or producer in readers or any(not _fits(r, name) for r in readers):
        return kernel
    if not is_exact(producer.ops, store.args[0]) and decides_by_buffer(kernel.stages, name):
        return kernel
    stages = []
    for stage in kernel.stages:
        if stage is producer:
            ops = drop_dead([nothing(op) if op is store else op for op in stage.ops])
            stages.append(LoopBody(stage.ranges, stage.reduction_ranges, ops))
        elif stage in readers:
            stages.append(_inlined(stage, name, producer, chain))
        else:
            stages.append(stage)
    return replace(
        kernel, stages=tuple(stage for stage in stages if stage.ops),
        locals=tuple(local for local in kernel.locals if local.name != name),
    )


def nothing(op: Op) -> Op:
    """In the place of an op that goes, so that others keep their positions."""
    return Op("constant", (), op.dtype, imm=_zero(op))


def _fits(reader: LoopBody, name: str) -> bool:
    place = local_position(reader)
    return all(op.index == place for op in reader.loads() if op.buffer == name)


def _chain(kernel: Kernel, stage: LoopBody, value: int) -> list[int] | None:
    """Positions of the ops that compute a value; None if it is not to be recomputed."""
    needed = {value}
    for position in range(value, -1, -1):
        if position in needed:
            needed.update(stage.ops[position].args)
    chain = sorted(needed)
    ops = [stage.ops[position] for position in chain]
    written = set(kernel.writes())
    loads = [op for op in ops if op.name == "load"]
    if any(op.name in ("reduction", *OF_ROWS) or isinstance(op.imm, IndirectVar) for op in ops):
        return None
    if any(op.buffer in written for op in loads) or len(ops) > MOST_OPS:
        return None
    known = {f"i{n}" for n in range(len(stage.ranges))}
    known |= {f"r{n}" for n in range(len(stage.reduction_ranges))}
    known |= {f"o{n}" for n in range(len(kernel.outer))}
    for op in ops:
        if op.index is not None and not {v.name for v in op.index.variables()} <= known:
            return None
    many = {local.name for local in kernel.locals if local.elements == 1}
    return chain if sum(op.buffer not in many for op in loads) <= MOST_LOADS else None


def _inlined(reader: LoopBody, name: str, producer: LoopBody, chain: list[int]) -> LoopBody:
    """The reader with the ops of the chain in front, over its own loops."""
    values = _values_of(producer, local_position(reader))
    ops: list[Op] = []
    at: dict[int, int] = {}
    for position in chain:
        op = producer.ops[position]
        index = None if op.index is None else op.index.substitute(values)
        at[position] = len(ops)
        ops.append(replace(op, args=tuple(at[arg] for arg in op.args), index=index))
    result = at[chain[-1]]
    moved: dict[int, int] = {}
    for position, op in enumerate(reader.ops):
        args = tuple(moved[arg] for arg in op.args)
        if op.name == "load" and op.buffer == name and not args:
            moved[position] = result
            continue
        if op.name == "load" and op.buffer == name:
            zero = Op("constant", (), op.dtype, imm=_zero(op))
            ops.append(zero)
            op, args = Op("where", (), op.dtype), (*args, result, len(ops) - 1)
        moved[position] = len(ops)
        ops.append(replace(op, args=args))
    return LoopBody(reader.ranges, reader.reduction_ranges, tuple(ops))


def _zero(op: Op) -> bool | int | float:
    if op.dtype.is_floating_point:
        return 0.0
    return False if op.dtype is torch.bool else 0


def _values_of(producer: LoopBody, position: Index) -> dict[str, Index]:
    """The producer's loop variables at a position of the local."""
    names = [f"i{n}" for n in range(len(producer.ranges))]
    names += [f"r{n}" for n in range(len(producer.reduction_ranges))]
    extents = (*producer.ranges, *producer.reduction_ranges)
    return dict(zip(names, positions(extents, position), strict=True))
