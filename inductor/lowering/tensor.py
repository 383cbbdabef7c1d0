"""`Tensor`: a tensor of the program while it is being lowered.

It is in one of three states, and only ever moves down this list:

    computed   a function from an index to a scalar value, not in memory ("lazy")
    view       of another tensor, by a function from its index to the other's
    stored     in a buffer, at the strides that eager has

`realize` moves it to the last one. Bodies are traced when a buffer is made, so that whatever is
stored by then is loaded and everything else is computed where it is used. float16, bfloat16 and
floats of 8 bits are loaded as float32 and converted back when they are stored.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

from inductor.ir.body import Ops, Value
from inductor.ir.graph import Layout, Origins, ViewRef
from inductor.ir.index import Index, flatten

Indices = tuple[Index, ...]
Compute = Callable[[Ops, Indices], Value]
HALVES = (torch.float16, torch.bfloat16)
QUARTERS = (torch.float8_e4m3fn, torch.float8_e5m2)
NOTHING: frozenset[str] = frozenset()
NOWHERE = Origins()


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which values of `dtype` are held inside of a body."""
    return torch.float32 if dtype in HALVES or dtype in QUARTERS else dtype


def fits(number: object, dtype: torch.dtype, size: tuple[int, ...] = (2,)) -> bool:
    """Whether torch fills a tensor with the number. One that is known at a call only does fit.

    size: a tensor of no dimension takes numbers that are too large for half precision.
    """
    if not isinstance(number, bool | int | float):
        return True
    try:
        torch.full(size, number, dtype=dtype, device="cpu")
    except RuntimeError:  # it overflows
        return False
    return True


class Realizer(Protocol):
    """What a tensor needs of the graph builder. stores: whether anything may be put into memory."""

    stores: bool

    def store(self, tensor: Tensor) -> ViewRef: ...

    def keep_checks(self, tensor: Tensor, seen: int = 0) -> None: ...


class Tensor:
    """See the top of the file. `cost`: scalar operations for one element; `doubles`: those of them
    that are of float64; `reads`: buffers; `chosen_along`: an axis along which an index only says
    what is read, not where."""

    __slots__ = (
        "base", "chosen_along", "compute", "cost", "doubles", "layout", "origins", "owner", "reads",
        "reindex", "view",
    )  # fmt: skip

    def __init__(
        self,
        layout: Layout,
        owner: Realizer,
        view: ViewRef | None = None,
        compute: Compute | None = None,
        cost: int = 0,
        reads: frozenset[str] = NOTHING,
        origins: Origins = NOWHERE,
        doubles: int = 0,
    ) -> None:
        self.layout = layout
        self.owner = owner
        self.view = view
        self.compute = compute
        self.cost = cost
        self.doubles = doubles
        self.origins = origins
        self.reads = reads if view is None else frozenset((view.buffer,))
        self.chosen_along: int | None = None
        self.base: Tensor | None = None
        self.reindex: Callable[[Indices], Indices] | None = None

    @property
    def size(self) -> tuple[int, ...]:
        return self.layout.size

    @property
    def dtype(self) -> torch.dtype:
        return self.layout.dtype

    def as_view(self, layout: Layout, reindex: Callable[[Indices], Indices]) -> Tensor:
        """This tensor seen with another layout; its element `i` is ours at `reindex(i)`."""
        if self.view is None:
            self.owner.keep_checks(self, layout.numel())
        if self.view is not None:
            return Tensor(layout, self.owner, view=self._view_of(layout))
        seen = Tensor(
            layout, self.owner, cost=self.cost, reads=self.reads, origins=self.origins,
            doubles=self.doubles,
        )
        seen.base = self
        seen.reindex = reindex
        return seen

    def _view_of(self, layout: Layout) -> ViewRef:
        view = self.realize()
        offset = view.offset + layout.offset - self.layout.offset
        return ViewRef(view.buffer, layout.size, layout.stride, offset, layout.dtype)

    def realize(self) -> ViewRef:
        """Put it into memory, if it is not there, and say where. A name that no buffer has stands
        for what stays computed because the owner stores nothing."""
        if self.view is None and not self.owner.stores:
            size, stride = self.layout.size, self.layout.stride
            return ViewRef("", size, stride, 0, self.layout.dtype)
        if self.view is None:
            if self.base is not None:
                self.base.realize()
                self.view = self.base._view_of(self.layout)
            else:
                self.view = self.owner.store(self)
            self.base = self.compute = self.reindex = None
            self.reads = frozenset((self.view.buffer,))
            self.cost = 0
        return self.view

    def load(self, ops: Ops, indices: Indices) -> Value:
        """The element at `indices`, in `compute_dtype(self.dtype)`."""
        if self.view is not None:
            view = self.view
            value = ops.load(view.buffer, flatten(indices, view.stride, view.offset), view.dtype)
            return ops.to_dtype(value, compute_dtype(view.dtype))
        if self.base is not None:
            assert self.reindex is not None
            return self.base.load(ops, self.reindex(indices))
        assert self.compute is not None
        return self.compute(ops, indices)

    def root(self) -> Tensor:
        """The tensor whose elements this one shows."""
        return self if self.base is None else self.base.root()
