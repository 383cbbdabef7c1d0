"""Which computed buffers share a kernel.

In: a loop graph. Out: groups of nodes in an order in which they can run, and why neighbours were
not fused. Every buffer's elements are computed in the order in which they lie in memory, so that a
position in memory says at which iteration a value was made. A kernel runs `rows` independent outer
iterations; a node with n iterations does n / rows of them in each. A reader may join its producer's
kernel where, in each row, it only reads what the same row computes.

Vertical fusion first (along values, in program order), then horizontal (nodes that read the same).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from dynamo.base.errors import VerifyError
from inductor.ir.body import LONGEST_SCAN, Op
from inductor.ir.extent import divides, hint_of, surely_less
from inductor.ir.graph import ComputedBuffer, InputBuffer, LoopGraph, Node
from inductor.ir.index import Index, constant, floordiv
from inductor.runtime.gpu_properties import properties_of
from inductor.scheduler.dependencies import Dependencies, find_dependencies
from inductor.scheduler.domain import flat_position, is_column, loop_names, merged_loops, product
from inductor.scheduler.windows import are_apart

MOST_OPS = 400  # of a kernel; chosen, not measured
# A value that is handed on in a register saves memory traffic; g++ needs a second for such a loop.
MOST_OPS_OF_A_CHAIN = 2000
# Chosen, not measured: pointers of a kernel; rows so short that a loop for each costs more than it
# saves; rows too few for the threads, where they are so long; values of one element that make a
# list, as norms of all gradients do.
MOST_BUFFERS = 48
SHORTEST_ROW = 8
FEW_ROWS = 8
LONG_ROW = 4096
MANY_SCALARS = 8
SHORT_COLUMN = 64  # rows over which a program of a GPU holds all that it reduces
# Shorter columns, and so many, are not split over programs (`codegen.triton.split`); the second is
# chosen, not measured.
FEWEST_SPLIT, ROWS_ENOUGH = 256, 1 << 17
# On a GPU, a program goes along a row. What it reads across comes in 32 bytes for each element,
# and again where a row is larger than the cache of a multiprocessor: SiLU's gradient with its
# maximum, beside float8 numbers of SiLU in another order, took 580 us for 4096 x 8192; apart, a
# step with two of them takes 3.99 ms for 4.77 (H200). Both limits are chosen, and were not measured
# elsewhere.
PART_READ_ACROSS = 2  # of the cache of a multiprocessor: half of it, 128 KiB on an H200
SHORTEST_ACROSS = 32  # elements that a tile can read side by side
# Rows between neighbours in memory, of which each comes in 32 bytes; and elements. A transposed
# addend of 4 million in rows of 64, beside sums of them, took 66 us on an H200 (apart, 32 in
# another compiler); the limits are chosen, not measured.
FAR_ROWS, MANY_ACROSS = 8, 1 << 20
LONG_ACROSS = 1024  # elements of a row of which no tile has eight; chosen, not measured
LARGE_RESULT = 128 << 20  # bytes of what should not be held for a kernel's sake; not measured
# Bytes of results, each of which takes longer than a launch; and by how much they are larger than
# all that two kernels have in common, so that as one they gain little. Both chosen, not measured.
LARGE_BESIDE, LITTLE_IN_COMMON = 32 << 20, 8
# Bytes that two members of lists read both: chosen to take longer than a launch (8 us on an H200,
# more where memory is slower); other limits were not measured.
MUCH_IN_COMMON = 32 << 20
# Rows for each of which a number is computed, and elements of each: fewer rows are worth no kernel
# of their own, and threads of longer ones have enough to do. Both chosen, not measured.
MANY_NUMBERS, SHORT_ROW = 1 << 16, 512
MANY_READERS = 8  # of a value of one element, for each of which it is computed; not measured


@dataclass(slots=True)
class Group:
    """Nodes of one kernel, by position in the graph. rows: None while any number would do."""

    members: list[int]
    rows: int | None
    iterations: int
    column: bool = False


class Facts:
    """What fusion asks about one computed node, worked out once."""

    __slots__ = ("column", "dense", "flat", "iterations", "node", "of_rows", "rows", "width")

    def __init__(self, node: ComputedBuffer) -> None:
        body = node.body
        self.node = node
        self.rows = product(body.ranges) if body.reduction_ranges else None
        self.width = product(body.reduction_ranges) if body.reduction_ranges else 1
        outer = flat_position(loop_names("i", body.ranges), body.ranges)
        inner = flat_position(loop_names("r", body.reduction_ranges), body.reduction_ranges)
        self.iterations = product(body.ranges) * self.width
        self.flat: Index = outer * self.width + inner
        self.of_rows = body.is_of_rows()
        if self.of_rows:
            self.dense = _stores_in_order(node, self.flat, self.iterations)
        else:
            self.dense = _stores_in_order(node, outer, product(body.ranges))
        self.column = bool(body.reduction_ranges) and is_column(body)


def _bytes_of(node: Node | InputBuffer) -> int:
    """Bytes of what a node makes; 0 where that is nothing, or not known."""
    layout = getattr(node, "layout", None)
    count = 0 if layout is None else layout.numel()
    return count * layout.dtype.itemsize if type(count) is int and layout is not None else 0


def _stores_in_order(node: ComputedBuffer, position: Index, count: int) -> bool:
    """Whether iteration (row) number n of `count` writes element n of the buffer, and all are
    written.

    A node that overwrites an input may be such a one: whoever reads the old or the new contents
    stays in another kernel (`Dependencies.values` leaves out what is written in place).
    """
    stores = list(node.body.stores())
    return (
        len(stores) == 1
        and stores[0].imm == "set"
        and stores[0].index == position
        and node.layout.numel() == count
    )


def _reads_across(op: Op, ranges: Sequence[int], width: int, most: int) -> bool:
    """Whether a load goes over more than `most` bytes in a row of `width` iterations, along
    another loop of the row than its innermost one."""
    if op.index is None or width * op.dtype.itemsize <= most:
        return False
    *outer, inner = loop_names("i", ranges) or ("",)
    if abs(op.index.step_of(inner) or 0) <= 1:
        return False
    return any(
        op.index.step_of(name) == 1 and hint_of(ranges[at]) >= SHORTEST_ACROSS
        and hint_of(product(ranges[at:])) <= width
        for at, name in enumerate(outer)
    )


def _reads_far_rows(op: Op, ranges: Sequence[int], width: int) -> bool:
    """Whether neighbours of what a load reads belong to rows of `width` iterations that no tile of
    rows has together: far from each other, or long."""
    *outer, inner = loop_names("i", ranges) or ("",)
    if op.index is None or abs(op.index.step_of(inner) or 0) <= 1:
        return False
    apart = width if width >= LONG_ACROSS else FAR_ROWS * width
    return any(
        op.index.step_of(name) == 1 and hint_of(ranges[at]) >= FAR_ROWS
        and hint_of(product(ranges[at + 1 :])) >= apart
        for at, name in enumerate(outer)
    )


@dataclass(frozen=True, slots=True, eq=False)
class Fused:
    """nodes: with merged loops; groups in order of execution; refusals: (buffer, buffer, why)."""

    nodes: tuple[Node, ...]
    groups: tuple[tuple[int, ...], ...]
    rows: tuple[int | None, ...]
    refusals: tuple[tuple[str, str, str], ...]
    dependencies: Dependencies


def fuse(graph: LoopGraph, threads: int, share: bool = True) -> Fused:
    """Partition the nodes of a graph into kernels; without `share`, each has its own."""
    return _Fuser(graph, threads).run(share)


class _Fuser:
    def __init__(self, graph: LoopGraph, threads: int) -> None:
        self.threads = threads
        self.on_gpu = graph.device.type != "cpu"
        self.most_across = properties_of(graph.device).near_cache // PART_READ_ACROSS
        self.nodes: list[Node] = [
            merged_loops(node) if isinstance(node, ComputedBuffer) else node for node in graph.nodes
        ]
        self.dependencies = find_dependencies(graph)
        self.facts = {
            position: Facts(node)
            for position, node in enumerate(self.nodes)
            if isinstance(node, ComputedBuffer)
        }
        # Of what the graph makes; sizes that are not known count as small.
        self.large = {
            node.name for node in self.nodes if self.on_gpu and _bytes_of(node) >= LARGE_RESULT}
        self.bytes = {} if not self.on_gpu else {
            node.name: _bytes_of(node) for node in (*graph.inputs, *self.nodes) if node is not None}
        self.group_of: list[Group] = []
        for position in range(len(self.nodes)):
            facts = self.facts.get(position)
            if facts is None:
                self.group_of.append(Group([position], None, 0))
            else:
                rows = facts.rows
                self.group_of.append(Group([position], rows, facts.iterations, facts.column))
        # For each position the last node of all groups that begin there or before.
        self.farthest = list(range(len(self.nodes)))
        self.refusals: dict[tuple[str, str], str] = {}
        readers = Counter(name for facts in self.facts.values() for name in facts.node.reads())
        # Of these, many nodes read one element.
        self.single = {
            op.buffer for facts in self.facts.values() for op in facts.node.body.loads()
            if self.on_gpu and readers[op.buffer] > MANY_READERS
            and op.index is not None and op.index.is_constant
        }  # fmt: skip
        scalars = sum(facts.iterations == facts.width for facts in self.facts.values())
        # What is done with each tensor of a list: see `scheduler/lists.py`.
        self.has_lists = bool(self.single) or self.on_gpu and scalars >= MANY_SCALARS
        self.lone = self._isolated_reductions() if self.has_lists else frozenset()

    def _isolated_reductions(self) -> frozenset[int]:
        """Reductions to one value that are no part of a list: few others lie as deep among such.

        A list has many that need nothing of each other (the norm of each gradient); the norms of a
        decoder's layers for one token come after each other, and none waits for company.
        """
        depth: list[int] = []
        found: dict[int, list[int]] = {}
        for position, before in enumerate(self.dependencies.before):
            facts = self.facts.get(position)
            reduces = facts is not None and facts.rows == 1
            depth.append(max((depth[other] for other in before), default=0) + reduces)
            if reduces:
                found.setdefault(depth[position], []).append(position)
        return frozenset(p for level in found.values() if len(level) < MANY_SCALARS for p in level)

    def run(self, share: bool) -> Fused:
        if share:
            self._join()
        groups = self._ordered()
        return Fused(
            tuple(self.nodes),
            tuple(tuple(group.members) for group in groups),
            tuple(group.rows for group in groups),
            tuple((a, b, why) for (a, b), why in self.refusals.items()),
            self.dependencies,
        )

    def _join(self) -> None:
        for position in self.facts:
            for producer in sorted(set(self.dependencies.values[position].values()), reverse=True):
                if producer in self.facts:
                    self._try(self.group_of[producer], self.group_of[position], handed_on=True)
        for left, right in self._sharing():
            self._try(self.group_of[left], self.group_of[right])

    def _sharing(self) -> Iterator[tuple[int, int]]:
        """Pairs of nodes, one after the other, that read the same buffer; those over the outer
        dimension also where others stand between them. What many of them read one element of, and
        nothing else, has nothing in common on a GPU."""
        last: dict[str, int] = {}
        columns: dict[str, int] = {}
        for position, facts in self.facts.items():
            for name in facts.node.reads():
                if name in last and name not in self.single:
                    yield last[name], position
                    if facts.column and columns.get(name, last[name]) != last[name]:
                        yield columns[name], position
                last[name] = position
                if facts.column:
                    columns[name] = position

    def _try(self, first: Group, second: Group, handed_on: bool = False) -> None:
        if first is second:
            return
        why = self._refusal(first, second, handed_on)
        if why:
            pair = (self.nodes[first.members[0]].name, self.nodes[second.members[-1]].name)
            self.refusals[pair] = why
            return
        first.rows = self._rows_of(first, second)
        first.column = first.column or second.column
        first.members = sorted(first.members + second.members)
        self._extend(first.members[0], first.members[-1])
        first.iterations = max(first.iterations, second.iterations, key=hint_of)
        for member in second.members:
            self.group_of[member] = first

    def _extend(self, begin: int, end: int) -> None:
        for position in range(begin, end):
            if self.farthest[position] >= end:
                return
            self.farthest[position] = end

    def _rows_of(self, first: Group, second: Group) -> int | None:
        if first.rows is not None or second.rows is not None:
            return first.rows if first.rows is not None else second.rows
        return None if first.iterations == second.iterations else min(
            first.iterations, second.iterations, key=hint_of
        )

    def _refusal(self, first: Group, second: Group, handed_on: bool) -> str:
        """Why two groups can't be one; empty if they can. handed_on: one reads a value of the
        other."""
        if (first.column or second.column) and not self._share_columns(first, second):
            return "a reduction over the outer dimension"
        if 0 in (first.iterations, second.iterations):
            return "an empty tensor"
        if first.rows is not None and second.rows is not None and first.rows != second.rows:
            return f"{first.rows} and {second.rows} rows"
        rows = self._rows_of(first, second)
        if self.has_lists and rows == 1 and any(
            group.rows is None and group.iterations != 1 for group in (first, second)
        ) and self.lone.isdisjoint(first.members + second.members) and (
            self._in_common(first, second) < MUCH_IN_COMMON
        ):
            return "one result and many elements, each of which stands alone"
        if rows is not None and not self._holds_rows(first.members + second.members, rows):
            return "a scan or a sort of rows that are no tile"
        if rows is not None and not self._reads_once(first, second):
            return "a row that overwrites what it reads would read it twice"
        if rows is not None:
            why = self._row_refusal(first, second, rows) or self._across(first, second, rows)
            if why:
                return why
        if rows is not None and not handed_on and self._are_apart(first, second, rows):
            return "numbers of rows, which elements have hardly anything in common with"
        if self._is_too_large(first.members + second.members, handed_on and rows is None):
            return "the kernel would be too large"
        loose = [member for member in first.members + second.members
                 if not self.facts[member].dense]
        if loose and not self._write_beside(first.members + second.members, loose):
            return f"{self.nodes[loose[0]].name} does not write its elements in order"
        why = self._edge_refusal(first, second, rows) or self._edge_refusal(second, first, rows)
        if why:
            return why
        if self._holds_more(first, second) or not handed_on and self._makes_more(first, second):
            return "large results would wait for each other"
        return "something between them" if self._between(first, second) else ""

    def _holds_rows(self, members: list[int], rows: int) -> bool:
        """Whether a program holds whole rows of all that it does, where something needs that."""
        facts = [self.facts[member] for member in members]
        if not any(one.of_rows for one in facts):
            return True
        if any(one.column or type(one.iterations) is not int for one in facts) or (
                type(rows) is not int):
            return False
        return all(one.iterations <= LONGEST_SCAN * rows for one in facts)

    def _is_too_large(self, members: list[int], is_chain: bool) -> bool:
        """is_chain: each iteration stands alone, and hands a value on in a register."""
        size = sum(len(self.facts[member].node.body.ops) for member in members)
        buffers = {name for member in members for name in self.nodes[member].reads()}
        if self.on_gpu or not is_chain:
            return size > MOST_OPS or len(buffers) > MOST_BUFFERS
        buffers -= {self.nodes[member].name for member in members}
        return size > MOST_OPS_OF_A_CHAIN or len(buffers) > MOST_BUFFERS

    def _holds_more(self, first: Group, second: Group) -> bool:
        """Whether each of two groups on a GPU is the reader of a large result, and they have little
        in common: in one kernel both results would be there at a time."""
        if not self.large:
            return False
        reads = [{name for member in group.members for name in self.nodes[member].reads()}
                 for group in (first, second)]
        made = {self.nodes[member].name for member in first.members + second.members}
        here = [names & self.large - made for names in reads]
        common = (reads[0] | reads[1]) & made | reads[0] & reads[1]
        if here[0] - here[1] and here[1] - here[0]:
            return common.isdisjoint(self.large)
        # A small value, for which the reader of another result would wait.
        return (
            not here[0] and bool(here[1]) and self._is_wanted_elsewhere(first, here[1])
            or not here[1] and bool(here[0]) and self._is_wanted_elsewhere(second, here[0]))

    def _makes_more(self, first: Group, second: Group) -> bool:
        """Whether two groups on a GPU make large results of what they have hardly in common: in one
        kernel both would be there at a time, though one may be read before the other is made."""
        made = [sum(self.bytes.get(name, 0) for name in self._made(group))
                for group in (first, second)]
        if min(made) < LARGE_BESIDE:
            return False
        return self._in_common(first, second) * LITTLE_IN_COMMON < min(made)

    def _in_common(self, first: Group, second: Group) -> int:
        """Bytes of what both groups read, on a GPU."""
        reads = [{name for member in group.members for name in self.nodes[member].reads()}
                 for group in (first, second)]
        return sum(self.bytes.get(name, 0) for name in reads[0] & reads[1])

    def _made(self, group: Group) -> Iterator[str]:
        """What other kernels read of a group."""
        for member in group.members:
            if any(user not in group.members for user in self.dependencies.users[member]):
                yield self.nodes[member].name

    def _is_wanted_elsewhere(self, group: Group, results: set[str]) -> bool:
        """Whether a reader of another large result than these reads what the group makes."""
        users = {user for member in group.members for user in self.dependencies.users[member]}
        return any(
            not results.issuperset(self.large.intersection(self.nodes[user].reads()))
            for user in users if user in self.facts)

    def _share_columns(self, first: Group, second: Group) -> bool:
        """On a GPU, reductions over the outer dimension share one pass if none needs another one,
        or if a program holds all that it reads, and what follows for each result comes after it."""
        if not self.on_gpu:
            return False
        rows = first.rows if first.column else second.rows
        members = [self.facts[member] for member in first.members + second.members]
        reducing = [facts for facts in members if facts.rows is not None]
        if any(not facts.column or facts.rows != rows for facts in reducing):
            return False
        if len({facts.width for facts in reducing}) > 1:
            return False
        if any(facts.iterations != rows for facts in members if facts.rows is None):
            return False
        if all(type(facts.width) is int and facts.width <= SHORT_COLUMN for facts in reducing):
            return True
        if self._is_maximum_and_exponentials(reducing, rows):
            return True
        follows: set[int] = set()
        for member in sorted(first.members + second.members):
            late = not self.dependencies.before[member].isdisjoint(follows)
            reduces = self.facts[member].rows is not None
            if late and reduces:
                return False
            if late or reduces:
                follows.add(member)
        return True

    def _is_maximum_and_exponentials(self, reducing: Sequence[Facts], rows: int | None) -> bool:
        """Whether a program takes both in one pass: a maximum, and a sum that may keep it while it
        goes (`codegen.triton.online`); and they need not be split over programs."""
        if len(reducing) != 2 or [one.of_rows for one in reducing] != [False, False]:
            return False
        top, total = reducing
        if top.node.name not in total.node.reads():
            top, total = total, top
        is_short = type(total.width) is int and total.width < FEWEST_SPLIT
        if top.node.name not in total.node.reads() or not (
                is_short or rows is not None and hint_of(rows) >= ROWS_ENOUGH):
            return False
        kinds = [[op.imm for op in one.node.body.ops if op.name == "reduction"]
                 for one in (top, total)]
        return kinds == [["max"], ["sum"]] and any(op.name == "exp" for op in total.node.body.ops)

    def _row_refusal(self, first: Group, second: Group, rows: int) -> str:
        for member in first.members + second.members:
            if not divides(rows, self.facts[member].iterations):
                return f"{self.nodes[member].name} has no {rows} rows"
        longest = hint_of(max(first.iterations, second.iterations, key=hint_of) // rows)
        if first.rows is None and second.rows is None and longest < SHORTEST_ROW:
            return f"rows of {longest} elements are too short"
        few = FEW_ROWS if self.on_gpu else min(FEW_ROWS, self.threads)
        if hint_of(rows) < few and longest > LONG_ROW:
            # One loop nest is split over threads or programs; a second one after it would not be.
            why = f"{rows} long rows would not run in parallel"
            facts = [self.facts[member] for member in first.members + second.members]
            lengths = {one.iterations for one in facts if one.rows is None}
            reduced = {one.iterations for one in facts if one.rows is not None}
            # What is as long as a reduction shares its loop, which is a kernel of its own on a GPU.
            if len(lengths) > 1 and not (self.on_gpu and lengths <= reduced):
                return why
            inside = set(first.members)
            for member in second.members:
                for producer in self.dependencies.values[member].values():
                    if producer in inside and self.facts[producer].rows is not None:
                        return why
        return ""

    def _across(self, first: Group, second: Group, rows: int) -> str:
        """Refuses what would be read across long rows, and can be read in tiles by itself."""
        if not self.on_gpu:
            return ""
        for member in first.members + second.members:
            facts = self.facts[member]
            width = hint_of(facts.iterations // rows)
            body = facts.node.body
            if facts.rows is None and any(
                _reads_across(op, body.ranges, width, self.most_across) for op in body.loads()
            ):
                return f"{self.nodes[member].name} reads across long rows"
            if facts.rows is None and hint_of(facts.iterations) >= MANY_ACROSS and any(
                _reads_far_rows(op, body.ranges, width) for op in body.loads()
            ):
                return f"{self.nodes[member].name} reads across rows that are far from each other"
        return ""

    def _are_apart(self, first: Group, second: Group, rows: int) -> bool:
        """Whether one group on a GPU computes a number for each of many short rows, and the other,
        which needs none of them, elements: threads that share a row would all compute its
        number."""
        if not self.on_gpu or first.rows is not None or second.rows is not None:
            return False
        low, high = sorted((first, second), key=lambda group: hint_of(group.iterations))
        width = hint_of(high.iterations) // max(hint_of(rows), 1)
        if hint_of(rows) < MANY_NUMBERS or not 1 < width <= SHORT_ROW:
            return False
        if any(producer in group.members for group, other in ((first, second), (second, first))
               for member in other.members
               for producer in self.dependencies.values[member].values()):
            return False
        read = {name for member in low.members for name in self.nodes[member].reads()}
        return 2 * self._in_common(first, second) < sum(self.bytes.get(name, 0) for name in read)

    def _edge_refusal(self, first: Group, second: Group, rows: int | None) -> str:
        """Check what members of `second` read from members of `first`."""
        inside = set(first.members)
        for member in second.members:
            values = self.dependencies.values[member]
            for other in self.dependencies.before[member] & inside:
                if not self._may_share(other, member):
                    return f"{self.nodes[member].name} writes what {self.nodes[other].name} uses"
            for name, producer in values.items():
                if producer in inside and not self._in_row(producer, member, name, rows):
                    return f"{self.nodes[member].name} reads other rows of {name}"
        return ""

    def _may_share(self, other: int, member: int) -> bool:
        """Whether a node may share a kernel with one that must run before it: for a value that is
        handed on, as each iteration overwrites what the same one has read, or as they write parts
        of a buffer beside each other."""
        if self._write_beside([other, member], [other, member]):
            return True
        if other not in self.dependencies.old[member]:
            return other in self.dependencies.values[member].values()
        before, writer = self.facts[other], self.facts[member]
        overwritten = writer.node.mutates
        if overwritten in self.dependencies.viewed:
            return False
        if before.node.mutates in (overwritten, *writer.node.reads()):
            return False
        if self.on_gpu and not self._waits(other, member):
            return False
        return before.iterations == writer.iterations and all(
            op.index == before.flat
            for op in before.node.body.loads()
            if op.buffer == overwritten
        )

    def _write_beside(self, members: list[int], parts: list[int]) -> bool:
        """Whether nodes on a GPU may share a kernel though some of them write parts of buffers."""
        written = [self.facts[member].node for member in parts]
        stored = {op.buffer for node in written for op in node.body.stores()}
        return self.on_gpu and stored.isdisjoint(self.dependencies.viewed) and are_apart(
            [self.facts[member].node for member in members], written)

    def _waits(self, other: int, member: int) -> bool:
        """Whether no thread stores what another one has still to load. Threads share an iteration,
        but there is one load in it, which all that is stored there is computed from."""
        before, overwritten = self.facts[other], self.facts[member].node.mutates
        if before.rows is not None or any(
            op.args for op in before.node.body.loads() if op.buffer == overwritten
        ):
            return False
        work = [member]
        while work:
            position = work.pop()
            facts, values = self.facts[position], self.dependencies.values[position]
            for op in facts.node.body.loads():  # dead ones are gone
                if op.buffer == overwritten and op.index == facts.flat and not op.args:
                    return True
                if op.buffer in values and values[op.buffer] in self.facts:
                    work.append(values[op.buffer])
        return False

    def _reads_once(self, first: Group, second: Group) -> bool:
        """Whether what a row overwrites on a GPU is loaded by one node alone, from which the new
        value comes (`_waits`): another one may load it later in the row, in other threads."""
        if not self.on_gpu:
            return True
        members = {*first.members, *second.members}
        return all(len(self.dependencies.old[member] & members) <= 1 for member in members)

    def _in_row(self, producer: int, reader: int, name: str, rows: int | None) -> bool:
        made, used = self.facts[producer], self.facts[reader]
        per_row = 1 if rows is None else made.node.layout.numel() // rows
        width = 1 if rows is None else used.iterations // rows
        row = floordiv(used.flat, width)
        for op in used.node.body.loads():
            if op.buffer != name:
                continue
            assert op.index is not None
            if made.of_rows and per_row == width and op.index == used.flat:
                continue
            in_row = op.index - row * per_row
            if per_row != 1 and made.rows is not None and not made.of_rows:
                return False
            if per_row == width and op.index == used.flat:
                continue  # one element for each iteration, in loops that may be merged over rows
            if per_row == 1 and in_row != constant(0):
                return False
            if not (surely_less(-1, in_row.low) and surely_less(in_row.high, per_row)):
                return False
        return True

    def _between(self, first: Group, second: Group) -> bool:
        """Whether a node outside of both must run after one and before the other."""
        inside = set(first.members) | set(second.members)
        last = self._reached_from(max(inside))
        todo = [u for m in inside for u in self.dependencies.users[m] if u not in inside]
        seen: set[int] = set()
        while todo:
            position = todo.pop()
            group = self.group_of[position]
            if position in seen or group.members[0] > last:
                continue
            for member in group.members:
                seen.add(member)
            for member in group.members:
                for user in self.dependencies.users[member]:
                    if user in inside:
                        return True
                    if user not in seen:
                        todo.append(user)
        return False

    def _reached_from(self, position: int) -> int:
        """From which no group behind it leads back to `position`: all nodes of a group that begins
        later are later, and so are those of all groups that they lead to."""
        while self.farthest[position] > position:
            position = self.farthest[position]
        return position

    def _ordered(self) -> list[Group]:
        """Groups in an order that respects all dependencies, close to the program's."""
        done: set[int] = set()
        order: list[Group] = []
        begun: set[int] = set()

        def visit(start: Group) -> None:
            stack = [start]
            begun.add(start.members[0])
            while stack:
                group = stack[-1]
                if group.members[0] in done:
                    stack.pop()
                    continue
                waiting = [
                    self.group_of[other]
                    for member in group.members
                    for other in sorted(self.dependencies.before[member])
                    if other not in done and self.group_of[other] is not group
                ]
                if waiting:
                    first = waiting[0].members[0]
                    if first in begun:
                        raise VerifyError(f"{self.nodes[first].name}'s kernel waits for itself")
                    begun.add(first)
                    stack.append(waiting[0])
                else:
                    done.update(group.members)
                    order.append(group)
                    stack.pop()

        for position in range(len(self.nodes)):
            visit(self.group_of[position])
        return order
