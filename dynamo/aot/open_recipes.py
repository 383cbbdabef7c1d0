"""Recipes of wrapper subclasses whose sizes are symbolic: what they are at one call.

In: a captured program of many sizes, and the recipe of a wrapper that it returns. Out: the recipe
with the numbers that the inputs of a call give.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from torch import fx

from dynamo.aot.fakes import expression_of, is_symbolic_number, symbols_shown
from dynamo.aot.records import Place, Unsupported
from dynamo.aot.symbols import names_of, reads, text_of
from dynamo.base.generated import function_of

VALUE = "example_value"
Change = Callable[[Any], Any]
T = TypeVar("T")


def symbol_places(graph: fx.Graph) -> dict[Any, Place]:
    """Where each symbol of a program is read."""
    found: dict[Any, Place] = {}
    olds = [node for node in graph.nodes if node.op == "placeholder"]
    for index, node in enumerate(olds):
        for symbol, dim in symbols_shown(node.meta.get(VALUE)):
            found.setdefault(symbol, (index, dim))
    return found


def places_in(plain: Sequence[Any]) -> dict[Any, Place]:
    """Where each symbol is read among tensors, fakes or above fakes."""
    found: dict[Any, Place] = {}
    for index, tensor in enumerate(plain):
        for dim, size in enumerate(tensor.shape):
            expression = expression_of(size)
            if is_symbolic_number(size) and expression.is_Symbol:
                found.setdefault(expression, (index, dim))
    return found


def is_open(value: Any) -> bool:
    """True for a value with a symbolic number in it."""
    found: list[Any] = []

    def note(number: Any) -> Any:
        found.append(number)
        return number

    _exchanged(value, note)
    return bool(found)


def reader_of(recipe: T, places: Mapping[Any, Place]) -> Callable[[Sequence[Any]], T] | None:
    """A function of a call's inputs that gives the recipe (or what holds one); None where it is
    always the same.

    Errors: Unsupported where a symbol is no input's size.
    """
    names, texts = names_of(places), []

    def note(number: Any) -> Any:
        texts.append(text_of(expression_of(number), names))
        return number

    _exchanged(recipe, note)
    if not texts:
        return None
    count = 1 + max((index for index, _ in places.values()), default=-1)
    lines = ["def read(inputs):"]
    lines += [f"    {line}" for line in reads(places, [f"inputs[{at}]" for at in range(count)])]
    lines.append(f"    return [{', '.join(texts)}]")
    read = function_of("\n".join(lines), "read", "sizes", {})

    def recipe_at(inputs: Sequence[Any]) -> T:
        numbers = iter(read(inputs))
        return _exchanged(recipe, lambda number: next(numbers))  # type: ignore[no-any-return]

    return recipe_at


def _exchanged(value: Any, change: Change) -> Any:
    """The value with other numbers in the places of symbolic ones. One without stays the same
    object. Errors: Unsupported for one in an object that can't be made again."""
    if is_symbolic_number(value):
        return change(value)
    if isinstance(value, (tuple, list)):
        items = [_exchanged(item, change) for item in value]
        if all(map(_is, items, value)):
            return value
        made: Any = getattr(type(value), "_make", type(value))
        return made(items)
    if type(value) is dict:
        return {key: _exchanged(item, change) for key, item in value.items()}
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        _check_hidden(value)
        return value
    own = {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}
    others = {name: _exchanged(item, change) for name, item in own.items()}
    changed = {name: item for name, item in others.items() if item is not own[name]}
    return dataclasses.replace(value, **changed) if changed else value


def _is(left: Any, right: Any) -> bool:
    return left is right


def _check_hidden(value: Any) -> None:
    """Errors: Unsupported for an object of another kind that has symbolic numbers."""
    own = getattr(value, "__dict__", None)
    if type(own) is not dict:
        return
    for item in own.values():
        if any(map(is_symbolic_number, item if isinstance(item, (tuple, list)) else (item,))):
            raise Unsupported(f"symbolic sizes in a {type(value).__qualname__}")
