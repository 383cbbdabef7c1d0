"""Compiled things on disk as records: for each a key, and a file with a digest and its bytes.

In: a cache (whose things they are), a key, what makes bytes of a value and a value of bytes. Out:
the value that an earlier process has cached, or None. The log `cache` and an event say of each look
whether there was one, and why not; the log says why a value is not cached. A file is read only
where this user has written it, whole. What goes wrong in code that reads or writes is a defect: it
costs a compile, is counted, and warned of once.
"""

from __future__ import annotations

import functools
import io
import pickle
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from dynamo.base import counters, events, logs, recordings
from dynamo.base.config import config
from dynamo.base.signals import is_of_signal
from dynamo.store.content import Key, Notes, Stale, Store, make_key, opened, sealed
from dynamo.store.folder import keep_small

T = TypeVar("T")


class Uncacheable(Exception):
    """Why something has no key, or can't be written for another process, as a sentence."""


@dataclass(frozen=True, slots=True)
class Cache:
    """name: in counters. title, instead: of the sentence about a defect: what has failed, and what
    is done without it."""

    name: str
    title: str
    instead: str

    def key(self, kind: str, parts: Callable[[], dict[str, str]], title: str = "") -> Key | None:
        """The key with these parts; None, and a word in the log, where there is none. title: what
        the log calls that of which it is the key."""
        try:
            return make_key(kind, parts())
        except Uncacheable as why:
            reason = str(why)
        except Exception as defect:  # it can be compiled all the same
            reason = self.defect("a key", defect)
        logs.log("cache").emit(lambda: f"{title or f'this {kind}'} is not cached: {reason}")
        return None

    def defect(self, what: str, defect: Exception) -> str:
        """Counts a defect and warns of it once; gives its text. Errors: it, where errors are not
        suppressed."""
        if not config.suppress_errors or is_of_signal(defect):
            raise defect
        text = f"{type(defect).__name__}: {defect}"
        counters.counters["internal_errors"][f"{self.name}, {what}: {text}"] += 1
        if counters.once((self.name, what, type(defect).__name__)):
            warnings.warn(
                f"dynamo: {self.title} failed with {what} ({text}); {self.instead}. This is a "
                "defect of dynamo; DYNAMO_SUPPRESS_ERRORS=0 raises it.", stacklevel=4)
        return text


@dataclass(frozen=True, slots=True)
class Record:
    """The place of one thing. about: said behind its key in the log. same, notes: see
    `Store.explain_miss`; the notes are made when they are needed."""

    cache: Cache
    store: Store
    key: Key
    suffix: str
    about: str = ""
    same: str = ""
    notes: Callable[[], Notes | None] = lambda: None

    @property
    def title(self) -> str:
        return f"{self.key.kind} {self.key.digest}{self.about}"

    def read(self, load: Callable[[bytes], T]) -> T | None:
        """What `load` makes of the bytes; None, and the reason in the log, where there are none, or
        they don't fit. The caller logs a hit, as it may still find that it does not."""
        try:
            value = self.content(load)
        except (Stale, OSError) as error:
            reason = f"{type(error).__name__}: {error}"
        except Exception as defect:  # it is recompiled
            reason = self.cache.defect("what was read", defect)
        else:
            if value is None:
                report_lookup(self.title, False, self._why_missing)
            return value
        report_lookup(self.title, False, lambda: f"it is not usable, {reason}")
        return None

    def content(self, load: Callable[[bytes], T]) -> T | None:
        """The same without a log. Errors: Stale; those of `load`."""
        content = self.store.read(self.key, self.suffix)
        return None if content is None else load(opened(content))

    def _why_missing(self) -> str:
        return self.store.explain_miss(self.key, same=self.same, notes=self.notes())

    def report_hit(self) -> None:
        report_lookup(self.title, True, str)

    def write(self, make: Callable[[], bytes]) -> None:
        """Puts the bytes there that `make` gives, if it can."""
        try:
            self.store.keep(self.key, self.suffix, sealed(make()), self.notes())
            keep_small()
            return
        except (Uncacheable, pickle.PicklingError, OSError) as why:
            reason = str(why)
        except Exception as defect:  # what was compiled is right all the same
            reason = self.cache.defect("what is cached", defect)
        logs.log("cache").emit(lambda: f"{self.title}: it is not cached, {reason}")


def report_lookup(what: str, hit: bool, reason: Callable[[], str]) -> None:
    """A look into a cache. what: what was looked for; reason: asked for only where somebody wants
    to know, since it may have to read files."""
    log = logs.log("cache")
    text = "found" if hit else reason() if log.enabled or recordings.wanted() else ""
    log.emit(f"{what}: {text}")
    data = {"what": what, "found": hit, "reason": "" if hit else text}
    events.record(events.Event("cache", logs.compile_id_now(), data))


class Reader(pickle.Unpickler):
    """Reads bytes of pickle that name nothing but what `allows` says: here, nothing at all.
    Errors: Stale for other bytes."""

    def __init__(self, content: bytes) -> None:
        super().__init__(io.BytesIO(content))

    def allows(self, package: str, name: str) -> bool:
        """Whether the bytes may name something of this package."""
        return False

    def find_class(self, module: str, name: str) -> Any:
        if not self.allows(module.partition(".")[0], name):
            raise Stale(f"it names {module}.{name}")
        if module in sys.modules:
            return functools.reduce(getattr, name.split("."), sys.modules[module])
        return super().find_class(module, name)


def read_plain(content: bytes) -> Any:
    """Plain values of bytes of pickle. Errors: Stale for others.

    >>> read_plain(pickle.dumps((1, "a")))
    (1, 'a')
    """
    return Reader(content).load()
