"""What a backend of the program's own gets in the place of a graph's inputs whose sizes or numbers
are open: torch's fakes with symbols of their own, and what the backend has assumed of these.

In: what the trace shows of each input (`meta["example_value"]`), and the real inputs. Out: fakes,
SymInts and SymFloats; texts for guards over names that stand for (input, what, dimension).
Importing this module costs seconds, so that only graphs with symbolic sizes or numbers do.

Errors: NotSymbolic, where the inputs can't be given so: then all is fixed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from dynamo.shapes.fake import NotSymbolic, Unprintable
from dynamo.shapes.symbolic import SymbolicWorld

SymbolPlace = tuple[int, str, int]


class SymbolicInputs:
    """values: what the backend gets; places: what each name of the guards stands for."""

    def __init__(self, shown: Sequence[Any], inputs: Sequence[Any]) -> None:
        self.places: dict[str, SymbolPlace] = {}
        self._world = SymbolicWorld()
        self._read = 0
        self._symbols: dict[Any, Any] = {}  # of the trace, with the new expression of each
        tensors = [value for value in inputs if isinstance(value, torch.Tensor)]
        if len({tensor.untyped_storage()._cdata for tensor in tensors}) < len(tensors):
            raise NotSymbolic("two inputs share memory")  # which fakes would not
        pairs = list(enumerate(zip(shown, inputs, strict=True)))
        for index, (fake, real) in pairs:
            if isinstance(real, torch.Tensor):
                self._name_sizes(index, fake, real)
        self.values = [self._value(index, fake, real) for index, (fake, real) in pairs]
        self.assumptions()  # of making them: the guards of the trace say so too
        self._world.forget_reals()

    def _name_sizes(self, index: int, fake: Any, real: torch.Tensor) -> None:
        for dim, size in enumerate(fake.shape):
            expression = _expression(size)
            if type(expression) is int or not expression.is_Symbol or expression in self._symbols:
                continue
            if real.shape[dim] < 2:
                raise NotSymbolic(f"a symbolic size is {real.shape[dim]}")
            name = self._name(index, "size", dim)
            self._symbols[expression] = _expression(self._world.size(name, real.shape[dim]))

    def _name(self, index: int, what: str, dim: int = 0) -> str:
        name = f"s{len(self.places)}"
        self.places[name] = index, what, dim
        return name

    def _value(self, index: int, fake: Any, real: Any) -> Any:
        if isinstance(real, torch.Tensor):
            sizes = list(map(self._number, fake.shape, real.shape))
            strides = list(map(self._number, fake.stride(), real.stride()))
            return self._world.make(real, sizes, strides)
        if type(real) in (int, float):
            return self._world.number(self._name(index, "value"), real)
        return real

    def _number(self, shown: Any, value: int) -> Any:
        """A size or stride of the trace in the symbols of this world."""
        expression = _expression(shown)
        if type(expression) is int:
            return value
        if not expression.free_symbols <= self._symbols.keys():
            raise NotSymbolic(f"a size or stride {expression}")
        return self._world.env.create_symintnode(expression.xreplace(self._symbols), hint=value)

    def assumptions(self) -> tuple[list[str], list[str]]:
        """What was assumed since the last call, as expressions over the names; and the names that
        take part in what no guard can express."""
        guards = self._world.env.guards[self._read:]
        self._read += len(guards)
        texts: list[str] = []
        fixed: list[str] = []
        for guard in guards:
            try:
                texts.append(self._world.text_of(guard.expr))
            except Unprintable as error:
                fixed += error.symbols
        return texts, fixed


def _expression(number: Any) -> Any:
    if not isinstance(number, torch.SymInt):
        return number
    constant = number.node.maybe_as_int()
    return number.node.expr if constant is None else int(constant)
