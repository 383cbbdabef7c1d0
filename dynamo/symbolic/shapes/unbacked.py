"""Numbers that only the running program knows: `t.item()`, the size of `x[mask]`.

An `UnbackedNumber` is a node of the graph, and torch's symbol for its value. Arithmetic makes more
nodes, which run as Python's own operators; where a decision needs the value, the graph ends. The
new bytecode takes the value from the graph's results.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import fx

from dynamo.base.errors import Break, Signal
from dynamo.base.words import noun
from dynamo.graph_operators.cuts import runs_alone
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.frame import Evaluation, Frame
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.shapes import numbers
from dynamo.symbolic.shapes.numbers import SymbolicNumber, is_number, is_symbolic

TYPES: dict[type, type] = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}
COMPARISONS = frozenset(("lt", "le", "gt", "ge", "eq", "ne"))
ARITHMETIC = frozenset(("add", "sub", "mul"))
DIVISIONS = frozenset(("truediv", "floordiv", "mod"))
HIGHEST_POWER = 8
NEVER_EQUAL = frozenset((type(None), str, bytes, list, tuple, dict, set, type(Ellipsis)))


class UnbackedNumber(Var):
    """An int, float or bool of which the trace knows the type and a range.

    fake: torch's symbolic value. node: what computes it; None while it is not needed. exact: False
    for what is made of floats, about which torch's expressions may be wrong (nan, rounding).
    """

    def __init__(
        self, trace: Evaluation, fake: Any, node: fx.Node | None = None, exact: bool = True
    ) -> None:
        super().__init__(None)
        self.exact = exact
        self._trace = trace
        self.fake = fake
        self._node = node

    def describe(self) -> str:
        return f"{noun(TYPES[type(self.fake)].__name__)} that only the running program knows"

    def python_type(self) -> type:
        return TYPES[type(self.fake)]

    @property
    def node(self) -> Any:
        if self._node is None or self._node._erased:
            self._node = self._trace.symbols.unbacked.node(self.fake)
        return self._node

    def as_proxy(self) -> Any:
        return self.node

    def as_fake(self) -> Any:
        return self.fake

    def truth(self, tx: Frame) -> bool:
        return self._trace.symbols.unbacked.decide(self)

    def is_same(self, tx: Frame, other: Var) -> bool:
        if self is other or other.python_type() is not self.python_type():
            return self is other
        raise Break("identity_of_constant", repr(self))


def is_unbacked(var: Var) -> bool:
    return isinstance(var, UnbackedNumber)


def binary(trace: Evaluation, name: str, a: Var, b: Var) -> Var | None:
    """`a op b` of which one is unknown; None where the other is a tensor or an object."""
    if not (is_unbacked(a) or is_unbacked(b)):
        return None
    other = b if is_unbacked(a) else a
    if not (is_unbacked(other) or is_number(other)):
        return refuse(name, a, b) if other.is_constant() or hasattr(other, "items") else None
    kinds = {a.python_type(), b.python_type()}
    if bool in kinds:
        if kinds != {bool} or name not in ("and", "or"):
            raise Break("unknown_number", f"{a!r} {name} {b!r}")
        return run(trace, getattr(operator, f"{name}_"), a, b)
    if name in DIVISIONS and not has_fine_divisor(trace, name, b):
        whole = kinds == {int} and name != "truediv"
        return by_value(trace, getattr(operator, name), int if whole else float, a, b)
    if name in BITS and kinds == {int}:
        return by_value(trace, getattr(operator, BITS[name]), int, a, b)
    if name == "pow":
        if float in kinds:
            return by_value(trace, operator.pow, float, a, b)
        if kinds != {int} or is_unbacked(b) or not 0 <= b.as_constant() <= HIGHEST_POWER:
            raise Break("unknown_number", f"{a!r} ** {b!r}")
    elif name not in ARITHMETIC | DIVISIONS:
        raise Break("unknown_number", f"{a!r} {name} {b!r}")
    return run(trace, getattr(operator, name), a, b)


BITS = {"and": "and_", "or": "or_", "xor": "xor", "lshift": "lshift", "rshift": "rshift"}


def has_fine_divisor(trace: Evaluation, name: str, divisor: Var) -> bool:
    """False for a divisor that may be 0, and for one of `//` or `%` that may be negative (torch's
    expressions are wrong for such)."""
    wanted = operator.ne if name == "truediv" else operator.gt
    if is_unbacked(divisor):
        fine = trace.world.known(wanted(divisor.as_fake(), 0)) if divisor.exact else None  # type: ignore[attr-defined]
    elif is_symbolic(divisor):
        assert isinstance(divisor, SymbolicNumber)
        fine = trace.symbols.decide(f"({divisor.text} {'!=' if name == 'truediv' else '>'} 0)")
    else:
        fine = wanted(divisor.as_constant(), 0)
    return bool(fine)


@runs_alone
class ByValue:
    """The target of a node: Python's own function of numbers, whose result the graph reads.

    Torch's expressions over numbers have no such function, or one that is wrong for some numbers.
    """

    def __init__(self, function: Callable[..., Any], kind: type, number: int) -> None:
        self.function, self.kind = function, kind
        self.__name__ = self.__qualname__ = f"{function.__name__}_{number}"
        self.__module__ = __name__

    def __call__(self, *numbers: Any) -> torch.Tensor:
        if torch._C._len_torch_dispatch_stack():
            raise RuntimeError("a graph with numbers that only the run knows was recorded whole")
        return torch.tensor(self.function(*numbers), dtype=DTYPES[self.kind])


DTYPES = {int: torch.int64, float: torch.float64}


def by_value(trace: Evaluation, function: Callable[..., Any], kind: type, *args: Var) -> Var:
    """A number that the graph computes by Python's own function, which may raise."""
    unbacked, world = trace.symbols.unbacked, trace.world
    unbacked.possible()
    unbacked.may_raise([fake_of(trace, arg) for arg in args])
    try:
        fake = world.run(torch.empty, (), dtype=DTYPES[kind], device="cpu")
        value = world.run(torch.Tensor.item, fake)
    except Signal as error:
        raise Break("unknown_number", f"{function.__name__}: {error}") from error
    nodes = trace.graph.graph.nodes
    target = ByValue(function, kind, sum(isinstance(node.target, ByValue) for node in nodes))
    proxies = tuple(arg.as_proxy() for arg in args)
    node = trace.graph.operation("call_function", target, proxies, {}, fake)
    node.meta["checks"] = True
    known = trace.graph.operation("call_method", "item", (node,), {}, value)
    unbacked.keep_checks(torch.Tensor.item)
    return unbacked.make(value, lambda: known, kind is int)  # type: ignore[no-any-return]


def compare(trace: Evaluation, name: str, a: Var, b: Var) -> Var | None:
    """`a < b` and the like of which one is unknown; None where the rows for other types know."""
    if not (is_unbacked(a) or is_unbacked(b)):
        return None
    other = b if is_unbacked(a) else a
    if not (is_unbacked(other) or is_number(other)):
        if name in ("eq", "ne") and other.python_type() in NEVER_EQUAL:
            return ConstVar(name == "ne")
        return refuse(name, a, b) if other.is_constant() or hasattr(other, "items") else None
    if bool in (a.python_type(), b.python_type()):
        refuse(name, a, b)
    return run(trace, getattr(operator, name), a, b)


def refuse(name: str, a: Var, b: Var) -> NoReturn:
    raise Break("unknown_number", f"{a!r} {name} {b!r}")


def unary(trace: Evaluation, name: str, a: Var) -> Var | None:
    """`-a`, `+a`, `abs(a)` of an unbacked number."""
    if not is_unbacked(a):
        return None
    if a.python_type() is bool or name not in ("neg", "pos", "abs"):
        raise Break("unknown_number", f"{name} of {a!r}")
    return a if name == "pos" else run(trace, abs if name == "abs" else operator.neg, a)


EXTREMES: dict[str, Callable[..., Any]] = {"min": torch.sym_min, "max": torch.sym_max}


def extreme(trace: Evaluation, name: str, args: tuple[Var, ...]) -> Var | None:
    """`min(a, b, ..)` or `max(a, b, ..)` of ints of which one is unknown."""
    if len(args) < 2 or not any(map(is_unbacked, args)):
        return None
    if not all((is_unbacked(arg) or is_number(arg)) and arg.python_type() is int for arg in args):
        return None
    best = args[0]
    for other in args[1:]:
        if is_unbacked(best) or is_unbacked(other):
            best = run(trace, EXTREMES[name], best, other)
        else:
            found = numbers.extreme(trace, name, (best, other))
            best = found or ConstVar(
                (min if name == "min" else max)(best.as_constant(), other.as_constant()))
    return best


def convert(trace: Evaluation, kind: type, a: Var) -> Var | None:
    """`int(a)` and `float(a)` of an unbacked number."""
    if not is_unbacked(a):
        return None
    if a.python_type() is kind:
        return a
    if kind is float and a.python_type() is int:
        return run(trace, float, a, fake=torch.sym_float)
    if kind is int and a.python_type() is float:
        return by_value(trace, int, int, a)
    raise Break("unknown_number", f"{kind.__name__} of {a!r}")


def fake_of(trace: Evaluation, arg: Var) -> Any:
    """A number for torch's expressions, which have no floats of sizes: of such a one nothing is
    known, and it stays open."""
    if is_symbolic(arg) and arg.python_type() is float:
        return trace.world.make_unbacked(float)
    return arg.as_fake()


def run(trace: Evaluation, function: Callable[..., Any], *args: Var, fake: Any = None) -> Var:
    """A node that calls a function of numbers, and what is known of its result."""
    try:
        value = trace.world.run(fake or function, *[fake_of(trace, arg) for arg in args])
    except Signal as error:
        raise Break("unknown_number", f"{function.__name__}: {error}") from error
    trace.symbols.keep_assumptions()
    exact = all(arg.python_type() is not float for arg in args)
    if type(value) not in TYPES and exact:
        return ConstVar(value)
    return trace.symbols.unbacked.make(value, lambda: trace.graph.operation(
        "call_function", function, tuple(arg.as_proxy() for arg in args), {}, value), exact)
