"""Symbolic numbers: ints and floats of which a graph assumes the type, not the value.

A `SymbolicNumber` is a Python expression over facts of the frame's inputs ("s0 + 1", where s0 is an
argument or a size of a tensor), and its value in this trace. Arithmetic makes longer expressions; a
comparison is decided by the value and becomes a guard on the expression. Whatever else looks at the
value finds an ordinary constant: the number is fixed then, by a guard that names the user's line.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Hashable
from typing import Any

from dynamo.guards.shape_code import ROUNDINGS
from dynamo.guards.sources import Source
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.frame import Evaluation, Frame, SymbolTable
from dynamo.symbolic.core.var import Var

LONGEST = 400  # characters of an expression; a longer one is fixed
EXACT = 2**53  # ints up to here are doubles without rounding
LARGEST_INT = 2**63 - 1
INT_SYMBOLS = {"add": "+", "sub": "-", "mul": "*", "floordiv": "//", "mod": "%", "truediv": "/"}
FLOAT_SYMBOLS = {name: INT_SYMBOLS[name] for name in ("add", "sub", "mul", "truediv")}
COMPARISONS = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}
DIVISIONS = ("floordiv", "mod", "truediv")
WHOLE = ("floordiv", "mod")
HIGHEST_POWER = 8
SHIFTS = {"lshift": "mul", "rshift": "floordiv"}
HIGHEST_SHIFT = 40
# Functions of one number that give floats, with the numbers that they are defined for (and do not
# overflow for).
CURVES: dict[str, tuple[float, float]] = {
    "sqrt": (0, math.inf), "log": (5e-324, math.inf), "log2": (5e-324, math.inf),
    "log10": (5e-324, math.inf), "log1p": (-0.5, math.inf), "exp": (-math.inf, 700),
    "sin": (-1e15, 1e15), "cos": (-1e15, 1e15), "tanh": (-math.inf, math.inf),
}  # fmt: skip
# Functions of expressions that no guard can compute: a comparison fixes what they are made of.
UNGUARDED = ("round(",)
FEW = 16  # keys that a number is compared with one by one
LARGEST_ROUNDED = 2**25  # of two such ints a guard computes the product exactly, in doubles


class SymbolicNumber(ConstVar):
    """An int or float that is not fixed yet; reading `value` fixes it.

    text: its expression. hint: its value in this trace, which nobody may depend on.
    """

    def __init__(
        self, text: str, hint: Any, trace: Evaluation, source: Source | None = None
    ) -> None:
        super().__init__(hint, source, trace)
        self.text = text

    @property
    def is_symbolic(self) -> bool:
        return self._trace is not None

    @property
    def hint(self) -> Any:
        return self._value

    @property
    def symbols(self) -> SymbolTable:
        assert self._trace is not None
        return self._trace.symbols

    @property
    def value(self) -> Any:
        if self._trace is not None:
            symbols, self._trace = self._trace.symbols, None
            symbols.fix(self)
        return self._value

    def describe(self) -> str:
        return f"{self.text} (now {self._value!r})" if self.is_symbolic else repr(self._value)

    def python_type(self) -> type:
        return type(self._value)

    def as_proxy(self) -> Any:
        return self.symbols.node(self.text) if self.is_symbolic else self._value

    def as_fake(self) -> Any:
        return self.symbols.fake_number(self) if self.is_symbolic else self._value

    def truth(self, tx: Frame) -> bool:
        if not self.is_symbolic or not is_guardable(self):
            return bool(self.value)
        return self.symbols.decide(f"({self.text} != 0)")

    def is_same(self, tx: Frame, other: Var) -> bool:
        if self is not other and other.python_type() is not self.python_type():
            return False
        return super().is_same(tx, other)

    def hash_key(self, tx: Frame) -> Hashable:
        return ("constant", self.value)


def is_number(var: Var) -> bool:
    """True for exact ints and floats."""
    if isinstance(var, SymbolicNumber):
        return True
    return type(var) is ConstVar and type(var._value) in (int, float)


def is_symbolic(var: Var) -> bool:
    """True for a number that is symbolic still."""
    return isinstance(var, SymbolicNumber) and var.is_symbolic


def is_guardable(var: Var) -> bool:
    """True where a guard can compute the number's expression."""
    text = getattr(var, "text", "")
    return not is_symbolic(var) or not any(word in text for word in UNGUARDED)


def text_of(var: Var) -> str | None:
    """The expression of a number; None for constants that have none (nan, huge ints)."""
    if is_symbolic(var):
        return var.text  # type: ignore[attr-defined, no-any-return]
    value = var.as_constant()
    if type(value) is int:
        return f"({value})" if abs(value) <= LARGEST_INT else None
    return f"({value!r})" if value - value == 0 else None


def hint_of(var: Var) -> Any:
    return var._value if isinstance(var, ConstVar) else var.as_constant()


def binary(trace: Evaluation, name: str, a: Var, b: Var) -> Var | None:
    """`a op b` of which one is symbolic; None where both have to be fixed."""
    if not (is_symbolic(a) or is_symbolic(b)) or not (is_number(a) and is_number(b)):
        return None
    left, right = hint_of(a), hint_of(b)
    ints = type(left) is int and type(right) is int
    if name in SHIFTS and ints and not is_symbolic(b) and 0 <= right <= HIGHEST_SHIFT:
        return binary(trace, SHIFTS[name], a, ConstVar(2**right))
    symbol = (INT_SYMBOLS if ints else FLOAT_SYMBOLS).get(name)
    if name == "pow" and ints and not is_symbolic(b) and 0 <= right <= HIGHEST_POWER:
        symbol = "**"
    texts = text_of(a), text_of(b)
    if name == "pow" and symbol is None:
        return power(trace, a, b)
    if symbol is None or None in texts or sum(map(len, texts)) > LONGEST:  # type: ignore[arg-type]
        return None
    if name in DIVISIONS and right == 0:
        return None
    if not ints or name == "truediv":
        if not (keep_exact(trace, a) and keep_exact(trace, b)):
            return None
    if ints and name in WHOLE and right < 0:
        return by_negative(trace, name, a, b)
    if name in DIVISIONS and is_symbolic(b):
        if not is_guardable(b):
            return None
        trace.symbols.decide(f"({texts[1]} {'>' if ints and name in WHOLE else '!='} 0)")
    real: Callable[[Any, Any], Any] = getattr(operator, name)
    return made(trace, f"({texts[0]} {symbol} {texts[1]})", real(left, right))


def made(trace: Evaluation, text: str, hint: Any) -> Var | None:
    """The number of an expression; None for an int that no guard can compute."""
    if type(hint) is int and abs(hint) > LARGEST_INT:
        return None
    return trace.symbols.make(text, hint)


def by_negative(trace: Evaluation, name: str, a: Var, b: Var) -> Var | None:
    """`a // b` and `a % b` by the positive `-b`: torch takes (n // 2) // -2 for n // -4."""
    if is_symbolic(b):
        return None
    whole = binary(trace, name, unary(trace, "neg", a) or a, ConstVar(-hint_of(b)))
    return whole if whole is None or name == "floordiv" else unary(trace, "neg", whole)


def power(trace: Evaluation, a: Var, b: Var) -> Var | None:
    """`size ** 0.5`, `0.9 ** step` and the like: a float, in a range where nothing overflows."""
    base, exponent = hint_of(a), hint_of(b)
    if float not in (type(base), type(exponent)) or (is_symbolic(a) and is_symbolic(b)):
        return None
    if not (base > 0 and is_guardable(a) and is_guardable(b)):
        return None
    if is_symbolic(a):
        bounds = [f"({text_of(a)} >= 1e-30)", f"({text_of(a)} <= 1e30)"]
        inside = 1e-30 <= base <= 1e30 and abs(exponent) <= HIGHEST_POWER
    else:
        most = 700 / abs(math.log(base)) if base != 1 else 1e300
        bounds = [f"(abs({text_of(b)}) <= {most!r})"]
        inside = abs(exponent) <= most
    if not inside or not (keep_exact(trace, a) and keep_exact(trace, b)):
        return None
    if not all([trace.symbols.decide(bound) for bound in bounds]):
        return None
    return trace.symbols.make(f"power({text_of(a)}, {text_of(b)})", base**exponent)


def power_of_floats(trace: Evaluation, a: Var, b: Var) -> Var | None:
    """`math.pow(a, b)`: of numbers of which one is symbolic, `float(a) ** float(b)`."""
    if not (is_symbolic(a) or is_symbolic(b)) or not (is_number(a) and is_number(b)):
        return None
    if any(type(hint_of(each)) is int and abs(hint_of(each)) > EXACT for each in (a, b)):
        return None
    return power(trace, *(
        each if is_symbolic(each) else ConstVar(float(hint_of(each))) for each in (a, b)))


def curve(trace: Evaluation, name: str, a: Var) -> Var | None:
    """`math.sqrt(a)`, `math.log(a)`, .. of a symbolic number; None where it has to be fixed."""
    if not is_symbolic(a) or not keep_exact(trace, a):
        return None
    low, high = CURVES[name]
    if not low <= hint_of(a) <= high:
        return None
    for sign, bound in ((">=", low), ("<=", high)):
        if abs(bound) != math.inf:
            if not is_guardable(a):
                return None
            trace.symbols.decide(f"({text_of(a)} {sign} {bound!r})")
    return trace.symbols.make(f"{name}({text_of(a)})", getattr(math, name)(hint_of(a)))


def rounded(trace: Evaluation, name: str, a: Var) -> Var | None:
    """`math.floor(a)`, "ceil", "trunc" or "round" of a symbolic number, as an int."""
    if not is_symbolic(a):
        return None
    hint = hint_of(a)
    if type(hint) is int:
        return a
    if not abs(hint) <= LARGEST_ROUNDED or name == "round" and not is_guardable(a):
        return None
    if is_guardable(a):
        trace.symbols.decide(f"(abs({text_of(a)}) <= {LARGEST_ROUNDED}.0)")
        if name == "trunc":
            name = "floor" if trace.symbols.decide(f"({text_of(a)} >= 0.0)") else "ceil"
    if name == "trunc":
        return None
    parts = quotient(trace, text_of(a) or "")
    if parts is not None and name in ROUNDINGS:
        text = "({} // {})" if name == "floor" else "(-(-{} // {}))"
        return trace.symbols.make(text.format(*parts), ROUNDINGS[name](hint))
    if name == "round" and is_guardable(a):
        whole = rounded_quotient(trace, *parts) if parts else rounded_float(trace, text_of(a) or "")
        if whole and len(whole) <= LONGEST:
            return trace.symbols.make(whole, round(hint))
    function = round if name == "round" else ROUNDINGS[name]
    return trace.symbols.make(f"{name}({text_of(a)})", function(hint))


def rounded_quotient(trace: Evaluation, a: str, b: str) -> str | None:
    """`round(a / b)` in ints, for a b that is known and positive: the floor of a half more, and one
    less for a tie whose result is odd."""
    if any(isinstance(node, ast.Name) for node in ast.walk(ast.parse(b))):
        return None
    if trace.symbols.evaluate(b) <= 0:
        return None
    up = f"((2 * {a} + {b}) // (2 * {b}))"
    if trace.symbols.evaluate(b) % 2:
        return up
    return f"({up} - max(0, 1 - (2 * {a} + {b}) % (2 * {b})) * ({up} % 2))"


def rounded_float(trace: Evaluation, text: str) -> str:
    """`round(x)` of a float: for x >= 0 the part behind the point, and its double, are exact."""
    if not trace.symbols.decide(f"({text} >= 0.0)"):
        return f"(-{rounded_float(trace, f'(-{text})')})"
    twice = f"(2.0 * ({text} - floor({text})))"
    tie = f"(floor({twice}) * (1 - ceil({twice}) + floor({twice})))"
    return f"(floor({text}) + floor({twice}) - {tie} * (1 - floor({text}) % 2))"


def quotient(trace: Evaluation, text: str) -> tuple[str, str] | None:
    """(a, b) where the text is `a / b` of ints: floor(a / b) == a // b, rounded or not."""
    tree = ast.parse(text, mode="eval").body
    if not isinstance(tree, ast.BinOp) or not isinstance(tree.op, ast.Div):
        return None
    parts = f"({ast.unparse(tree.left)})", f"({ast.unparse(tree.right)})"
    if all(type(trace.symbols.evaluate(part)) is int and "/ " not in part.replace("//", "")
           for part in parts):
        return parts
    return None


def extreme(trace: Evaluation, name: str, args: tuple[Var, ...]) -> Var | None:
    """`min(a, b, ..)` or `max(a, b, ..)` of numbers of which one is symbolic; where not all are
    ints, comparisons decide."""
    if len(args) < 2 or not any(map(is_symbolic, args)) or not all(map(is_number, args)):
        return None
    hints, texts = list(map(hint_of, args)), list(map(text_of, args))
    if any(type(hint) is not int for hint in hints):
        return _chosen(trace, "lt" if name == "min" else "gt", args)
    if None in texts:
        return None
    text = ", ".join(texts)  # type: ignore[arg-type]
    if len(text) > LONGEST:
        return None
    return trace.symbols.make(f"{name}({text})", (min if name == "min" else max)(hints))


def _chosen(trace: Evaluation, comparison: str, args: tuple[Var, ...]) -> Var | None:
    best = args[0]
    for other in args[1:]:
        if is_symbolic(best) or is_symbolic(other):
            better = compare(trace, comparison, other, best)
        else:
            real: Callable[[Any, Any], Any] = getattr(operator, comparison)
            better = ConstVar(real(hint_of(other), hint_of(best)))
        if better is None:
            return None
        best = other if better.as_constant() else best
    return best


def is_ordinary(trace: Evaluation, name: str, a: Var) -> Var | None:
    """`math.isfinite(a)`, "isnan" or "isinf" of a symbolic number; None: it has to be fixed."""
    if not is_symbolic(a) or not is_guardable(a):
        return None
    if type(hint_of(a)) is int:
        return ConstVar(name == "isfinite") if keep_exact(trace, a) else None
    text = text_of(a)
    if trace.symbols.decide(f"({text} - {text} == 0)"):
        return ConstVar(name == "isfinite")
    return ConstVar(trace.symbols.decide(f"({text} != {text})") == (name == "isnan")
                    and name != "isfinite")


def keep_exact(trace: Evaluation, var: Var) -> bool:
    """An int that meets a float must be one that a double can hold."""
    if type(hint_of(var)) is not int:
        return True
    if abs(hint_of(var)) > EXACT:
        return False
    return not is_symbolic(var) or trace.symbols.decide(f"(abs({text_of(var)}) <= {EXACT})")


def compare(trace: Evaluation, name: str, a: Var, b: Var) -> Var | None:
    """`a < b` and the like of which one is symbolic; None where both have to be fixed."""
    if not (is_symbolic(a) or is_symbolic(b)):
        return None
    other = b if is_symbolic(a) else a
    if name in ("eq", "ne") and other.is_constant() and not is_number(other):
        if other.python_type() in (str, type(None)):
            return ConstVar(name == "ne")
    if not (is_number(a) and is_number(b)) or not (is_guardable(a) and is_guardable(b)):
        return None
    texts = text_of(a), text_of(b)
    if None in texts or sum(map(len, texts)) > LONGEST:  # type: ignore[arg-type]
        return None
    if texts[0] == texts[1] and type(hint_of(a)) is int:
        return ConstVar(name in ("eq", "le", "ge"))
    if type(hint_of(a)) is not type(hint_of(b)):
        if not (keep_exact(trace, a) and keep_exact(trace, b)):
            return None
    return ConstVar(trace.symbols.decide(f"({texts[0]} {COMPARISONS[name]} {texts[1]})"))


def among(trace: Evaluation, number: Var, keys: list[Var]) -> Var | None:
    """Whether a symbolic number is one of a few keys; None where it has to be fixed."""
    if len(keys) > FEW:
        return None
    for key in keys:
        same = compare(trace, "eq", number, key)
        if same is None or same.as_constant():
            return same
    return ConstVar(False)


def unary(trace: Evaluation, name: str, a: Var) -> Var | None:
    """`-a`, `+a`, `abs(a)` of a symbolic number; None for other operators."""
    if not isinstance(a, SymbolicNumber) or not a.is_symbolic:
        return None
    if name == "pos":
        return a
    if name == "neg":
        return made(trace, f"(-{a.text})", -a.hint)
    if name == "abs":
        return made(trace, f"abs({a.text})", abs(a.hint))
    return None


def convert(trace: Evaluation, kind: type, a: Var) -> Var | None:
    """`int(a)` and `float(a)` of a symbolic number; None where it has to be fixed."""
    if not isinstance(a, SymbolicNumber) or not a.is_symbolic:
        return None
    if type(a.hint) is kind:
        return a
    if kind is int:
        return rounded(trace, "trunc", a)
    if kind is float and keep_exact(trace, a):
        return trace.symbols.make(f"({a.text} * 1.0)", float(a.hint))
    return None
