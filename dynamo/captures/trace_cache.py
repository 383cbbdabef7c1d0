"""Cached traces: a frame that an earlier process has traced gets its entry without a trace.

In: a frame that no entry fits. Out: the entry that an earlier process has made of a frame with the
same key (`keys.py`), where each object that the trace has met is found again and is the same, each
function that it asked gives the same answer, and all its guards hold. Else it is traced, and
cached.

A file holds the last traces of a key, newest first: a digest and the bytes that have it. It is read
only where this user has written it, whole. What can't be cached says why in the log `cache`, as
does each miss. What goes wrong in here is a defect that costs a trace, and is reported and counted.
"""

from __future__ import annotations

import importlib
import pickle
from collections.abc import Callable, Iterable
from functools import partial
from types import CodeType
from typing import Any

import torch

from dynamo import hook
from dynamo.base import counters, events, logs
from dynamo.base.breaks import group_of
from dynamo.base.config import config
from dynamo.base.defects import cache_defect
from dynamo.base.errors import DynamoError
from dynamo.base.gpu_state import settle_choices
from dynamo.base.subclasses import as_in_program
from dynamo.captures import keys, records
from dynamo.captures.anchors import Changed, Uncacheable
from dynamo.captures.fingerprints import Fingerprints
from dynamo.captures.keys import NoKey
from dynamo.captures.lines import difference, text_of_lines
from dynamo.captures.pickles import Reader
from dynamo.captures.records import ABOUT, CachedTrace, Draft, Traced
from dynamo.codegen.continuation import Continuations
from dynamo.frames.entries import Checks, EntryRecord
from dynamo.guards.build import assemble
from dynamo.guards.explain import failures
from dynamo.guards.records import name_of_part
from dynamo.guards.sources import Scope, Source
from dynamo.symbolic.core.context import CompileContext
from dynamo.symbolic.core.trace_result import TraceResult

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
        try:
            parts = keys.parts_of_frame(frame, context, self.continuations, requested)
            return Place(frame, context, self.continuations, parts)
        except NoKey as why:
            reason = str(why)
        except Exception as defect:  # the frame can be traced all the same
            reason = report_defect(frame, "a key", defect)
        logs.log("cache").emit(
            lambda: f"the trace of {frame.code.co_qualname} is not cached: {reason}",
            context.compile_id)
        return None


class Place:
    """One frame, and where its traces lie."""

    def __init__(
        self, frame: hook.FrameState, context: CompileContext, continuations: Continuations,
        parts: dict[str, str],
    ) -> None:
        self.frame, self.context, self.continuations = frame, context, continuations
        self.store = importlib.import_module("inductor.driver.cpu").cache_store()
        self.files = importlib.import_module("dynamo.store.content")
        self.key = self.files.make_key("capture", parts)
        self.hint = keys.hint_of(frame)
        self.knows_gpus = "gpus" in parts
        self.graph: bytes | None = None
        self.why_no_graph = ""
        self.draft: Draft | None = None
        self.why_no_draft = "it was not written"

    def tell(self, text: str) -> None:
        name = name_of_part(self.frame.code)
        logs.log("cache").emit(
            lambda: f"capture {self.key.digest} of {name}: {text}", self.context.compile_id)

    # -- looking up --------------------------------------------------------------------------------

    def find(self, compile_graph: CompileGraph) -> hook.Entry | None:
        """The entry that a cached trace gives."""
        if not keys.may_read():
            return None
        try:
            found = self._cached()
        except (self.files.Damaged, Changed, OSError) as error:
            self.tell(f"it is not usable, {type(error).__name__}: {error}")
            return None
        except Exception as defect:  # the frame can be traced all the same
            report_defect(self.frame, "what lies on the disk", defect)
            return None
        if not found:
            if logs.log("cache").enabled:
                self.tell(self.store.explain_miss(
                    self.key, same="function", notes=self._notes()))
        prints = Fingerprints()
        for cached in sorted(found, key=lambda cached: cached.about["hint"] != self.hint):
            restored = Restored(self, cached)
            try:
                entry = restored.entry(compile_graph, prints)
            except Changed as why:
                if restored.has_answers:  # functions of the program, which may change others
                    prints = Fingerprints()
                self.tell(f"a cached trace does not fit: {why}")
                continue
            except DynamoError:  # of the backend
                raise
            except Exception as defect:
                report_defect(self.frame, "what was read", defect)
                continue
            self.tell("hit")
            counters.counters["stats"]["captures_reused"] += 1
            return entry
        return None

    def _cached(self) -> list[CachedTrace]:
        """What lies in the file. Errors: Damaged; those of reading other bytes."""
        content = self.store.read(self.key, SUFFIX)
        if content is None:
            return []
        body = self.files.opened(content)
        return [CachedTrace(*row) for row in Reader(body, (), self.continuations).load()]

    def _notes(self) -> Any:
        """What tells which line of the code has changed."""
        code = self.frame.code
        return self.files.Notes("code", text_of_lines(code), partial(difference, code=code))

    # -- keeping -----------------------------------------------------------------------------------

    def note_graph(self, module: torch.fx.GraphModule) -> None:
        """Keeps the captured graph as it is now."""
        try:
            rows = importlib.import_module("inductor.cache.graph_rows")
            self.graph = rows.write_rows_of_known(module)
        except Exception as why:  # of several packages, each with its sentence
            self.why_no_graph = str(why) or type(why).__name__

    def prepare(self, result: TraceResult, checks: Checks, inputs: Iterable[Source]) -> None:
        """Writes what is known of a trace before its graph is compiled. inputs: of the graph."""
        try:
            assert result.met is not None
            function = result.met.about_gpus
            if function and not self.knows_gpus:
                raise Uncacheable(f"it keeps what {function} gave before the program used a GPU")
            self.draft = records.draft(
                Traced(self.frame, *checks, tuple(inputs), result.met), self.continuations)
        except (Uncacheable, pickle.PicklingError) as why:
            self.why_no_draft = str(why)
        except Exception as defect:  # the trace is right all the same
            self.why_no_draft = report_defect(self.frame, "what is cached", defect)

    def keep(
        self, code: CodeType, function: hook.Compiled | None, direct: Any, about: dict[str, Any],
    ) -> None:
        """Writes what was just traced. function: the compiled graph in the code; direct: see
        `hook.Entry`; about: plain facts."""
        try:
            if self.draft is None:
                raise Uncacheable(self.why_no_draft)
            if function is not None and self.graph is None:
                raise Uncacheable(f"its graph is not cached: {self.why_no_graph}")
            picks = None if direct is None else tuple(direct[1:])
            cached = records.finish(self.draft, code, function, self.graph,
                                  {**about, "direct": picks, "hint": self.hint},
                                  self.continuations)  # fmt: skip
            self._write(cached)
        except (Uncacheable, pickle.PicklingError, OSError) as why:
            self.tell(f"it is not cached, {why}")
        except Exception as defect:  # the entry is right all the same
            report_defect(self.frame, "what is cached", defect)

    def _write(self, cached: CachedTrace) -> None:
        try:
            others = self._cached()
        except Exception:  # damaged: it is written anew
            others = []
        others = [other for other in others if other[:ABOUT] != cached[:ABOUT]]
        rows = [tuple(each) for each in (cached, *others)][:MOST]
        body = pickle.dumps(rows, protocol=5)
        self.store.keep(self.key, SUFFIX, self.files.sealed(body), self._notes())
        importlib.import_module("dynamo.store.folder").keep_small()


class Restored:
    """An entry of a cached trace while it is made again."""

    def __init__(self, place: Place, cached: CachedTrace) -> None:
        self.place, self.cached, self.frame, self.has_answers = place, cached, place.frame, False
        frame = place.frame
        self.scope = Scope(frame.locals, frame.globals, frame.builtins, frame.cells)

    def entry(self, compile_graph: CompileGraph, prints: Fingerprints) -> hook.Entry:
        """prints: of this moment. Errors: Changed where the trace does not fit; those of the
        backend."""
        frame, cached, continuations = self.frame, self.cached, self.place.continuations
        objects = records.read_head(cached, frame, self.scope, continuations, prints)
        parts = records.read_parts(cached, objects, continuations)
        program = assemble(parts.program)
        guards = records.guards_later(cached, parts.held, objects, continuations)
        with as_in_program():
            holds = program.run(frame.locals, frame.globals, frame.builtins, frame.cells)[2]
        if not holds:
            failed = failures(guards(), self.scope)
            raise Changed(str(failed[0]) if failed else "a guard fails")
        self.has_answers = bool(parts.answers)
        records.recheck_answers(parts)  # functions of the program, as tracing it would
        function, direct = None, None
        if cached.graph is not None:
            function = self.compile(compile_graph, parts.inputs)
            if cached.about["direct"] is not None:
                direct = (function.function, *cached.about["direct"])
        code = records.read_code(cached, objects, continuations, function)
        self.record_event()
        record = EntryRecord(
            guards, self.place.context.compile_id, frame.code, tuple(cached.about["changes"]))
        return hook.Entry(code, program, record, direct=direct)

    def compile(self, compile_graph: CompileGraph, sources: Iterable[Source]) -> hook.Compiled:
        rows = importlib.import_module("inductor.cache.graph_rows").read_rows(self.cached.graph)
        module = importlib.import_module("dynamo.aot.plain_graphs").module_of(rows)
        context, about = self.place.context, self.cached.about
        return compile_graph(module, sources, self.frame, context.settings, context.compile_id,
                             about["again"], about["tensors"])

    def record_event(self) -> None:
        """What was reported when the frame was traced."""
        what, compile_id = logs.compile_now(), self.place.context.compile_id
        data = {**self.cached.about["event"], "region": what.region, "name": what.name}
        events.record(events.Event("frame", compile_id, data))
        counters.counters["stats"]["frames"] += 1
        found = data.get("break")
        if found is not None and not found["repeated"]:
            counters.counters[group_of(found["reason"])][found["reason"]] += 1
            logs.log("graph_breaks").emit(found["text"], compile_id)


def report_defect(frame: hook.FrameState, what: str, defect: Exception) -> str:
    """See `cache_defect`."""
    return cache_defect(
        "cached traces", what, f"the cache of traces failed with {what} of "
        f"{frame.code.co_qualname}", "the frame is traced", defect)
