"""Bound methods of generators and iterators, when they are called as functions of their class."""

from __future__ import annotations

import types
from typing import TYPE_CHECKING

from dynamo.symbolic.rules.table import rule
from dynamo.symbolic.variables.base import Var
from dynamo.symbolic.variables.generators import GeneratorVar
from dynamo.symbolic.variables.iterators import IteratorVar

if TYPE_CHECKING:
    from dynamo.symbolic.machine import SymbolicFrame


@rule(types.GeneratorType.send, GeneratorVar)
def send(tx: SymbolicFrame, generator: GeneratorVar, value: Var) -> Var:
    """`generator.send(value)`."""
    return generator.call_method(tx, "send", [value], {})


@rule(types.GeneratorType.throw, GeneratorVar)
def throw(tx: SymbolicFrame, generator: GeneratorVar, *args: Var) -> Var:
    """`generator.throw(exception)`."""
    return generator.call_method(tx, "throw", list(args), {})


@rule(types.GeneratorType.close, GeneratorVar)
def close(tx: SymbolicFrame, generator: GeneratorVar) -> Var:
    """`generator.close()`."""
    return generator.call_method(tx, "close", [], {})


ITERATOR_KINDS: tuple[type, ...] = (
    types.GeneratorType,
    enumerate,
    zip,
    map,
    filter,
    type(iter([])),
    type(iter(())),
    type(iter(range(0))),
)


def _register(kind: type) -> None:
    @rule(kind.__next__, IteratorVar)  # type: ignore[attr-defined]
    def next_item(tx: SymbolicFrame, iterator: IteratorVar) -> Var:
        return iterator.next_item(tx)

    @rule(kind.__iter__, IteratorVar)  # type: ignore[attr-defined]
    def iterate(tx: SymbolicFrame, iterator: IteratorVar) -> Var:
        return iterator


for _kind in ITERATOR_KINDS:
    _register(_kind)
