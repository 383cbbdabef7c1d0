"""What conversions of the installed torch do, of which kernels have the same bits."""

from __future__ import annotations

import torch


def e4m3_saturates() -> bool:
    """Whether ATen makes the greatest number of what is too large for float8_e4m3fn, as from torch
    2.13 on, and not NaN."""
    with torch._C._DisableTorchDispatch():
        return not torch.tensor(1e3, device="cpu").to(torch.float8_e4m3fn).isnan()
