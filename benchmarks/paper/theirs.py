"""PyTorch's own lazy tensors, of which not every build has a backend."""

from __future__ import annotations

import functools
import importlib
from typing import Any


@functools.cache
def torch_lazy() -> Any:
    """`torch._lazy`, its TorchScript backend started. Errors: ImportError, RuntimeError."""
    importlib.import_module("torch._lazy.ts_backend").init()
    return importlib.import_module("torch._lazy")
