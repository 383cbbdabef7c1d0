"""The table of lowerings: ATen operator -> function `(call, *args, **kwargs) -> Tensor or tuple`.

A lowering gets a `Call` (builder, fake result, origin) and the operator's arguments with `Tensor`
in place of tensors, and returns what the operator returns. `NotImplemented` means: this case is not
lowered, call ATen (the reason is `call.reason`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from inductor.ir.graph import Layout
from inductor.lowering.builder import Builder, layout_of

OpOverload = torch._ops.OpOverload


@dataclass(slots=True)
class Call:
    """One operator of the graph that is being lowered. `result`: fake of what it returns. is_part:
    of an operator that was taken apart. taken: which of several results somebody uses."""

    builder: Builder
    target: OpOverload
    result: Any
    users: int
    reason: str = ""
    is_part: bool = False
    taken: frozenset[int] = frozenset()

    @property
    def layout(self) -> Layout:
        return layout_of(self.result)

    def refuse(self, reason: str) -> Any:
        """Fall back to ATen, for `reason`."""
        self.reason = reason
        return NotImplemented


Lowering = Callable[..., Any]
LOWERINGS: dict[OpOverload, Lowering] = {}
LIBRARY_LOWERINGS: dict[OpOverload, Lowering] = {}
"""Of operators that are a library's, but for some arguments: passes take them for calls of it."""


def lowering(*targets: OpOverload, of_library: bool = False) -> Callable[[Lowering], Lowering]:
    """Enter a function into the table for these operators, or into that of libraries' ones."""
    table = LIBRARY_LOWERINGS if of_library else LOWERINGS

    def enter(function: Lowering) -> Lowering:
        for target in targets:
            table[target] = function
        return function

    return enter
