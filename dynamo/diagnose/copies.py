"""Fresh arguments for each run: copies that share memory as the originals do.

In: arguments. Out: the same containers with other tensors; optionally in double precision.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils import _pytree as pytree

from dynamo.diagnose.state import WIDER, is_strided
from dynamo.graph_operators.gradients import copy_strided


class Copier:
    """Copies tensors; those that share memory have copies that share memory.

    keep: tensors that stay themselves (parts of a module's state, say); wide: double precision.
    leaves: the copies that gradients are taken for, with the number of the argument's leaf.
    """

    def __init__(self, keep: Callable[[torch.Tensor], bool], wide: bool = False) -> None:
        self.keep, self.wide = keep, wide
        self.leaves: list[torch.Tensor] = []
        self._copies: dict[int, torch.Tensor] = {}
        self._originals: list[torch.Tensor] = []
        self._storages: dict[tuple[int, Any], torch.Tensor] = {}

    def tree(self, value: Any) -> Any:
        """A copy of a tree of containers; what is no tensor stays itself."""
        return pytree.tree_map(self.leaf, value)

    def leaf(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or self.keep(value):
            return value
        if id(value) not in self._copies:
            self._originals.append(value)  # an id names one object while that lives
            self._copies[id(value)] = self._copy(value)
        return self._copies[id(value)]

    def _copy(self, value: torch.Tensor) -> torch.Tensor:
        if not is_strided(value):
            copy = value.detach().clone().requires_grad_(value.requires_grad)
            self._note(copy)
            return copy
        dtype = WIDER.get(value.dtype, value.dtype) if self.wide else value.dtype
        alias = value.detach()
        key = alias.untyped_storage()._cdata, (value.dtype, value.is_conj(), value.is_neg())
        if key not in self._storages:
            count = alias.untyped_storage().nbytes() // alias.element_size()
            flat = torch.empty(0, dtype=value.dtype, device=value.device)
            flat.set_(alias.untyped_storage().clone(), 0, (count,), (1,))  # type: ignore[call-overload]
            self._storages[key] = flat.to(dtype)
        flat = self._storages[key]
        copy = flat.as_strided(alias.size(), alias.stride(), alias.storage_offset())
        if value.is_conj():
            copy = torch._conj(copy)
        if value.is_neg():
            copy = torch._neg_view(copy)
        copy = copy.detach()
        if not value.requires_grad:
            return copy
        if isinstance(value, torch.nn.Parameter):
            copy = torch.nn.Parameter(copy)
        copy.requires_grad_()
        self._note(copy)
        # A copy of the copy may be written in place, which a leaf may not.
        return copy if value.is_leaf else copy_strided(copy, copy)

    def _note(self, copy: torch.Tensor) -> None:
        if copy.requires_grad:
            self.leaves.append(copy)
