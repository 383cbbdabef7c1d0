"""Looks at ordinary tensors while a mode is on: what reads memory undispatched ends the trace.

In a mode, a trace may have writes to ordinary tensors that are still to be done (a parameter that
the optimizer steps), and reads of what NumPy could write. `x.numpy()`, `x.tolist()`, `data_ptr` and
pickling go straight to memory; while a mode is on, these methods of `torch.Tensor` end the trace
first.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

METHODS = ("numpy", "tolist", "data_ptr", "untyped_storage", "storage", "_typed_storage",
           "__array__", "__dlpack__", "__deepcopy__", "__reduce_ex__", "share_memory_")  # fmt: skip

class Watch:
    """Installs the looks for the first mode, and takes them out after the last. settle: called with
    the method's name and the tensor before the method. real_of: the memory that an ordinary tensor
    gets as its own."""

    def __init__(self, settle: Callable[[str, torch.Tensor], None], real_of: Any) -> None:
        self.settle, self.real_of = settle, real_of
        self.users = 0
        self.before: dict[str, Any] = {}
        self.looks: dict[str, Any] = {}  # by name: what stands for the method `__wrapped__`
        self.data = self._data()

    def enter(self) -> None:
        """One more mode."""
        self.users += 1
        if self.users > 1:
            return
        for name in METHODS:
            method = getattr(torch.Tensor, name)
            self.before[name] = vars(torch.Tensor).get(name)
            setattr(torch.Tensor, name, self._watched(name, method))
        torch.Tensor.data = self.data  # type: ignore[assignment, method-assign]

    def leave(self) -> None:
        """One mode less."""
        self.users -= 1
        if self.users:
            return
        del torch.Tensor.data
        for name in METHODS:
            if self.before[name] is None:
                delattr(torch.Tensor, name)
            else:
                setattr(torch.Tensor, name, self.before[name])

    def _data(self) -> Any:
        """`Tensor.data`: an ordinary tensor gets the memory that a lazy one has."""
        plain: Any = torch._C.TensorBase.data

        def write(tensor: torch.Tensor, other: Any) -> None:
            plain.__set__(tensor, self.real_of(other))

        return property(plain.__get__, write)

    def _watched(self, name: str, method: Any) -> Any:
        known = self.looks.get(name)
        if known is not None and known.__wrapped__ is method:
            return known

        @functools.wraps(method)
        def look(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            self.settle(name, tensor)
            with _disable_current_modes():  # what they make of an ordinary tensor is ordinary
                return method(tensor, *args, **kwargs)

        self.looks[name] = look
        return look
