"""One cached trace: an entry as bytes, and what is needed to make it again in another process.

In: a trace, then the entry that was made of it. Out: a `CachedTrace`, of bytes and plain values.
`read_head` finds the objects of another process that it is about, and checks them; `read_parts`
gives guards and code that speak of those objects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from types import CodeType, FunctionType
from typing import Any, NamedTuple

import torch

from dynamo import hook
from dynamo.base.decisions import decisions
from dynamo.captures.anchors import EMPTY, Anchors, Finder
from dynamo.captures.fingerprints import Fingerprints, Kinds
from dynamo.captures.tables import TableReader, TableWriter, counts_classes
from dynamo.codegen.continuation import Continuations
from dynamo.guards.build import ProgramText
from dynamo.guards.kinds import const_equal
from dynamo.guards.records import Guard
from dynamo.guards.registrations import REGISTRATIONS
from dynamo.guards.sources import AttrSource, Scope, Source
from dynamo.guards.weak import strongly, weakly
from dynamo.store.content import Stale
from dynamo.store.records import Uncacheable
from dynamo.symbolic.core.unguarded import Met
from dynamo.symbolic.tensors.constructed import Constructed, differs

END = 1 << 40  # no place in a prefix
PLAIN_ANSWERS = Kinds(bool, int, float, str, bytes, type(None))


class CachedTrace(NamedTuple):
    """head: rows and reads; parts: see `Parts`; code: the new code; graph: the captured one (None
    for none). about: plain facts."""

    head: bytes
    parts: bytes
    guards: bytes
    code: bytes
    graph: bytes | None
    about: dict[str, Any]


ABOUT = CachedTrace._fields.index("about")


class Parts(NamedTuple):
    """program: of the guards. inputs: where the graph's inputs stand. answers: what functions gave
    while tracing; constructed: what constructors
    have made there. held: the rows that the guards name."""

    program: ProgramText
    inputs: tuple[Source, ...]
    answers: tuple[tuple[Any, tuple[Any, ...], dict[str, Any], Any], ...]
    constructed: Sequence[Constructed]
    held: tuple[int, ...]


class Traced(NamedTuple):
    """What is known of a trace before its graph is compiled."""

    frame: hook.FrameState
    guards: tuple[Guard, ...]
    program: ProgramText
    inputs: tuple[Source, ...]
    met: Met


class Draft(NamedTuple):
    """What of a `CachedTrace` can be written then. reads: places, and the rows that stand there."""

    anchors: Anchors
    reads: list[tuple[tuple[Any, ...], int]]
    parts: bytes
    guards: bytes


def draft(traced: Traced, continuations: Continuations) -> Draft:
    """Errors: Uncacheable."""
    frame, guards, program, inputs, met = traced
    anchors = Anchors(frame, continuations.origin(frame.code, END)[0])
    if met.reason:
        raise Uncacheable(met.reason)
    for guard in guards:
        anchors.note_guard(guard)
    for place, value in met.reads.items():
        anchors.note_place(value, place)
    anchors.signatures.update((id(one), rest) for one, *rest in met.signatures)
    anchors.given.update((id(result), (result, function)) for function, result in met.given)
    for value, source in met.named:
        if source is not None:
            anchors.note_place(value, source)
    anchors.check(value for value, _ in met.named)
    anchors.check(met.classes)
    _check_codes(met, anchors, continuations)
    rows = [(place, value, anchors.row(value)) for place, value in met.reads.items()]
    reads = [(_path_to(anchors, place), row) for place, value, row in rows
             if not _is_operator(place, value)]  # fmt: skip
    table = TableWriter(anchors, continuations)
    guards_written, held = table.written(table.guards(guards))
    table = TableWriter(anchors, continuations)
    answers = tuple(map(_answer, met.answers))
    constructed = tuple(map(tuple, met.constructed))
    parts, _ = table.written(
        (table.program(program, guards), table.plain((inputs, answers, constructed)), tuple(held)))
    return Draft(anchors, reads, parts, guards_written)


def finish(
    begun: Draft, code: CodeType, called: Any, graph: bytes | None, about: dict[str, Any],
    continuations: Continuations,
) -> CachedTrace:
    """code: the new code; called: what stands in it for the graph; graph: the captured one.
    Errors: Uncacheable."""
    anchors = begun.anchors
    table = TableWriter(anchors, continuations, code, called)
    written, _ = table.written(table.plain(code))  # it may add rows
    table = TableWriter(None, continuations)
    head, _ = table.written((
        [(table.plain(how), text) for how, text in anchors.rows],
        [(table.plain(how), row) for how, row in begun.reads]))
    return CachedTrace(head, begun.parts, begun.guards, written, graph, about)


def _is_operator(place: Source, value: Any) -> bool:
    """Whether it is an operator where all stand, by which name its row finds it."""
    if not isinstance(place, AttrSource) or not isinstance(value, torch._ops.OpOverloadPacket):
        return False
    try:
        owner = place.base.fetch(EMPTY)
    except Exception:  # it begins in the frame
        return False
    if not isinstance(owner, torch._ops._OpNamespace):
        return False
    return getattr(torch.ops, owner.name) is owner and str(value) == f"{owner.name}.{place.name}"


def _path_to(anchors: Anchors, place: Source) -> tuple[Any, ...]:
    how = anchors.path_by(place)
    if how is None:
        raise Uncacheable(f"it reads {place.text()}, which another process does not find")
    return how


def _check_codes(met: Met, anchors: Anchors, continuations: Continuations) -> None:
    """All code that was traced has a digest somewhere. Errors: Uncacheable."""
    for code in met.codes:
        if continuations.is_continuation(code):
            code = continuations.record(code).original
        if not anchors.knows_code(code):
            raise Uncacheable(
                f"it has traced {code.co_qualname}, which no function that it knows has")


def _answer(row: tuple[Any, list[Any], dict[str, Any], Any]) -> tuple[Any, ...]:
    function, args, kwargs, result = row
    if type(result) not in PLAIN_ANSWERS:
        raise Uncacheable("it keeps what a function gave, which is no plain value")
    return function, tuple(args), kwargs, result


# -- reading ---------------------------------------------------------------------------------------


def read_head(
    cached: CachedTrace, frame: hook.FrameState, scope: Scope, continuations: Continuations,
    prints: Fingerprints,
) -> Sequence[Any]:
    """The objects of the rows, each of which is as it was. Errors: Stale."""
    table = TableReader(cached.head, (), continuations)
    rows, reads = table.value
    finder = Finder(scope, frame.code, continuations.origin(frame.code, END)[0], prints)
    objects = finder.find_all((table.full(how), text) for how, text in rows)
    for how, row in reads:
        try:
            now = finder.find(*table.full(how))
        except Exception as why:
            raise Stale(f"{how} is gone ({type(why).__name__})") from None
        if now is not objects[row]:
            raise Stale(f"{how[-1]} is another object")
    if len({id(value) for value in objects}) < len(objects):
        raise Stale("two of its objects are one now")
    for value in objects:
        if type(value) is FunctionType and decisions.has("skipped", value.__code__):
            raise Stale(f"the program says to skip {value.__qualname__}")
    return objects


def read_parts(cached: CachedTrace, objects: Sequence[Any], continuations: Continuations) -> Parts:
    reader = TableReader(cached.parts, objects, continuations)
    program, others, held = reader.value
    inputs, answers, constructed = reader.full(others)
    return Parts(reader.program(*program), inputs, answers,
                 [Constructed(*row) for row in constructed], held)  # fmt: skip


def guards_later(
    cached: CachedTrace, held: Iterable[int], objects: Sequence[Any], continuations: Continuations
) -> Callable[[], tuple[Guard, ...]]:
    """Reads the guards when somebody asks for them; keeps none of the objects alive till then."""
    content, known = cached.guards, {number: weakly(objects[number]) for number in held}
    registered = REGISTRATIONS()  # the program compares with this one, whenever somebody asks

    def read() -> tuple[Guard, ...]:
        alive = {number: strongly(value) for number, value in known.items()}
        guards = TableReader(content, alive, continuations).guards()
        return tuple([
            replace(guard, payload=registered) if counts_classes(guard) else guard
            for guard in guards
        ])

    return read


def recheck_answers(parts: Parts) -> None:
    """Errors: Stale where a function or a constructor gives another answer now."""
    for function, args, kwargs, result in parts.answers:
        try:
            now = function(*args, **kwargs)
        except Exception as why:
            raise Stale(f"{function!r} raises {type(why).__name__} now") from None
        if not const_equal(now, result):
            raise Stale(f"{function!r} gives {now!r} now, not {result!r}")
        if function is issubclass and not now:
            REGISTRATIONS.deny(*args)
    for known in parts.constructed:
        reason = differs(known)
        if reason:
            raise Stale(reason)


def read_code(
    cached: CachedTrace, objects: Sequence[Any], continuations: Continuations,
    called: Callable[..., Any] | None,
) -> CodeType:
    """The new code. called: the compiled graph in it, if there is one."""
    table = TableReader(cached.code, objects, continuations, called)
    return table.full(table.value)  # type: ignore[no-any-return]
