"""C functions of the standard library that have a Python twin in its source: the twin is traced."""

from __future__ import annotations

import bisect
import functools
import heapq
import importlib.util
import sys
from collections.abc import Callable
from types import BuiltinFunctionType, ModuleType
from typing import Any

from dynamo.base.errors import Break
from dynamo.symbolic.core.frame import Frame
from dynamo.symbolic.core.table import rule
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.python.objects import ObjectVar
from dynamo.symbolic.python.partials import PartialVar
from dynamo.symbolic.python.standins import (
    Wants,
    is_index,
    is_index_or_none,
    is_list,
    is_sequence,
    run_stand_in,
)

HEAP: Wants = {"heap": is_list, "x": is_list}
SORTED: Wants = {"a": is_sequence, "lo": is_index, "hi": is_index_or_none}
# These have other words than their twins for a heap that is empty.
TAKES_ITEMS = frozenset(("heappop", "heapreplace", "_heappop_max", "_heapreplace_max"))
TWINS = {
    heapq: ("_heapq", HEAP, """heappush heappop heapify heapreplace heappushpop _heapify_max
                               _heappop_max _heapreplace_max"""),
    bisect: ("_bisect", SORTED, "bisect_left bisect_right insort_left insort_right"),
}


def without_c(module: ModuleType, extension: str) -> dict[str, Any]:
    """The names that the module's source defines where its extension can't be imported."""
    spec = importlib.util.find_spec(module.__name__)
    assert spec is not None and spec.loader is not None
    code = spec.loader.get_code(module.__name__)  # type: ignore[attr-defined]
    scope: dict[str, Any] = {"__name__": module.__name__, "__builtins__": __builtins__}
    known = sys.modules.get(extension)
    sys.modules[extension] = None  # type: ignore[assignment]
    try:
        exec(code, scope)
    finally:
        del sys.modules[extension]
        if known is not None:
            sys.modules[extension] = known
    return scope


def sift_down(heap: list[Any], start: int, position: int, largest: bool = False) -> None:
    """Lets the item there rise to its place; as in C, which swaps two items at a time and looks
    behind each comparison whether the list has another size."""
    size = len(heap)
    while position > start:
        above = (position - 1) // 2
        first, second = (above, position) if largest else (position, above)
        rises = bool(heap[first] < heap[second])
        if len(heap) != size:
            raise RuntimeError("list changed size during iteration")
        if not rises:
            break
        heap[above], heap[position] = heap[position], heap[above]
        position = above


def sift_up(heap: list[Any], position: int, largest: bool = False) -> None:
    """Lets the item there sink to a leaf, and rise to its place from there."""
    size, start = len(heap), position
    while position < size // 2:
        below = 2 * position + 1
        if below + 1 < size:
            first, second = (below + 1, below) if largest else (below, below + 1)
            if not heap[first] < heap[second]:
                below += 1
            if len(heap) != size:
                raise RuntimeError("list changed size during iteration")
        heap[below], heap[position] = heap[position], heap[below]
        position = below
    sift_down(heap, start, position, largest)


SIFTING = {
    "_siftdown": sift_down, "_siftup": sift_up,
    "_siftdown_max": lambda heap, start, position: sift_down(heap, start, position, True),
    "_siftup_max": lambda heap, position: sift_up(heap, position, True),
}


def register_twin(real: Any, twin: Callable[..., Any], wants: Wants) -> None:
    @rule(real)
    def handle(tx: Frame, /, *args: Var, **kwargs: Var) -> Var:
        if wants is HEAP and kwargs:
            raise Break("argument_mismatch", f"{twin.__name__}() takes no keyword arguments")
        if twin.__name__ in TAKES_ITEMS and args and is_list(args[0]):
            if not tx.trace.call(tx, list.__len__, args[0]).truth(tx):
                raise Break("argument_mismatch", f"{twin.__name__}() of an empty heap")
        return run_stand_in(tx, twin, wants, args, kwargs)


def register() -> None:
    for module, (extension, wants, names) in TWINS.items():
        scope = without_c(module, extension)
        if module is heapq:
            scope.update(SIFTING)
        for name in names.split():
            if isinstance(getattr(module, name, None), BuiltinFunctionType):
                register_twin(getattr(module, name), scope[name], wants)


register()


class ComparedKey:
    """What `functools.cmp_to_key(compare)` makes of an object."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, compare: Any, obj: Any) -> None:
        self.compare, self.obj = compare, obj

    def __lt__(self, other: Any) -> bool:
        return self.compare(self.obj, other.obj) < 0  # type: ignore[no-any-return]

    def __gt__(self, other: Any) -> bool:
        return self.compare(self.obj, other.obj) > 0  # type: ignore[no-any-return]

    def __le__(self, other: Any) -> bool:
        return self.compare(self.obj, other.obj) <= 0  # type: ignore[no-any-return]

    def __ge__(self, other: Any) -> bool:
        return self.compare(self.obj, other.obj) >= 0  # type: ignore[no-any-return]

    def __eq__(self, other: Any) -> bool:
        return self.compare(self.obj, other.obj) == 0  # type: ignore[no-any-return]


KEY_TYPE: type = type(functools.cmp_to_key(max))


class KeyMakerVar(PartialVar):
    """`functools.cmp_to_key(compare)`."""

    def python_type(self) -> type:
        return KEY_TYPE

    def get_attr(self, tx: Frame, name: str) -> Var:
        raise Break("attribute_unknown", f"{name} of {self!r}")

    def set_attr(self, tx: Frame, name: str, value: Var) -> None:
        raise Break("attribute_store_unknown", f"{name} of {self!r}")


class ComparedKeyVar(ObjectVar):
    """What it makes of an object: one of the twin, that is made as the real one when it leaves."""

    def write_own(self, tx: Frame, name: str, value: Var | None) -> None:
        if name not in ("compare", "obj") or value is None:
            raise Break("attribute_store_unknown", f"{name} of {self!r}")
        self.written[name] = value
        tx.trace.effects.tick()


@rule([ComparedKey])
def compared_key(tx: Frame, compare: Var, obj: Var) -> Var:
    made = ComparedKeyVar(ComparedKey)
    made.written.update(compare=compare, obj=obj)
    return made


@rule(functools.cmp_to_key)
def cmp_to_key(tx: Frame, mycmp: Var) -> Var:
    made = tx.trace.make.tuple([mycmp]), tx.trace.make.dict({})
    return KeyMakerVar(tx.trace.wrap(ComparedKey, None), *made)
