"""What is traced in the place of torch's own dispatch of nested tensors."""

from __future__ import annotations

from typing import Any

import torch


def unbind(value: Any, dim: int = 0) -> Any:
    """The sequences. Each length is a number that the running program knows."""
    if dim != 0:
        raise RuntimeError("unbind(): only supported for NestedTensor on dim=0")
    values, offsets, lengths = value.values(), value.offsets(), value.lengths()
    axis = value._ragged_idx - 1
    if lengths is None:
        return torch.split(values, offsets.diff().tolist(), dim=axis)
    pairs = zip(offsets.tolist()[:-1], lengths.tolist(), strict=True)
    return tuple([torch.narrow(values, axis, start, length) for start, length in pairs])
