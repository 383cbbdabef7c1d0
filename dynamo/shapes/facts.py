"""`Facts`: what is known of a tensor without its data, and `OpCache`: what operations made of them.

In: metadata of tensors. Out: interned records that compare by identity, so that a cache key of an
operation is a tuple of records and constants. One `OpCache` may be shared by the worlds of one
compile (frontend and AOT capture); nothing here is global.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Any

import torch


class Facts:
    """Size, stride, offset (in elements), dtype, device and lazy bits of a strided tensor.

    Made by `OpCache.facts` only: equal facts of one cache are one object.
    """

    __slots__ = ("bits", "device", "dtype", "nbytes", "offset", "size", "stride")

    def __init__(
        self,
        size: tuple[int, ...],
        stride: tuple[int, ...],
        offset: int,
        dtype: torch.dtype,
        device: torch.device,
        bits: int,
    ) -> None:
        self.size = size
        self.stride = stride
        self.offset = offset
        self.dtype = dtype
        self.device = device
        self.bits = bits
        self.nbytes = storage_bytes(size, stride, offset, dtype.itemsize)

    def __repr__(self) -> str:
        dtype = str(self.dtype).removeprefix("torch.")
        return f"{dtype}{list(self.size)}:{list(self.stride)}+{self.offset}@{self.device}"

    @property
    def is_conj(self) -> bool:
        return bool(self.bits & 1)

    @property
    def is_neg(self) -> bool:
        return bool(self.bits & 2)

    def numel(self) -> int:
        count = 1
        for extent in self.size:
            count *= extent
        return count

    def has_internal_overlap(self) -> bool:
        """True where two indices surely name one element (a stride 0 along more than one)."""
        return any(st == 0 and sz > 1 for sz, st in zip(self.size, self.stride, strict=True))


def facts_of(fake: Any) -> Facts:
    """The metadata of a fake tensor."""
    return fake.facts  # type: ignore[no-any-return]


def storage_bytes(size: tuple[int, ...], stride: tuple[int, ...], offset: int, item: int) -> int:
    """Bytes that a storage needs to hold such a tensor."""
    last = offset
    for extent, step in zip(size, stride, strict=True):
        if extent == 0:
            return offset * item
        last += (extent - 1) * step
    return (last + 1) * item


def contiguous_stride(size: tuple[int, ...]) -> tuple[int, ...]:
    """Row-major strides, as ATen gives them (an extent of 0 counts as 1)."""
    stride = [1] * len(size)
    for axis in range(len(size) - 2, -1, -1):
        stride[axis] = stride[axis + 1] * max(size[axis + 1], 1)
    return tuple(stride)


@dataclass(frozen=True, slots=True)
class Fresh:
    """Output with a storage of its own."""

    facts: Facts


@dataclass(frozen=True, slots=True)
class View:
    """Output that shares the storage of the argument-th fake argument (flat order)."""

    facts: Facts
    argument: int


@dataclass(frozen=True, slots=True)
class Same:
    """Output that is the argument-th fake argument itself."""

    argument: int


@dataclass(frozen=True, slots=True)
class Plain:
    """Output that is no tensor."""

    value: Any


@dataclass(frozen=True, slots=True)
class Several:
    """Output that is a list or tuple of outputs."""

    kind: type
    items: tuple[Outcome, ...]


Outcome = Fresh | View | Same | Plain | Several


@dataclass(slots=True)
class OpCache:
    """Interned facts and the outcomes of operations on them.

    outcomes: (op, default dtype, arguments with Facts in place of tensors) -> outcome.
    """

    interned: dict[tuple[Hashable, ...], Facts] = field(default_factory=dict)
    outcomes: dict[tuple[Hashable, ...], Outcome] = field(default_factory=dict)
    hits: int = 0
    misses: int = 0

    def facts(
        self,
        size: tuple[int, ...],
        stride: tuple[int, ...],
        offset: int,
        dtype: torch.dtype,
        device: torch.device,
        bits: int = 0,
    ) -> Facts:
        """The one record of these facts. size and stride are plain tuples of plain ints."""
        key = (size, stride, offset, dtype, device, bits)
        found = self.interned.get(key)
        if found is None:
            found = self.interned[key] = Facts(*key)
        return found

    def facts_of(self, tensor: torch.Tensor, device: torch.device) -> Facts:
        """The facts of a tensor, as if it lived on `device`."""
        bits = 0
        if tensor.dtype.is_complex and tensor.is_conj():
            bits |= 1
        if tensor.is_neg():
            bits |= 2
        return self.facts(
            tuple(tensor.shape),
            tuple(tensor.stride()),
            int(tensor.storage_offset()),
            tensor.dtype,
            device,
            bits,
        )
