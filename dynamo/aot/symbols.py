"""Expressions over sizes: what each operation of SymPy and of torch is in Python.

In: SymPy expressions and a `SymbolTable`. Out: Python text, values, and a check of the assumptions
for the inputs of one call. SymPy itself is not imported: classes are known by their names.

    >>> check = assumption_check(table)
    >>> check(torch.randn(4, 3))
    True
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from dynamo.aot.recipes import noted
from dynamo.aot.records import Place, SymbolTable, Unsupported
from dynamo.base.generated import function_of


@dataclass(frozen=True, slots=True)
class Operation:
    """function: on numbers and symbolic numbers alike. text: a format of two words, or a symbol.

    chains: takes any number of arguments, from left to right.
    """

    function: Callable[..., Any]
    text: str
    chains: bool = False


OPERATIONS: Mapping[str, Operation] = {
    "Add": Operation(operator.add, "({} + {})", True),
    "Mul": Operation(operator.mul, "({} * {})", True),
    "Max": Operation(torch.sym_max, "max({}, {})", True),
    "Min": Operation(torch.sym_min, "min({}, {})", True),
    "FloorDiv": Operation(operator.floordiv, "({} // {})"),
    "CleanDiv": Operation(operator.floordiv, "({} // {})"),
    "Mod": Operation(operator.mod, "({} % {})"),
    "PythonMod": Operation(operator.mod, "({} % {})"),
    "Pow": Operation(operator.pow, "({} ** {})"),
    "PowByNatural": Operation(operator.pow, "({} ** {})"),
    "IntTrueDiv": Operation(operator.truediv, "({} / {})"),
    "FloatTrueDiv": Operation(operator.truediv, "({} / {})"),
    "ToFloat": Operation(torch.sym_float, "float({})"),
    "FloatPow": Operation(operator.pow, "({} ** {})"),
    "OpaqueUnaryFn_sqrt": Operation(torch.sym_sqrt, "({} ** 0.5)"),
    "Equality": Operation(operator.eq, "({} == {})"),
    "Unequality": Operation(operator.ne, "({} != {})"),
    "StrictLessThan": Operation(operator.lt, "({} < {})"),
    "LessThan": Operation(operator.le, "({} <= {})"),
    "StrictGreaterThan": Operation(operator.gt, "({} > {})"),
    "GreaterThan": Operation(operator.ge, "({} >= {})"),
    "And": Operation(operator.and_, "({} and {})", True),
    "Or": Operation(operator.or_, "({} or {})", True),
    "Not": Operation(operator.not_, "(not {})"),
}


def operation_of(expression: Any) -> Operation:
    """Errors: Unsupported for what Python's operators don't do exactly."""
    found = OPERATIONS.get(type(expression).__name__)
    exact = POWERS.get(type(expression).__name__)
    if found is None or exact is not None and not exact(expression):
        raise Unsupported(f"the expression {expression} in sizes")
    return found


def _is_natural_power(expression: Any) -> bool:
    exponent = expression.args[1]
    return bool(exponent.is_Integer and exponent > 0)


def is_root(expression: Any) -> bool:
    """True for a float to the power of 0.5 or -0.5."""
    power = expression.args[1]
    return bool(power.is_Float and abs(float(power)) == 0.5)


# Which powers are exactly Python's.
POWERS: Mapping[str, Callable[[Any], bool]] = {
    "Pow": _is_natural_power, "PowByNatural": _is_natural_power, "FloatPow": is_root,
}  # fmt: skip


def constant_of(expression: Any) -> int | float | bool | None:
    """The value of an expression without symbols that is no operation; None for the others."""
    if expression.is_Boolean and not expression.args:
        return bool(expression)
    if expression.is_Integer:
        return int(expression)
    return float(expression) if expression.is_Float else None


def text_of(expression: Any, names: Mapping[Any, str]) -> str:
    """Python text of an expression, or of an int. names: of the symbols. Errors: Unsupported."""
    if isinstance(expression, (int, float)):
        return repr(expression)
    if expression in names:
        return names[expression]
    constant = constant_of(expression)
    if constant is not None:
        return f"({constant!r})"
    if expression.is_Symbol:
        raise Unsupported(f"a symbol {expression} that no input has")
    operation = operation_of(expression)
    words = [text_of(part, names) for part in expression.args]
    if operation.chains:
        return functools.reduce(operation.text.format, words)
    return operation.text.format(*words)


def names_of(symbols: Mapping[Any, Place]) -> dict[Any, str]:
    """A Python name for each symbol."""
    return {symbol: f"s{number}" for number, symbol in enumerate(symbols)}


def reads(symbols: Mapping[Any, Place], inputs: Sequence[str]) -> list[str]:
    """Lines of Python that read the symbols from inputs of these names."""
    lines = []
    for symbol, name in names_of(symbols).items():
        index, dim = symbols[symbol]
        part = "" if dim is None else f".shape[{dim}]" if dim >= 0 else f".stride({~dim})"
        lines.append(f"{name} = {inputs[index]}{part}")
    return lines


def assumption_check(table: SymbolTable) -> Callable[..., bool]:
    """A function of a graph's inputs: True where all that the graph assumes of sizes holds."""
    names = names_of(table.symbols)
    lines = ["def check(*inputs):"]
    count = 1 + max((index for index, _ in table.symbols.values()), default=-1)
    inputs = [f"inputs[{number}]" for number in range(count)]
    lines += [f"    {line}" for line in reads(table.symbols, inputs)]
    sizes = [names[symbol] for symbol, (_, dim) in table.symbols.items() if dim is not None]
    tests = [f"{name} >= 2" for name in sizes]
    tests += [text_of(assumption, names) for assumption in table.assumptions]
    lines.append(f"    return {' and '.join(tests) or True}")
    return check_of_text("\n".join(lines))


def check_of_text(text: str) -> Callable[..., bool]:
    """The function `check` of a source."""
    check: Callable[..., bool] = function_of(text, "check", "sizes", {})
    return noted(check, check_of_text, text)  # type: ignore[no-any-return]
