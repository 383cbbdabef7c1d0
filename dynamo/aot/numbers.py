"""Symbolic numbers in graphs: an expression over sizes becomes nodes that compute it.

In: SymInts, and where each symbol is read (input number, and dimension or None for a number). Out:
nodes with the number in `meta["val"]`: `aten.sym_size.int` of a placeholder and arithmetic on it.
Each expression has one node in a graph.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx

from dynamo.aot.records import Place, Unsupported
from dynamo.aot.symbols import constant_of, operation_of

aten = torch.ops.aten


class NumberNodes:
    """The numbers of one graph. places: see `SymbolTable.symbols`."""

    def __init__(self, graph: fx.Graph, places: Mapping[Any, Place]) -> None:
        self.graph = graph
        self.places = places
        self._inputs = [node for node in graph.nodes if node.op == "placeholder"]
        self._known: dict[Any, Any] = {}

    def node(self, value: Any) -> Any:
        """The node of a symbolic number at the end of the graph; an int where it is constant.

        Errors: Unsupported where the expression can't be written with Python's operators.
        """
        return self._of(value.node.expr)

    def _of(self, expression: Any) -> Any:
        known = self._known.get(expression)
        if known is None:
            known = self._known[expression] = self._make(expression)
        return known

    def _make(self, expression: Any) -> Any:
        constant = constant_of(expression)
        if constant is not None:
            return constant
        if expression.is_Symbol:
            return self._symbol(expression)
        operation = operation_of(expression)
        arguments = [self._of(part) for part in expression.args]
        if operation.chains:
            return functools.reduce(functools.partial(self._call, operation.function), arguments)
        return self._call(operation.function, *arguments)

    def _symbol(self, symbol: Any) -> fx.Node:
        place = self.places.get(symbol)
        if place is None:
            raise Unsupported(f"a number {symbol} that no input has")
        index, dim = place
        given = self._inputs[index]
        if dim is None:
            return given
        if dim < 0:
            return self._call(aten.sym_stride.int, given, ~dim)
        return self._call(aten.sym_size.int, given, dim)

    def _call(self, function: Callable[..., Any], *arguments: Any) -> fx.Node:
        node = self.graph.call_function(function, arguments)
        values = [arg.meta["val"] if isinstance(arg, fx.Node) else arg for arg in arguments]
        if function is aten.sym_size.int:
            node.meta["val"] = values[0].shape[values[1]]
        elif function is aten.sym_stride.int:
            node.meta["val"] = values[0].stride(values[1])
        else:
            node.meta["val"] = function(*values)
        return node
