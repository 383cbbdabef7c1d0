"""Graphs with symbolic sizes that are made again of rows: a world of their own for their fakes.

In: rows of a graph (`plain_graphs.py`) whose sizes are expressions over numbered symbols
(`plain_sizes.py`). Out: torch FakeTensors, SymInts and the table of symbols. Symbols have the hints
and bounds that they had where the rows were written. Importing this module costs seconds.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch.utils._sympy.numbers import int_oo
from torch.utils._sympy.value_ranges import ValueRanges

from dynamo.aot.plain_sizes import Sized, SymbolRow, expression_of_plain
from dynamo.aot.records import SymbolTable
from dynamo.shapes.symbolic import SymbolicWorld


class RowsWorld:
    """The values of one graph. fakes: as of `Rows`; storages: their bytes, which may be `Sized`."""

    def __init__(
        self, symbols: Sequence[SymbolRow], fakes: Sequence[Any], storages: Sequence[Any]
    ) -> None:
        self.world = SymbolicWorld()
        self.symbols = {number: self._symbol(number, row) for number, row in enumerate(symbols)}
        self.storages = storages
        self.bases: dict[tuple[int, torch.dtype, torch.device], Any] = {}
        self.lone = _counts(fakes)
        self.fakes = [self._fake(*row) for row in fakes]

    def _symbol(self, number: int, row: SymbolRow) -> Any:
        make: Any = self.world.size if row.is_size else self.world.number
        symbol = make(f"s{number}", row.hint).node.expr
        known = self.world.env.var_to_range[symbol]
        if type(row.hint) is int:
            low = known.lower if row.low is None else row.low
            high = int_oo if row.high is None else row.high
            self.world.env.var_to_range[symbol] = known & ValueRanges(low, high)
        return symbol

    def number(self, value: Any) -> Any:
        """The SymInt, SymFloat or SymBool; a plain number as it is."""
        if type(value) is not Sized:
            return value
        expression = expression_of_plain(value.expression, self.symbols)
        env = self.world.env
        make: Any = {"int": env.create_symintnode, "float": env.create_symfloatnode,
                     "bool": env.create_symboolnode}[value.kind]  # fmt: skip
        if value.kind == "bool":
            return make(expression)
        hints = {symbol: env.backed_var_to_val[symbol] for symbol in expression.free_symbols}
        hint = expression.xreplace(hints)
        return make(expression, hint=int(hint) if value.kind == "int" else float(hint))

    def _fake(
        self, size: Any, stride: Any, offset: Any, dtype: torch.dtype, device: torch.device,
        bits: int, storage: int, requires_grad: bool,
    ) -> Any:
        size, stride = (tuple(map(self.number, part)) for part in (size, stride))
        with self.world.mode, torch.no_grad():
            if self.lone[storage] == 1 and offset == 0:
                made = torch.empty_strided(size, stride, dtype=dtype, device=device)
            else:
                base = self._base(storage, dtype, device)
                made = base.as_strided(size, stride, self.number(offset))
        return made.requires_grad_() if requires_grad else made

    def _base(self, storage: int, dtype: torch.dtype, device: torch.device) -> Any:
        """All of a storage that several tensors share."""
        whole = self.bases.get((storage, dtype, device))
        if whole is not None:
            return whole
        for (other, _, _), known in self.bases.items():
            if other == storage:
                return self.bases.setdefault((storage, dtype, device), known.view(dtype))
        count = operator.floordiv(self.number(self.storages[storage]), dtype.itemsize)
        made = torch.empty((count,), dtype=dtype, device=device)
        return self.bases.setdefault((storage, dtype, device), made)

    def table(self, table: Any) -> SymbolTable:
        """symbols: (expression, place); assumptions: expressions."""
        symbols, assumptions = table
        places = {expression_of_plain(plain, self.symbols): place for plain, place in symbols}
        return SymbolTable(MappingProxyType(places), tuple([
            expression_of_plain(plain, self.symbols) for plain in assumptions]))


def _counts(fakes: Sequence[Any]) -> dict[int, int]:
    """How many tensors lie in each storage."""
    found: dict[int, int] = {}
    for *_, storage, _ in fakes:
        found[storage] = found.get(storage, 0) + 1
    return found
