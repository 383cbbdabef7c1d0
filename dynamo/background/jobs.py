"""Jobs: compiles that threads do while the program runs, and functions that are replaced by them.

In: what compiles, and what runs meanwhile. Out: a function (a few nanoseconds on top) that calls
the second until the first has given something better. A call that has begun goes on as it began.

Jobs run one at a time under `Pool.compiling`, but for the time that they wait for a process. The
threads are daemons: at the exit of the interpreter a job is stopped by an exception. A fork
waits until no job holds a lock; the child goes on with what was ready, and runs the rest as it is.
"""

from __future__ import annotations

import atexit
import contextlib
import contextvars
import ctypes
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from dynamo._C import rescued_call
from dynamo.background.modes import ThreadModes
from dynamo.base.config import config
from dynamo.base.ranks import are_many
from dynamo.base.recursion import recursion_room

Call = Callable[..., Any]
Prepares = list[Callable[[], Any]]
FUNCTION = 0  # in the parts of a `rescued_call`
FORK_PATIENCE = 30.0  # seconds
EXIT_PATIENCE = 5.0
CALLS_OF_RANKS = 20

_collected: contextvars.ContextVar[Prepares | None] = contextvars.ContextVar(
    "collected", default=None)


class Stopped(BaseException):
    """The interpreter ends while a job runs."""


@contextlib.contextmanager
def collecting() -> Iterator[Prepares]:
    """What is compiled inside may compile its later parts in the background. Gives what compiles
    those of them that are sure to be wanted."""
    prepares: Prepares = []
    token = _collected.set(prepares)
    try:
        yield prepares
    finally:
        _collected.reset(token)


def is_background() -> bool:
    """True inside of `collecting`, and so in each job."""
    return _collected.get() is not None


def note_part(prepare: Callable[[], Any]) -> None:
    """A part that will be wanted: the compile under way makes it ready, too."""
    prepares = _collected.get()
    if prepares is not None:
        prepares.append(prepare)


def later(
    compile_now: Callable[[], Call], meanwhile: Call, on_error: Callable[[Exception], None],
    calls: int = 0,
) -> Call:
    """A function that calls `meanwhile` until a job has made what `compile_now` gives.

    on_error: tells of an error of the job, behind which `meanwhile` stays; an error that it raises
    is that of the next calls. calls: which call waits for the job and is the first that runs what
    it made, whenever that is ready; 0 for none. In a job, and where a mode of this thread can't be
    taken along, all is compiled at once.
    """
    modes = None if is_background() else ThreadModes.now()
    if modes is None or pool.stopped:
        return compile_now()
    parts = [meanwhile, _as_it_is]
    function = rescued_call(parts)
    job = Job(compile_now, parts, on_error, modes)
    calls = calls or calls_of_ranks()
    if calls:
        job.waiting = parts[FUNCTION] = _Waiting(job, meanwhile, calls)
    job.alive = weakref.ref(function)
    pool.submit(job)
    return function  # type: ignore[no-any-return]


def calls_of_ranks() -> int:
    """Which call waits where several processes compute together: each of them switches at that one,
    however long it compiles. 0 for a process alone."""
    return CALLS_OF_RANKS if are_many() else 0


def _as_it_is(error: Exception, *inputs: Any) -> Any:
    return NotImplemented  # the error is the program's, or looked at further inside


class Job:
    """One compile. parts: where the function that is called is replaced."""

    alive: Callable[[], Any]
    waiting: _Waiting | None = None

    def __init__(
        self, compile_now: Callable[[], Call], parts: list[Call],
        on_error: Callable[[Exception], None], modes: ThreadModes,
    ) -> None:
        self.compile_now, self.parts, self.on_error = compile_now, parts, on_error
        self.meanwhile = parts[FUNCTION]
        self.modes, self.context = modes, contextvars.copy_context()
        self.done = threading.Event()

    def run(self) -> None:
        """Errors: Stopped."""
        called = self.meanwhile
        try:
            if self.alive() is not None:  # else nobody can call it any more
                called = self.context.run(self._compile)
        finally:
            if self.waiting is None:
                self.parts[FUNCTION] = called
            else:
                self.waiting.made, self.waiting = called, None
            del self.compile_now, self.on_error, self.context
            self.done.set()

    def _compile(self) -> Call:
        try:
            with self.modes.entered(), recursion_room(), collecting() as prepares:
                made = self.compile_now()
                for prepare in prepares:
                    prepare()
                return made
        except Exception as error:
            try:
                self.on_error(error)
            except Exception as error:
                return _raising(error)
            return self.meanwhile


def _raising(error: Exception) -> Call:
    def call(*inputs: Any) -> Any:
        raise error.with_traceback(None)

    return call


class _Waiting:
    """Calls `meanwhile` until the call that waits for the job. made: what that has made; without
    it (the job was that of a process that has forked) `meanwhile` stays."""

    def __init__(self, job: Job, meanwhile: Call, calls: int) -> None:
        self.done, self.parts = job.done, job.parts
        self.made = self.meanwhile = meanwhile
        self.left = calls

    def __call__(self, *inputs: Any) -> Any:
        self.left -= 1
        if self.left > 0:
            return self.meanwhile(*inputs)
        self.done.wait()
        self.parts[FUNCTION] = self.made
        return self.made(*inputs)


class Pool:
    """The threads that do jobs, `config.background_processes` of them, at least one."""

    def __init__(self) -> None:
        self.compiling = threading.Lock()
        self.changed = threading.Condition()
        self.queue: deque[Job] = deque()
        self.running: dict[int, Job] = {}
        self.threads: list[threading.Thread] = []
        self.stopped = False
        self.at_stop: list[Callable[[], None]] = []

    def submit(self, job: Job) -> None:
        with self.changed:
            self.queue.append(job)
            busy = len(self.running) + len(self.queue)
            if len(self.threads) < min(busy, max(1, config.background_processes)):
                thread = threading.Thread(target=self._work, name="dynamo-compile", daemon=True)
                self.threads.append(thread)
                thread.start()
            self.changed.notify_all()

    def _work(self) -> None:
        number = threading.get_ident()
        with contextlib.suppress(Stopped):
            while True:
                with self.changed:
                    while not self.queue:
                        if self.stopped:
                            return
                        self.changed.wait()
                    job = self.running[number] = self.queue.popleft()
                try:
                    with self.compiling:
                        job.run()
                finally:
                    del job
                    with self.changed:
                        del self.running[number]
                        self.changed.notify_all()

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """A job waits for a process: others may go on, and a fork may happen. Errors: Stopped."""
        self.compiling.release()
        try:
            yield
        finally:
            self.compiling.acquire()
        if self.stopped:
            raise Stopped

    def wait(self, timeout: float | None) -> bool:
        end = None if timeout is None else time.monotonic() + timeout
        with self.changed:
            while self.queue or self.running:
                left = None if end is None else end - time.monotonic()
                if left is not None and left <= 0:
                    return False
                self.changed.wait(left)
        return True

    def stop(self) -> None:
        """Ends all jobs and threads, as the interpreter ends: a thread that comes back later is
        killed by it, and that ends the process where frames of C++ are on its stack."""
        end_at = time.monotonic() + EXIT_PATIENCE
        with self.changed:
            self.stopped = True
            self.queue.clear()
            numbers = list(self.running)
            self.changed.notify_all()
        for end in self.at_stop:
            end()
        for number in numbers:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(number), ctypes.py_object(Stopped))
        for thread in self.threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, end_at - time.monotonic()))


pool = Pool()
_held = [False]


def pending() -> int:
    """How many compiles are waiting or under way."""
    with pool.changed:
        return len(pool.queue) + len(pool.running)


def wait(timeout: float | None = None) -> bool:
    """Waits until nothing is being compiled in the background; False where that takes longer than
    `timeout` seconds. Calls behind it run compiled code.

    >>> wait()
    True
    """
    return pool.wait(timeout)


def _before_fork() -> None:
    _held[0] = pool.compiling.acquire(timeout=FORK_PATIENCE)


def _behind_fork() -> None:
    if _held[0]:
        pool.compiling.release()


def _in_child() -> None:
    """The threads are gone, and so is what they compiled: nobody waits for it."""
    for job in (*pool.queue, *pool.running.values()):
        job.done.set()
    pool.__dict__.update(Pool().__dict__)


os.register_at_fork(
    before=_before_fork, after_in_parent=_behind_fork, after_in_child=_in_child)
atexit.register(pool.stop)
