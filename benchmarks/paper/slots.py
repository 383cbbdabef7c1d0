"""Models in slots: each slot has two cores of its own and runs one model after the other on them.

All ways of a model take turns in one process on the cores of its slot, so the numbers of a row can
be compared. What the slots share (memory, the clock of the processor) disturbs all ways alike, but
not at all times; so only some are timed at a time, while the others compile.

A slot's server imports what models need once and forks for each of them. Where it has threads by
then (a fork would not have them), it starts a new interpreter instead.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import TracebackType
from typing import IO

from benchmarks.paper.batches import LEAST, NO_TIME, ROOT, rows_said, skipped
from benchmarks.paper.report import CORES, Row
from benchmarks.paper.table import Run

READY, DONE = "READY", "DONE"
IMPORTS = 120.0  # seconds that a server may take until it is ready
LONGER = 60.0  # seconds that timing may take longer: it waits, and has a least number of rounds
TOPOLOGY = Path("/sys/devices/system/cpu")


def places(slots: int, topology: Path = TOPOLOGY) -> list[list[int]]:
    """The cores of each slot; threads of one core are in the same slot. Errors: SystemExit."""
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < CORES * slots:
        raise SystemExit(f"--slots {slots}: {len(cores)} cores are enough for "
                         f"{len(cores) // CORES}")  # fmt: skip

    def core_of(number: int) -> tuple[str, str]:
        folder = topology / f"cpu{number}" / "topology"
        try:
            return tuple((folder / name).read_text().strip().zfill(4)  # type: ignore[return-value]
                         for name in ("physical_package_id", "core_id"))  # fmt: skip
        except OSError:
            return "", str(number).zfill(4)

    cores.sort(key=lambda number: (core_of(number), number))
    return [cores[CORES * n : CORES * (n + 1)] for n in range(slots)]


# -- the server: in the process of a slot ----------------------------------------------------------


def serve(work: Callable[[Run], None], again: Sequence[str]) -> None:
    """Runs what comes on the standard input, a line of JSON each, and says when it is done.

    work: prints the rows of a run. again: the command that does so in a new process, without its
    last argument, the run.
    """
    _import_suites()
    print(READY, flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        run, said, complained = asked["run"], asked["said"], asked["complained"]
        if len(os.listdir("/proc/self/task")) > 1:
            with open(said, "w") as out, open(complained, "w") as errors:
                code = subprocess.run([*again, json.dumps(run)], stdout=out, stderr=errors,
                                      stdin=subprocess.DEVNULL, check=False).returncode  # fmt: skip
        else:
            code = _forked(lambda run=run: work(Run(**run)), said, complained)
        print(f"{DONE} {code}", flush=True)


def _import_suites() -> None:
    from benchmarks.paper import models

    for one in (models.import_transformers, models.import_torchvision, lambda: __import__("timm")):
        with contextlib.suppress(ImportError):
            one()


def _forked(call: Callable[[], None], said: str, complained: str) -> int:
    """The exit status of a child that calls; negative: of the signal that ended it."""
    child = os.fork()
    if not child:
        code = 1
        try:
            for stream, path in ((1, said), (2, complained)):
                os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), stream)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            call()
            code = 0
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


# -- the slots: threads of the process that collects the rows --------------------------------------


class Server:
    """A server that is started when it is needed, and again after a run that took too long."""

    def __init__(self, command: Sequence[str]) -> None:
        self.command = command
        self.process: subprocess.Popen[bytes] | None = None
        self.folder = tempfile.TemporaryDirectory()

    def __enter__(self) -> Server:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()
        self.folder.cleanup()

    def start(self) -> bool:
        """Whether it is ready."""
        self.process = subprocess.Popen(
            self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, cwd=ROOT,
            start_new_session=True, env={**os.environ, **environment()})  # fmt: skip
        return self._heard(IMPORTS) == READY

    def stop(self) -> None:
        """Ends it, the model it runs and their compilers."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            for pipe in (self.process.stdin, self.process.stdout):
                assert pipe is not None
                pipe.close()
        self.process = None

    def rows(self, run: Run, limit: float) -> list[Row]:
        """The rows of a run; then why there is no more, if it failed or took longer than that."""
        if self.process is None and not self.start():
            self.stop()
            return [skipped(run, "the server of the slot does not start")]
        assert self.process is not None and self.process.stdin is not None
        paths = {name: str(Path(self.folder.name) / name) for name in ("said", "complained")}
        for path in paths.values():
            Path(path).write_text("")
        asked = {"run": {**asdict(run), "began": 0.0}, **paths}
        self.process.stdin.write((json.dumps(asked) + "\n").encode())
        answer = self._heard(limit)
        if not answer.startswith(DONE):
            self.stop()
        code = int(answer.split()[1]) if answer.startswith(DONE) else 0
        why = "" if answer else f"more than {limit:.0f} s"
        with open(paths["said"]) as said, open(paths["complained"]) as complained:
            return rows_said(run, said, complained, code, why)

    def _heard(self, seconds: float) -> str:
        """The next line; empty where none comes in time, or the process has ended."""
        assert self.process is not None and self.process.stdout is not None
        out: IO[bytes] = self.process.stdout
        ready, _, _ = select.select([out], [], [], max(0.0, seconds))
        return out.readline().decode().strip() if ready else ""


def environment() -> dict[str, str]:
    """As many threads as cores; none of NumPy's, which a fork would not have."""
    counts = {name: str(CORES) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    return {**counts, "OPENBLAS_NUM_THREADS": "1"}


def collect(
    command: Sequence[str], runs: Sequence[Run], limit: float, slots: int, timed: int = 0
) -> Iterator[list[Row]]:
    """The rows of all, as they come, until `limit` seconds are over; what is not begun is a row.

    command: of a server. timed: how many are timed at a time, 0: all. Each run has `run.limit`
    seconds until it is timed, and what timing takes.
    """
    until = time.perf_counter() + limit
    folder = tempfile.TemporaryDirectory()
    tickets = tuple(str(Path(folder.name) / f"ticket-{number}") for number in range(timed))
    waiting: queue.SimpleQueue[Run] = queue.SimpleQueue()
    found: queue.SimpleQueue[list[Row]] = queue.SimpleQueue()
    for run in runs:
        waiting.put(replace(run, tickets=tickets))

    def work(cores: list[int]) -> None:
        os.sched_setaffinity(0, cores)  # of this thread, and of what it starts
        with Server(command) as server:
            while True:
                try:
                    run = waiting.get_nowait()
                except queue.Empty:
                    return
                left = until - time.perf_counter()
                found.put(server.rows(_cut(run, left), min(left, _most(run)))
                          if left > LEAST else [skipped(run, NO_TIME)])  # fmt: skip

    threads = [threading.Thread(target=work, args=(cores,), daemon=True)
               for cores in places(slots)]  # fmt: skip
    for thread in threads:
        thread.start()
    for _ in runs:
        yield found.get()
    for thread in threads:
        thread.join()
    folder.cleanup()


def _cut(run: Run, left: float) -> Run:
    """The run, ready in time to be timed before all ends."""
    return replace(run, limit=max(LEAST / 2, min(run.limit, left - run.seconds)))


def _most(run: Run) -> float:
    return run.limit + run.seconds + LONGER
