"""Bound methods of generators and iterators, when they are called as functions of their class."""

from __future__ import annotations

import types

from dynamo.symbolic.core.frame import Frame
from dynamo.symbolic.core.table import rule
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.python.generators import GeneratorVar
from dynamo.symbolic.python.iterators import IteratorVar


@rule(types.GeneratorType.send, GeneratorVar)
def send(tx: Frame, generator: GeneratorVar, value: Var) -> Var:
    """`generator.send(value)`."""
    return generator.call_method(tx, "send", [value], {})


@rule(types.GeneratorType.throw, GeneratorVar)
def throw(tx: Frame, generator: GeneratorVar, *args: Var) -> Var:
    """`generator.throw(exception)`."""
    return generator.call_method(tx, "throw", list(args), {})


@rule(types.GeneratorType.close, GeneratorVar)
def close(tx: Frame, generator: GeneratorVar) -> Var:
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
    def next_item(tx: Frame, iterator: IteratorVar) -> Var:
        return iterator.next_item(tx)

    @rule(kind.__iter__, IteratorVar)  # type: ignore[attr-defined]
    def iterate(tx: Frame, iterator: IteratorVar) -> Var:
        return iterator


for _kind in ITERATOR_KINDS:
    _register(_kind)
