"""Triton kernels of the program, on the GPU (elsewhere `tests/inductor/gpu` runs them in Triton's interpreter)."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.gpu.support import DEVICE

if DEVICE == "cpu":
    pytest.skip("the interpreter runs them", allow_module_level=True)

from tests.gpu.user_kernels import *  # noqa: E402, F403
from tests.gpu.user_kernels import MODES, add_scaled, check, data  # noqa: E402


def current_gpu(x: Any) -> Any:
    """As libraries of kernels launch them."""
    for place in (x.device, x.device.index, x.get_device(), -1):
        with torch.cuda.device(place):
            y = torch.empty_like(x)
            add_scaled[(4,)](x, x, y, x.numel(), 0.5, BLOCK=64)
            x = y
    torch.cuda.set_device(x.device)
    torch.cuda._lazy_init()
    count = torch.cuda.get_device_properties(x.device).multi_processor_count
    return x * 2 + torch.cuda.current_device() + count


@pytest.mark.parametrize("mode", MODES)
def test_kernels_of_the_current_gpu(mode: str | None) -> None:
    check(current_gpu, lambda: (data(200),), mode=mode, calls=2)
