"""What the stages ask of fake tensors, whichever world made them.

In: a `Fake` (static sizes) or a torch `FakeTensor` (symbolic sizes). Out: its facts, and whose
storage it shares. The facts of a symbolic one are made when asked for; comparing them may add an
assumption to its world.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor

from dynamo.base.ragged_sizes import is_nested_int
from dynamo.shapes.facts import Facts, storage_bytes
from dynamo.shapes.fake import Fake

SYMBOLIC_NUMBERS = frozenset((torch.SymInt, torch.SymFloat, torch.SymBool))


class SymbolicFacts(Facts):
    """Facts whose sizes, strides and offset may be SymInts."""

    __slots__ = ()

    def __init__(
        self,
        size: tuple[Any, ...],
        stride: tuple[Any, ...],
        offset: Any,
        dtype: torch.dtype,
        device: torch.device,
        bits: int = 0,
    ) -> None:
        self.size = size
        self.stride = stride
        self.offset = offset
        self.dtype = dtype
        self.device = device
        self.bits = bits

    @property
    def nbytes(self) -> Any:  # type: ignore[override]
        """Asks whether a size is zero, so that it is computed only where it is wanted."""
        return storage_bytes(self.size, self.stride, self.offset, self.dtype.itemsize)


def is_fake(value: Any) -> bool:
    """True for a fake tensor of either kind."""
    kind = type(value)
    return kind is Fake or kind is FakeTensor


def is_symbolic_number(value: Any) -> bool:
    """True for a number whose value is an expression. (A ragged size is no number.)"""
    return type(value) in SYMBOLIC_NUMBERS and not is_nested_int(value)


def facts_of(fake: Any) -> Facts:
    """Size, stride, offset, dtype, device and lazy bits, as they are now."""
    if type(fake) is Fake:
        return fake.facts
    bits = int(fake.dtype.is_complex and fake.is_conj()) | 2 * int(fake.is_neg())
    return SymbolicFacts(
        tuple(fake.shape), tuple(fake.stride()), fake.storage_offset(), fake.dtype, fake.device,
        bits,
    )  # fmt: skip


def storage_key(fake: Any) -> int:
    """Equal for fakes that share a storage."""
    if type(fake) is Fake:
        return fake.storage_key
    return int(fake.untyped_storage()._cdata)


def fills_storage(fake: Any) -> bool:
    """True where no byte of the storage lies outside of the tensor."""
    if type(fake) is Fake:
        return fake.token.nbytes == fake.facts.nbytes
    return bool(fake.untyped_storage().nbytes() == facts_of(fake).nbytes)


def hint_of(number: Any) -> int:
    """The value of a number at the sizes at hand; assumes nothing."""
    return int(number.node.hint) if is_symbolic_number(number) else int(number)


def bytes_of(fake: Any) -> int:
    """What a storage for it takes, at the sizes at hand."""
    facts = facts_of(fake)
    if type(fake) is Fake:
        return facts.nbytes
    size, stride = (tuple(map(hint_of, part)) for part in (facts.size, facts.stride))
    return storage_bytes(size, stride, hint_of(facts.offset), facts.dtype.itemsize)


def elements_of(fake: Any) -> int:
    """How many elements it has, at the sizes at hand."""
    return fake.facts.numel() if type(fake) is Fake else math.prod(map(hint_of, fake.shape))


def expression_of(number: Any) -> Any:
    """A number as a SymPy expression where it is symbolic; itself else."""
    return number.node.expr if is_symbolic_number(number) else number


def symbols_shown(value: Any) -> list[tuple[Any, int | None]]:
    """The symbols that a tensor has as a size or a stride, with their places (`number_at`), sizes
    first; a number's own with None."""
    given: Iterable[tuple[int | None, Any]] = [(None, value)]
    if is_fake(value):
        steps = [(~dim, step) for dim, step in enumerate(value.stride())]
        given = [*enumerate(value.shape), *steps]
    parts = [(dim, expression_of(part)) for dim, part in given if is_symbolic_number(part)]
    return [(part, dim) for dim, part in parts if part.is_Symbol]


def number_at(value: Any, dim: int | None) -> Any:
    """The number itself, a size of a tensor or, for ~dim, a stride.

    >>> number_at(torch.ones(2, 3), 1), number_at(torch.ones(2, 3), ~0), number_at(5, None)
    (3, 3, 5)
    """
    if dim is None:
        return value
    return value.shape[dim] if dim >= 0 else value.stride(~dim)


def symbols_of(values: Iterable[Any], as_made: bool = False) -> set[Any]:
    """All symbols in sizes, strides and offsets of fakes, also in lists, and in numbers. as_made:
    also those of which a check has said later what they are (`n == 2 * x.shape[0]`)."""
    found: set[Any] = set()
    for value in values:
        if isinstance(value, (list, tuple)):
            found |= symbols_of(value, as_made)
        elif is_fake(value):
            parts = (*value.shape, *value.stride(), value.storage_offset())
            found |= symbols_of(parts, as_made)
        elif is_symbolic_number(value):
            found |= (value.node._expr if as_made else value.node.expr).free_symbols
    return found


def is_static(facts: Facts) -> bool:
    """True where sizes, strides and offset are plain ints."""
    return all(type(part) is int for part in (*facts.size, *facts.stride, facts.offset))
