"""Where dropout on a GPU takes the random number of an element, and what it is compared with.

In: sizes and dtype of what is dropped, and how many blocks the device runs at once. Out: a `Draw`,
the immediate of the scalar operation `keep`. The numbers are those of ATen's `native_dropout`:
Philox 4x32-10 as cuRAND gives it, key = seed, counter = (offset / 4 + counter, subsequence), of
which each counter gives four numbers (lanes).

ATen's grid has `threads` threads, of which each takes `vector` neighbours in memory at a time, as
many as 16 bytes hold where that divides the number of elements. Element e, counted in memory:

    vector 4, 8: t = e // vector; subsequence t % threads;
                 counter (t // threads) * (vector / 4) + (e % vector) // 4, lane e % 4
    vector 2:    the same with counter t // threads, lane e % 2
    vector 1:    subsequence e % threads; counter e // threads // 4, lane e // threads % 4

An element is kept where u = float32(number) * 2**-32 + 2**-33, rounded to float32, is less than
float32(1 - p). That holds for all numbers below `limit`, which is found once.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch

BLOCK = 256  # threads
LANES = 4  # this and the constants below: Philox 4x32-10 (Salmon et al., 2011)
BYTES = 16  # that a thread of ATen's kernel moves at a time
MASK = (1 << 32) - 1
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
STEPS = (0x9E3779B9, 0xBB67AE85)  # of the key, from round to round
ROUNDS = 10


@dataclass(frozen=True, slots=True)
class Draw:
    """See the top of the file. skip: counters that draws of the same state took before. wraps:
    whether a thread takes more than one vector."""

    vector: int
    threads: int
    limit: int
    skip: int
    wraps: bool


def draw_of(
    elements: int, itemsize: int, rate: float, blocks: int, before: Sequence[int] = ()
) -> Draw:
    """The draw of a dropout of so many elements at a rate between 0 and 1. blocks: that the device
    runs at once. before: elements of the dropouts that have drawn from the same state.

    >>> draw_of(1 << 20, 2, 0.5, 8)
    Draw(vector=8, threads=2048, limit=2147483584, skip=0, wraps=True)
    """
    vector = BYTES // itemsize
    while elements % vector:
        vector //= 2
    threads = BLOCK * min(-(-elements // BLOCK), blocks)
    skip = sum(increment_of(each, blocks) // LANES for each in before)
    return Draw(vector, threads, limit_of(rate), skip, elements > threads * vector)


def increment_of(elements: int, blocks: int) -> int:
    """How far a dropout moves the offset of the generator on."""
    threads = BLOCK * min(-(-elements // BLOCK), blocks)
    return ((elements - 1) // (threads * LANES) + 1) * LANES


@functools.cache
def limit_of(rate: float) -> int:
    """The least number that is not kept."""
    bound = torch.tensor(1.0 - rate, dtype=torch.float32)
    low, high = 0, 1 << 32
    while low < high:
        middle = (low + high) // 2
        if bool(_uniform(middle) < bound):
            low = middle + 1
        else:
            high = middle
    return low


def _uniform(number: int) -> torch.Tensor:
    """cuRAND's number between 0 and 1. The product is exact."""
    return torch.tensor(number, dtype=torch.int64).to(torch.float32) * 2.0**-32 + 2.0**-33


def keeps(
    seed: torch.Tensor, offset: torch.Tensor, position: torch.Tensor, draw: Draw
) -> torch.Tensor:
    """Whether elements are kept: the meaning of `keep`. All integers; the result has the shape to
    which they broadcast."""
    at = position.to(torch.int64)
    counter, subsequence, lane = _place(at, draw)
    counter = counter + (offset >> 2) + draw.skip
    words = philox(seed, counter, subsequence)
    chosen = words[3]
    for n in range(3):
        chosen = torch.where(lane == n, words[n], chosen)
    return chosen < draw.limit


def _place(
    at: torch.Tensor, draw: Draw
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(counter, subsequence, lane) of elements."""
    if draw.vector == 1:
        turn = at // draw.threads
        return turn // LANES, at % draw.threads, turn % LANES
    thread = at // draw.vector
    turn, subsequence = thread // draw.threads, thread % draw.threads
    if draw.vector < LANES:
        return turn, subsequence, at % draw.vector
    inside = at % draw.vector // LANES
    return turn * (draw.vector // LANES) + inside, subsequence, at % LANES


def philox(
    seed: torch.Tensor, counter: torch.Tensor, subsequence: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """The four numbers of a counter. All int64; the seed's bits are those of an unsigned number."""
    words = [counter & MASK, counter >> 32 & MASK, subsequence & MASK, subsequence >> 32 & MASK]
    keys = [seed & MASK, seed >> 32 & MASK]
    for _ in range(ROUNDS):
        first, second = (words[2 * n] * MULTIPLIERS[n] for n in range(2))
        words = [
            (second >> 32 & MASK) ^ words[1] ^ keys[0], second & MASK,
            (first >> 32 & MASK) ^ words[3] ^ keys[1], first & MASK,
        ]
        keys = [(key + step) & MASK for key, step in zip(keys, STEPS, strict=True)]
    return tuple(words)
