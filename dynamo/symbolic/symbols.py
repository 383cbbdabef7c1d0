"""The symbols of one trace: which numbers and sizes are symbolic, and what was assumed of them.

In: the facts that had several values so far (`CompileContext.changed`). Out: names for them (s0,
s1, ...), SHAPE guards on expressions over these names, graph nodes that compute such expressions,
and log lines that say which line of the program fixed which number.
"""

from __future__ import annotations

import ast
import linecache
import operator
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import fx

from dynamo.base import logs
from dynamo.base.config import config
from dynamo.base.errors import Break
from dynamo.guards.shape_code import Fact, ShapeFacts
from dynamo.guards.sources import ItemSource, LocalSource, Source
from dynamo.symbolic.variables.base import Var
from dynamo.symbolic.variables.numbers import LARGEST_INT, SymbolicNumber

if TYPE_CHECKING:
    from dynamo.symbolic.trace import Trace

OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Div: operator.truediv,
    ast.Pow: operator.pow, ast.USub: operator.neg,
}  # fmt: skip
FUNCTIONS: dict[str, Callable[..., Any]] = {"abs": abs, "min": min, "max": max}
# Functions of which only the type of a number decides what comes out: size, strides and dtype.
VALUE_FREE = frozenset(
    """add sub mul div truediv true_divide floor_divide floordiv divide multiply subtract remainder
    mod fmod pow rsub eq ne lt le gt ge clamp clip clamp_min clamp_max addcmul addcdiv lerp where
    masked_fill fill full_like addmm baddbmm leaky_relu
    iadd isub imul itruediv ifloordiv imod ipow""".split()
)


def is_value_free(function: Any) -> bool:
    """True where the fake result is the same for all values of the numbers among the arguments.

    >>> import torch
    >>> is_value_free(torch.Tensor.add_), is_value_free(torch.zeros)
    (True, False)
    """
    name = getattr(function, "__name__", "").strip("_")
    return name in VALUE_FREE or (name[:1] in ("r", "i") and name[1:] in VALUE_FREE)


class Symbols:
    """See the module.

    facts: what each name stands for; values: what it is in this trace.
    """

    def __init__(self, trace: Trace, context: Any) -> None:
        self.trace = trace
        self.context = context
        self.changed: frozenset[Fact] = getattr(context, "changed", frozenset())
        self.everything = bool(getattr(context, "everything_dynamic", False))
        self.facts: dict[str, Fact] = {}
        self.values: dict[str, int | float] = {}
        self._names: dict[Fact, str] = {}
        self._nodes: dict[str, fx.Node] = {}
        self._said: set[str] = set()
        self._hints_wanted = False

    # -- making -------------------------------------------------------------------------------

    def wrap_number(self, value: Any, source: Source | None) -> Var | None:
        """The symbolic number of an int or float of the program; None where it is a constant."""
        if source is None or not self._is_wanted(value, source):
            return None
        self.trace.guard("TYPE", source, type(value))
        name = self.name(Fact(source, "value"), value)
        return SymbolicNumber(name, value, self.trace, source)

    def _is_wanted(self, value: Any, source: Source) -> bool:
        kind = type(value)
        if kind is int:
            if config.specialize_int or abs(value) > LARGEST_INT:
                return False
            if self.everything and is_argument(source):
                return True
        elif kind is not float or config.specialize_float:
            return False
        return Fact(source, "value") in self.changed

    def name(self, fact: Fact, value: int | float) -> str:
        """The name of a fact; made at its first use."""
        name = self._names.get(fact)
        if name is None:
            name = self._names[fact] = f"s{len(self._names)}"
            self.facts[name], self.values[name] = fact, value
            logs.log("dynamic").emit(lambda: f"{name} is {fact.text()}, now {value}")
        return name

    def make(self, text: str, hint: int | float) -> Var:
        """The number that an expression stands for."""
        return SymbolicNumber(text, hint, self.trace)

    # -- assuming -------------------------------------------------------------------------------

    def decide(self, text: str) -> bool:
        """The truth of a comparison in this trace; guards it."""
        answer = bool(self.evaluate(text))
        self.assume(text if answer else f"(not {text})")
        return answer

    def evaluate(self, text: str) -> Any:
        """The value of an expression in this trace."""
        return eval(text, {"__builtins__": {}}, {**FUNCTIONS, **self.values})

    def assume(self, text: str) -> None:
        """Guards an expression that holds in this trace."""
        if text in self._said:
            return
        self._said.add(text)
        self.trace.guard("SHAPE", None, self.payload(text))

    def payload(self, text: str) -> ShapeFacts:
        """The expression with what its names stand for."""
        names = names_in(text)
        return ShapeFacts(text, {name: self.facts[name] for name in names})

    def fix(self, number: SymbolicNumber) -> None:
        """The number becomes a constant of this trace."""
        logs.log("dynamic").emit(
            lambda: f"{self.spell(number.text)} is fixed to {number._value!r} at {self.place()}")
        if number.source is not None:
            self.trace.guard("CONST", number.source, number._value)
        elif type(number._value) is int:
            self.assume(f"({number.text} == {number._value})")
        else:
            for name in names_in(number.text):
                if self.facts[name].what == "value":
                    self.trace.guard("CONST", self.facts[name].source, self.values[name])
                else:
                    self.assume(f"({name} == {self.values[name]})")

    def place(self) -> str:
        """The user's line, with its text."""
        line = self.trace.user_line()
        if line is None:
            return "an unknown line"
        text = line.text or linecache.getline(line.filename, line.lineno).strip()
        return f"{line}: {text}" if text else str(line)

    def spell(self, text: str) -> str:
        """The expression with the program's words in place of names."""
        tree = ast.parse(text, mode="eval")
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and node.id in self.facts:
                node.id = self.facts[node.id].text()
        return ast.unparse(tree)

    # -- graph ----------------------------------------------------------------------------------

    def prepare(self, function: Any, args: list[Var], kwargs: dict[str, Var]) -> None:
        """Before `as_fake` of the arguments of a graph operation: which numbers may stay open."""
        self._hints_wanted = bool(self.facts) and is_value_free(function)

    def fake_number(self, number: SymbolicNumber) -> Any:
        """A number as an argument for the fakes."""
        return number.hint if self._hints_wanted else number.value

    def node(self, text: str) -> Any:
        """The graph node that computes an expression (a plain number where it has no names)."""
        tree = ast.parse(text, mode="eval").body
        key = ast.unparse(tree)
        known = self._nodes.get(key)
        if known is None or known._erased:
            known = self._build(tree)
            if isinstance(known, fx.Node):
                self._nodes[key] = known
        return known

    def _build(self, tree: ast.expr) -> Any:
        match tree:
            case ast.Constant(value=value):
                return value
            case ast.Name(id=name):
                return self._input(name)
            case ast.BinOp(left=left, op=op, right=right):
                return self._operation(OPERATORS[type(op)], left, right)
            case ast.UnaryOp(op=op, operand=operand):
                return self._operation(OPERATORS[type(op)], operand)
            case ast.Call(func=ast.Name(id=name), args=args):
                return self._operation(FUNCTIONS[name], *args)
        raise Break("not_a_graph_argument", ast.unparse(tree))

    def _operation(self, function: Callable[..., Any], *operands: ast.expr) -> Any:
        args = tuple(self.node(ast.unparse(operand)) for operand in operands)
        if not any(isinstance(arg, fx.Node) for arg in args):
            return function(*args)
        values = [arg.meta["example_value"] if isinstance(arg, fx.Node) else arg for arg in args]
        return self.trace.graph.operation("call_function", function, args, {}, function(*values))

    def _input(self, name: str) -> fx.Node:
        fact = self.facts[name]
        assert fact.what == "value", fact
        return self.trace.graph.placeholder(fact.source, self.values[name])


def names_in(text: str) -> list[str]:
    """The names of an expression, in order."""
    found = [node.id for node in ast.walk(ast.parse(text, mode="eval")) if isinstance(node, ast.Name)]
    return list(dict.fromkeys(name for name in found if name not in FUNCTIONS))


def is_argument(source: Source) -> bool:
    """True for arguments of the frame and what containers among them hold."""
    while isinstance(source, ItemSource):
        source = source.base
    return isinstance(source, LocalSource)


__all__ = ["Symbols", "is_argument", "is_value_free", "names_in"]
