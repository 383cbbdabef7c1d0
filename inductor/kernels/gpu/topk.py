"""The greatest (or least) elements of short rows, by a Triton kernel that holds whole rows.

In: rows of floating-point numbers. Out: values and places as `torch.topk` gives them. An element's
key is its value as an integer of the same order, and its place, so that no two are equal: k times
the greatest key of a row is taken out. NaN counts as the greatest.

Equal values come in the order in which eager's kernels leave them, which is none of its own: these
write what is greater than the last value in the order of the places, then what equals it, and sort
that by a bitonic network over 32 slots (CUDA's `SmallBitonicSort`), which is not stable. `network`
repeats what that does to k filled slots. A library takes two kernels, and goes over rows bit by
bit: 62 us for 8192 rows of 128 and k = 8 on an H200.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence

import torch

from inductor.kernels.attention_spec import Blocks
from inductor.kernels.gpu.calls_by_form import CallsByForm, Prepared
from inductor.kernels.gpu.text_launches import KernelName, TextLaunch
from inductor.runtime._launch import Allocation

SLOTS = 32  # of eager's network
LEAST_COLUMNS, MOST_COLUMNS = 16, 1024  # chosen, not measured
MOST_TAKEN = 8  # the kernel for 16 takes Triton four times as long
WARPS, OF_A_WARP = 4, 128  # each has whole rows, so many elements of short ones
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
Swap = tuple[int, int, bool]

HEAD = '''\
import triton
import triton.language as tl


@triton.jit
def topk_of_rows(X, VALUES, PLACES, COUNT: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    rows = (tl.program_id(0) * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    columns = tl.arange(0, COLUMNS)
    inside = (rows < COUNT)[:, None] & (columns < {size})[None, :]
    x = tl.load(X + rows[:, None] * {size} + columns[None, :], mask=inside, other=0.0)
    wide = x.to(tl.float32)
    bits = wide.to(tl.int32, bitcast=True)
    order = tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)
    order = tl.where(wide != wide, 0x7FFFFFFF, order)
    key = ({sign}order).to(tl.int64) * 4294967296 + ({size} - 1 - columns)[None, :]
    key = tl.where(inside, key, -9223372036854775807 - 1)
'''
TAKE = """\
    k{n} = tl.max(key, axis=1)
    key = tl.where(key == k{n}[:, None], -9223372036854775807 - 1, key)
    g{n} = ({size} - 1) - (k{n} & 0xFFFFFFFF).to(tl.int32)
"""
# What equals the last one comes behind what is greater; both in the order of the places.
BEHIND = """\
    g{n} += tl.where((k{n} >> 32) == (k{last} >> 32), {size}, 0)
"""
# As comparisons of floating-point numbers have it: both zeros are one.
ORDER = """\
    o{n} = {sign}(k{n} >> 32).to(tl.int32)
    o{n} = tl.where(o{n} == -1, 0, o{n})
"""
SWAP = """\
    swap = {test}
    {goals} = {values}
"""
STORE = """\
    o = {sign}(k{slot} >> 32).to(tl.int32)
    v = tl.where(o < 0, o ^ 0x7FFFFFFF, o).to(tl.float32, bitcast=True)
    tl.store(VALUES + rows * {k} + {n}, v.to(VALUES.dtype.element_ty), mask=rows < COUNT)
    p = ({size} - 1) - (k{slot} & 0xFFFFFFFF)
    tl.store(PLACES + rows * {k} + {n}, p, mask=rows < COUNT)
"""


def has_kernel(size: int, k: int, dtype: torch.dtype) -> bool:
    """Whether `TopkCall` is for rows of this size."""
    return dtype in DTYPES and 0 < k <= min(MOST_TAKEN, size) and size <= MOST_COLUMNS


@functools.cache
def kernel_text(size: int, k: int, largest: bool, ordered: bool) -> str:
    """The kernel for rows of this size. ordered: the values come in order."""
    sign, every = "" if largest else "~", range(k)
    lines = [HEAD.format(size=size, sign=sign)]
    lines += [TAKE.format(n=n, size=size) for n in every]
    lines += [BEHIND.format(n=n, last=k - 1, size=size) for n in every]
    lines += [_swapped(a, b, f"g{a} > g{b}", "gk") for a, b in odd_even(k)]
    order: Sequence[int] = every
    if ordered:
        lines += [ORDER.format(n=n, sign=sign) for n in every]
        swaps, order = network(k)
        for a, b, when in swaps:
            first, second = (a, b) if largest else (b, a)
            lines.append(_swapped(a, b, f"o{first} {'>' if when else '<='} o{second}", "ok"))
    lines += [STORE.format(n=n, slot=slot, k=k, size=size, sign=sign)
              for n, slot in enumerate(order)]
    return "".join(lines)


def _swapped(a: int, b: int, test: str, names: str) -> str:
    """Lines that exchange two slots where the test holds."""
    goals = ", ".join(f"{name}{slot}" for name in names for slot in (a, b))
    values = ", ".join(
        f"tl.where(swap, {name}{b}, {name}{a}), tl.where(swap, {name}{a}, {name}{b})"
        for name in names)
    return SWAP.format(test=test, goals=goals, values=values)


def odd_even(count: int) -> Iterator[tuple[int, int]]:
    """Pairs of slots that put any numbers in ascending order, one after the other (Batcher)."""
    full = 1 << (count - 1).bit_length()
    p = 1
    while p < full:
        k = p
        while k >= 1:
            for j in range(k % p, full - k, 2 * k):
                for i in range(min(k, full - j - k)):
                    low, high = i + j, i + j + k
                    if low // (p * 2) == high // (p * 2) and high < count:
                        yield low, high
            k //= 2
        p *= 2


def network(count: int) -> tuple[list[Swap], list[int]]:
    """What a bitonic network over `SLOTS` slots does to elements in the first of them: which two it
    compares, and whether it exchanges them where the first one comes first, or where it does not;
    and whose places they have at the end. An empty slot is exchanged whatever the elements are."""
    slots: list[int | None] = [n if n < count else None for n in range(SLOTS)]
    swaps: list[Swap] = []
    for size, stride in _stages():
        for thread in range(SLOTS // 2):
            flag = size < SLOTS and bool(thread & (size // 2))
            a = 2 * thread - (thread & (stride - 1))
            one, other = slots[a], slots[a + stride]
            if one is not None and other is not None:
                swaps.append((one, other, flag))
            elif (other is None) == flag:
                slots[a], slots[a + stride] = other, one
    return swaps, [slot for slot in slots if slot is not None]


def _stages() -> Iterator[tuple[int, int]]:
    """Sizes of the parts that are sorted, and distances of what is compared."""
    for size in (1 << n for n in range(1, SLOTS.bit_length())):
        for stride in (size >> n for n in range(1, size.bit_length())):
            yield size, stride


class TopkCall(CallsByForm):
    """`torch.topk` along the last axis, for rows that fit."""

    __slots__ = ()

    def __call__(
        self, x: torch.Tensor, k: int, largest: bool, ordered: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        values, places = self.run(prepare, (x.contiguous(),), k, largest, ordered)
        return values, places


def prepare(x: torch.Tensor, k: int, largest: bool, ordered: bool) -> Prepared:
    """The kernel, not compiled yet, and its results."""
    *outer, size = x.shape
    count, goal = 1, (*outer, k)
    for extent in outer:
        count *= extent
    columns = max(LEAST_COLUMNS, 1 << (size - 1).bit_length())
    rows = min(WARPS * max(1, OF_A_WARP // columns), 1 << (count - 1).bit_length())
    stride, step = [], 1
    for extent in reversed(goal):
        stride.append(step)
        step *= extent
    values, places = (
        Allocation(goal, tuple(reversed(stride)), dtype, x.device)
        for dtype in (x.dtype, torch.int64))
    name = KernelName(kernel_text(size, k, largest, ordered), "topk_of_rows")
    call = TextLaunch.of(
        name, (-(-count // rows), 1, 1), {"COUNT": count},
        Blocks(rows, columns, min(WARPS, rows), 1), 3)
    return call, (values, places)
