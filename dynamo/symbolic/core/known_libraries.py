"""What is known of functions of libraries that programs call in the middle of their models.

In: a real function. Out: whether its caches can be distinguished from calls of what they hold.
"""

from __future__ import annotations

from typing import Any

from dynamo.symbolic.core.lookup import module_of

# Functions behind `lru_cache` that read nothing but their arguments, and whose results are only
# read: a call of the function behind the cache gives the same.
PURE = {
    "einops.einops": {
        "_reconstruct_from_shape_uncached", "_prepare_transformation_recipe",
        "_compactify_pattern_for_einsum",
    },
    "einops.packing": {"analyze_pattern"},
}  # fmt: skip
# Functions that keep what they have found for the type of their argument (and import it first).
BY_TYPE = {"einops._backends": {"get_backend"}}
NAMES = frozenset().union(*PURE.values(), *BY_TYPE.values())


def is_pure(function: Any) -> bool:
    """True for the functions of `PURE`."""
    return _is_in(PURE, function)


def answers_by_type(function: Any) -> bool:
    """True for the functions of `BY_TYPE`."""
    return _is_in(BY_TYPE, function)


def _is_in(names: dict[str, set[str]], function: Any) -> bool:
    name = getattr(function, "__qualname__", None)
    if type(name) is not str or name not in NAMES:  # most: their modules need not be asked for
        return False
    return name in names.get(module_of(function), ())
