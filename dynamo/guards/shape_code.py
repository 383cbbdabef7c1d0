"""Shape guards: an expression over sizes and numbers, compiled to words of the C++ stack machine.

In: `ShapeFacts`, a Python expression and what its names stand for. Out: a tuple of words. The same
record is its own plain-Python twin (`holds`) and explains itself.

    >>> facts = ShapeFacts("s0 % 8 == 0 and s0 >= 2", {"s0": Fact(LocalSource("x"), "size", 0)})
    >>> facts.holds(Scope({"x": torch.empty(16)}, {}, {}))
    True
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch  # noqa: F401  (used by the example)

from dynamo.guards.sources import LocalSource, Scope, Source  # noqa: F401

# Order of `enum Word` in csrc/shape_machine.cpp.
WORDS = {name: number for number, name in enumerate((
    "CONST_INT", "CONST_FLOAT", "NUMBER", "SIZE", "ADD", "SUB", "MUL", "FLOORDIV", "TRUEDIV", "MOD",
    "POW", "NEG", "MIN", "MAX", "ABS", "EQ", "NE", "LT", "LE", "GT", "GE", "AND", "OR", "NOT",
    "SQRT", "LOG", "LOG2", "LOG10", "LOG1P", "EXP", "SIN", "COS", "TANH"))}
OPERATORS: dict[type[ast.AST], str] = {
    ast.Add: "ADD", ast.Sub: "SUB", ast.Mult: "MUL", ast.FloorDiv: "FLOORDIV", ast.Div: "TRUEDIV",
    ast.Mod: "MOD", ast.Pow: "POW", ast.USub: "NEG", ast.Not: "NOT", ast.Eq: "EQ", ast.NotEq: "NE",
    ast.Lt: "LT", ast.LtE: "LE", ast.Gt: "GT", ast.GtE: "GE", ast.And: "AND", ast.Or: "OR",
}
ROUNDINGS = {"floor": math.floor, "ceil": math.ceil}
CURVES = ("sqrt", "log", "log2", "log10", "log1p", "exp", "sin", "cos", "tanh")
FUNCTIONS: dict[str, Any] = {
    "min": min, "max": max, "abs": abs, "power": operator.pow, **ROUNDINGS,
    **{name: getattr(math, name) for name in CURVES},
}
CALLS = {"min": "MIN", "max": "MAX", "abs": "ABS"}
WHAT = {"size": 0, "stride": 1, "storage_offset": 2, "dim": 3, "numel": 4}
READERS: dict[str, Callable[[Any, int], Any]] = {
    "size": lambda t, i: t.shape[i],
    "stride": lambda t, i: t.stride()[i],
    "storage_offset": lambda t, i: t.storage_offset(),
    "dim": lambda t, i: t.dim(),
    "numel": lambda t, i: t.numel(),
    "value": lambda n, i: n,
}
Word = tuple[int, Any, Any]


@dataclass(frozen=True, slots=True)
class Fact:
    """What a name stands for. what: a key of READERS ("value": the int or float itself)."""

    source: Source
    what: str
    index: int = 0

    def text(self) -> str:
        if self.what == "value":
            return self.source.text()
        index = f"({self.index})" if self.what in ("size", "stride") else "()"
        return f"{self.source.text()}.{self.what}{index}"


@dataclass(frozen=True, eq=False)
class ShapeFacts:
    """Payload of a SHAPE guard: `expression` in Python (+ - * / // % **, comparisons, and, or, not,
    min, max, abs, floor, ceil, power and the CURVES) over the names of `facts`."""

    expression: str
    facts: Mapping[str, Fact]

    def values(self, scope: Scope) -> dict[str, Any]:
        return {
            name: READERS[fact.what](fact.source.fetch(scope), fact.index)
            for name, fact in self.facts.items()
        }

    def holds(self, scope: Scope) -> bool:
        """The plain-Python twin, which knows no larger ints than the machine."""
        values = self.values(scope)
        if not all(type(value) in (int, float) for value in values.values()):
            return False  # another object is there now, whose operators are not to be run
        tree = ast.fix_missing_locations(Checked().visit(ast.parse(self.expression, mode="eval")))
        names = {**FUNCTIONS, **values, "checked": checked}
        try:
            return bool(eval(compile(tree, "<guard>", "eval"), {"__builtins__": {}}, names))
        except (ArithmeticError, ValueError):
            return False

    def sentence(self, scope: Scope) -> str:
        tree = ast.parse(self.expression, mode="eval")
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and node.id in self.facts:
                node.id = self.facts[node.id].text()
        values = self.values(scope)
        shown = " and ".join(f"{f.text()} is {_shown(values[n])}" for n, f in self.facts.items())
        return f"{ast.unparse(tree)} no longer holds, now that {shown}"


class Checked(ast.NodeTransformer):
    """Puts `checked` around each name and each operation."""

    def generic_visit(self, node: ast.AST) -> Any:
        super().generic_visit(node)
        if isinstance(node, ast.Name) and node.id not in FUNCTIONS or isinstance(node, COMPUTES):
            return ast.Call(ast.Name("checked", ast.Load()), [node], [])
        return node


COMPUTES = (ast.BinOp, ast.UnaryOp, ast.Call)


def checked(value: Any) -> Any:
    """The value; OverflowError where the machine has no such int."""
    if type(value) is int and not is_word(value):
        raise OverflowError
    return value


def is_word(value: int) -> bool:
    """True for the ints of 64 bits.

    >>> is_word(-2**63), is_word(2**63)
    (True, False)
    """
    return -(2**63) <= value < 2**63


def _shown(value: Any) -> str:
    return str(value) if type(value) in (int, float) else f"of type {type(value).__name__}"


def compile_shape(facts: ShapeFacts, register: Callable[[Source], int]) -> tuple[Word, ...]:
    """Words in postfix order; ValueError for what the machine does not know."""
    words: list[Word] = []
    tree = ast.parse(facts.expression, mode="eval").body
    _emit(tree, facts.facts, register, words)
    return tuple(words)


def _emit_call(
    name: str, args: list[ast.expr], operands: Callable[..., None], word: Callable[..., None]
) -> None:
    """The words of a call. operands: writes those of its arguments."""
    if name in CALLS:
        operands(args[0])
        if CALLS[name] == "ABS":
            word("ABS")
        for arg in args[1:]:
            operands(arg)
            word(CALLS[name])
    elif name in ("floor", "ceil") and len(args) == 1:
        operands(*args)
        up = ["NEG"] if name == "ceil" else []
        for step in up:
            word(step)
        word("CONST_FLOAT", 1.0)
        word("FLOORDIV")
        for step in up:
            word(step)
    elif name == "power" and len(args) == 2:
        operands(*args)
        word("POW")
    elif name in CURVES and len(args) == 1:
        operands(*args)
        word(name.upper())
    else:
        raise ValueError(f"a shape guard can't contain a call of {name!r}")


def _emit(
    node: ast.expr, facts: Mapping[str, Fact], register: Callable[[Source], int], out: list[Word]
) -> None:
    def operands(*nodes: ast.expr) -> None:
        for operand in nodes:
            _emit(operand, facts, register, out)

    def word(name: str, a: Any = 0, b: Any = 0) -> None:
        out.append((WORDS[name], a, b))

    match node:
        case ast.Constant(value=bool() | int() as value):
            word("CONST_INT", int(value))
        case ast.Constant(value=float() as value):
            word("CONST_FLOAT", value)
        case ast.Name(id=name):
            fact = facts[name]
            if fact.what == "value":
                word("NUMBER", register(fact.source))
            else:
                word("SIZE", register(fact.source), WHAT[fact.what] | fact.index << 3)
        case ast.UnaryOp(op=op, operand=operand) if type(op) in OPERATORS:
            operands(operand)
            word(OPERATORS[type(op)])
        case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
            operands(left, right)
            word(OPERATORS[type(op)])
        case ast.BoolOp(op=op, values=values):
            operands(values[0])
            for term in values[1:]:
                operands(term)
                word(OPERATORS[type(op)])
        case ast.Compare(left=left, ops=ops, comparators=rights):
            for i, (comparison, right) in enumerate(zip(ops, rights, strict=True)):
                operands(left, right)
                word(OPERATORS[type(comparison)])
                if i:
                    word("AND")
                left = right
        case ast.Call(func=ast.Name(id=name), args=args):
            _emit_call(name, args, operands, word)
        case _:
            raise ValueError(f"a shape guard can't contain {ast.unparse(node)!r}")
