"""Seconds of several calls that take turns, so that a noisy machine is noisy to all."""

from __future__ import annotations

import contextlib
import shlex
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

LEAST_ROUNDS = 4


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

    block: calls in a row that count, after one that does not (the caches are another's). pause:
    before a block, for engines whose threads go on spinning.
    """
    times: dict[str, list[float]] = {name: [] for name in calls}
    end = time.perf_counter() + seconds
    rounds = 0
    while rounds < LEAST_ROUNDS or time.perf_counter() < end:
        rounds += 1
        for name, call in calls.items():
            time.sleep(pause)
            call()
            for _ in range(block):
                _wait(cuda)
                start = time.perf_counter()
                call()
                _wait(cuda)
                times[name].append(time.perf_counter() - start)
    first = sorted(next(iter(times.values())))
    spread = first[(3 * len(first)) // 4] / first[len(first) // 4]
    return Times({name: statistics.median(found) for name, found in times.items()}, spread)


def _wait(cuda: bool) -> None:
    if cuda:
        torch.cuda.synchronize()


@contextlib.contextmanager
def held(command: str) -> Iterator[None]:
    """Runs `command` for as long as the block takes; empty: nothing.

    It is a child of this process, gets a line, and must give it back when it holds the machine.
    """
    if not command:
        yield
        return
    with subprocess.Popen(
        shlex.split(command), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as holder:
        assert holder.stdin is not None and holder.stdout is not None
        holder.stdin.write("hold\n")
        holder.stdin.flush()
        if not holder.stdout.readline():
            raise RuntimeError(f"{command} ended without a word")
        try:
            yield
        finally:
            holder.stdin.close()
