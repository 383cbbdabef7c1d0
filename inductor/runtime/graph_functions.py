"""The driver's functions that make and start CUDA graphs, for `Program` (`csrc/batches.cpp`)."""

from __future__ import annotations

import ctypes
import functools

# In the order of `GraphDriver` in csrc/batches.h.
NAMES = (
    "cuStreamCreate", "cuStreamIsCapturing", "cuThreadExchangeStreamCaptureMode",
    "cuStreamBeginCapture_v2", "cuStreamEndCapture", "cuGraphInstantiateWithFlags", "cuGraphLaunch",
    "cuGraphDestroy", "cuGraphExecDestroy",
)  # fmt: skip


@functools.cache
def graph_functions() -> tuple[int, ...] | None:
    """Their addresses; None where this driver has not all of them."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
        functions = [getattr(driver, name) for name in NAMES]
    except (OSError, AttributeError):
        return None
    return tuple(ctypes.cast(one, ctypes.c_void_p).value or 0 for one in functions)
