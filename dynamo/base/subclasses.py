"""Traceable wrapper subclasses: tensors that are made of other tensors and say how.

A class with `__tensor_flatten__` (names of the inner tensors, and a context of plain values),
`__tensor_unflatten__` and `__torch_dispatch__` can be taken apart and put together again; a
`Recipe` says how, and is the same for all tensors that a graph can stand for. Inner tensors may be
such tensors themselves.

    >>> recipe = recipe_of(weight)
    >>> plain = inner_tensors(weight, recipe)
    >>> same = compose(recipe, plain)
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

FAKE: Any = torch._C._TorchDispatchModeKey.FAKE
PARTS = ("__tensor_flatten__", "__tensor_unflatten__")
# Known at once; the others are not kept alive by what is known of them.
PLAIN: set[type] = {torch.Tensor, torch.nn.Parameter, torch.nn.Buffer}
_wrappers: weakref.WeakKeyDictionary[type, bool] = weakref.WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class Held:
    """What stands among the inner tensors and is none: a mesh of devices, say."""

    value: Any


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a wrapper tensor is made of plain tensors.

    names: of the inner tensors; parts: for each, None where it is plain, its recipe where it is a
    wrapper itself, and the value where it is no tensor.
    context: what `__tensor_flatten__` says beside the names. size, stride: of the wrapper.
    requires_grad: of the wrapper.
    """

    cls: type[torch.Tensor]
    names: tuple[str, ...]
    parts: tuple[Recipe | Held | None, ...]
    context: Any
    size: tuple[Any, ...]
    stride: tuple[Any, ...]
    requires_grad: bool

    @property
    def count(self) -> int:
        """How many plain tensors it takes."""
        counts = [part.count for part in self.parts if isinstance(part, Recipe)]
        return sum(counts) + self.parts.count(None)


def is_wrapper(value: Any) -> bool:
    """True for a tensor of a traceable wrapper subclass."""
    return is_wrapper_class(type(value))


def is_wrapper_class(cls: type) -> bool:
    """True for a traceable wrapper subclass."""
    if cls in PLAIN or not issubclass(cls, torch.Tensor):
        return False
    known = _wrappers.get(cls)
    if known is None:
        known = _wrappers[cls] = all(
            hasattr(cls, name) for name in PARTS
        ) and cls.__torch_dispatch__ is not torch._C._disabled_torch_dispatch_impl  # type: ignore
    return known


def is_foreign(types: Iterable[type]) -> bool:
    """True where one of the classes that torch hands to a dispatch mode has a dispatch of its own,
    which comes first: the mode sees what that calls."""
    return any(map(is_wrapper_class, types))


def is_elsewhere() -> bool:
    """True inside of a `FakeTensorMode` that a wrapper's dispatch has entered, to learn what the
    result looks like: what runs there is no operation of the program."""
    return torch._C._get_dispatch_mode(FAKE) is not None


def recipe_of(value: torch.Tensor) -> Recipe:
    """The recipe of a wrapper tensor as it is now."""
    names, context = value.__tensor_flatten__()  # type: ignore[attr-defined]
    inner = [getattr(value, name) for name in names]
    parts = tuple([_part_of(part) for part in inner])
    return Recipe(
        type(value), tuple(names), parts, context, tuple(value.shape), tuple(value.stride()),
        value.requires_grad,
    )  # fmt: skip


def _part_of(inner: Any) -> Recipe | Held | None:
    if not isinstance(inner, torch.Tensor):
        return Held(inner)
    return recipe_of(inner) if is_wrapper(inner) else None


def inner_tensors(value: Any, recipe: Recipe) -> list[Any]:
    """The plain tensors that a wrapper is made of, in the recipe's order."""
    found: list[Any] = []
    for name, part in zip(recipe.names, recipe.parts, strict=True):
        if part is None:
            found.append(getattr(value, name))
        elif isinstance(part, Recipe):
            found += inner_tensors(getattr(value, name), part)
    return found


def compose(recipe: Recipe, plain: Sequence[Any]) -> torch.Tensor:
    """The wrapper of these plain tensors. It requires no gradient."""
    return _compose(recipe, iter(plain))


def _compose(recipe: Recipe, plain: Iterator[Any]) -> torch.Tensor:
    inner = {
        name: next(plain) if part is None
        else part.value if isinstance(part, Held) else _compose(part, plain)
        for name, part in zip(recipe.names, recipe.parts, strict=True)
    }
    return compose_one(recipe.cls, inner, recipe.context, recipe.size, recipe.stride)


def compose_one(
    cls: Any, inner: dict[str, Any], context: Any, size: Sequence[Any], stride: Sequence[Any]
) -> torch.Tensor:
    """The wrapper of its inner tensors, by name."""
    made: torch.Tensor = cls.__tensor_unflatten__(inner, context, size, stride)
    return made
