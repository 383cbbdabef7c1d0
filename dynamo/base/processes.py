"""Processes that do jobs for this one: threads do not speed up what holds Python's lock.

In: a function by name, and jobs, which are pickled. Out: its results, as they come. One process is
started; it imports the function's module and forks the others, while it has no thread and no GPU.
They end with this process, and when for `IDLE` seconds there is nothing to do.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.connection import wait as wait_for
from typing import Any

from dynamo.base import process_leader
from dynamo.base.process_leader import DONE, READY
from dynamo.base.waiting import work_now

IDLE = 120.0  # seconds; chosen, not measured
ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1"}  # numpy's library else has some when others are forked


@dataclass(frozen=True, slots=True)
class Failed:
    """What came of a job that has no result: the function's error as text, or why nobody did it."""

    text: str


class Processes:
    """So many of them do `function`, "module:name"; started by `begin`, or by the first jobs.

    state: what they had from this process at their start, as its environment; where that has
    changed, others are started. bare: packages whose `__init__` they need not run. given: for the
    `prepare` of the function's module, if it is not None: see `process_leader`.

        >>> with Processes("json:loads", 2) as processes:
        ...     sorted(processes.results(["1", "2"]))
        [(0, 1), (1, 2)]
    """

    def __init__(
        self, function: str, count: int, state: Callable[[], Any] = lambda: None, *,
        bare: Sequence[str] = (), given: Any = None,
    ) -> None:
        self.function, self.count, self.state = function, count, state
        self.bare, self.given = bare, given
        self._lock = threading.Lock()
        self._owner, self._started_in = 0, None
        self._leader: subprocess.Popen[bytes] | None = None
        self._open: list[Connection[Any, Any]] = []
        self._ready: set[Connection[Any, Any]] = set()

    def __enter__(self) -> Processes:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def begin(self) -> None:
        """Start them, if they are not there. Errors: OSError where the system starts none."""
        with self._lock:
            self._begin()

    def stop(self) -> None:
        """Let them end; what they are at is lost."""
        for connection in self._open:
            connection.close()
        self._open, self._ready = [], set()
        if self._leader is not None and self._owner == os.getpid():
            self._leader.poll()
        self._leader = None

    def results(
        self, jobs: Sequence[Any], meanwhile: Callable[[int], Any] | None = None
    ) -> Iterator[tuple[int, Any]]:
        """The number of each job and what came of it, in the order in which they get done. Jobs
        begin where results are asked for. meanwhile: does a job, by its number, in this process:
        while no other is ready.

        Whoever asks for results while another thread does so waits.
        """
        with self._lock:
            self._begin()
            try:
                yield from self._results(jobs, meanwhile)
            except BaseException:  # results are on the way that nobody would take
                self.stop()
                raise

    def _results(
        self, jobs: Sequence[Any], meanwhile: Callable[[int], Any] | None
    ) -> Iterator[tuple[int, Any]]:
        left = deque(range(len(jobs)))
        at_work: dict[Connection[Any, Any], int] = {}
        is_first = True
        while left or at_work:
            for connection in self._ready - at_work.keys():
                if left:
                    number = left.popleft()
                    try:
                        connection.send(jobs[number])
                        at_work[connection] = number
                    except OSError:
                        left.appendleft(number)
                        self._lose(connection)
            if not self._open:
                break
            if is_first:
                is_first = False
                work_now()
            alone = meanwhile is not None and left and not self._ready
            answered = wait_for(self._open, 0 if alone else None)
            for connection in [one for one in self._open if one in answered]:
                try:
                    kind, value = connection.recv()
                except (EOFError, OSError):
                    self._lose(connection)
                    if connection in at_work:
                        yield at_work.pop(connection), Failed("a process has ended")
                    continue
                if kind == READY:
                    self._ready.add(connection)
                else:
                    yield at_work.pop(connection), value if kind == DONE else Failed(value)
            if alone and not self._ready and meanwhile is not None:
                number = left.popleft()
                yield number, meanwhile(number)
        for number in left:
            yield number, Failed("no process is there")

    def _lose(self, connection: Connection[Any, Any]) -> None:
        connection.close()
        self._open.remove(connection)
        self._ready.discard(connection)

    def _begin(self) -> None:
        if self._owner != os.getpid():  # a fork has its parent's, and must not talk to them
            self._open, self._ready, self._leader = [], set(), None
        state = self.state()
        if self._open and state == self._started_in:
            return
        self.stop()
        pairs = [Pipe() for _ in range(self.count)]
        theirs = [end.fileno() for _, end in pairs]
        places = ",".join(map(str, theirs))
        command = [  # -P: no module beside that file stands for one of Python's
            sys.executable, "-P", process_leader.__file__, self.function, places, str(IDLE),
            repr(sys.path), ",".join(self.bare), repr(self.given)]
        try:
            self._leader = subprocess.Popen(
                command, env={**os.environ, **ONE_THREAD}, stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=theirs, start_new_session=True)  # Ctrl-C is for this process alone
        except OSError:
            for ours, _ in pairs:
                ours.close()
            raise
        finally:
            for _, end in pairs:
                end.close()
        self._owner, self._started_in = os.getpid(), state
        self._open = [ours for ours, _ in pairs]
