"""What a user can do about a value that makes a function compile again, in a sentence.

In: the guard that failed and the value that is there now. Out: text for the end of a report.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dynamo.guards.records import Guard
from dynamo.guards.sources import DictSource, ItemSource

# Kinds for which the answer does not depend on the value.
BY_KIND = {
    "TYPE": "Pass values of one type: each type is compiled for.",
    "SUBCLASS": "Pass values of one type: each type is compiled for.",
    "ID": "Make the object once and keep it: each new one is compiled for.",
    "CODE": "Define the function once: each new one is compiled for.",
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
    "SHAPE": "Keep the sizes on one side of the comparison, or compile a function for each side.",
}

ATTRIBUTE = (
    "An attribute that changes between calls is better held in a tensor (register_buffer)."
)
COMBINATION = (
    "Pass tensors of one dtype, device and requires_grad: each combination is compiled for."
)


def advice(guard: Guard, value: Any) -> str:
    """What to do about a guard that fails for this value."""
    special = BY_VALUE.get(guard.kind)
    return BY_KIND.get(guard.kind, "") if special is None else special(guard, value)


def _constant(guard: Guard, value: Any) -> str:
    if type(value) is not type(guard.payload):
        return BY_KIND["TYPE"]
    if isinstance(guard.source, ItemSource) and isinstance(guard.source.base, DictSource):
        kept = ATTRIBUTE
    else:
        kept = "Hold it in a tensor if it changes often."
    if type(value) in (int, float):
        return f"From now on it may be any number where it can. {kept}"
    return kept


def _tensor(guard: Guard, value: Any) -> str:
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
    axes = [axis for axis, (old, new) in pairs if old not in (-1, new)]
    if not axes:
        return "Pass tensors of one memory layout, for example by `.contiguous()`."
    marks = ", ".join(map(str, axes))
    return f"Mark what changes, mark_dynamic(tensor, [{marks}]), or compile with dynamic=True."


BY_VALUE: dict[str, Callable[[Guard, Any], str]] = {"CONST": _constant, "TENSOR": _tensor}
