"""Cached traces: a frame that an earlier process has traced gets its entry without a trace.

In: a frame that no entry fits. Out: the entry that an earlier process has made of a frame with the
same key (`keys.py`), where each object that the trace has met is found again and is the same, each
function that it asked gives the same answer, and all its guards hold. Else it is traced, and
cached.

A record (`dynamo/store/records.py`) holds the last traces of a key, newest first.
"""

from __future__ import annotations

import contextlib
import pickle
from collections.abc import Callable, Iterable
from functools import partial
from types import CodeType
from typing import Any

import torch

from dynamo import hook
from dynamo.backends.services import service
from dynamo.base import counters, events, logs
from dynamo.base.breaks import group_of
from dynamo.base.config import config
from dynamo.base.errors import DynamoError
from dynamo.base.gpu_state import settle_choices
from dynamo.base.subclasses import as_in_program
from dynamo.captures import cached_traces, keys
from dynamo.captures.cached_traces import ABOUT, CachedTrace, Draft, Traced
from dynamo.captures.fingerprints import Fingerprints
from dynamo.captures.lines import difference, text_of_lines
from dynamo.codegen.continuation import Continuations
from dynamo.frames.entries import Checks, EntryRecord
from dynamo.guards.build import assemble
from dynamo.guards.explain import failures
from dynamo.guards.records import name_of_part
from dynamo.guards.sources import Scope, Source
from dynamo.store.content import Key, Notes, Stale, cache_store
from dynamo.store.records import Cache, Record, Uncacheable, read_plain
from dynamo.symbolic.core.context import CompileContext
from dynamo.symbolic.core.trace_result import TraceResult
from dynamo.symbolic.tensors.repeating import Runs

SUFFIX = ".capture"
MOST = 16  # traces in one file: more than one code object may have by default
CompileGraph = Callable[..., hook.Compiled]


class TraceCache:
    """The cached traces of one region."""

    def __init__(self, continuations: Continuations) -> None:
        self.continuations = continuations

    def place_of(
        self, frame: hook.FrameState, context: CompileContext, requested: bool
    ) -> Place | None:
        """Where traces of this frame are cached; None where they are not."""
        if not config.capture_cache:
            return None
        settle_choices()
        name = frame.code.co_qualname
        cache = Cache("cached traces", f"the cache of traces of {name}", "the frame is traced")
        key = cache.key("capture", partial(
            keys.parts_of_frame, frame, context, self.continuations, requested),
            f"the trace of {name}")
        return None if key is None else Place(frame, context, self.continuations, cache, key)


def notes_of(code: CodeType) -> Notes:
    """What tells which line of the code has changed."""
    return Notes("code", text_of_lines(code), partial(difference, code=code))


class Place:
    """One frame, and where its traces lie."""

    def __init__(
        self, frame: hook.FrameState, context: CompileContext, continuations: Continuations,
        cache: Cache, key: Key,
    ) -> None:
        self.frame, self.context, self.continuations = frame, context, continuations
        self.record = Record(
            cache, cache_store(), key, SUFFIX, f" of {name_of_part(frame.code)}", "function",
            partial(notes_of, frame.code))
        self.hint = keys.hint_of(frame)
        self.knows_gpus = "gpus" in dict(key.parts)
        self.graph: bytes | None = None
        self.why_no_graph = ""
        self.draft: Draft | None = None
        self.why_no_draft = "it was not written"

    def defect(self, what: str, defect: Exception) -> str:
        return self.record.cache.defect(what, defect)

    # -- looking up --------------------------------------------------------------------------------

    def find(self, compile_graph: CompileGraph) -> hook.Entry | None:
        """The entry that a cached trace gives."""
        if not keys.may_read():
            return None
        rows = self.record.read(self._rows)
        prints = Fingerprints()
        for cached in sorted(rows or (), key=lambda cached: cached.about["hint"] != self.hint):
            restored = Restored(self, cached)
            try:
                entry = restored.entry(compile_graph, prints)
            except Stale as why:
                if restored.has_answers:  # functions of the program, which may change others
                    prints = Fingerprints()
                logs.log("cache").emit(
                    f"{self.record.title}: a cached trace does not fit: {why}")
                continue
            except DynamoError:  # of the backend
                raise
            except Exception as defect:
                self.defect("what was read", defect)
                continue
            self.record.report_hit()
            counters.counters["stats"]["captures_reused"] += 1
            return entry
        return None

    def _rows(self, body: bytes) -> list[CachedTrace]:
        """Errors: Stale; those of reading other bytes."""
        return [CachedTrace(*row) for row in read_plain(body)]

    # -- keeping -----------------------------------------------------------------------------------

    def note_graph(self, module: torch.fx.GraphModule) -> None:
        """Keeps the captured graph as it is now."""
        try:
            self.graph = service("captured_graphs").write_captured(module)
        except Exception as why:  # of several packages, each with its sentence
            self.why_no_graph = str(why) or type(why).__name__

    def prepare(self, result: TraceResult, checks: Checks, inputs: Iterable[Source]) -> None:
        """Writes what is known of a trace before its graph is compiled. inputs: of the graph."""
        try:
            assert result.met is not None
            function = result.met.about_gpus
            if function and not self.knows_gpus:
                raise Uncacheable(f"it keeps what {function} gave before the program used a GPU")
            self.draft = cached_traces.draft(
                Traced(self.frame, *checks, tuple(inputs), result.met), self.continuations)
        except (Uncacheable, pickle.PicklingError) as why:
            self.why_no_draft = str(why)
        except Exception as defect:  # the trace is right all the same
            self.why_no_draft = self.defect("what is cached", defect)

    def keep(
        self, code: CodeType, function: hook.Compiled | None, direct: Any, about: dict[str, Any],
    ) -> None:
        """Writes what was just traced. function: the compiled graph in the code; direct: see
        `hook.Entry`; about: plain facts."""
        picks = None if direct is None else tuple(direct[1:])
        about = {**about, "direct": picks, "hint": self.hint}
        self.record.write(lambda: self._written(code, function, about))

    def _written(
        self, code: CodeType, function: hook.Compiled | None, about: dict[str, Any]
    ) -> bytes:
        """The new trace in front of those that are there. Errors: Uncacheable."""
        if self.draft is None:
            raise Uncacheable(self.why_no_draft)
        if function is not None and self.graph is None:
            raise Uncacheable(f"its graph is not cached: {self.why_no_graph}")
        new = cached_traces.finish(
            self.draft, code, function, self.graph, about, self.continuations)
        others: list[CachedTrace] = []
        with contextlib.suppress(Exception):  # damaged: it is written anew
            others = self.record.content(self._rows) or []
        others = [other for other in others if other[:ABOUT] != new[:ABOUT]]
        return pickle.dumps([tuple(each) for each in (new, *others)][:MOST], protocol=5)


class Restored:
    """An entry of a cached trace while it is made again."""

    def __init__(self, place: Place, cached: CachedTrace) -> None:
        self.place, self.cached, self.frame, self.has_answers = place, cached, place.frame, False
        frame = place.frame
        self.scope = Scope(frame.locals, frame.globals, frame.builtins, frame.cells)

    def entry(self, compile_graph: CompileGraph, prints: Fingerprints) -> hook.Entry:
        """prints: of this moment. Errors: Stale where the trace does not fit; those of the
        backend."""
        frame, cached, continuations = self.frame, self.cached, self.place.continuations
        objects = cached_traces.read_head(cached, frame, self.scope, continuations, prints)
        parts = cached_traces.read_parts(cached, objects, continuations)
        program = assemble(parts.program)
        guards = cached_traces.guards_later(cached, parts.held, objects, continuations)
        with as_in_program():
            holds = program.run(frame.locals, frame.globals, frame.builtins, frame.cells)[2]
        if not holds:
            failed = failures(guards(), self.scope)
            raise Stale(str(failed[0]) if failed else "a guard fails")
        self.has_answers = bool(parts.answers or parts.constructed)
        cached_traces.recheck_answers(parts)  # functions of the program, as tracing it would
        function, direct = None, None
        if cached.graph is not None:
            function = self.compile(compile_graph, parts.inputs)
            if cached.about["direct"] is not None:
                direct = (function.function, *cached.about["direct"])
        code = cached_traces.read_code(cached, objects, continuations, function)
        self.record_event()
        record = EntryRecord(
            guards, self.place.context.compile_id, frame.code, tuple(cached.about["changes"]))
        return hook.Entry(code, program, record, direct=direct)

    def compile(self, compile_graph: CompileGraph, sources: Iterable[Source]) -> hook.Compiled:
        module = service("captured_graphs").read_captured(self.cached.graph)
        context, about = self.place.context, self.cached.about
        return compile_graph(module, sources, self.frame, context.settings, context.compile_id,
                             about["repeatable"], about["tensors"], Runs(*about["runs"]))

    def record_event(self) -> None:
        """What was reported when the frame was traced."""
        what, compile_id = logs.compile_now(), self.place.context.compile_id
        data = {**self.cached.about["event"], "region": what.region, "name": what.name}
        events.record(events.Event("frame", compile_id, data))
        counters.counters["stats"]["frames"] += 1
        graph_break = data.get("break")
        if graph_break is not None and not graph_break["repeated"]:
            counters.counters[group_of(graph_break["reason"])][graph_break["reason"]] += 1
            logs.log("graph_breaks").emit(graph_break["text"], compile_id)
