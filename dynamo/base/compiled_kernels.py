"""What Triton has compiled, and whether the driver can start it without a launcher of Triton's."""

from __future__ import annotations

import ctypes
import functools
from typing import Any

WARP = 32
SPECIAL = ("global_scratch_size", "profile_scratch_size", "launch_cooperative_grid", "launch_pdl")


@functools.cache
def driver_launch() -> int:
    """The address of the driver's function that starts a kernel."""
    function = ctypes.CDLL("libcuda.so.1").cuLaunchKernel
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def is_simple(compiled: Any) -> bool:
    """Whether the driver needs nothing but addresses and numbers to start the kernel."""
    facts = getattr(compiled, "metadata", None)
    if facts is None:
        return False
    return getattr(facts, "num_ctas", 1) == 1 and not any(getattr(facts, n, 0) for n in SPECIAL)
