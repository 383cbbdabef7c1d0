"""Triton kernels of the program, on the GPU (elsewhere `tests/inductor/gpu` runs them in Triton's interpreter)."""

from __future__ import annotations

import pytest

from tests.gpu.support import DEVICE

if DEVICE == "cpu":
    pytest.skip("the interpreter runs them", allow_module_level=True)

from tests.gpu.user_kernels import *  # noqa: E402, F403
