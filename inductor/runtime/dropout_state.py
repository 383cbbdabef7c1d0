"""The state that dropout in kernels draws from: seed and offset of a device's default generator.

In: a device. Out: `draw` gives them as a tensor on the device, and moves the generator's offset on
as ATen's own dropout would, also while a CUDA graph is recorded. `why_not` says whether ATen there
draws as `inductor.ir.philox` says; the answer is found once, by small draws from a generator of
their own.
"""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Sequence

import torch
from torch.utils._python_dispatch import _disable_current_modes

from inductor.ir.philox import BLOCK, draw_of, increment_of, keeps
from inductor.runtime import _launch

aten = torch.ops.aten
FUNCTION = "_ZN2at17CUDAGeneratorImpl17philox_cuda_stateEm"
SEED, FIRST = 0x9E3779B97F4A7C15, 40  # of the draws that are compared
COMPARED = 4096  # elements at both ends
RATES = {torch.float16: 0.1, torch.bfloat16: 0.5, torch.float32: 0.9}


@functools.cache
def blocks_at_once(device: torch.device) -> int:
    """The most blocks that ATen's dropout starts."""
    facts = torch.cuda.get_device_properties(device)
    by_processor: int = facts.max_threads_per_multi_processor // BLOCK
    return facts.multi_processor_count * by_processor


def draw(elements: Sequence[int], device: torch.device) -> torch.Tensor:
    """Seed and offset, int64, for dropouts of so many elements, one after the other."""
    blocks = blocks_at_once(device)
    increment = sum(increment_of(each, blocks) for each in elements)
    generator = torch.cuda.default_generators[device.index or 0]
    return _launch.draw_state(_function(), generator, increment, device)


@functools.cache
def _function() -> int:
    """The address of the generator's function. Errors: OSError, AttributeError: there is none."""
    library = os.path.join(os.path.dirname(torch.__file__), "lib", "libtorch_cuda.so")
    found = getattr(ctypes.CDLL(library), FUNCTION)
    return ctypes.cast(found, ctypes.c_void_p).value or 0


@functools.cache
def why_not(device: torch.device) -> str:
    """Why dropout on a device falls back to ATen; empty where it does not."""
    with _disable_current_modes(), torch.no_grad(), torch.cuda.device(device):
        try:
            generator = torch.Generator(device).manual_seed(SEED)
            generator.set_offset(FIRST)
            state = _launch.draw_state(_function(), generator, 4, torch.device("cpu"))
        except (OSError, AttributeError, RuntimeError) as error:
            return f"this torch does not tell the state of a generator: {error}"
        if _signed(state) != (SEED, FIRST) or generator.get_offset() != FIRST + 4:
            return "this torch's generators have another form"
        wrong = [dtype for dtype in RATES if not _is_as_written(device, dtype)]
    return f"this torch draws otherwise for dropout of {wrong[0]}" if wrong else ""


def _signed(state: torch.Tensor) -> tuple[int, int]:
    seed, offset = state.tolist()
    return seed % (1 << 64), offset


def _is_as_written(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether ATen keeps the same elements: of a tensor for which its threads come round twice, of
    a small one, and of one that has no vectors."""
    rate, blocks = RATES[dtype], blocks_at_once(device)
    wraps = BLOCK * blocks * (16 // dtype.itemsize) + COMPARED
    for elements in (wraps, COMPARED, COMPARED - 1):
        generator = torch.Generator(device).manual_seed(SEED)
        generator.set_offset(FIRST)
        state = torch.tensor([SEED - (1 << 64), FIRST], device=device)
        ones = torch.ones(elements, dtype=dtype, device=device)
        _, mask = aten._fused_dropout(ones, 1.0 - rate, generator)
        found = draw_of(elements, dtype.itemsize, rate, blocks)
        ends = torch.arange(COMPARED - 1, device=device)
        at = torch.cat((ends, elements - 1 - ends))
        if not torch.equal(keeps(state[0], state[1], at, found), mask[at].bool()):
            return False
        if generator.get_offset() != FIRST + increment_of(elements, blocks):
            return False
    return True
