"""Numpy's numbers: constants, and numpy's functions of numbers, evaluated while tracing.

Arrays are not modelled. In a graph a numpy number stands as the Python number that torch takes it
for.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy

from dynamo.base.errors import Break
from dynamo.guards.sources import AttrSource, CallSource, Source
from dynamo.symbolic.core import table
from dynamo.symbolic.core.constant import ConstVar
from dynamo.symbolic.core.frame import Evaluation, Frame
from dynamo.symbolic.core.table import rule
from dynamo.symbolic.core.var import Var
from dynamo.symbolic.core.wrapping import wraps
from dynamo.symbolic.python.functions import BuiltinVar
from dynamo.symbolic.shapes import numbers
from dynamo.symbolic.shapes.numbers import SymbolicNumber, is_symbolic

NUMBERS = tuple(
    getattr(numpy, name)
    for name in """bool_ int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64
    complex64 complex128""".split()
)
# Pure functions whose result is a number where the arguments are.
FUNCTIONS = """sqrt exp log log2 log10 log1p expm1 sin cos tan arcsin arccos arctan arctan2 sinh
cosh tanh floor ceil trunc rint round abs absolute sign square power maximum minimum add subtract
multiply divide floor_divide mod isnan isinf isfinite prod sum mean max min hypot deg2rad rad2deg
cbrt lcm gcd fmod fmax fmin exp2 negative reciprocal clip""".split()


class NumpyNumberVar(ConstVar):
    """A numpy number, guarded by its value (zero by identity: it has two signs), unless it changes
    and only torch's operators look at it."""

    @property
    def value(self) -> Any:
        if self._trace is not None and self.source is not None:
            trace, self._trace = self._trace, None
            trace.guard("CONST" if self._value else "ID", self.source, self._value)
        return self._value

    def opened(self) -> SymbolicNumber | None:
        """The Python number that torch takes it for, if it had several values so far."""
        if self._trace is None or self.source is None or self._value.dtype.kind not in "fiu":
            return None
        symbols = self._trace.symbols
        if not symbols.has_changed(self.source):
            return None
        item = CallSource(AttrSource(self.source, "item"))
        return symbols.number_from(item, self._value.item())

    def chosen(self) -> SymbolicNumber | None:
        """The same, where it is used as such."""
        number = self.opened()
        if number is not None:
            assert self._trace is not None and self.source is not None
            self._trace.guard("TYPE", self.source, type(self._value))
        return number

    def as_proxy(self) -> Any:
        number = self.chosen()
        if number is not None:
            return number.as_proxy()
        self.as_fake()
        return self.value.item()

    def as_fake(self) -> Any:
        """As it is: torch refuses some of them here and there."""
        number = self.chosen()
        if number is not None:
            return number.as_fake()
        if isinstance(self._value, (numpy.bool_, numpy.complex64)):  # which torch takes for floats
            raise Break("argument_mismatch", repr(self))
        return self.value.item() if isinstance(self._value, complex) else self.value


class SymbolicNumpyNumberVar(NumpyNumberVar):
    """A numpy number made of a symbolic one, which stays symbolic where torch's operators look at
    it, and becomes a constant elsewhere."""

    def __init__(self, value: Any, number: SymbolicNumber) -> None:
        super().__init__(value)
        self.number = number

    @property
    def value(self) -> Any:
        return type(self._value)(self.number.value)

    def holds_symbolic(self) -> bool:
        return is_symbolic(self.number)

    def children(self) -> Iterable[Var]:
        return [self.number]

    def opened(self) -> SymbolicNumber:
        return self.number

    chosen = opened


WIDE: dict[Any, type] = {numpy.int64: int, numpy.float64: float}


def symbolic_number(tx: Frame, function: Any, args: tuple[Var, ...]) -> Var | None:
    """`numpy.int64(n)` or `numpy.float64(n)` of a symbolic number that it holds exactly."""
    kind = WIDE.get(function)
    if kind is None or len(args) != 1 or not is_symbolic(args[0]):
        return None
    number = args[0]
    if number.python_type() is int and kind is float:
        number = numbers.convert(tx.trace, float, number)  # type: ignore[assignment]
    if not isinstance(number, SymbolicNumber) or number.python_type() is not kind:
        return None
    return SymbolicNumpyNumberVar(function(number.hint), number)


@wraps(*NUMBERS)
def wrap_number(trace: Evaluation, value: Any, source: Source | None) -> Var:
    """A numpy number, guarded when it is looked at."""
    number = NumpyNumberVar(value, source, trace)
    number.opened()
    return number


@wraps(numpy.ufunc, type(numpy.prod))
def wrap_function(trace: Evaluation, value: Any, source: Source | None) -> Var:
    """A function of numpy."""
    return BuiltinVar(value, source, trace)


def _register(function: Any) -> None:
    @rule(function)
    def evaluate(tx: Frame, /, *args: Var, **kwargs: Var) -> Var | None:
        found = None if kwargs else symbolic_number(tx, function, args)
        if found is not None:
            return found
        try:
            values = [table.plain_value(arg) for arg in args]
            keywords = {name: table.plain_value(arg) for name, arg in kwargs.items()}
        except Break:
            return None
        result = tx.trace.run_real(lambda: function(*values, **keywords))
        return tx.trace.constant(result) if type(result) in (*NUMBERS, int, float, bool) else None


for _function in dict.fromkeys(getattr(numpy, name) for name in FUNCTIONS):
    _register(_function)
for _number in NUMBERS:
    _register(_number)
table.foldable(
    method
    for number in NUMBERS
    for name, method in vars(number).items()
    if name in ("__float__", "__int__", "__bool__", "__index__", "__hash__", "__repr__", "__str__",
                "__neg__", "__pos__", "__abs__", "__round__", "item")
    and method not in table.RULES
)


def _register_conversion(function: Any) -> None:
    @rule([function])
    def convert(tx: Frame, /, *args: Var, **kwargs: Var) -> Var | None:
        if len(args) != 1 or kwargs or not isinstance(args[0], NumpyNumberVar):
            return None
        number = args[0].chosen()
        if number is None or function is numpy.generic.item:
            return number
        return numbers.convert(tx.trace, function, number)


for _conversion in (numpy.generic.item, float, int):
    _register_conversion(_conversion)
table.foldable([numpy.generic.item, numpy.generic.__format__])
