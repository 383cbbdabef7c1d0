"""What a schedule holds at most: an order of its steps, and results that are written over operands.

In: a loop graph of known sizes, its schedule for a GPU, and which inputs nothing else holds. Out:
the schedule in an order that holds less (`with_less_held`); which result of a kernel may be written
over an operand that it reads for the last time (`operand_under`).

Lives are those of the generated wrapper: what a step writes is there when it begins, and goes
behind the last step that reads it. A call and the views and items of its result are one storage.
In the new order a step that lets go of more than it makes runs as soon as it can, those that make
least first, and all else as the program has it. Another order is made from the end: what makes more
than it is the first to want runs as late as it can, so that large results, as values that backward
needs, come behind what only passes by. That with the lowest peak is taken, if it is lower.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

import torch

from inductor.collectives.calls import EffectOrder, collective_of, is_wait
from inductor.ir.body import LoopBody
from inductor.ir.extent import Extent, hint_of
from inductor.ir.graph import ExternKernel, Layout, LoopGraph, MultiOutput, ViewRef
from inductor.scheduler.domain import product
from inductor.scheduler.schedule import Generated, Kernel, Schedule, Step
from inductor.scheduler.verify import is_scattered, verify_steps

aten = torch.ops.aten
BLOCK = 512  # bytes; CUDA's allocator gives multiples
# Calls whose result is memory of its own, without gaps.
FRESH = frozenset({
    aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default,
    aten.convolution.default,
})  # fmt: skip


def with_less_held(
    graph: LoopGraph, schedule: Schedule, dying: Iterable[str] = ()
) -> Schedule:
    """The schedule in an order with a lower peak; as it is if none is found. dying: inputs that the
    caller lets go of, so that they go at their last use."""
    layouts = graph.layouts()
    if any(type(layout.storage_elements()) is Extent for layout in layouts.values()):
        return schedule
    held = Held(graph, schedule, layouts, dying)
    orders = [held.greedy(), held.greedy_from_end()]
    order = min(orders, key=held.peak)
    if held.peak(order) >= held.peak(range(len(order))):
        return schedule
    steps = tuple(step for at in order for step in held.units[at].steps)
    verify_steps(graph, steps)
    return replace(schedule, steps=steps)


def peak_of(graph: LoopGraph, schedule: Schedule, dying: Iterable[str] = ()) -> int:
    """The most bytes of what is made, results too, and of `dying`, that the schedule holds."""
    held = Held(graph, schedule, graph.layouts(), dying)
    return held.peak(range(len(held.units)))


def operand_under(kernel: Kernel, layouts: Mapping[str, Layout]) -> tuple[str, ...]:
    """Operands over which the kernel may write its only result: each iteration reads of them what
    lies where it stores, and nothing else, and needs that for what it stores. So no other thread
    may want an element that is overwritten. They are as large as the result, and of its dtype.
    Other stages of the kernel make locals alone, and do not read them."""
    own = {local.name for local in kernel.locals}
    storing = [x for x in kernel.stages if any(op.buffer not in own for op in x.stores())]
    if len(storing) != 1:
        return ()
    (stage,) = storing
    stores = list(stage.stores())
    if stage.reduction_ranges or len(stores) != 1 or stores[0].imm != "set":
        return ()
    store = stores[0]
    elsewhere = {op.buffer for x in kernel.stages if x is not stage for op in x.loads()}
    result = layouts.get(store.buffer)
    if result is None or is_scattered(store) or not _is_dense(result):
        return ()
    if product((*kernel.outer, *stage.ranges)) != result.numel():
        return ()
    needed = _needed_for(stage, stage.ops.index(store))
    found = []
    for name in dict.fromkeys(op.buffer for op in stage.loads()):
        if name in own or name in elsewhere or name == store.buffer:
            continue
        loads = [at for at, op in enumerate(stage.ops) if op.name == "load" and op.buffer == name]
        layout = layouts[name]
        if (
            layout.dtype is result.dtype and _is_dense(layout)
            and layout.numel() == result.numel() and needed.issuperset(loads)
            and all(stage.ops[at].index == store.index for at in loads)
        ):  # fmt: skip
            found.append(name)
    return tuple(found)


def _is_dense(layout: Layout) -> bool:
    return layout.offset == 0 and layout.storage_elements() == layout.numel()


def _needed_for(stage: LoopBody, store: int) -> set[int]:
    """Positions of all that a store's value is computed from."""
    found, work = set[int](), list(stage.ops[store].args)
    while work:
        at = work.pop()
        if at not in found:
            found.add(at)
            work.extend(stage.ops[at].args)
    return found


def bytes_of(layout: Layout) -> int:
    """Bytes of a buffer as the allocator counts them."""
    size = hint_of(layout.storage_elements()) * layout.dtype.itemsize
    return (size + BLOCK - 1) // BLOCK * BLOCK


@dataclass(slots=True)
class _Unit:
    """Steps that stay together. touched: all storages that they read or write; written: of these;
    makes: storages that begin here; over: operands under its result, which is the only one."""

    steps: list[Step]
    touched: set[str] = field(default_factory=set)
    written: set[str] = field(default_factory=set)
    makes: list[str] = field(default_factory=list)
    over: tuple[str, ...] = ()


class Held:
    """The units of a schedule, and what is held in an order of them.

    sizes: of all storages that somebody here makes or lets go of. results: those
    that the caller gets.
    """

    def __init__(
        self, graph: LoopGraph, schedule: Schedule, layouts: Mapping[str, Layout],
        dying: Iterable[str],
    ) -> None:
        self.layouts = layouts
        self.roots: dict[str, str] = {}
        self.units: list[_Unit] = []
        self.given = {name: bytes_of(layouts[name]) for name in dying}
        self.sizes = dict(self.given)
        self.fresh = set(self.given)  # memory that a result may be written over
        calls: dict[str, _Unit] = {}
        for step in schedule.steps:
            self._add(step, calls)
        self.results = {self._root(o.buffer) for o in graph.outputs if isinstance(o, ViewRef)}
        self.users: dict[str, set[int]] = {name: set() for name in self.sizes}
        for at, unit in enumerate(self.units):
            for name in unit.touched:
                if name in self.users:
                    self.users[name].add(at)

    def _root(self, name: str) -> str:
        while name in self.roots:
            name = self.roots[name]
        return name

    def _add(self, step: Step, calls: dict[str, _Unit]) -> None:
        if isinstance(step, MultiOutput):
            unit = calls[step.extern]
            unit.steps.append(step)
            call = unit.steps[0]
            if isinstance(call, ExternKernel) and collective_of(call.target, call.args):
                self.sizes[step.name] = bytes_of(step.layout)  # each is memory of its own
                unit.makes.append(step.name)
                unit.touched.add(step.name)
                unit.written.add(step.name)
                return
            self.roots[step.name] = step.extern
            if step.extern in self.sizes:  # no views of what it reads
                self.sizes[step.extern] += bytes_of(step.layout)
            return
        unit = _Unit([step])
        self.units.append(unit)
        names: tuple[str, ...] = ()
        if isinstance(step, ExternKernel):
            calls[step.name] = unit
            unit.touched = {self._root(name) for name in (*step.reads(), *step.mutates)}
            unit.written = {self._root(name) for name in step.mutates}
            if step.reads() and (step.target.is_view or is_wait(step.target)):
                self.roots[step.name] = step.reads()[0]
                if is_wait(step.target):  # what it shows is there behind it
                    unit.written.add(self._root(step.name))
            else:
                names = (step.name,)
                self.sizes[step.name] = 0 if step.layout is None else bytes_of(step.layout)
            if step.target in FRESH:
                self.fresh.add(step.name)
        else:
            assert isinstance(step, Generated)
            unit.written = {self._root(name) for name in step.writes()}
            unit.touched = {self._root(name) for name in step.reads()} | unit.written
            inner = {*step.nodes} & unit.written
            names = tuple(sorted(inner - self.sizes.keys()))
            self.sizes.update((name, bytes_of(self.layouts[name])) for name in names)
            self.fresh.update(names)
            if isinstance(step, Kernel) and len(names) == 1:
                unit.over = operand_under(step, self.layouts)
        unit.makes = list(names)
        unit.touched.update(names)
        unit.written.update(names)

    def before(self) -> list[set[int]]:
        """Which units must run before each: readers behind writers, writers behind all who had the
        storage before, calls with effects in their order."""
        found: list[set[int]] = []
        writers: dict[str, list[int]] = {}
        readers: dict[str, list[int]] = {}
        effects = EffectOrder()
        shown: dict[str, int] = {}  # which unit makes a name for memory that is there already
        for at, unit in enumerate(self.units):
            needed = {shown[name] for name in unit.steps[0].reads() if name in shown}
            for name in unit.touched:
                needed.update(writers.get(name, ()))
                if name in unit.written:
                    needed.update(readers.get(name, ()))
                (writers if name in unit.written else readers).setdefault(name, []).append(at)
            step = unit.steps[0]
            if isinstance(step, ExternKernel):
                if step.name in self.roots:
                    shown[step.name] = at
                needed |= effects.before(at, step.target, step.args)
            found.append(needed)
        return found

    def peak(self, order: Iterable[int]) -> int:
        """The most bytes that are there at a time."""
        left = {name: len(users) for name, users in self.users.items()}
        now = sum(size for name, size in self.given.items() if left[name])
        most = now
        for at in order:
            unit = self.units[at]
            now += sum(self.sizes[name] for name in unit.makes)
            for name in unit.touched & left.keys():
                left[name] -= 1
            gone = [
                name for name in unit.touched
                if left.get(name) == 0 and name not in self.results]
            over = any(name in gone and name in self.fresh for name in unit.over)
            most = max(most, now - self.sizes[unit.makes[0]] * over if over else now)
            now -= sum(self.sizes[name] for name in gone)
        return most

    def greedy(self) -> list[int]:
        """The order that the top of the file describes."""
        before = self.before()
        after: list[list[int]] = [[] for _ in self.units]
        for at, needed in enumerate(before):
            for other in needed:
                after[other].append(at)
        waiting = [len(needed) for needed in before]
        ready = [at for at, count in enumerate(waiting) if count == 0]
        gains = _Gains(self)
        order: list[int] = []
        done: set[int] = set()
        for at in ready:
            gains.offer(at)
        while ready:
            gain = gains.best(done)
            at = heapq.heappop(ready) if gain is None else gain
            if at in done:
                continue
            done.add(at)
            order.append(at)
            gains.run(at)
            for other in after[at]:
                waiting[other] -= 1
                if waiting[other] == 0:
                    heapq.heappush(ready, other)
                    gains.offer(other)
        return order


    def greedy_from_end(self) -> list[int]:
        """The other order of the top of the file."""
        before = self.before()
        waiting = [0 for _ in self.units]  # for units that stand behind
        for needed in before:
            for other in needed:
                waiting[other] += 1
        live = set(self.results)  # behind the place that is filled next
        wanting: dict[str, set[int]] = {}
        for at, unit in enumerate(self.units):
            for name in unit.touched & self.sizes.keys():
                wanting.setdefault(name, set()).add(at)

        def net(at: int) -> int:
            """What is held before the unit, less what is held behind it."""
            made = set(self.units[at].makes)
            new = self.units[at].touched & self.sizes.keys() - made - live
            return sum(self.sizes[name] for name in new) - sum(
                self.sizes[name] for name in made & live)

        ready = {at for at, count in enumerate(waiting) if count == 0}
        gains = [(net(at), -at) for at in ready]
        heapq.heapify(gains)
        last = [-at for at in ready]
        heapq.heapify(last)
        order: list[int] = []
        while ready:
            found = -1
            while gains and gains[0][0] < 0 and found < 0:
                value, at = heapq.heappop(gains)
                if -at in ready and net(-at) == value:
                    found = -at
            while found < 0:
                found = -heapq.heappop(last)
                found = found if found in ready else -1
            ready.remove(found)
            order.append(found)
            unit = self.units[found]
            fresh = unit.touched & self.sizes.keys() - live - set(unit.makes)
            live |= fresh
            live -= set(unit.makes)
            for other in before[found]:
                waiting[other] -= 1
                if waiting[other] == 0:
                    ready.add(other)
                    heapq.heappush(gains, (net(other), -other))
                    heapq.heappush(last, -other)
            for name in fresh:  # who else reads it, or makes it, gains by that
                for other in wanting[name] & ready:
                    heapq.heappush(gains, (net(other), -other))
        return order[::-1]


class _Gains:
    """Which units that could run now let go of more than they make.

    left: the units that have not run yet, by the storages that they touch.
    """

    def __init__(self, held: Held) -> None:
        self.held = held
        self.left = {name: set(users) for name, users in held.users.items()}
        self.makes = [sum(held.sizes[name] for name in unit.makes) for unit in held.units]
        self.net = list(self.makes)
        self.offered: set[int] = set()
        self.heap: list[tuple[int, int, int]] = []
        for name, users in self.left.items():
            self._note(name, users)

    def _note(self, name: str, users: set[int]) -> None:
        """Whose last user is alone: it lets go of the storage."""
        if len(users) == 1 and name not in self.held.results:
            (at,) = users
            self.net[at] -= self.held.sizes[name]
            if at in self.offered:
                self._push(at)

    def offer(self, at: int) -> None:
        self.offered.add(at)
        self._push(at)

    def _push(self, at: int) -> None:
        if self.net[at] < 0:
            heapq.heappush(self.heap, (self.makes[at], self.net[at], at))

    def best(self, done: set[int]) -> int | None:
        while self.heap:
            _, _, at = heapq.heappop(self.heap)
            if at not in done:
                return at
        return None

    def run(self, at: int) -> None:
        for name in self.held.units[at].touched:
            users = self.left.get(name)
            if users is not None:
                users.discard(at)
                self._note(name, users)
