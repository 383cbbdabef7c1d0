"""From groups of nodes to kernels: common loops, values handed on instead of memory, locals.

In: nodes of one group, in program order. Out: a `Kernel`. Nodes that may share a loop become one
stage; a value that only readers in the same loop want is not stored; one that later stages want at
the same place becomes a local.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from inductor.ir.body import IndirectVar, LoopBody, Op
from inductor.ir.extent import divides, hint_of
from inductor.ir.graph import ComputedBuffer, joined_origins
from inductor.ir.index import Index, Var, constant, variable
from inductor.ir.loop_repeats import finds_places, is_exact
from inductor.scheduler.domain import (
    boundaries,
    flat_position,
    is_column,
    loop_names,
    product,
    sizes_between,
    substituted,
    unflatten,
)
from inductor.scheduler.schedule import Kernel, Local, local_position


@dataclass(slots=True)
class Part:
    """Nodes that share one loop: `width` iterations in each row."""

    width: int
    nodes: list[ComputedBuffer] = field(default_factory=list)

    @property
    def reduces(self) -> bool:
        return any(node.body.reduction_ranges for node in self.nodes)


def assemble(
    name: str, nodes: Sequence[ComputedBuffer], rows: int | None, needed: frozenset[str]
) -> Kernel:
    """The kernel of a group. needed: buffers that somebody outside of the group reads."""
    if len(nodes) == 1:
        return _single(name, nodes[0])
    total = rows if rows is not None else product(nodes[0].body.ranges)
    if rows is None:
        return _flat_kernel(name, nodes, total, needed)
    parts = _parts(nodes, rows)
    outer = _outer_sizes(nodes, rows)
    return _Assembler(name, outer, parts, needed).run()


def _single(name: str, node: ComputedBuffer) -> Kernel:
    """One node: its outer loops outside, its last loop inside where that is the contiguous one."""
    body = node.body
    inner = 0 if body.reduction_ranges and not is_column(body) else min(1, len(body.ranges))
    if any(op.imm == "add" for op in body.stores()):
        inner = len(body.ranges)  # iterations meet: they are not independent
    cut = len(body.ranges) - inner
    outer, own = body.ranges[:cut], body.ranges[cut:]
    names = {f"i{n}": variable(f"o{n}", size) for n, size in enumerate(outer)}
    names.update({f"i{cut + n}": variable(f"i{n}", size) for n, size in enumerate(own)})
    stage = LoopBody(own, body.reduction_ranges, tuple(substituted(body, names)))
    return Kernel(name, outer, (stage,), (), (node.name,), node.origins)


def _flat_kernel(
    name: str, nodes: Sequence[ComputedBuffer], total: int, needed: frozenset[str]
) -> Kernel:
    """Pointwise nodes over the same flat domain: the last loop inside, the others outside."""
    steps = {step for node in nodes for step in boundaries(node.body.ranges)}
    sizes = sizes_between(list(steps), total)
    width = sizes[-1] if sizes else 1
    part = Part(width, list(nodes))
    return _Assembler(name, sizes[:-1], [part], needed).run()


def _parts(nodes: Sequence[ComputedBuffer], rows: int) -> list[Part]:
    """Nodes by stage: a node stands in the earliest loop of its width behind what it reads, and
    behind (or in the loop of) those that read what it overwrites. unsure: nodes whose values may
    have other bits in another loop."""
    unsure: set[str] = set()
    stage_of: dict[str, int] = {}
    parts: dict[tuple[int, int], Part] = {}
    by_name = {node.name: node for node in nodes}
    for node in nodes:
        body = node.body
        width = product(body.ranges) * product(body.reduction_ranges) // rows
        stage = 0
        apart = _recomputed_comparisons(node, unsure)
        for name in node.reads():
            if name not in by_name:
                continue
            made = by_name[name]
            made_width = product(made.body.ranges) // rows
            same_loop = (
                not made.body.reduction_ranges
                and made_width == width
                and _reads_in_place(node, made)
                and name not in apart
            )
            stage = max(stage, stage_of[name] + (0 if same_loop else 1))
        if node.mutates:
            old = [stage_of[name] for name in stage_of if node.mutates in by_name[name].reads()]
            stage = max(stage, *old, 0)
        stage_of[node.name] = stage
        near = {name for name in unsure if stage_of[name] == stage}
        exact = all(is_exact(body.ops, op.args[0], near) for op in body.stores())
        if not body.reduction_ranges and not exact:
            unsure.add(node.name)
        parts.setdefault((stage, width), Part(width)).nodes.append(node)
    found = [parts[key] for key in sorted(parts, key=lambda key: (key[0], -hint_of(key[1])))]
    return _without_loops_of_copies(found, nodes)


def _without_loops_of_copies(parts: list[Part], nodes: Sequence[ComputedBuffer]) -> list[Part]:
    """A loop of nodes that have to do with no other node joins a later one, as wide, that reads the
    same: a copy of what is added up, say, while that waits for a number of each row."""
    if any(node.mutates for node in nodes):
        return parts
    made = {node.name for node in nodes}
    bound = {name for node in nodes for name in node.reads()}
    left: list[Part] = []
    for at, part in enumerate(parts):
        reads = {name for node in part.nodes for name in node.reads()}
        later = None
        if made.isdisjoint(reads) and all(node.name not in bound for node in part.nodes):
            later = next((one for one in parts[at + 1 :] if one.width == part.width and any(
                not reads.isdisjoint(node.reads()) for node in one.nodes)), None)
        if later is None:
            left.append(part)
        else:
            later.nodes.extend(part.nodes)
    return left


def _recomputed_comparisons(node: ComputedBuffer, unsure: set[str]) -> set[str]:
    """Of these buffers those in which a loop of a CPU finds a place: it computes an element twice,
    and compares (`codegen/cpp/rewrite.py`), so they are stored first."""
    if node.layout.device.type != "cpu":
        return set()
    ops = node.body.ops
    found = [at for at in finds_places(ops) if not is_exact(ops, at, unsure)]
    return unsure.intersection(node.reads()) if found else set()


def _flat(body: LoopBody) -> Index:
    outer = flat_position(loop_names("i", body.ranges), body.ranges)
    inner = flat_position(loop_names("r", body.reduction_ranges), body.reduction_ranges)
    return outer * product(body.reduction_ranges) + inner


def _reads_in_place(node: ComputedBuffer, made: ComputedBuffer) -> bool:
    """Whether the node reads each element of `made` only at the iteration that makes it."""
    flat = _flat(node.body)
    return all(op.index == flat for op in node.body.loads() if op.buffer == made.name)


def _outer_sizes(nodes: Sequence[ComputedBuffer], rows: int) -> tuple[int, ...]:
    """Outer loops that suit every node."""
    steps: set[int] = set()
    for node in nodes:
        body = node.body
        loops = body.ranges + body.reduction_ranges
        width = product(loops) // rows
        steps.update(step // width for step in boundaries(loops) if divides(width, step))
    return sizes_between(list(steps), rows)


class _Assembler:
    """Builds the stages of one kernel."""

    def __init__(
        self, name: str, outer: tuple[int, ...], parts: list[Part], needed: frozenset[str]
    ) -> None:
        self.name = name
        self.outer = outer
        self.rows = product(outer)
        self.parts = parts
        self.needed = needed
        self.row = flat_position(loop_names("o", outer), outer)
        self.made = {node.name: node for part in parts for node in part.nodes}
        self.part_of = {n.name: at for at, part in enumerate(parts) for n in part.nodes}
        self.locals: dict[str, Local] = {}
        # Of a buffer that several nodes write, who reads it reads what the last of them leaves.
        written = {node.mutates for node in self.made.values() if node.mutates}
        self.in_memory = set(needed) | written
        self._choose_places()

    def _choose_places(self) -> None:
        """Values that later stages read at their own place are locals, others need memory."""
        for part in self.parts:
            for node in part.nodes:
                for name in node.reads():
                    if name not in self.made or name in self.needed:
                        continue
                    made = self.made[name]
                    if self.part_of[name] == self.part_of[node.name]:
                        pointwise = not made.body.reduction_ranges
                        if pointwise and _reads_in_place(node, made):
                            continue
                    elements = product(made.body.ranges) // self.rows
                    if made.body.is_of_rows():
                        elements *= product(made.body.reduction_ranges)
                    local = elements == 1 or (
                        elements == part.width and _reads_in_place(node, made)
                    )
                    if local:
                        self.locals[name] = Local(name, made.layout.dtype, elements)
                    else:
                        self.in_memory.add(name)
        for name in self.in_memory:
            self.locals.pop(name, None)

    def run(self) -> Kernel:
        stages = tuple(self._stage(at, part) for at, part in enumerate(self.parts))
        nodes = tuple(self.made)
        return Kernel(
            self.name, self.outer, stages, tuple(self.locals.values()), nodes,
            joined_origins([node.origins for node in self.made.values()]),
        )

    def _stage(self, at: int, part: Part) -> LoopBody:
        steps: set[int] = set()
        for node in part.nodes:
            loops = node.body.ranges + node.body.reduction_ranges
            steps.update(boundaries(loops))
        sizes = sizes_between(list(steps), part.width)
        prefix = "r" if part.reduces else "i"
        shape = LoopBody((), sizes, ()) if part.reduces else LoopBody(sizes, (), ())
        inner = flat_position(loop_names(prefix, sizes), sizes)
        writer = _Writer(self, at, self.row * part.width + inner, local_position(shape))
        for node in part.nodes:
            writer.add(node)
        return replace(shape, ops=drop_dead(writer.ops))


class _Writer:
    """Joins the ops of several nodes into one body; equal ops occur once."""

    def __init__(self, kernel: _Assembler, at: int, flat: Index, place: Index) -> None:
        self.kernel = kernel
        self.at = at
        self.flat = flat
        self.place = place
        self.ops: list[Op] = []
        self.known: dict[object, int] = {}
        self.forward: dict[str, int] = {}
        self.indirect = 0

    def add(self, node: ComputedBuffer) -> None:
        body = node.body
        loops = body.ranges + body.reduction_ranges
        names = loop_names("i", body.ranges) + loop_names("r", body.reduction_ranges)
        values = unflatten(self.flat, names, loops)
        renamed: dict[str, Index] = {}
        where: list[int] = []
        for op in body.ops:
            index = op.index
            if index is not None and index.terms:
                index = index.substitute(values)
                index = index.substitute(renamed) if renamed else index
            args = tuple(where[arg] for arg in op.args)
            where.append(self._put(node, replace(op, args=args, index=index), renamed))

    def _put(self, node: ComputedBuffer, op: Op, renamed: dict[str, Index]) -> int:
        if op.name == "load":
            return self._load(op)
        if op.name == "store":
            return self._store(node, op)
        if isinstance(op.imm, IndirectVar):
            return self._indirect(op, renamed)
        return self._append(op)

    def _append(self, op: Op) -> int:
        key = (op.name, op.args, op.dtype, op.buffer, op.index, repr(op.imm))
        known = self.known.get(key)
        if known is None:
            known = self.known[key] = len(self.ops)
            self.ops.append(op)
        return known

    def _indirect(self, op: Op, renamed: dict[str, Index]) -> int:
        old = op.imm
        assert isinstance(old, IndirectVar)
        key = ("indirect", op.args, old.var.size, old.wrap, old.check, old.error)
        known = self.known.get(key)
        if known is None:
            var = Var(f"t{self.indirect}", old.var.size)
            self.indirect += 1
            known = self.known[key] = len(self.ops)
            self.ops.append(replace(op, imm=replace(old, var=var)))
        new = self.ops[known].imm
        assert isinstance(new, IndirectVar)
        renamed[old.var.name] = variable(new.var.name, new.var.size)
        return known

    def _load(self, op: Op) -> int:
        kernel = self.kernel
        made = kernel.made.get(op.buffer)
        if made is None:
            return self._append(op)
        local = kernel.locals.get(op.buffer)
        # What has no place elsewhere is read where it is made, by whatever name of the index.
        placeless = local is None and op.buffer not in kernel.in_memory
        if op.buffer in self.forward and (placeless or op.index == self.flat):
            return self.forward[op.buffer]
        if local is not None:
            place = constant(0) if local.elements == 1 else self.place
            return self._append(replace(op, index=place))
        return self._append(op)

    def _store(self, node: ComputedBuffer, op: Op) -> int:
        kernel = self.kernel
        if not node.body.reduction_ranges:
            self.forward[node.name] = op.args[0]
        local = kernel.locals.get(node.name)
        if local is not None:
            place = constant(0) if local.elements == 1 else self.place
            op = replace(op, index=place)
        elif not node.mutates and node.name not in kernel.in_memory:
            return -1  # forwarded to all of its readers
        self.ops.append(op)
        return len(self.ops) - 1


def drop_dead(ops: list[Op]) -> tuple[Op, ...]:
    """Ops that no store or checked index needs go."""
    needed: set[int] = set()
    used: set[str] = set()
    for position in range(len(ops) - 1, -1, -1):
        op = ops[position]
        keep = op.name == "store" or position in needed
        if isinstance(op.imm, IndirectVar):
            keep = keep or op.imm.check or op.imm.var.name in used
        if not keep:
            continue
        needed.add(position)
        needed.update(op.args)
        if op.index is not None:
            used.update(var.name for var in op.index.variables())
    place: dict[int, int] = {}
    live: list[Op] = []
    for position, op in enumerate(ops):
        if position in needed:
            place[position] = len(live)
            live.append(replace(op, args=tuple(place[arg] for arg in op.args)))
    return tuple(live)
