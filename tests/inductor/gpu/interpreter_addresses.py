"""Triton's interpreter, in which a kernel that reaches beside its tensors is an error."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from triton.runtime import interpreter


def check_addresses(monkeypatch: Any) -> None:
    """Until the end of a test: what is loaded, stored or added lies in the storages of the launch's
    tensors. Kernels that get addresses in a table are not checked."""
    builder, executor = interpreter.interpreter_builder, interpreter.GridExecutor
    load, store = builder.create_masked_load, builder.create_masked_store
    atomic, begin = builder.create_atomic_rmw, executor._init_args_hst
    known: list[Any] = [None]

    def started(self: Any, args: Any, keywords: Any) -> Any:
        known[0] = None if "table" in self.arg_names else _ranges(args)
        return begin(self, args, keywords)

    def check(what: str, pointers: Any, mask: Any) -> None:
        if known[0] is None:
            return
        first, last = known[0]
        data, seen = np.broadcast_arrays(pointers.data, mask.data)
        places = data[seen.astype(bool)].astype(np.int64)
        size = max(pointers.get_element_ty().primitive_bitwidth // 8, 1)
        at = np.searchsorted(first, places, side="right") - 1
        inside = (at >= 0) & (places + size <= last[at])
        if not inside.all():
            raise IndexError(f"a kernel {what} beside its tensors")

    def loaded(pointers: Any, mask: Any, *rest: Any, **options: Any) -> Any:
        check("reads", pointers, mask)
        return load(pointers, mask, *rest, **options)

    def stored(pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        check("writes", pointers, mask)
        return store(pointers, value, mask, *rest)

    def added(op: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        check("adds", pointers, mask)
        return atomic(op, pointers, value, mask, *rest)

    monkeypatch.setattr(executor, "_init_args_hst", started)
    monkeypatch.setattr(builder, "create_masked_load", loaded)
    monkeypatch.setattr(builder, "create_masked_store", stored)
    monkeypatch.setattr(builder, "create_atomic_rmw", added)


def _ranges(args: Any) -> tuple[np.ndarray, np.ndarray]:
    """Where the storages of tensors begin and end, in order."""
    storages = [arg.untyped_storage() for arg in args if isinstance(arg, torch.Tensor)]
    found = sorted({(each.data_ptr(), each.data_ptr() + each.nbytes()) for each in storages})
    return np.array([a for a, _ in found] or [0]), np.array([b for _, b in found] or [0])
