"""Places that are read from memory and checked: `x[i]`, `gather`, embeddings.

A place out of range raises whether anything reads its element or not. Where less than all of what
was looked up is read, either the places are checked before, each of them, in a kernel that stores
them (they are few for rows of many elements), or what was looked up is stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from inductor.ir.body import IndexFault, IndirectVar, Ops, Value, loop_variables
from inductor.ir.extent import hint_of, surely_positive
from inductor.ir.graph import contiguous
from inductor.ir.index import Index
from inductor.lowering.tensor import Indices, Tensor

if TYPE_CHECKING:
    from inductor.lowering.builder import Builder

# Elements of what is looked up for each place that is checked apart. Chosen, not measured, for
# bytes: a place has eight, an element of half precision two. On any device.
MANY = 8


class Lookup:
    """Places along some axes of a tensor, one tensor of integers for each axis. extents: of these
    axes. wrap: negative places count from the end. checks: places out of range raise. reads: what
    is looked up does. are_few: the places, beside the elements at them."""

    __slots__ = ("are_few", "builder", "checks", "error", "extents", "indices", "reads", "wrap")

    def __init__(
        self, builder: Builder, indices: Sequence[Tensor], extents: Sequence[int],
        error: IndexFault = IndexFault.POSITION, wrap: bool = False, checks: bool = True,
    ) -> None:
        self.builder = builder
        self.indices = list(indices)
        self.extents = list(extents)
        self.error = error
        self.wrap = wrap
        self.checks = checks
        self.reads = frozenset[str]()
        self.are_few = False

    def place(self, ops: Ops, number: int, where: Indices) -> Index:
        """The place along axis `number` that its tensor of integers has at `where`."""
        index, extent = self.indices[number], self.extents[number]
        value = index.load(ops, where)
        if self.wrap:
            value = ops.to_dtype(value, torch.int64)
        return ops.indirect(value, extent, wrap=self.wrap, check=self.checks, error=self.error)

    def gives(self, found: Tensor) -> Tensor:
        """Remember what is looked up here, for the sake of its checks."""
        places = sum(hint_of(index.layout.numel()) for index in self.indices)
        self.reads, self.are_few = found.reads, places * MANY <= hint_of(found.layout.numel())
        self.builder.lookups.append(self)
        return found

    def check(self) -> None:
        """Check all places, and store them: whoever reads here from now on reads those."""
        self.indices = [self._checked(number) for number in range(len(self.indices))]
        self.wrap = self.checks = False

    def _checked(self, number: int) -> Tensor:
        index = self.indices[number]
        layout = contiguous(index.size, torch.int64, index.layout.device)

        def compute(ops: Ops, where: Indices) -> Value:
            return ops.index_expr(self.place(ops, number, where))

        found = self.builder.computed(layout, [index], 2, compute)
        found.realize()
        return found


def keep_checks(lookups: Sequence[Lookup], tensor: Tensor, seen: int = 0) -> None:
    """Have the places checked at which a tensor's elements are looked up, before something reads
    less than all of it.

    lookups: the program's. seen: how many elements are read; 0 if they may be any.
    """
    if tensor.view is not None or seen and surely_positive(seen - tensor.layout.numel() + 1):
        return
    held = [lookup for lookup in lookups if lookup.checks and lookup.reads <= tensor.reads]
    if held and _checks(tensor):
        for lookup in held:
            if lookup.are_few:
                lookup.check()
        if _checks(tensor):
            tensor.realize()


def _checks(tensor: Tensor) -> bool:
    ops = Ops()
    tensor.load(ops, loop_variables(tensor.size))
    return any(isinstance(op.imm, IndirectVar) and op.imm.check for op in ops.recorded)
