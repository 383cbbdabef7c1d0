"""One rank compiles, the others load what it has made: `options={"compile_on": "rank0"}`.

In: the name of a graph's record (its key says all that it depends on). Out: its files are in this
rank's cache folder, or the reason why this rank has to compile. They travel over the store of the
default process group. For each name the compiling rank says that it has begun, that it is alive,
and how it ended: with an archive of the files, or with its error.

Nobody waits for a rank that does not answer: one that recompiles alone, or whose graph is another
one, compiles after the seconds of `compile_on`. So the ranks need not agree about what is compiled
when.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from dynamo.base import logs
from dynamo.base.ranks import are_many
from dynamo.base.signals import is_of_signal
from dynamo.store.artifacts import archive_of, load_cache_artifacts
from dynamo.store.content import Store, watched_files
from inductor.config import compiling_rank

PREFIX = "dynamo_compiled/"
# Seconds, chosen and not measured: a sign of life is one write to the store, and so rare that a
# thousand ranks don't fill it; a look at it is what a rank waits longer than it has to.
BEAT = 0.5  # between two signs of life
PAUSE = 0.02  # between two looks at the store
FILES, NOTHING, ERROR = b"f", b"n", b"e"  # first byte of an end
T = TypeVar("T")


class OtherRankFailed(RuntimeError):
    """The compiling rank has met an error; the text is its."""


@dataclass(frozen=True)
class Ranks:
    """store: of the process group. compiles: whether this rank is the one that does; rank: that
    one's number. seconds: how long to wait for a sign of life."""

    store: Any
    compiles: bool
    rank: int
    seconds: float

    def give(self, name: str, folder: Store, compile_it: Callable[[], T]) -> T:
        """What `compile_it` gives; the other ranks get the files that it used, or its error."""
        name = PREFIX + name
        if self.store.check([name]):
            return compile_it()
        end, over = NOTHING, threading.Event()
        beats = threading.Thread(target=self._beat, args=(name, over), daemon=True)
        self._beat_once(name, 0)
        beats.start()
        try:
            with watched_files() as seen:
                made = compile_it()
            archive, _ = archive_of(folder, seen)
            end = FILES + archive if archive else NOTHING
            return made
        except Exception as error:
            if not is_of_signal(error):
                end = ERROR + f"{type(error).__name__}: {error}".encode()
            raise
        finally:
            over.set()
            beats.join()
            self.store.set(name, end)

    def _beat(self, name: str, over: threading.Event) -> None:
        number = 0
        while not over.wait(BEAT):
            number += 1
            self._beat_once(name, number)

    def _beat_once(self, name: str, number: int) -> None:
        self.store.set(f"{name}/alive", str(number))

    def take(self, name: str) -> bool:
        """Whether the files are here now. Errors: OtherRankFailed."""
        key, log = PREFIX + name, logs.log("cache")
        seen, patience = b"", time.monotonic() + self.seconds
        while not self.store.check([key]):
            now = self.store.get(f"{key}/alive") if self.store.check([f"{key}/alive"]) else b""
            if now != seen:
                seen, patience = now, time.monotonic() + self.seconds
            if time.monotonic() > patience:
                why = "shows no life" if seen else "has not begun with it"
                log.emit(f"{name}: rank {self.rank} {why}; it is compiled here")
                return False
            time.sleep(PAUSE)
        end = self.store.get(key)
        if end[:1] == ERROR:
            raise OtherRankFailed(f"rank {self.rank} could not compile it: {end[1:].decode()}")
        if end[:1] == NOTHING:
            log.emit(lambda: f"{name}: rank {self.rank} keeps no such graph; it is compiled here")
            return False
        load_cache_artifacts(end[1:])
        log.emit(lambda: f"{name}: compiled by rank {self.rank}, {len(end)} bytes")
        return True


def ranks_now() -> Ranks | None:
    """The processes that compute together, where one compiles for all."""
    chosen = compiling_rank()
    if chosen is None or not are_many():
        return None
    module, (rank, seconds) = sys.modules["torch.distributed"], chosen
    if rank >= module.get_world_size():
        return None
    store = module.distributed_c10d._get_default_store()
    return Ranks(store, module.get_rank() == rank, rank, seconds)
