"""Many numbers in the host's memory, beside a GPU.

`dynamo_jit::numbers_on(numbers, device)`: tensors of no dimension on the CPU, as tensors of their
own on `device`, brought there by one copy. Each of them begins at a multiple of 16 bytes, as what
an allocator gives does.

`dynamo_jit::add_to_numbers_(numbers, number)` adds a number to each of some that have one dtype,
where they are.

Both are written in C++ (`runtime/csrc/numbers.cpp`); `fx_passes/host_numbers.py` puts them into
graphs.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from inductor.runtime import _launch as _launch  # has the operators

LIBRARY = torch.library.Library("dynamo_jit", "FRAGMENT")


def _shapes(numbers: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    return [torch.empty((), dtype=number.dtype, device="meta") for number in numbers]


LIBRARY.impl("numbers_on", _shapes, "Meta")
LIBRARY.impl("add_to_numbers_", lambda *_: None, "Meta")
NUMBERS_ON = torch.ops.dynamo_jit.numbers_on.default
ADD_TO_NUMBERS = torch.ops.dynamo_jit.add_to_numbers_.default
