"""Many numbers in the host's memory, beside a GPU.

`dynamo_jit::numbers_on(numbers, device)`: tensors of no dimension on the CPU, as tensors of their
own on `device`, brought there by one copy. Each of them begins at a multiple of 16 bytes, as what
an allocator gives does.

`dynamo_jit::add_to_numbers_(numbers, number)` adds a number to each of some that have one dtype,
where they are.

`dynamo_jit::compute_numbers_(written, read, constants, steps, ends)` runs a program over numbers,
all of which are read before one is written; `Operation` names what a step may be.

They are written in C++ (`runtime/csrc/numbers.cpp`); `fx_passes/host_numbers.py` puts them into
graphs.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence

import torch
from torch import Tensor

from inductor.runtime import _launch as _launch  # has the operators

LIBRARY = torch.library.Library("dynamo_jit", "FRAGMENT")


class Operation(enum.IntEnum):
    """Of one value or two, as the C++ numbers them."""

    COPY, ADD, SUB, MUL, DIV, POW, NEG, SQRT, RECIPROCAL, MAX, MIN = range(11)


def _shapes(numbers: Sequence[Tensor], device: torch.device) -> list[Tensor]:
    return [torch.empty((), dtype=number.dtype, device="meta") for number in numbers]


LIBRARY.impl("numbers_on", _shapes, "Meta")
LIBRARY.impl("add_to_numbers_", lambda *_: None, "Meta")
LIBRARY.impl("compute_numbers_", lambda *_: None, "Meta")
NUMBERS_ON = torch.ops.dynamo_jit.numbers_on.default
ADD_TO_NUMBERS = torch.ops.dynamo_jit.add_to_numbers_.default
COMPUTE_NUMBERS = torch.ops.dynamo_jit.compute_numbers_.default
