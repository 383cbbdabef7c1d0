"""What changed between two compiles: the numbers and sizes that become symbolic in the next trace.

In: the guards of an entry and a frame for which they fail. Out: `Fact`s, one per int or float and
one per size and stride of a tensor that has another value than the entry was made for, with that
value; one per table (`dynamo/symbolic/tensors/tables.py`), of which no compile to come knows the
values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from dynamo.guards.kinds import const_equal
from dynamo.guards.records import Guard
from dynamo.guards.shape_code import Fact
from dynamo.guards.sources import ItemSource, LocalSource, Scope, Source, TableSource

NUMBERS = (int, float)
NUMPY_NUMBERS = frozenset((
    "float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32",
))  # fmt: skip


def changed_facts(guards: Iterable[Guard], scope: Scope) -> dict[Fact, int | float]:
    """The facts that a retrace should not take as constants, and what they were.

    >>> from dynamo.guards.sources import LocalSource
    >>> guard = Guard("CONST", LocalSource("n"), 1)
    >>> [fact.text() for fact in changed_facts([guard], Scope({"n": 2}, {}, {}))]
    ['n']
    """
    found: dict[Fact, int | float] = {}
    for guard in guards:
        reader = READERS.get(guard.kind)
        if reader is None or guard.source is None:
            continue
        try:
            value = guard.source.fetch(scope)
        except Exception:  # it is gone, or a value of another kind
            continue
        found.update(reader(guard, value))
    return found


def _number(guard: Guard, value: Any) -> dict[Fact, int | float]:
    if isinstance(guard.source, TableSource) and value != guard.payload:
        return {Fact(guard.source.base, "values"): 0}
    kind = type(guard.payload)
    is_number = kind in NUMBERS or kind.__module__ == "numpy" and kind.__name__ in NUMPY_NUMBERS
    if not is_number or type(value) is not kind or const_equal(value, guard.payload):
        return {}
    if guard.payload != guard.payload:  # NaN is none of a row of numbers
        return {}
    assert guard.source is not None
    return {Fact(guard.source, "value"): guard.payload}


def _tensor(guard: Guard, value: Any) -> dict[Fact, int | float]:
    facts = guard.payload
    if not isinstance(value, torch.Tensor) or type(value) is not facts.cls:
        return {}
    if value.layout is not torch.strided or value.dim() != len(facts.sizes):
        return {}
    assert guard.source is not None
    now = {"size": (facts.sizes, value.shape), "stride": (facts.strides, value.stride())}
    return {
        Fact(guard.source, what, axis): old
        for what, pair in now.items() for axis, (old, new) in enumerate(zip(*pair, strict=True))
        if old not in (-1, new)
    }


def numbers_in(values: Mapping[str, Any]) -> dict[Fact, int | float]:
    """All numbers and sizes of tensors among arguments, and in tuples, lists and dicts of them.

    >>> [fact.text() for fact in numbers_in({"n": 2, "args": (torch.ones(3), 0.5)})]
    ['n', 'args[0].size(0)', 'args[1]']
    """
    found: dict[Fact, int | float] = {}
    waiting: list[tuple[Source, Any]] = [(LocalSource(name), v) for name, v in values.items()]
    for source, value in waiting:
        kind = type(value)
        if kind in NUMBERS:
            found[Fact(source, "value")] = value
        elif kind is torch.Tensor and value.layout is torch.strided:
            found.update((Fact(source, "size", axis), n) for axis, n in enumerate(value.shape))
        elif kind in (tuple, list, dict) and len(list(source.chain())) < DEPTH:
            items = value.items() if kind is dict else enumerate(value)
            waiting += [(ItemSource(source, key), item) for key, item in items
                        if type(key) in (int, str)]
    return found


DEPTH = 4  # of containers in containers; they may hold themselves
READERS = {"CONST": _number, "TENSOR": _tensor}
