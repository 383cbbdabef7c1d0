"""The greatest (or least) elements of few long rows, by three Triton kernels that share each row.

In: rows of numbers of up to 32 bits. Out: values and places as `torch.topk` gives them, sorted;
of equal elements the first comes first. An element's key is its value as an integer of the same
order, and its place, so that no two are equal. NaN counts as the greatest.

A row is cut into lines of `groups` elements, one below the other. The first kernel finds the
greatest key of each column. The second bisects for a limit that at least k of these reach, but few
more, and collects the keys that reach it: k or more, all in columns whose greatest key does. Where
a row's order has nothing to do with the columns these are little more than k; at most, they are all
of so many columns, for which there is room. The third kernel counts for each collected key how many
are greater, which is its place in the result.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from inductor.kernels.attention_spec import Blocks
from inductor.kernels.gpu.calls_by_form import CallsByForm
from inductor.kernels.gpu.text_launches import KernelName, TextLaunch
from inductor.runtime._launch import Allocation, KernelCall

INFINITIES = {torch.float32: 0x7F800000, torch.float16: 0x7C00, torch.bfloat16: 0x7F80}
DTYPES = (*INFINITIES, torch.int32, torch.int16, torch.int8, torch.uint8)
# Chosen. Within them these kernels took 0.1 to 0.5 of ATen's time for 16 shapes on an H200 (a table
# is in docs/gpu_models.md); other limits were not measured.
LEAST_SIZE, MOST_SIZE = 4096, 1 << 20
MOST_ROWS, MOST_ELEMENTS, MOST_TAKEN = 64, 1 << 24, 1024
LEAST_DEPTH = 8  # elements of a row for each that is taken
LEAST_GROUPS, MOST_GROUPS = 1024, 4096  # a program of the second kernel holds the keys of all
LEAST_COLUMNS = 16  # of a program: 32 bytes of half precision, which memory is read in
ENOUGH_PROGRAMS = 256  # for all rows
TILE = 2048  # elements that a program loads at a time
RANKED, BESIDE = 16, 256  # keys of a program of the third kernel, others that it compares at a time

TEXT = '''\
import triton
import triton.language as tl


@triton.jit
def keys_of(
    X, row, start, first, LARGEST: tl.constexpr, INFINITY: tl.constexpr, MAGNITUDE: tl.constexpr,
    SIZE: tl.constexpr, GROUPS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, wanted,
):
    """Keys of a tile of the row's matrix; the least number where there is no element."""
    places = (start + tl.arange(0, ROWS))[:, None] * GROUPS + first + tl.arange(0, COLUMNS)[None, :]
    inside = (places < SIZE) & wanted[None, :]
    x = tl.load(X + row.to(tl.int64) * SIZE + places, mask=inside, other=0)
    if X.dtype.element_ty.is_floating():
        if X.dtype.element_ty.primitive_bitwidth == 16:
            bits = x.to(tl.int16, bitcast=True).to(tl.int32)
        else:
            bits = x.to(tl.int32, bitcast=True)
        order = tl.where(bits < 0, bits ^ MAGNITUDE, bits)
        order = tl.where((bits & MAGNITUDE) > INFINITY, MAGNITUDE, order)
    else:
        order = x.to(tl.int32)
    if not LARGEST:
        order = ~order
    key = order.to(tl.int64) * 4294967296 + (SIZE - 1 - places)
    return tl.where(inside, key, -9223372036854775807 - 1)


@triton.jit
def topk_groups(
    X, SPACE, LARGEST: tl.constexpr, INFINITY: tl.constexpr, MAGNITUDE: tl.constexpr,
    COUNT: tl.constexpr, SIZE: tl.constexpr, GROUPS: tl.constexpr, DEPTH: tl.constexpr,
    ROOM: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):
    row = tl.program_id(1)
    first = tl.program_id(0) * COLUMNS
    every = tl.full([COLUMNS], 1, tl.int1)
    most = tl.full([ROWS, COLUMNS], -9223372036854775807 - 1, tl.int64)
    for start in range(0, DEPTH, ROWS):
        keys = keys_of(
            X, row, start, first, LARGEST, INFINITY, MAGNITUDE, SIZE, GROUPS, ROWS, COLUMNS, every)
        most = tl.maximum(most, keys)
    tl.store(SPACE + row * GROUPS + first + tl.arange(0, COLUMNS), tl.max(most, 0))
    if first == 0:
        tl.store(SPACE + COUNT * (GROUPS + ROOM) + row, 0)


@triton.jit
def topk_collected(
    X, SPACE, LARGEST: tl.constexpr, INFINITY: tl.constexpr, MAGNITUDE: tl.constexpr,
    COUNT: tl.constexpr, SIZE: tl.constexpr, GROUPS: tl.constexpr, DEPTH: tl.constexpr,
    ROOM: tl.constexpr, K: tl.constexpr, ENOUGH: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    row = tl.program_id(1)
    first = tl.program_id(0) * COLUMNS
    tops = tl.load(SPACE + row * GROUPS + tl.arange(0, GROUPS))
    own = tl.load(SPACE + row * GROUPS + first + tl.arange(0, COLUMNS))
    # at least K keys reach `low`, fewer than K reach `high`
    low = tl.min(tops, 0)
    high = tl.max(tops, 0) + 1
    reach = tl.full([], GROUPS, tl.int32)
    while (reach > ENOUGH) & (low + 1 < high):
        middle = (low >> 1) + (high >> 1) + (low & high & 1)
        some = tl.sum((tops >= middle).to(tl.int32), 0)
        reach = tl.where(some >= K, some, reach)
        low = tl.where(some >= K, middle, low)
        high = tl.where(some >= K, high, middle)
    found = SPACE + COUNT * (GROUPS + ROOM) + row
    room = SPACE + COUNT * GROUPS + row * ROOM
    wanted = own >= low
    if tl.max(own, 0) >= low:
        for start in range(0, DEPTH, ROWS):
            keys = keys_of(
                X, row, start, first, LARGEST, INFINITY, MAGNITUDE, SIZE, GROUPS, ROWS, COLUMNS,
                wanted)
            taken = keys >= low
            ones = tl.full([ROWS, COLUMNS], 1, tl.int64)
            to = tl.atomic_add(found + tl.zeros_like(ones), ones, mask=taken, sem="relaxed")
            tl.store(room + to, keys, mask=taken)


@triton.jit
def topk_ranked(
    SPACE, VALUES, PLACES, LARGEST: tl.constexpr, MAGNITUDE: tl.constexpr, COUNT: tl.constexpr,
    SIZE: tl.constexpr, GROUPS: tl.constexpr, ROOM: tl.constexpr, K: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):
    row = tl.program_id(1)
    found = tl.load(SPACE + COUNT * (GROUPS + ROOM) + row).to(tl.int32)
    room = SPACE + COUNT * GROUPS + row * ROOM
    for start in range(tl.program_id(0) * ROWS, found, tl.num_programs(0) * ROWS):
        at = start + tl.arange(0, ROWS)
        key = tl.load(room + at, mask=at < found, other=0)
        rank = tl.zeros([ROWS], tl.int32)
        for begin in range(0, found, COLUMNS):
            beside = begin + tl.arange(0, COLUMNS)
            others = tl.load(room + beside, mask=beside < found, other=-9223372036854775807 - 1)
            rank += tl.sum((others[None, :] > key[:, None]).to(tl.int32), 1)
        order = (key >> 32).to(tl.int32)
        if not LARGEST:
            order = ~order
        if VALUES.dtype.element_ty.is_floating():
            bits = tl.where(order < 0, order ^ MAGNITUDE, order)
            if VALUES.dtype.element_ty.primitive_bitwidth == 16:
                value = bits.to(tl.int16).to(VALUES.dtype.element_ty, bitcast=True)
            else:
                value = bits.to(tl.float32, bitcast=True)
        else:
            value = order.to(VALUES.dtype.element_ty)
        to = row * K + rank
        inside = (at < found) & (rank < K)
        tl.store(VALUES + to, value, mask=inside)
        tl.store(PLACES + to, (SIZE - 1) - (key & 0xFFFFFFFF), mask=inside)
'''


def has_kernels(rows: int, size: int, k: int, dtype: torch.dtype) -> bool:
    """Whether `LongTopkCall` is for these rows, and should be faster than ATen."""
    return (
        dtype in DTYPES and 0 < rows <= MOST_ROWS and rows * size <= MOST_ELEMENTS
        and LEAST_SIZE <= size <= MOST_SIZE and 0 < k <= min(MOST_TAKEN, size // LEAST_DEPTH)
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class LongTopk:
    """The kernels for rows of one size. space: for what they hand on."""

    groups: KernelCall
    collected: KernelCall
    ranked: KernelCall
    space: Allocation

    def __call__(
        self, stream: int, x: torch.Tensor, values: torch.Tensor, places: torch.Tensor
    ) -> None:
        space = self.space()
        self.groups(stream, x, space)
        self.collected(stream, x, space)
        self.ranked(stream, space, values, places)


class LongTopkCall(CallsByForm):
    """`torch.topk` along the last axis, for few long rows."""

    __slots__ = ()

    def __call__(
        self, x: torch.Tensor, k: int, largest: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        values, places = self.run(prepare, (x.contiguous(),), k, largest)
        return values, places


def prepare(
    x: torch.Tensor, k: int, largest: bool
) -> tuple[LongTopk, tuple[Allocation, Allocation]]:
    """The kernels, not compiled yet, and their results."""
    *outer, size = x.shape
    count = math.prod(outer)
    groups = _power_of_two(max(4 * k, -(-size // 64)))
    groups = max(LEAST_GROUPS, min(groups, MOST_GROUPS))
    depth = -(-size // groups)
    enough = k + k // 4 + 4
    room = enough * depth
    columns = LEAST_COLUMNS
    while columns < groups and count * groups // columns > ENOUGH_PROGRAMS:
        columns *= 2
    rows = min(max(1, TILE // columns), _power_of_two(depth))
    warps = 4 if groups < MOST_GROUPS else 8
    constants = {
        "LARGEST": largest, "INFINITY": INFINITIES.get(x.dtype, 0),
        "MAGNITUDE": 0x7FFF if x.dtype.itemsize == 2 else 0x7FFFFFFF, "COUNT": count, "SIZE": size,
        "GROUPS": groups, "DEPTH": depth, "ROOM": room, "K": k, "ENOUGH": enough,
    }  # fmt: skip
    shared = groups // columns, count, 1
    ranked = -(-enough // RANKED), count, 1
    tile = Blocks(rows, columns, warps, 1)
    goal = (*outer, k)
    values, places = (
        Allocation(goal, _dense(goal), kind, x.device) for kind in (x.dtype, torch.int64))
    space = count * (groups + room + 1)
    calls = LongTopk(
        TextLaunch.of(KernelName(TEXT, "topk_groups"), shared, constants, tile, 2),
        TextLaunch.of(KernelName(TEXT, "topk_collected"), shared, constants, tile, 2),
        TextLaunch.of(
            KernelName(TEXT, "topk_ranked"), ranked, constants, Blocks(RANKED, BESIDE, 4, 1), 3),
        Allocation((space,), (1,), torch.int64, x.device))
    return calls, (values, places)


def _dense(size: tuple[int, ...]) -> tuple[int, ...]:
    steps, step = [], 1
    for extent in reversed(size):
        steps.append(step)
        step *= extent
    return tuple(reversed(steps))


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()
