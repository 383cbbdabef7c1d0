"""CUDA graphs: the launches of one compiled graph, recorded once and started together.

In: the function of a generated wrapper (`Graphing`, `GraphedCall`) that may be recorded
(`recordable.py`). Out: a callable with the same inputs and outputs. The rules (docs/inductor.md):

- The first calls run as they are. They say which inputs stay at one address (parameters mostly);
  those are read, and written, in place, all others are copied into memory of the recording.
- An input that was read in place and comes from another address is copied from then on, in a new
  recording; after a few recordings the graph runs without. One that is written, or large, is read
  and written at its new place instead where the recording before ran often. Where it did not, and
  one is written, calls run as they are until those have stayed for a while.
- All recordings of a stream share their memory. Results are tensors over it: nothing is copied
  out. What somebody still holds when a recording is about to write there gets memory of its own
  first (`csrc/replay.cpp`). Where that happens again and again because of another recording, the
  graph is recorded once more, apart from it. Where large results of the last call are still held
  at the next one (`out = f(x)` in a loop), there are two recordings that take turns.
- A recording spares what was held when it was made, so it reads results of others where they lie:
  backward what forward has kept, one part of a program what the part before has made. What is
  kept for a backward is never moved; until it is no longer needed, another recording of the graph
  runs, or it runs as it is.
- A call on another stream than the recorded one, or while somebody records, runs as it is.
- A recording that fails is never tried again.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from dynamo.base import logs
from inductor import metrics
from inductor.runtime._launch import Replay
from inductor.runtime.gpu_properties import properties_of
from inductor.runtime.recorder import Place, Pool, Pools, Recorder, span

# Limits of what is tried before a graph runs without a recording; chosen, not measured. Each
# recording holds memory of its own.
WARM_UP_CALLS = 2
MOST_RECORDINGS = 4
MOST_AT_ONCE = 3  # recordings of one call
MOST_SIZES = 16
MOST_CROWDED = 3  # calls in which results of others were in the way
MOST_STRAYS = 8  # calls in a row whose inputs are not where another recording makes them
# Bytes of the device measured, which is as fast as its memory.
MOST_COPIED = 1 << 28  # for each call
LARGE = 1 << 24  # of these: wait whether they have to be copied
MOST_DELAYS = 8
# Runs of a recording, which takes as long as a few calls without one: on an H200 the launches of
# one token of a decoder took 1.25 ms without.
ENOUGH_RUNS = 16
# Both chosen, not measured: calls at one place that are waited for; calls in a row, each of which
# has written inputs at another place than the one before.
MOST_PATIENCE = 1024
MOST_RESTLESS = 64
POOLS = Pools()


@dataclass(frozen=True, slots=True, eq=False)
class Recording:
    """resident: inputs that lie where another recording makes them."""

    replay: Replay
    pool: Pool
    place: Place
    resident: frozenset[int]


@dataclass(slots=True)
class Allowance:
    """How many calls may still be recorded: one for each set of sizes."""

    left: int = MOST_SIZES

    def take(self) -> bool:
        """Whether one more may."""
        self.left -= 1
        return self.left >= 0


@dataclass(slots=True)
class GraphedCall:
    """See the top of the file; call it with the graph's tensors.

    values: of a forward graph, how many results its caller sees; the others go to backward.
    written: inputs that it writes. constants: tensors of its own. repeatable: it may run once more
    than it is called. allowance: shared by the calls of one wrapper.
    """

    call: Callable[..., Any]
    recorder: Recorder
    values: int | None = None
    written: frozenset[int] = frozenset()
    constants: tuple[torch.Tensor, ...] = ()
    repeatable: bool = True
    allowance: Allowance = field(default_factory=Allowance)
    pools: Pools = POOLS
    allowed: bool = False  # by it
    warm_ups: int = 0
    made: int = 0  # recordings, until now, but for those in the place of one that paid
    recordings: tuple[Recording, ...] = ()  # of which each call runs the first that can
    seen: list[int] = field(default_factory=list)  # addresses in the first call
    moving: set[int] = field(default_factory=set)  # inputs that are copied
    wandering: set[int] = field(default_factory=set)  # of these: not even read from a pool
    waits: int = 0  # calls for which recordings had to be apart from each other
    delays: int = 0
    strays: int = 0
    runs_before: int = 0  # replays when the last stray came
    place_of_written: list[int] = field(default_factory=list)  # in the last call that waited
    stays: int = 0  # calls, of which this was the last, with them at that place
    restless: int = 0  # calls in a row that had them elsewhere
    patience: int = ENOUGH_RUNS
    apart: bool = False  # from results of others
    full: bool = False  # no memory for more
    off: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, *inputs: torch.Tensor) -> Any:
        recordings = self.recordings
        if recordings and self.recorder.place() == recordings[0].place:
            for recording in recordings:
                runs = recording.replay.runs
                try:
                    with recording.pool.lock:
                        results = recording.replay(*inputs)
                except torch.OutOfMemoryError as error:  # for what somebody holds
                    if self.written and recording.replay.runs != runs:
                        raise  # it has been written
                    self._say(f"a call runs without: {error}")
                    return self.call(*inputs)
                if results is not None and results is not False:
                    if recording.replay.crowded + recording.replay.repeated > MOST_CROWDED:
                        self._learn(recording.replay)
                    return results
        del recordings
        recording = None  # type: ignore[assignment]
        if not self.off:
            place = self.recorder.place()
            if place is not None:
                with self.lock, torch.no_grad():
                    results = self._prepare(inputs, place)
                if results is not None:
                    return results
        return self.call(*inputs)

    def _learn(self, replay: Replay) -> None:
        """Something was moved again and again for this recording."""
        if replay.crowded > MOST_CROWDED and not self.apart:
            self.apart, self.recordings = True, ()
        elif replay.repeated > MOST_CROWDED and not replay.patient and self._may_add():
            replay.patient, self.waits = True, MOST_CROWDED

    def _may_add(self) -> bool:
        there = len(self.recordings)
        return not self.full and 0 < there < MOST_AT_ONCE and self.made < MOST_RECORDINGS

    def _prepare(self, inputs: tuple[torch.Tensor, ...], place: Place) -> Any:
        """The results where it is time to record; None: the call runs as it is."""
        if self.off or not self.recorder.takes(inputs):
            return None
        if self.warm_ups < WARM_UP_CALLS:
            self._warm_up(_addresses(inputs))
            return None
        if not self.recordings:
            return self._record(inputs, place)
        if self.recordings[0].place != place:
            return None
        moved = [set(recording.replay.moved(inputs)) for recording in self.recordings]
        if not all(moved):
            return self._wait(self.recordings[moved.index(set())].replay, inputs, place)
        recording = self.recordings[0]
        strays = moved[0] & recording.resident
        if strays:
            self.waits += 1
            resident, _ = self._find_pool(inputs, place, False)
            if moved[0] <= resident and self.waits > MOST_CROWDED and self._may_add():
                return self._add(inputs, place)
            if not self._is_astray(recording.replay.runs):
                return None  # what makes them ran as it is
        if self._has_paid_off(recording.replay.runs, inputs, moved[0]):
            self.made, self.patience = self.made - 1, ENOUGH_RUNS
        elif not self.written.isdisjoint(moved[0]):
            if not self._stay(inputs):
                return None
            self.made -= 1
        else:
            self.moving |= moved[0]
            self.wandering |= strays
        del recording
        return self._record(inputs, place)

    def _has_paid_off(self, runs: int, inputs: Sequence[torch.Tensor], moved: set[int]) -> bool:
        """Whether a recording ran so often that one more, for inputs that are read and written
        where they lie now, pays too: of each call of `generate`, say, with a cache of its own."""
        big = _take_longer([inputs[n] for n in moved], LARGE)
        return runs >= ENOUGH_RUNS and (big or not self.written.isdisjoint(moved))

    def _stay(self, inputs: Sequence[torch.Tensor]) -> bool:
        """Whether written inputs, which have moved too soon, have been at one place for long enough
        now: for as many calls as a recording takes, and for more each time."""
        places = _addresses([inputs[n] for n in sorted(self.written)])
        self.stays = self.stays + 1 if places == self.place_of_written else 1
        self.place_of_written = places
        self._note_restless(self.stays == 1)
        if self.stays == 1:
            self._say("an input that is written has moved: calls run without until it stays")
        if self.stays < self.patience:
            return False
        self.stays, self.patience = 0, min(2 * self.patience, MOST_PATIENCE)
        return True

    def _note_restless(self, moved: bool) -> None:
        self.restless = self.restless + 1 if moved else 0
        if self.restless > MOST_RESTLESS:
            self._give_up("an input that is written moves")

    def _wait(self, replay: Replay, inputs: tuple[torch.Tensor, ...], place: Place) -> Any:
        """What to do where results are in the way of a recording that would fit."""
        if replay.crowded > MOST_CROWDED and not self.apart:
            self.apart = True
            del replay
            return self._record(inputs, place)
        self.waits += 1
        if self.waits > MOST_CROWDED and self._may_add():
            return self._add(inputs, place)
        if not replay.patient:
            return None
        replay.patient = False
        results = replay(*inputs)
        return None if results is False else results

    def _is_astray(self, runs: int) -> bool:
        """Whether inputs keep coming from elsewhere; runs: of the recording until now."""
        self.strays = self.strays + 1 if runs == self.runs_before else 1
        self.runs_before = runs
        return self.strays > MOST_STRAYS

    def _warm_up(self, addresses: list[int]) -> None:
        self.warm_ups += 1
        if not self.seen:
            self.seen = addresses
        pairs = enumerate(zip(self.seen, addresses, strict=True))
        moved = {n for n, (old, new) in pairs if old != new}
        if self.written.isdisjoint(moved):
            self.moving |= moved
        else:  # the first call of another `generate`, say
            self.seen, self.warm_ups = addresses, 1
        self._note_restless(not self.written.isdisjoint(moved))

    def _record(self, inputs: tuple[torch.Tensor, ...], place: Place) -> Any:
        """Record anew, without those that there are."""
        self.recordings = ()
        if self.delays < MOST_DELAYS and _take_longer(self._copied(inputs, place), LARGE):
            self.delays += 1  # next time they may lie where another recording makes them
            return None
        if not self.allowed and not self.allowance.take():
            return self._give_up(f"{MOST_SIZES} sets of sizes have their recordings")
        self.allowed = True
        if self.made == MOST_RECORDINGS:
            return self._give_up("inputs keep moving")
        try:
            return self._make(inputs, place, self.apart)
        except RuntimeError as error:
            return self._give_up(str(error))

    def _copied(self, inputs: Sequence[torch.Tensor], place: Place) -> list[torch.Tensor]:
        """What each call would copy."""
        resident, _ = self._find_pool(inputs, place, False)
        return [inputs[n] for n in (self.moving - resident) | self.wandering]

    def _add(self, inputs: tuple[torch.Tensor, ...], place: Place) -> Any:
        """One more recording, apart from those that there are."""
        try:
            results = self._make(inputs, place, True)
        except RuntimeError as error:
            self.full = True
            self._say(f"no other recording: {error}")
            return None
        for recording in self.recordings:
            recording.replay.patient = True
        return results

    def _make(self, inputs: tuple[torch.Tensor, ...], place: Place, apart: bool) -> Any:
        """The results of a call that is recorded. Errors: RuntimeError where it can't be."""
        self.made += 1
        resident, pool = self._find_pool(inputs, place, apart)
        copied = sorted((self.moving - resident) | self.wandering)
        if not self.written.isdisjoint(copied):
            raise RuntimeError("an input that is written moves")
        if _take_longer([inputs[n] for n in copied], MOST_COPIED):
            raise RuntimeError("moving inputs are large, and would be copied")
        with pool.lock:
            replay = self._replay_of(inputs, copied, pool)
            results = replay(*inputs)
        found = Recording(replay, pool, place, frozenset(resident - set(copied)))
        self.recordings = (*self.recordings, found)
        metrics.count("cuda_graphs_recorded")
        self._say(f"recorded; copied inputs: {copied}")
        return results

    def _replay_of(
        self, inputs: tuple[torch.Tensor, ...], copied: Sequence[int], pool: Pool
    ) -> Replay:
        held = pool.slots.hold()
        pool.slots.clear()
        keeps = [(begin, end) for begin, end, owned, _ in pool.slots.list() if owned]
        made = self.recorder.record(self.call, inputs, copied, pool, self.repeatable)
        del held
        values = len(made.outputs) if self.values is None else self.values
        return Replay(
            pool.slots, made.run, inputs, made.copied, made.given, made.outputs, self.constants,
            values, keeps,
        )

    def _find_pool(
        self, inputs: Sequence[torch.Tensor], place: Place, apart: bool
    ) -> tuple[set[int], Pool]:
        """Inputs that lie in some pool, and a pool in which all that must not be overwritten is
        known to the allocator, too; apart: that is all that somebody holds, and what this call's
        other recordings need."""
        resident: set[int] = set()
        taken = [recording.pool for recording in self.recordings]
        chosen = None
        for pool in self.pools.at(place):
            slots = sorted(pool.slots.list())
            starts = [slot[0] for slot in slots]
            in_the_way = apart and (pool in taken or any(not owned for _, _, owned, _ in slots))
            in_the_way |= any(stays and not owned for _, _, owned, stays in slots)
            for n, tensor in enumerate(inputs):
                address = tensor.data_ptr()
                before = bisect_right(starts, address) - 1
                if before >= 0 and address < slots[before][1]:
                    resident.add(n)
                    in_the_way |= not slots[before][2]
            if chosen is None and not in_the_way:
                chosen = pool
        return resident - self.wandering, chosen or self.pools.new(place)

    def _give_up(self, reason: str) -> None:
        self.off, self.recordings = True, ()
        metrics.count("cuda_graphs_given_up")
        self._say(f"given up: {reason}")

    def _say(self, sentence: str) -> None:
        logs.log("cudagraphs").emit(sentence)


def _addresses(tensors: Sequence[torch.Tensor]) -> list[int]:
    return [tensor.data_ptr() for tensor in tensors]


def _take_longer(tensors: Sequence[torch.Tensor], most: int) -> bool:
    """Whether copies of these take longer than `most` bytes on the device measured."""
    if not tensors:
        return False
    limit = properties_of(tensors[0].device).scaled_by_bandwidth(most)
    return sum(span(tensor) * tensor.element_size() for tensor in tensors) > limit


@dataclass(frozen=True, slots=True)
class Graphing:
    """Makes graphed calls of the functions of one wrapper. The fields: see `GraphedCall`."""

    recorder: Recorder
    values: int | None
    written: frozenset[int]
    repeatable: bool
    allowance: Allowance = field(default_factory=Allowance)

    def __call__(
        self, call: Callable[..., Any], constants: Sequence[torch.Tensor]
    ) -> Callable[..., Any]:
        return GraphedCall(
            call, self.recorder, self.values, self.written, tuple(constants), self.repeatable,
            self.allowance,
        )
