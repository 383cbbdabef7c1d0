"""The numbers of dtypes in packages, as torch has them; `model.h` and `runtime.cpp` know them."""

from __future__ import annotations

import torch

NUMBERS = {
    torch.uint8: 0, torch.int8: 1, torch.int16: 2, torch.int32: 3, torch.int64: 4, torch.float16: 5,
    torch.float32: 6, torch.float64: 7, torch.complex64: 9, torch.complex128: 10, torch.bool: 11,
    torch.bfloat16: 15,
}  # fmt: skip
