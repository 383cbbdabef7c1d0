"""The greatest of short rows by its kernel in Triton's interpreter (`TRITON_INTERPRET=1`), with equal values in eager's order.

`places_of` does what CUDA's kernels do to one row, step by step.
"""

from __future__ import annotations

import itertools
import random
import struct

import pytest
import torch

from inductor.kernels.gpu.topk import SLOTS, TopkCall, odd_even


def radix(value: float) -> int:
    """Bits in the order of the values, -0 before 0 and NaN last."""
    (bits,) = struct.unpack("I", struct.pack("f", value))
    return 0xFFFFFFFF if value != value else bits ^ (0xFFFFFFFF if bits >> 31 else 0x80000000)


def places_of(row: list[float], k: int, largest: bool, ordered: bool) -> list[int]:
    codes = [radix(value) if largest else 0xFFFFFFFF - radix(value) for value in row]
    last = sorted(codes, reverse=True)[k - 1]
    found = [place for place, code in enumerate(codes) if code > last]
    found += [place for place, code in enumerate(codes) if code == last][: k - len(found)]
    if not ordered:
        return found
    slots: list[int | None] = [*found, *[None] * (SLOTS - k)]

    def first(a: int, b: int) -> bool:
        one, other = (row[a], row[b]) if largest else (row[b], row[a])
        return one > other or (one != one and other == other)

    def exchange(a: int, b: int, flag: bool) -> None:
        one, other = slots[a], slots[b]
        if (other is None or one is not None and first(one, other)) == flag:
            slots[a], slots[b] = other, one

    size = 2
    while size <= SLOTS:
        stride = size // 2
        while stride:
            for thread in range(SLOTS // 2):
                at = 2 * thread - (thread & (stride - 1))
                exchange(at, at + stride, size < SLOTS and bool(thread & (size // 2)))
            stride //= 2
        size *= 2
    return [place for place in slots[:k] if place is not None]


def rows(count: int, size: int, dtype: torch.dtype) -> torch.Tensor:
    """Many equal values, and such as have an order of their own."""
    x = (torch.randn(count, size) * 2).round().to(dtype) / 2
    x[0] = 0
    x[1, :3], x[2, 0], x[2, 1], x[3, 1] = float("nan"), float("inf"), -float("inf"), -0.0
    return x


@pytest.mark.parametrize("count, size, k, dtype", [
    (5, 8, 2, torch.float32), (7, 64, 8, torch.bfloat16), (4, 16, 6, torch.float16), (9, 10, 10, torch.float32),
    (4, 5, 1, torch.float32), (6, 100, 16, torch.bfloat16), (130, 7, 3, torch.float32),
])  # fmt: skip
def test_rows(count: int, size: int, k: int, dtype: torch.dtype) -> None:
    call, x = TopkCall(), rows(count, size, dtype)
    for largest, ordered in itertools.product((True, False), repeat=2):
        values, places = call(x, k, largest, ordered)
        assert places.tolist() == [places_of(row, k, largest, ordered) for row in x.tolist()]
        torch.testing.assert_close(values, x.gather(1, places), equal_nan=True)
        if ordered:
            torch.testing.assert_close(values, torch.topk(x, k, -1, largest)[0], equal_nan=True)
    assert len(call.known) == 4


def test_other_forms() -> None:
    call, x = TopkCall(), torch.randn(6, 3, 2).permute(2, 1, 0)
    for given in (x, x[0, 0], x[:, :, ::2]):
        found, wanted = call(given, 2, True, True), torch.topk(given, 2)
        torch.testing.assert_close(found, tuple(wanted))


def test_pairs_put_numbers_in_order() -> None:
    for count in range(1, 17):
        for _ in range(50):
            numbers = [random.randrange(9) for _ in range(count)]
            wanted = sorted(numbers)
            for low, high in odd_even(count):
                if numbers[low] > numbers[high]:
                    numbers[low], numbers[high] = numbers[high], numbers[low]
            assert numbers == wanted
