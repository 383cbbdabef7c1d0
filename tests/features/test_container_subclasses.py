"""Subclasses of built-in containers with methods of their own, from outside and made inside."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch

import dynamo


class LongDict(dict):
    def __len__(self) -> int:
        return 9


class OtherKeys(dict):
    def __iter__(self) -> Any:
        return iter(["b", "c"])


class OwnKeys(dict):
    def keys(self) -> Any:
        return ["b"]


class FalseDict(dict):
    def __bool__(self) -> bool:
        return False


class OrderedKeys(OrderedDict):
    def __iter__(self) -> Any:
        return iter(["b"])


class LongOrdered(OrderedDict):
    def __len__(self) -> int:
        return 5


class FalseList(list):
    def __bool__(self) -> bool:
        return False


class LongList(list):
    def __len__(self) -> int:
        return 9


class OtherItems(list):
    def __iter__(self) -> Any:
        return iter([3, 4, 5])


class OtherParts(tuple):
    def __iter__(self) -> Any:
        return iter([3, 4, 5])


class EqualTuple(tuple):
    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 3


MAPPINGS = [LongDict, OtherKeys, OwnKeys, FalseDict, OrderedKeys, LongOrdered]
SEQUENCES = [FalseList, LongList, OtherItems, OtherParts, EqualTuple]
OF_BOTH: dict[str, Callable[..., Any]] = {
    "len": len,
    "iterate": lambda p: len([*p]),
    "list": lambda p: len(list(p)),
    "truth": lambda p: 5 if p else 6,
    "in": lambda p: "b" in p,
    "equal": lambda p: p == 3,
    "equal parts": lambda p: p == {"a": 1, "b": 2, "c": 3},
}
READS: dict[str, Callable[..., Any]] = {
    **OF_BOTH,
    "dict": lambda p: len(dict(p)),
    "stars": lambda p: len({**p}),
    "keywords": lambda p: (lambda **k: len(k))(**p),
    "keys": lambda p: len(list(p.keys())),
    "items": lambda p: len(list(p.items())),
    "get": lambda p: p.get("a", 3) + p["b"],
}
SEQUENCE_READS: dict[str, Callable[..., Any]] = {
    **OF_BOTH,
    "tuple": lambda p: len(tuple(p)),
    "sum": sum,
    "zip": lambda p: len(list(zip(p, p, strict=True))),
    "slice": lambda p: len(p[:1]) + p[0],
    "star": lambda p: (lambda *a: len(a))(*p),
}


@pytest.mark.parametrize("kind", MAPPINGS + SEQUENCES)
def test_reads(kind: Any) -> None:
    rows = READS if issubclass(kind, dict) else SEQUENCE_READS
    parts = {"a": 1, "b": 2, "c": 3} if issubclass(kind, dict) else (1, 2)
    reads, x, value = list(rows.values()), torch.rand(2), kind(parts)
    half = len(reads) // 2
    for some in (reads[:half], reads[half:]):
        compiled = dynamo.compile(lambda x, p, some=some: [x + r(p) for r in some], backend="eager")
        made = dynamo.compile(lambda x, some=some: [x + r(kind(parts)) for r in some], backend="eager")
        for _ in range(2):
            expected = torch.stack([x + read(value) for read in some])
            assert torch.equal(torch.stack(compiled(x, value)), expected)
            assert torch.equal(torch.stack(made(x)), expected)
