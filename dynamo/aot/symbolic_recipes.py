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


def is_symbolic_value(value: Any) -> bool:
    """True for a value with a symbolic number in it."""
    return _written(value, lambda number: "0", lambda part: "part") is not None


def reader_of(recipe: T, places: Mapping[Any, Place]) -> Callable[[Sequence[Any]], T] | None:
    """A function of a call's inputs that gives the recipe (or what holds one); None where it is
    always the same.

    Errors: Unsupported where a symbol is no input's size.
    """
    names, held = names_of(places), dict[str, Any]()

    def hold(part: Any) -> str:
        name = f"part{len(held)}"
        held[name] = part
        return name

    made = _written(recipe, lambda number: text_of(expression_of(number), names), hold)
    if made is None:
        return None
    count = 1 + max((index for index, _ in places.values()), default=-1)
    lines = ["def read(inputs):"]
    lines += [f"    {line}" for line in reads(places, [f"inputs[{at}]" for at in range(count)])]
    lines.append(f"    return {made}")
    return function_of("\n".join(lines), "read", "sizes", held)


def _written(value: Any, text: Callable[[Any], str], hold: Callable[[Any], str]) -> str | None:
    """A Python expression that makes the value with other numbers in the places of symbolic ones;
    None for one without. text: of a number; hold: gives the name of what stays the same object.

    Errors: Unsupported for a number in an object that can't be made again.
    """
    if is_symbolic_number(value):
        return text(value)
    if isinstance(value, (tuple, list)):
        parts = [_written(item, text, hold) for item in value]
        if not any(parts):
            return None
        items = ", ".join([part or hold(item) for part, item in zip(parts, value, strict=True)])
        make: Any = getattr(type(value), "_make", type(value))
        return f"({items},)" if make is tuple else f"{hold(make)}([{items}])"
    if type(value) is dict:
        found = {key: _written(item, text, hold) for key, item in value.items()}
        if not any(found.values()):
            return None
        rows = [f"{hold(key)}: {part or hold(value[key])}" for key, part in found.items()]
        return f"{{{', '.join(rows)}}}"
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        _check_hidden(value)
        return None
    own = {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}
    changed = {name: part for name, item in own.items() if (part := _written(item, text, hold))}
    if not changed:
        return None
    given = [f"{name}={part}" for name, part in changed.items()]
    return f"{hold(dataclasses.replace)}({', '.join([hold(value), *given])})"


def _check_hidden(value: Any) -> None:
    """Errors: Unsupported for an object of another kind that has symbolic numbers."""
    own = getattr(value, "__dict__", None)
    if type(own) is not dict:
        return
    for item in own.values():
        if any(map(is_symbolic_number, item if isinstance(item, (tuple, list)) else (item,))):
            raise Unsupported(f"symbolic sizes in a {type(value).__qualname__}")
