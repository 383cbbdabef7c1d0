"""The modes of torch that belong to a thread, taken from one thread into another.

In: the thread that asks for a compile. Out: the same modes in the thread that does it. Exists
because a compile depends on them (gradients, autocast, the default device), and a new thread begins
with none.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._device import DeviceContext

CASTS = ("cpu", "cuda")


@dataclass(frozen=True, slots=True)
class ThreadModes:
    """casts: (device, on, dtype) of autocast; device: what `torch.set_default_device` says; gpu:
    the current one, None where none is in use."""

    grad: bool
    inference: bool
    casts: tuple[tuple[str, bool, torch.dtype], ...]
    cast_cache: bool
    device: torch.device | None
    gpu: int | None

    @staticmethod
    def now() -> ThreadModes | None:
        """Those of this thread; None where there is one that can't be taken along."""
        functions = _function_modes()
        if torch._C._are_functorch_transforms_active() or torch._C._len_torch_dispatch_stack():
            return None
        if len(functions) > 1 or not all(type(mode) is DeviceContext for mode in functions):
            return None
        casts = tuple([(device, torch.is_autocast_enabled(device), torch.get_autocast_dtype(device))
                       for device in CASTS])  # fmt: skip
        gpu = torch.cuda.current_device() if torch.cuda.is_initialized() else None
        return ThreadModes(
            torch.is_grad_enabled(), torch.is_inference_mode_enabled(), casts,
            torch.is_autocast_cache_enabled(), functions[0].device if functions else None, gpu)

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """These modes for the block, in a thread that has none."""
        with contextlib.ExitStack() as stack:
            if self.gpu is not None:
                stack.enter_context(torch.cuda.device(self.gpu))
            stack.enter_context(torch.inference_mode(self.inference))
            stack.enter_context(torch.set_grad_enabled(self.grad))
            if any(enabled for _, enabled, _ in self.casts):
                for device, enabled, dtype in self.casts:
                    stack.enter_context(torch.autocast(
                        device, dtype=dtype, enabled=enabled, cache_enabled=self.cast_cache))
            if self.device is not None:
                stack.enter_context(DeviceContext(self.device))
            yield


def _function_modes() -> list[Any]:
    count = torch._C._len_torch_function_stack()
    return [torch._C._get_function_stack_at(number) for number in range(count)]
