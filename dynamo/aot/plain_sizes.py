"""Symbolic sizes as plain data.

In: SymInts and fakes of a world with symbolic sizes. Out: nested tuples of names and numbers, which
are equal for graphs that are alike: a symbol is its place among those that were met. Rows of graphs
hold them (`plain_graphs.py`), and so do keys. SymPy is not imported: who has symbols has done so.

    ("sympy.Add", 1, ("symbol", 0))      s0 + 1
    ("rational", 1, 2)                   1/2
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any

import torch

from dynamo.aot.fakes import is_symbolic_number
from dynamo.aot.records import Unsupported
from dynamo.base.ragged_sizes import is_nested_int

KINDS = {torch.SymInt: "int", torch.SymFloat: "float", torch.SymBool: "bool"}
HOMES = ("sympy", "torch")  # of classes of expressions
SMALLEST = 2  # of the sizes that are symbols


@dataclass(frozen=True, slots=True)
class Sized:
    """A symbolic number. kind: one of KINDS."""

    kind: str
    expression: Any


@dataclass(frozen=True, slots=True)
class SymbolRow:
    """A symbol. is_size: at least 2 in all calls; else any number. hint: its value in the process
    that has met it. low, high: its bounds, None where there are none."""

    is_size: bool
    hint: int | float
    low: int | None
    high: int | None


class SizeWriter:
    """Numbers as plain data. rows: of the symbols that were met, in order."""

    def __init__(self) -> None:
        self.rows: list[SymbolRow] = []
        self.symbols: dict[Any, int] = {}

    def number(self, value: Any) -> Any:
        """An int as it is, a symbolic number as `Sized`. Errors: Unsupported."""
        if is_nested_int(value):
            raise Unsupported("a ragged size in a graph")
        if not is_symbolic_number(value):
            return value
        node = value.node
        return Sized(KINDS[type(value)], self.expression(node.expr, node.shape_env))

    def expression(self, expression: Any, env: Any) -> Any:
        """A SymPy expression of this ShapeEnv. Errors: Unsupported."""
        if isinstance(expression, (int, float)):
            return expression
        plain = self._plain(expression, env)
        # It is written as it stands, and simplified where it is made: both have to agree.
        by_number = {number: symbol for symbol, number in self.symbols.items()}
        if expression_of_plain(plain, by_number) != expression:
            raise Unsupported(f"a size that is {expression}")
        return plain

    def _plain(self, expression: Any, env: Any) -> Any:
        if expression.is_Symbol:
            return "symbol", self._symbol(expression, env)
        if expression.is_Integer:
            return int(expression)
        if expression.is_Boolean and not expression.args:
            return bool(expression)
        if expression.is_Float:
            return float(expression)
        if expression.is_Rational:
            return "rational", int(expression.p), int(expression.q)
        kind = type(expression)
        home = kind.__module__.partition(".")[0]
        if home not in HOMES or not expression.args or _class_of(home, kind.__name__) is not kind:
            raise Unsupported(f"a size that is {expression}")
        return f"{home}.{kind.__name__}", *[self._plain(part, env) for part in expression.args]

    def _symbol(self, symbol: Any, env: Any) -> int:
        known = self.symbols.get(symbol)
        if known is not None:
            return known
        hint = env.backed_var_to_val.get(symbol)
        if hint is None:
            raise Unsupported("a size that is not known before the call")
        is_size = bool(symbol.is_integer and symbol.is_positive)
        if is_size and int(hint) < SMALLEST:
            raise Unsupported("a symbol for a size of 0 or 1")
        bounds = env.var_to_range.get(symbol)
        low, high = (None if bounds is None or not bound.is_Integer else int(bound)
                     for bound in (bounds and bounds.lower, bounds and bounds.upper))  # fmt: skip
        value = int(hint) if symbol.is_integer else float(hint)
        self.rows.append(SymbolRow(is_size, value, low, high))
        self.symbols[symbol] = len(self.rows) - 1
        return self.symbols[symbol]


def expression_of_plain(plain: Any, symbols: Any) -> Any:
    """The SymPy expression. symbols: by number."""
    sympy = importlib.import_module("sympy")
    if not isinstance(plain, tuple):
        return sympy.sympify(plain)
    name, *parts = plain
    if name == "symbol":
        return symbols[parts[0]]
    if name == "rational":
        return sympy.Rational(*parts)
    home, _, kind = name.partition(".")
    return _class_of(home, kind)(*[expression_of_plain(part, symbols) for part in parts])


def _class_of(home: str, name: str) -> Any:
    """A class of SymPy's, or of torch's functions of sizes."""
    if home == "sympy":
        return getattr(importlib.import_module("sympy"), name, None)
    return getattr(importlib.import_module("torch.utils._sympy.functions"), name, None)
