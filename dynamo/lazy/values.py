"""What a lazy tensor stands for: a `Value`, which is a real tensor now or the result of a trace.

The trace holds its values by weak references only: a value lives as long as a tensor of the program
does, or autograd's saved one, so that what is alive when the trace ends is what it has to return
(LazyTensor paper, section 4: only live tensors are computed).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from dynamo.shapes.facts import Facts, OpCache

if TYPE_CHECKING:
    from dynamo.lazy.trace import Trace

# Facts are compared by identity, so all lazy tensors share one table of them.
FACTS = OpCache()

# `Tensor.untyped_storage` and its like are looks of the program while a mode is on; these are not.
BASE: Any = torch._C.TensorBase


# Memory that NumPy or another library was given: programs may read and write it at any time.
EXPOSED: dict[int, StorageWeakRef] = {}


def expose(tensor: torch.Tensor) -> None:
    """Notes that the memory of a tensor is somebody else's, too."""
    storage = BASE.untyped_storage(tensor)
    EXPOSED[storage._cdata] = StorageWeakRef(storage)


def is_private(tensor: torch.Tensor) -> bool:
    """False for memory that others may write without an operation: made by NumPy, given to it."""
    storage = BASE.untyped_storage(tensor)
    if not storage.resizable():
        return False
    if EXPOSED and storage._cdata in EXPOSED:
        if not EXPOSED[storage._cdata].expired():
            return False
        del EXPOSED[storage._cdata]
    return True


class LazyError(RuntimeError):
    """A lazy tensor can't have its value; the message says why, and what to do."""


class Value:
    """facts: sizes, strides, dtype and device. real: the tensor; None while it is to be computed.
    trace, index: where it is used or made. borrowed: the memory is an ordinary tensor's, or shared
    with one; ordinary: that tensor, where it may be a weight (see `weights.py`). error: why there
    will never be a real one.
    """

    __slots__ = ("__weakref__", "borrowed", "error", "facts", "index", "ordinary", "real", "trace")

    def __init__(
        self, facts: Facts, real: torch.Tensor | None = None, borrowed: bool = False
    ) -> None:
        self.facts = facts
        self.real = real
        self.borrowed = borrowed
        self.ordinary: torch.Tensor | None = None
        self.trace: Trace | None = None
        self.index = -1
        self.error: BaseException | None = None


def facts_of(tensor: torch.Tensor) -> Facts:
    """The facts of a strided tensor."""
    return FACTS.facts_of(tensor, tensor.device)


def is_plain(tensor: Any) -> bool:
    """True for a tensor that a trace can read: strided, not quantized, of no class that has a
    dispatch of its own, outside of torch.func."""
    return bool(
        tensor.layout is torch.strided
        and not tensor.is_quantized
        and not tensor.is_nested
        and type(tensor).__torch_dispatch__ is torch._C._disabled_torch_dispatch_impl
        and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    )
