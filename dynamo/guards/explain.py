"""Which guard of an entry fails for a frame, in a sentence: value, old and new, the user's line.

In: guards and the scope of a frame. Out: `Difference`s, by the plain-Python twin of the program,
and how far all of them are (`distance`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass
from typing import Any

import torch

from dynamo import _C
from dynamo.base.subclasses import as_in_program
from dynamo.guards.advice import advice
from dynamo.guards.build import GROUPS, PAIRS
from dynamo.guards.kinds import GUARD_KINDS, SIZE_DISTANCE, const_distance, tensor_distance
from dynamo.guards.records import Guard, UserLine
from dynamo.guards.shape_code import Fact
from dynamo.guards.sources import Scope, Source
from dynamo.guards.weak import Weak, strongly

# What reading a place raises when it is gone; asking a value of another kind may raise anything.
GONE = (KeyError, AttributeError, IndexError, ValueError, TypeError)


@dataclass(frozen=True, slots=True)
class Difference:
    """One guard that fails.

    text: the value, what it was and is; line: who needed it; advice: what to do. distance: how far
    the value is from what is wanted. sizes: whether nothing but sizes differs.
    """

    text: str
    line: UserLine | None
    advice: str
    distance: int = 1
    sizes: bool = False

    def __str__(self) -> str:
        return f"{self.text} (needed at {self.line})" if self.line else self.text

    def sentence(self) -> str:
        """All of it."""
        return f"{self}. {self.advice}".rstrip()


def failures(guards: Iterable[Guard], scope: Scope) -> list[str]:
    """One sentence for each guard that fails in this scope."""
    return list(map(str, differences(guards, scope)))


def differences(
    guards: Iterable[Guard], scope: Scope, known: Set[Fact] = frozenset()
) -> list[Difference]:
    """The guards that fail in this scope. known: the numbers and sizes known to change."""
    found = []
    for guard in guards:
        text, value = failure(guard, scope)
        if text is not None:
            measure = DISTANCES.get(guard.kind, lambda payload, value: OTHER_DISTANCE)
            far = measure(guard.payload, value)
            sizes = guard.kind == "SHAPE" or guard.kind == "TENSOR" and far == SIZE_DISTANCE
            found.append(
                Difference(text, guard.line, advice(guard, value, known), far, sizes))
    return found


# By kind of guard, how far a value is: an assumption of a symbolic size or number is nearer than a
# number or size that is a constant of its entry, that one nearer than any other value.
DISTANCES: dict[str, Callable[[Any, Any], int]] = {
    "SHAPE": lambda payload, value: 1, "TENSOR": tensor_distance, "CONST": const_distance,
}  # fmt: skip
OTHER_DISTANCE = 4


def distance(differences: Sequence[Difference]) -> int:
    """How far an entry is: sizes count once, since most of them change together."""
    sizes = max((item.distance for item in differences if item.sizes), default=0)
    return sizes + sum(item.distance for item in differences if not item.sizes)


def failure(guard: Guard, scope: Scope) -> tuple[str | None, Any]:
    """What differs (None where the guard holds), and the value that is there now."""
    if guard.kind == "SHAPE":
        try:
            if guard.payload.holds(scope):
                return None, None
            return guard.payload.sentence(scope), guard.payload.values(scope)
        except GONE:
            return f"{guard.payload.expression}: a value in it is gone", {}
    if guard.source is None and guard.kind in GROUPS:
        return group_failure(guard, scope), None
    kind = GUARD_KINDS[guard.kind]
    if guard.source is None:
        with as_in_program():
            state = _C.global_state()
        return (None if kind.holds(state, guard.payload)
                else kind.sentence("", guard.payload, state)), None
    text = guard.source.text()
    try:
        value = guard.source.fetch(scope)
        keys = guard.kind == "DICT_KEYS"
        payload: Any = (
            tuple(map(strongly, guard.payload)) if keys else strongly(guard.payload))
        if payload is None and isinstance(guard.payload, Weak):
            return f"{text} was {guard.payload.text}, which is gone", value
        wanted = payload.fetch(scope) if guard.kind in PAIRS else payload
        return (None if kind.holds(value, wanted) else kind.sentence(text, payload, value)), value
    except GONE:
        return f"{text} is gone", None
    except Exception:
        return f"{text} is a value of another kind now", None


def group_failure(guard: Guard, scope: Scope) -> str | None:
    """The first two values of a group that are one object (or share a storage)."""
    seen: dict[int, Source] = {}
    if guard.kind == "NO_STORAGE_ALIAS":
        return overlap_failure(guard, scope)
    for source in guard.payload:
        try:
            key = id(source.fetch(scope))
        except Exception:  # another guard of this value tells more
            return f"{source.text()} is gone"
        if key in seen:
            return f"{source.text()} and {seen[key].text()} now are one object"
        seen[key] = source
    return None


def overlap_failure(guard: Guard, scope: Scope) -> str | None:
    """The first two tensors of a group that lie in the same memory."""
    spans = []
    for source in guard.payload:
        try:
            start, end = span_of(source.fetch(scope))
        except Exception:  # gone, or no tensor with strides any more
            return f"{source.text()} is a value of another kind now"
        spans.append((start, end, source))
    spans = [row for row in sorted(spans, key=lambda row: row[:2]) if row[0] < row[1]]
    for (_, end, one), (start, _, other) in itertools.pairwise(spans):
        if start < end:
            return f"{other.text()} and {one.text()} now share memory"
    return None


def span_of(tensor: torch.Tensor) -> tuple[int, int]:
    """The first and the last address of a tensor's elements, the last not included."""
    if tensor.numel() == 0:
        return 0, 0
    start = tensor.data_ptr()
    last = sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    return start, start + (last + 1) * tensor.element_size()
