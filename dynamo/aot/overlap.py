"""Which tensors share memory: what an in-place operation does to them depends on the order in which
it touches elements, and no functional graph keeps that.

In: facts of tensors of one storage. Out: yes or no; "yes" also where the answer would be dear.
"""

from __future__ import annotations

import torch

from dynamo.aot.fakes import is_static
from dynamo.shapes.facts import Facts

_EXACT_ELEMENTS = 1 << 20


def overlaps_itself(facts: Facts) -> bool:
    """True unless each index surely names an element of its own."""
    reach = 0
    axes = [(st, sz) for st, sz in zip(facts.stride, facts.size, strict=True) if sz != 1]
    if any(sz == 0 for _, sz in axes):
        return False
    for stride, size in sorted(axes):
        if stride <= reach:
            return True
        reach += stride * (size - 1)
    return False


def overlap(one: Facts, other: Facts) -> bool:
    """True where both tensors of one storage have an element in common."""
    if one.numel() == 0 or other.numel() == 0:
        return False
    if one.dtype.itemsize != other.dtype.itemsize:
        first, second = _span(one), _span(other)
        return first[0] < second[1] and second[0] < first[1]
    if one.nbytes <= other.offset * other.dtype.itemsize:
        return False
    if other.nbytes <= one.offset * one.dtype.itemsize:
        return False
    if not (is_static(one) and is_static(other)):
        return not in_other_columns(one, other)
    elements = max(one.nbytes, other.nbytes) // one.dtype.itemsize
    if elements > _EXACT_ELEMENTS:
        return True
    touched = torch.zeros(elements, dtype=torch.bool, device="cpu")
    touched.as_strided(one.size, one.stride, one.offset).fill_(True)
    return bool(touched.as_strided(other.size, other.stride, other.offset).any())


def in_other_columns(one: Facts, other: Facts) -> bool:
    """True where the tensors are columns of rows of one length, and no column is of both."""
    lengths = [step for step in (*one.stride, *other.stride) if type(step) is int and step > 1]
    for length in dict.fromkeys(lengths):
        mine, theirs = _columns(one, length), _columns(other, length)
        if mine is None or theirs is None or (mine[0] < theirs[1] and theirs[0] < mine[1]):
            continue
        rows = [step for step in (*one.stride, *other.stride) if type(step) is not int]
        return all(step % length == 0 for step in rows)
    return False


def _columns(facts: Facts, length: int) -> tuple[int, int] | None:
    """The columns that a tensor touches in rows of this length; None where that is not static."""
    if type(facts.offset) is not int:
        return None
    start = facts.offset % length
    stop = start + 1
    for size, step in zip(facts.size, facts.stride, strict=True):
        if type(step) is not int or step % length == 0:
            continue
        if type(size) is not int:
            return None
        stop += (size - 1) * step
    return (start, stop) if stop <= length else None


def _span(facts: Facts) -> tuple[int, int]:
    return facts.offset * facts.dtype.itemsize, facts.nbytes
