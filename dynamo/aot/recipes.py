"""How a callable was made, so that another process can make it without what it was made from.

A compiled graph is a few callables around another. Each of them that is a function notes what made
it; a record of the whole is these notes (`inductor/cache/graph_cache.py` writes and reads them).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Recipe:
    """make(*given) gives the callable."""

    make: Callable[..., Any]
    given: tuple[Any, ...]


def noted(call: Any, make: Callable[..., Any], *given: Any) -> Any:
    """The function, with how it was made.

    >>> recipe_of(noted(lambda: 1, max, 2, 3)).given
    (2, 3)
    """
    call.recipe = Recipe(make, given)
    return call


def not_cacheable(call: Any, reason: str) -> Any:
    """The function, with why no other process can make it, as a sentence."""
    call.not_cacheable = reason
    return call


def recipe_of(call: Any) -> Recipe | None:
    """What `noted` has put there."""
    found = getattr(call, "recipe", None)
    return found if type(found) is Recipe else None
