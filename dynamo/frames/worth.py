"""Whether a frame can be seen to work on tensors, before anything of it is traced."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from dynamo.guards.kinds import cell_bound
from dynamo.hook import FrameState


def mentions_tensors(frame: FrameState) -> bool:
    """True where a local variable, a cell or a global that the code names holds a tensor or a
    module, or is `torch` itself."""
    if any(map(holds_tensor, frame.locals.values())):
        return True
    names = map(frame.globals.get, frame.code.co_names)
    cells = [cell.cell_contents for cell in frame.cells.values() if cell_bound(cell)]
    return any(value is torch or holds_tensor(value) for value in (*names, *cells))


def holds_tensor(value: Any) -> bool:
    """True for tensors, modules, and plain containers of these."""
    kind = type(value)  # isinstance() may ask the value itself
    items: Iterable[Any] = (value,)
    if issubclass(kind, list | tuple):
        items = (list if issubclass(kind, list) else tuple).__iter__(value)
    elif issubclass(kind, dict):
        items = list(dict.values(value))  # at once: another thread may change it
    return any(issubclass(type(item), torch.Tensor | torch.nn.Module) for item in items)


