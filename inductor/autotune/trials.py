"""Which of several candidates is fastest, by running them in turns for as long as that is not
clear.

In: for each candidate some calls that take turns (over several weights, say). Out: the logarithm of
each candidate's time over that of the usual one. A candidate is left alone as soon as it is clear
on which side of its margin it lies: most are after a few rounds. Times near the shortest count:
what disturbs a call makes it longer only; yet as long as the rounds contradict these, nothing is
clear.

What one graph may spend on it is limited by `spending`.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch

from inductor.runtime.own_libraries import settle

Calls = Sequence[Callable[[], Any]]
FEWEST_ROUNDS = 4  # before times count; this and the following are chosen, not measured
# A candidate that was so much slower than its margin in each of the first rounds, as a logarithm,
# runs no more of them.
FIRST_ROUNDS, FAR = 2, 0.2
# The least that one round differs from another one, as a logarithm; and how many times its error a
# mean has to be away from the margin.
SPREAD, SURE = 0.02, 3.0
SHORTEST = 1e-9  # of a clock that does not tick


@dataclass(slots=True)
class _Left:
    seconds: float


_left: ContextVar[_Left | None] = ContextVar("left", default=None)


@contextlib.contextmanager
def spending(seconds: float) -> Iterator[None]:
    """What is measured inside may take so long all in all."""
    token = _left.set(_Left(seconds))
    try:
        yield
    finally:
        _left.reset(token)


def is_time_left() -> bool:
    """Whether something else may be measured."""
    left = _left.get()
    return left is None or left.seconds > 0


@contextlib.contextmanager
def measuring() -> Iterator[None]:
    """What happens inside is measured: no compiler runs meanwhile, and its time is counted."""
    settle()
    begin, left = time.perf_counter(), _left.get()
    try:
        yield
    finally:
        if left is not None:
            left.seconds -= time.perf_counter() - begin


def give_back_memory() -> None:
    """Free memory that the C library keeps goes back to the system, where that can be asked for."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
    if trim is not None:
        trim(0)


def noise(*size: int) -> torch.Tensor:
    """Numbers without a pattern that matters. The program's own generator is not touched."""
    part = torch.randn(1 << 14, generator=torch.Generator().manual_seed(0))
    count = math.prod(size)
    return part.repeat(-(-count // part.numel()))[:count].reshape(size)


def compare(
    candidates: Mapping[str, Calls], usual: str, margins: Mapping[str, float],
    clock: Callable[[], float], seconds: float, counts: Callable[[], bool] = lambda: True,
    best_only: bool = False,
) -> dict[str, float]:
    """See the top of the file. margins: the logarithm at which each other candidate is better than
    the usual one; seconds: after so many, what is not clear stays so; counts: asked whether what
    was measured so far is worth anything: if not, it ends; best_only: by how much a candidate is
    better or worse does not matter, so that one far on either side of its margin, or far behind
    another candidate, is left alone after the first rounds."""
    for calls in candidates.values():
        calls[0]()  # warms up
    times: dict[str, list[float]] = {name: [] for name in candidates}
    undecided = [name for name in candidates if name != usual]
    begin, done = time.perf_counter(), 0
    while undecided and (done < FEWEST_ROUNDS or time.perf_counter() - begin < seconds):
        done += 1
        for name in (usual, *undecided):
            call = candidates[name][done % len(candidates[name])]
            start = clock()
            call()
            times[name].append(max(clock() - start, SHORTEST))
        if done >= FEWEST_ROUNDS and not counts():
            break
        if done >= FIRST_ROUNDS:
            is_done = _is_clear if done >= FEWEST_ROUNDS else _is_far
            if best_only:
                undecided = [n for n in undecided if not _is_decided(n, times, usual, margins[n])]
            undecided = [n for n in undecided if not is_done(times[n], times[usual], margins[n])]
    return {
        name: 0.0 if name == usual else _ratio(times[name], times[usual]) for name in candidates
    }


def _ratio(one: Sequence[float], other: Sequence[float]) -> float:
    """Of the low quartiles, over the rounds that both have run."""
    low, base = (sorted(each[: len(one)])[len(one) // 4] for each in (one, other))
    return math.log(low / base)


def _is_far(one: Sequence[float], other: Sequence[float], margin: float) -> bool:
    """Whether it was much slower in each round that both have run."""
    return all(math.log(a / b) - margin > FAR for a, b in zip(one, other, strict=False))


def _is_decided(
    name: str, times: Mapping[str, Sequence[float]], usual: str, margin: float
) -> bool:
    """Whether a candidate was much faster than the usual one in each round, or much slower than
    some."""
    others = (each for candidate, each in times.items() if candidate != name)
    behind = any(_is_far(times[name], other, 0.0) for other in others)
    return behind or _is_far(times[usual], times[name], -margin)


def _is_clear(one: Sequence[float], other: Sequence[float], margin: float) -> bool:
    rounds = sorted(math.log(a / b) - margin for a, b in zip(one, other, strict=False))
    count = len(rounds)
    middle, shortest = statistics.median(rounds), _ratio(one, other) - margin
    quartiles = rounds[-1 - count // 4] - rounds[count // 4]
    spread = max(SPREAD, quartiles / 1.35)  # as of a normal distribution
    sure = SURE * 1.25 * spread / math.sqrt(count)
    return middle * shortest > 0 and min(abs(middle), abs(shortest)) > sure
