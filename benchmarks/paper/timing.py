"""Seconds of several calls that take turns, so that a noisy machine is noisy to all."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shlex
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import torch

from benchmarks.paper.table import Run

LEAST_ROUNDS = 4
LEAST_SECONDS = 0.02  # of a block on a GPU


class Times(dict[str, float]):
    """Seconds by name. spread: the upper quartile of the first call over its lower one: much more
    than 1 on a machine that others use."""

    def __init__(self, seconds: Mapping[str, float], spread: float) -> None:
        super().__init__(seconds)
        self.spread = spread


def medians(
    calls: Mapping[str, Callable[[], Any]], seconds: float, cuda: bool = False, block: int = 2,
    pause: float = 0.0,
) -> Times:
    """The median seconds of each call, over blocks in turn for about so many seconds in all.

    block: calls in a row that count, after one that does not (the caches are another's). On a GPU
    the calls of a block follow each other without waiting, for at least `LEAST_SECONDS`. pause:
    before a block, for engines whose threads go on spinning.
    """
    take = _on_gpu if cuda else _on_cpu
    sizes = {name: _calls_of(call) if cuda else block for name, call in calls.items()}
    times: dict[str, list[float]] = {name: [] for name in calls}
    end = time.perf_counter() + seconds
    rounds = 0
    while rounds < LEAST_ROUNDS or time.perf_counter() < end:
        rounds += 1
        for name, call in calls.items():
            time.sleep(pause)
            call()
            times[name] += take(call, sizes[name])
    first = sorted(next(iter(times.values())))
    spread = first[(3 * len(first)) // 4] / first[len(first) // 4]
    return Times({name: statistics.median(found) for name, found in times.items()}, spread)


def _on_cpu(call: Callable[[], Any], block: int) -> list[float]:
    found = []
    for _ in range(block):
        start = time.perf_counter()
        call()
        found.append(time.perf_counter() - start)
    return found


def _on_gpu(call: Callable[[], Any], block: int) -> list[float]:
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(block):
        call()
    torch.cuda.synchronize()
    return [(time.perf_counter() - start) / block]


def _calls_of(call: Callable[[], Any]) -> int:
    call()
    (once,) = _on_gpu(call, 1)
    return max(2, round(LEAST_SECONDS / max(once, 1e-6)))


@contextlib.contextmanager
def turn(run: Run) -> Iterator[None]:
    """The block is timed alone: it waits until those that are prepared beside it are ready, then
    for its turn, then for the machine (`held`).

    run.folder: where the processes of a batch tell that they are ready (`ready-NUMBER`), and are
    told to go on (`go`); empty where there is one process. run.tickets: files, of which it needs
    one for itself: as many as there are may be timed at a time.
    """
    if not run.folder:
        with ticket(run.tickets), held(run.hold):
            yield
        return
    folder = Path(run.folder)
    if run.cuda:
        torch.cuda.empty_cache()  # for those that still compile
    (folder / f"ready-{run.number}").touch()
    parent = os.getppid()
    while not (folder / "go").exists():
        if os.getppid() != parent:
            raise SystemExit("nobody waits for it any more")
        time.sleep(0.05)
    with open(folder / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with held(run.hold):
            yield


@contextlib.contextmanager
def ticket(paths: Sequence[str]) -> Iterator[None]:
    """Locks one of the files for as long as the block takes, once one is free; none: no waiting."""
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(open(path, "w")) for path in paths]
        while files and not any(map(_is_taken, files)):
            time.sleep(0.02)
        yield


def _is_taken(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@contextlib.contextmanager
def held(command: str) -> Iterator[None]:
    """Runs `command` for as long as the block takes; empty: nothing.

    It is a child of this process, gets a line, and must give it back when it holds the machine.
    """
    if not command:
        yield
        return
    holder = subprocess.Popen(
        shlex.split(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert holder.stdin is not None and holder.stdout is not None
    try:
        with contextlib.suppress(BrokenPipeError):  # it has ended: it says nothing, either
            holder.stdin.write("hold\n")
            holder.stdin.flush()
        if not holder.stdout.readline():
            raise RuntimeError(f"{command} ended without a word")
        yield
    finally:
        with contextlib.suppress(BrokenPipeError):
            holder.stdin.close()
        holder.stdout.close()
        holder.wait()
