"""GEMMs in chunks of rows, each with a collective of its own before or behind it.

In: a functional ATen graph with fakes, the numbers of a machine (`chunks`: how many, 0 for none).
Out: the same graph, changed in place.

- GEMM → all-reduce, GEMM → reduce-scatter: a chunk is on its way while the next one is computed.
- all-gather → GEMM: a chunk is computed while the next one is on its way.

Rows of a GEMM do not depend on each other, so each has the value that it has without chunks, as far
as the kernel is the same. A reduce-scatter gives each rank rows of its own: chunk `i` holds the
`i`th part of each rank's rows. What decides is the simulator (`collectives/timeline.py`), by sizes
and numbers that are the same on all ranks. As more collectives are sent than the program has, ranks
must have the same graphs: `chunks` needs `same_graphs`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from dynamo.aot.fakes import bytes_of, facts_of, is_fake
from dynamo.base import logs
from dynamo.base.fallbacks import site_now
from inductor.collectives.buckets import is_fence
from inductor.collectives.calls import Collective, collective_of, is_wait
from inductor.collectives.machine import (
    Group,
    Machine,
    group_of,
    seconds_of_collective,
    seconds_of_kernel,
)
from inductor.collectives.settings import machine_of_graph, tie
from inductor.collectives.timeline import Compute, Event, Start, Wait, simulate
from inductor.config import config
from inductor.fx_passes.calls_with_fakes import Calls

aten = torch.ops.aten
VIEWS = (aten.view.default, aten._unsafe_view.default, aten.reshape.default)
HALVES = (torch.float16, torch.bfloat16)
BEHIND = ("all_reduce", "reduce_scatter_tensor")
Groups = Callable[[str, torch.device], Group | None]


@dataclass(frozen=True, slots=True)
class Chunked:
    """A collective and its GEMMs; seconds that are predicted of them, without chunks and with."""

    name: str
    count: int
    before: float
    seconds: float

    def __str__(self) -> str:
        return (f"{self.name}: {self.count} chunks, {1e3 * self.before:.3f} ms become "
                f"{1e3 * self.seconds:.3f} ms")  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Pair:
    """A collective and its wait, of which rows are split into parts by `ranks` first. gemms: one in
    front of it, or all readers of what it gathers."""

    start: fx.Node
    wait: fx.Node
    call: Collective
    gemms: tuple[fx.Node, ...]
    group: Group
    ranks: int

    @property
    def gathers(self) -> bool:
        return self.call.kind not in BEHIND


def chunk_gemms(
    module: fx.GraphModule, machine: Machine, groups: Groups = group_of
) -> list[Chunked]:
    """See the top of the file."""
    done = []
    for pair in list(_pairs(module, groups)) if machine.chunks > 1 else ():
        rows = _rows(pair.gemms[0])
        if rows % (pair.ranks * machine.chunks):
            continue
        before, seconds = (_predict(pair, machine, count) for count in (1, machine.chunks))
        if seconds < before:
            (_split_gather if pair.gathers else _split_result)(pair, machine.chunks)
            done.append(Chunked(pair.start.name, machine.chunks, before, seconds))
    if done:
        module.graph.lint()
        module.recompile()
    return done


def with_chunks(module: fx.GraphModule) -> fx.GraphModule:
    """The graph with GEMMs in chunks where the program asks for it."""
    if not (config.collectives or {}).get("chunks"):
        return module
    tie(site_now())
    for one in chunk_gemms(module, machine_of_graph(module)):
        logs.log("collectives").emit(str(one))
    return module


def _pairs(module: fx.GraphModule, groups: Groups) -> Iterator[_Pair]:
    place = {node: at for at, node in enumerate(module.graph.nodes)}
    fences = [at for node, at in place.items() if is_fence(node)]
    for start in place:
        call = collective_of(start.target, start.args) if start.op == "call_function" else None
        waits = list(start.users)
        if call is None or call.coalesced or len(waits) != 1 or not is_wait(waits[0].target):
            continue
        value = start.args[0]
        if not isinstance(value, fx.Node) or not is_fake(value.meta.get("val")):
            continue
        group = groups(call.group, facts_of(value.meta["val"]).device)
        gemms = _gemm_of(value) if call.kind in BEHIND else _readers_of(call, start, waits[0])
        if group is None or not gemms or call.op not in ("", "sum", "avg"):
            continue
        first, last = sorted((place[start], place[gemms[0]]))
        if call.kind not in BEHIND:
            last = max(place[gemm] for gemm in gemms)
        if any(first < at < last for at in fences):
            continue  # it may write what moves over it reads
        ranks = 1 if call.kind == "all_reduce" else len(group.ranks)
        yield _Pair(start, waits[0], call, gemms, group, ranks)


def _gemm_of(value: fx.Node) -> tuple[fx.Node, ...]:
    """The GEMM whose result, through views, is this; nothing else reads it."""
    while value.target in VIEWS and len(value.users) == 1:
        value = value.args[0]  # type: ignore[assignment]
    return (value,) if _is_plain_gemm(value) and len(value.users) == 1 else ()


def _readers_of(call: Collective, start: fx.Node, wait: fx.Node) -> tuple[fx.Node, ...]:
    """The GEMMs whose left side is what is gathered; empty where others read it, too."""
    if call.kind != "all_gather_into_tensor" or len(facts_of(wait.meta["val"]).size) != 2:
        return ()
    users = tuple(wait.users)
    good = all(_is_plain_gemm(user) and user.args[0] is wait is not user.args[1] for user in users)
    return users if good else ()


def _is_plain_gemm(node: fx.Node) -> bool:
    """A GEMM of sizes that are numbers, whose result is contiguous."""
    fake = node.meta.get("val")
    if node.target is not aten.mm.default or not is_fake(fake):
        return False
    rows, columns = facts_of(fake).size
    known = all(isinstance(extent, int) for given in (node, *node.all_input_nodes)
                for extent in facts_of(given.meta["val"]).size)  # fmt: skip
    return known and rows > 0 < columns and facts_of(fake).stride == (columns, 1)


def _rows(gemm: fx.Node) -> int:
    return int(facts_of(gemm.meta["val"]).size[0])


def _predict(pair: _Pair, machine: Machine, count: int) -> float:
    """Seconds of the pair alone, in so many chunks."""
    size = max(bytes_of(node.meta["val"]) for node in (pair.start, pair.start.args[0]))  # type: ignore[union-attr]
    sent = seconds_of_collective(machine, pair.call.kind, pair.group, size // count)
    kernel = sum(_seconds_of_gemm(gemm, machine, count) for gemm in pair.gemms)
    events: list[Event] = []
    if pair.gathers:
        events += [Start(str(at), "link", sent) for at in range(count)]
        for at in range(count):
            events += [Wait(str(at)), Compute(kernel)]
    else:
        for at in range(count):
            events += [Compute(kernel), Start(str(at), "link", sent)]
        events += [Wait(str(at)) for at in range(count)]
    moved = [bytes_of(node.meta["val"]) for node in (pair.gemms if pair.gathers else [pair.wait])]
    together = sum(seconds_of_kernel(machine, 2 * size, 0, False) for size in moved)
    return simulate(events).seconds + (together if count > 1 else 0.0)


def _seconds_of_gemm(gemm: fx.Node, machine: Machine, count: int) -> float:
    left, right, made = (node.meta["val"] for node in (*gemm.args, gemm))  # type: ignore[union-attr,misc]
    (rows, columns), inner = facts_of(made).size, facts_of(right).size[0]
    moved = bytes_of(right) + (bytes_of(left) + bytes_of(made)) // count
    operations = 2 * math.prod((rows, columns, inner)) // count
    return seconds_of_kernel(machine, moved, operations, facts_of(made).dtype in HALVES)


def _split_result(pair: _Pair, count: int) -> None:
    """GEMM → collective: all where the collective starts, their waits where it is waited for."""
    (gemm,) = pair.gemms
    left, right = gemm.args
    rows, _ = facts_of(gemm.meta["val"]).size
    part = rows // pair.ranks // count
    call, target, rest = Calls(pair.start), pair.start.target, pair.start.args[1:]
    parts = call.view(left, pair.ranks, rows // pair.ranks, -1)  # type: ignore[arg-type]
    starts = []
    for at in range(count):
        chunk = call(aten.slice.Tensor, parts, 1, at * part, (at + 1) * part)
        made = call(aten.mm.default, call.view(chunk, pair.ranks * part, -1), right)
        starts.append(call(target, made, *rest))
    call = Calls(pair.wait)
    waits = [call(pair.wait.target, start) for start in starts]
    size = facts_of(pair.wait.meta["val"]).size
    _replace(pair.wait, call.view(call(aten.cat.default, waits), *size))
    _erase_unread(pair.start)


def _split_gather(pair: _Pair, count: int) -> None:
    """all-gather → GEMM: all start where it does, and are waited for one by one at the first GEMM.
    What each rank sends with chunk `i` is the `i`th part of its rows."""
    given: Any = pair.start.args[0]
    rows, _ = facts_of(pair.wait.meta["val"]).size
    part = rows // pair.ranks // count
    call, target, rest = Calls(pair.start), pair.start.target, pair.start.args[1:]
    starts = []
    for at in range(count):
        chunk = call(aten.slice.Tensor, given, 0, at * part, (at + 1) * part)
        starts.append(call(target, chunk, *rest))
    order = {node: at for at, node in enumerate(pair.start.graph.nodes)}
    waits: list[fx.Node] = []
    for gemm in sorted(pair.gemms, key=order.__getitem__):
        call = Calls(gemm)
        columns, made = facts_of(gemm.meta["val"]).size[1], []
        for at, start in enumerate(starts):
            if len(waits) <= at:
                waits.append(call(pair.wait.target, start))
            chunk = call(aten.mm.default, waits[at], gemm.args[1])
            made.append(call.view(chunk, pair.ranks, part, columns))
        _replace(gemm, call.view(call(aten.cat.default, made, 1), rows, columns))
    _erase_unread(pair.wait)


def _erase_unread(node: fx.Node) -> None:
    """A part of a pair that has been replaced, and what was there for it alone."""
    given = [*node.all_input_nodes]
    node.graph.erase_node(node)
    for one in given:
        if not one.users and one.op == "call_function" and _is_part(one):
            _erase_unread(one)


def _is_part(node: fx.Node) -> bool:
    return (node.target is aten.mm.default or node.target in VIEWS
            or collective_of(node.target, node.args) is not None)  # fmt: skip


def _replace(old: fx.Node, new: fx.Node) -> None:
    old.replace_all_uses_with(new)
    old.graph.erase_node(old)
