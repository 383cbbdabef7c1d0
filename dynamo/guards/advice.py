"""What a user can do about a value that makes a function compile again, in a sentence.

In: the guard that failed, the value that is there now, and the numbers and sizes that are known to
change. Out: text for the end of a report.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Set
from typing import Any

from dynamo.guards.records import Guard
from dynamo.guards.shape_code import Fact
from dynamo.guards.sources import DictSource, ItemSource, TableSource

# Kinds for which the answer does not depend on the value.
BY_KIND = {
    "TYPE": "Pass values of one type: each type is compiled for.",
    "SUBCLASS": "Pass values of one type: each type is compiled for.",
    "ID": "Make the object once and keep it: each new one is compiled for.",
    "LENGTH": "Keep the number of items, or stack the items in one tensor.",
    "DICT_KEYS": "Keep the same keys in the same order.",
    "PRESENT": "Keep it: reading it raises where it is gone.",
    "DICT_HAS": "Set the key (or attribute) before the first call, and keep it.",
    "DICT_LACKS": "Set the key (or attribute) before the first call.",
    "HAS_ATTR": "Set the attribute before the first call, and keep it.",
    "LACKS_ATTR": "Set the attribute before the first call.",
    "SET_HAS": "Decide the branch outside.",
    "SET_LACKS": "Decide the branch outside.",
    "SET_ITEMS": "Keep the items of the set, or hold them in a tensor.",
    "SAME": "Pass one object at both places, or different ones, but always alike.",
    "NOT_SAME": "Pass one object at both places, or different ones, but always alike.",
    "NO_TENSOR_ALIAS": "Pass a copy (`.clone()`) at one of the places.",
    "DIFFERENT": "Keep them different objects, or the same ones.",
    "NO_STORAGE_ALIAS": "Pass a copy (`.clone()`) at one of the places.",
    "GLOBAL_STATE": "Set it once, before the first call, or call in the same state.",
    "CELL_EMPTY": "Bind the variable before the first call.",
    "WEAKREF_ALIVE": "Keep the object alive as long as the function is called.",
    "BOOL_TRUTH": "Decide the branch outside, or by torch.where.",
    "RANGE": "The number may be compiled for once more, then for all values.",
}

ATTRIBUTE = (
    "An attribute that changes between calls is better held in a tensor (register_buffer)."
)
COMBINATION = (
    "Pass tensors of one dtype, device and requires_grad: each combination is compiled for."
)


OTHER_FUNCTION = "Each function is compiled for: keep to a few."
SMALL = (
    "Sizes of 0 and 1 are compiled for by themselves; mark_unbacked takes all sizes in one compile."
)
SIDES = "Keep the sizes on one side of the comparison, or compile a function for each side."
ITSELF = "This line needs the number itself: each one is compiled for."


def advice(guard: Guard, value: Any, known: Set[Fact] = frozenset()) -> str:
    """What to do about a guard that fails for this value (a SHAPE guard: for these values
    by name, none where one is gone). known: what has been found to change before."""
    special = BY_VALUE.get(guard.kind)
    return BY_KIND.get(guard.kind, "") if special is None else special(guard, value, known)


def _constant(guard: Guard, value: Any, known: Set[Fact]) -> str:
    if value is None or guard.payload is None:
        return "Pass None always, or never: each is compiled for."
    if type(value) is not type(guard.payload):
        return BY_KIND["TYPE"]
    if type(value) is bool:
        return "Each of its two values is compiled for, once."
    if isinstance(guard.source, TableSource):
        return "From now on graphs break where such numbers are read."
    if type(value) not in (int, float):
        return "Each value is compiled for: keep to a few."
    assert guard.source is not None
    held = isinstance(guard.source, ItemSource) and isinstance(guard.source.base, DictSource)
    hint = ATTRIBUTE if held else "Hold it in a tensor if it changes often."
    if Fact(guard.source, "value") in known:
        return f"{ITSELF} {hint}"
    return f"From now on it may be any number where it can. {hint}"


def _same_object(guard: Guard, value: Any, known: Set[Fact]) -> str:
    return OTHER_FUNCTION if callable(value) and hasattr(value, "__name__") else BY_KIND["ID"]


def _function(guard: Guard, value: Any, known: Set[Fact]) -> str:
    if getattr(value, "__qualname__", None) != guard.payload.co_qualname:
        return OTHER_FUNCTION
    return "Define the function once: each new one is compiled for."


def _shape(guard: Guard, values: Any, known: Set[Fact]) -> str:
    """The common forms of an assumption: a size of 2 or more, one number, a comparison."""
    match ast.parse(guard.payload.expression, mode="eval").body:
        case ast.Compare(ops=[ast.Eq()], comparators=[ast.Constant()]):
            return ITSELF
        case ast.Compare(ast.Name(id=name), [ast.GtE()], [ast.Constant(value=2)]):
            is_size = guard.payload.facts[name].what == "size"
            if is_size and values.get(name) in (0, 1):
                return SMALL
    return SIDES


def _tensor(guard: Guard, value: Any, known: Set[Fact]) -> str:
    facts = guard.payload
    if type(value) is not facts.cls:
        return "Pass values of one type: each type is compiled for."
    if (value.dtype, value.device, value.requires_grad) != (
        facts.dtype, facts.device, facts.requires_grad
    ):
        return COMBINATION
    if value.dim() != len(facts.sizes):
        return "Pass tensors of one number of dimensions: each number is compiled for."
    pairs = enumerate(zip(facts.sizes, value.shape, strict=True))
    changes = {axis: (old, new) for axis, (old, new) in pairs if old not in (-1, new)}
    if not changes:
        return "Pass tensors of one memory layout, for example by `.contiguous()`."
    axes = [axis for axis, sizes in changes.items() if min(sizes) > 1]
    if not axes:
        return SMALL
    marks = ", ".join(map(str, axes))
    return f"Mark what changes, mark_dynamic(tensor, [{marks}]), or compile with dynamic=True."


BY_VALUE: dict[str, Callable[[Guard, Any, Set[Fact]], str]] = {
    "CONST": _constant, "TENSOR": _tensor, "SHAPE": _shape, "ID": _same_object, "CODE": _function,
}  # fmt: skip
