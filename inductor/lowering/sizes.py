"""From SymInts of the ATen graph to extents.

In: the fakes in `meta["val"]` of a graph that holds for many sizes. Out: `Shaped` records with
extents in their place, and where the value of each symbol is found among the inputs of a call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import add, floordiv, mod, mul
from typing import Any

import torch

from dynamo.aot.fakes import number_at
from dynamo.aot.records import Unsupported
from dynamo.aot.symbols import is_root
from inductor.ir.extent import Extent, Real, Sizes, surely_less, surely_positive, up_to_multiple


@dataclass(frozen=True, slots=True)
class Shaped:
    """What lowering asks of a fake tensor."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    device: torch.device

    def stride(self) -> tuple[int, ...]:
        return self.strides

    def storage_offset(self) -> int:
        return self.offset

    def dim(self) -> int:
        return len(self.shape)


def is_tensor(value: Any) -> bool:
    """Whether a value of `meta["val"]` stands for a tensor."""
    return isinstance(value, (torch.Tensor, Shaped))


@dataclass(frozen=True, slots=True)
class Source:
    """Where a call finds a symbol: an input, and a place in it (`number_at`)."""

    input: int
    dim: int | None

    def read(self, inputs: Sequence[Any]) -> int:
        return number_at(inputs[self.input], self.dim)  # type: ignore[no-any-return]


def has_symbols(module: torch.fx.GraphModule) -> bool:
    """Whether sizes or numbers of the graph are symbols."""
    for node in module.graph.nodes:
        value = node.meta.get("val") if node.op == "placeholder" else None
        if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)) or (
            isinstance(value, torch.Tensor)
            and any(isinstance(size, torch.SymInt) for size in value.shape)
        ):
            return True
    return False


@dataclass(slots=True)
class Symbols:
    """The symbols of one graph: `sources` in the order of `sizes.symbols`."""

    sizes: Sizes = field(default_factory=Sizes)
    sources: list[Source] = field(default_factory=list)
    _extents: dict[Any, Extent] = field(default_factory=dict)
    _ones: set[Any] = field(default_factory=set)  # expressions of sizes that are assumed to be 1

    def enter_inputs(self, module: torch.fx.GraphModule, hints: Sequence[int] | None) -> None:
        """Make a symbol for each that an input carries; hints: their values, in order."""
        inputs = [node for node in module.graph.nodes if node.op == "placeholder"]
        for number, node in enumerate(inputs):
            value = node.meta.get("val")
            if isinstance(value, torch.SymInt):
                self._enter(value, Source(number, None))
            elif isinstance(value, torch.Tensor):
                for dim in (*range(value.dim()), *(~axis for axis in range(value.dim()))):
                    if isinstance(size := number_at(value, dim), torch.SymInt):
                        self._enter(size, Source(number, dim))
        if hints is not None:
            self.sizes.hints.update(zip(self.sizes.symbols, hints, strict=True))

    def _enter(self, value: torch.SymInt, source: Source) -> None:
        symbol = value.node.expr
        if not symbol.is_Symbol or symbol in self._extents:
            return
        bounds = value.node.shape_env.var_to_range.get(symbol)
        low = None if bounds is None or not bounds.lower.is_Integer else int(bounds.lower)
        hint = value.node.hint
        if hint is None:
            raise Unsupported("a size that nobody knows before the call")
        self._extents[symbol] = self.sizes.symbol(int(hint), low)
        self.sources.append(source)

    def extent(self, value: Any) -> int:
        """The number behind an int or SymInt."""
        if not isinstance(value, torch.SymInt):
            return value  # type: ignore[no-any-return]
        return self._translate(value.node.expr)

    def _translate(self, expression: Any) -> int:
        if expression.is_Integer:
            return int(expression)
        if expression in self._ones:
            return 1
        if expression.is_Symbol:
            if expression not in self._extents:
                raise Unsupported(f"no input has the size {expression}")
            return self._extents[expression]
        name = type(expression).__name__
        if name in ROUNDED and type(expression.args[0]).__name__ == "IntTrueDiv":
            return ROUNDED[name](*map(self._translate, expression.args[0].args))
        function = FUNCTIONS.get(name)
        if function is None:
            raise Unsupported(f"a size that is {expression}")
        return function(*map(self._translate, expression.args))

    def describe(self, value: Any) -> Any:
        """A value of `meta["val"]` with extents for SymInts."""
        if isinstance(value, torch.Tensor):
            return self._shaped(value)
        if isinstance(value, (list, tuple)):
            return tuple(self.describe(item) for item in value)
        if isinstance(value, torch.SymInt):
            return self.extent(value)
        if isinstance(value, torch.SymFloat):
            return Real(self._spell_real(value.node.expr))
        if isinstance(value, torch.SymBool):
            raise Unsupported("a truth value that is computed from sizes")
        return value

    def _spell_real(self, expression: Any) -> str:
        if expression.is_Float:
            return f"({float(expression)!r})"
        name = type(expression).__name__
        if name == "ToFloat" or expression.is_integer:
            inner = expression.args[0] if name == "ToFloat" else expression
            return f"k_real({self._translate(inner)})"
        if name == "FloatPow" and is_root(expression):
            root = f"k_root({self._spell_real(expression.args[0])})"
            return root if expression.args[1] > 0 else f"(1.0 / {root})"
        sign = REALS.get(name)
        if sign is None:
            raise Unsupported(f"a number that is {expression}")
        parts = [self._spell_real(part) for part in expression.args]
        return f"({sign.join(parts)})" if len(parts) > 1 else f"{sign}({parts[0]})"

    def _shaped(self, fake: torch.Tensor) -> Shaped:
        size = tuple(map(self._size, fake.shape))
        for extent in size:
            if type(extent) is Extent and not surely_positive(extent):
                self._need_positive(extent)
        return Shaped(
            size, tuple(map(self.extent, fake.stride())), self.extent(fake.storage_offset()),
            fake.dtype, fake.device,
        )

    def _size(self, value: Any) -> int:
        """The extent of a size; the constant 1 where it is 1 now, since that is broadcast."""
        extent = self.extent(value)
        if type(extent) is not Extent or extent.hint != 1:
            return extent
        self.sizes.assume(f"{extent} == 1")
        self._ones.add(value.node.expr)
        return 1

    def _need_positive(self, extent: Extent) -> None:
        """Everything behind takes sizes that are not the constant 0 for positive."""
        if extent.hint <= 0:
            raise Unsupported(f"a size that may be 0: {extent}")
        self.sizes.assume_positive(extent)


def _power(base: int, exponent: int) -> int:
    if type(exponent) is Extent or exponent < 0:
        raise Unsupported("a power of sizes")
    return reduce(mul, [base] * exponent, 1)


def _greater(left: int, right: int) -> int:
    """The greater one: proved where possible, also where they may be equal."""
    if surely_less(right, left + 1):
        return left
    return right if surely_less(left, right + 1) else max(left, right)


# How sympy and torch.utils._sympy name what sizes are made of.
FUNCTIONS: dict[str, Callable[..., int]] = {
    "Add": lambda *parts: reduce(add, parts),
    "Mul": lambda *parts: reduce(mul, parts),
    "Pow": _power,
    "FloorDiv": floordiv,
    "CleanDiv": floordiv,
    "Mod": mod,
    "PythonMod": mod,
    "Max": lambda *parts: reduce(_greater, parts),
    "Min": lambda *parts: -reduce(_greater, [-part for part in parts]),
}

# Those of a quotient of ints, which is exact enough as a double.
ROUNDED: dict[str, Callable[..., int]] = {"CeilToInt": up_to_multiple, "FloorToInt": floordiv}

REALS = {
    "Add": " + ",
    "Mul": " * ",
    "IntTrueDiv": " / ",
    "FloatTrueDiv": " / ",
    "OpaqueUnaryFn_sqrt": "k_root",
}
