"""Runs Triton functions with little overhead, and what else generated Python wrappers need.

A generated module hands each of its Triton functions to `Preparation.prepare` and gets a
`KernelCall`, which is called with a stream and tensors. The first call goes through Triton; it
picks (or measures) a config. Later calls hand addresses straight to the driver (`csrc/gpu.cpp`),
unless a tensor lies at an address that the kernel was not compiled for (no multiple of 16 bytes):
that goes through Triton.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import torch

from inductor.runtime._launch import Allocation as Allocation
from inductor.runtime._launch import KernelCall

current_stream: Callable[[int], int] = getattr(torch._C, "_cuda_getCurrentRawStream", lambda _: 0)
Choice = tuple[tuple[int, int, int], int, int, int]  # grid, XBLOCK, RBLOCK, warps
ALIGNED = 15
WARP = 32
SPECIAL = ("global_scratch_size", "profile_scratch_size", "launch_cooperative_grid", "launch_pdl")
MEASURED_RUNS = 5


def view(
    tensor: torch.Tensor, size: tuple[int, ...], stride: tuple[int, ...], offset: int,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """A view over the memory of a tensor; `offset` counts from its first element."""
    if dtype is not None:
        tensor = tensor.view(dtype)
    return tensor.as_strided(size, stride, tensor.storage_offset() + offset)


def keep(tensor: torch.Tensor, size: tuple[int, ...], stride: tuple[int, ...]) -> torch.Tensor:
    """The tensor, moved if its strides are not the given ones."""
    found = tensor.stride()
    if found == stride:
        return tensor
    if tuple(tensor.shape) != size:
        raise RuntimeError(f"expected a tensor of size {size}, got {tuple(tensor.shape)}")
    if 0 in size or all(
        n == 1 or a == b for n, a, b in zip(size, found, stride, strict=True)
    ):
        return tensor
    moved = torch.empty_strided(size, stride, dtype=tensor.dtype, device=tensor.device)
    return moved.copy_(tensor)


def on_device(call: Callable[..., Any], index: int) -> Callable[..., Any]:
    """The call with that GPU as the current one."""

    def guarded(*args: Any) -> Any:
        if torch._C._cuda_getDevice() == index:
            return call(*args)
        with torch.cuda.device(index):
            return call(*args)

    return guarded


@dataclass(slots=True)
class Launcher:
    """One Triton function with its launch parameters: the slow way of a `KernelCall`.

    It is called with the tensors until it has told `call` (below) of a compiled kernel.
    """

    function: Any
    choices: tuple[Choice, ...]
    unsure: tuple[int, ...]
    asserts: bool
    measure: bool
    device: int
    chosen: Choice | None = None
    call: KernelCall | None = None

    def __call__(self, *tensors: torch.Tensor) -> None:
        """Run through Triton, and remember how, if this call is one that later ones can follow."""
        if self.chosen is None:
            self.chosen = self.measured(tensors) if self.measure else self.choices[0]
        compiled = self.through_triton(tensors, self.chosen)
        aligned = not any(tensors[n].data_ptr() & ALIGNED for n in self.unsure)
        if self.call is not None and aligned and _is_simple(compiled):
            grid, _, _, warps = self.chosen
            self.call.ready(
                _driver_launch(), compiled.function, grid, warps * WARP, compiled.metadata.shared
            )

    def through_triton(self, tensors: Sequence[torch.Tensor], choice: Choice) -> Any:
        """The slow way: Triton looks at every argument, and compiles what it has not compiled."""
        return self.function[choice[0]](*tensors, **self.keywords(choice))

    def warm_up(self, dtypes: Sequence[torch.dtype]) -> None:
        """Compile the default for aligned tensors of these dtypes."""
        choice = self.choices[0]
        with torch.cuda.device(self.device):
            self.function.warmup(*dtypes, grid=choice[0], **self.keywords(choice))

    def keywords(self, choice: Choice) -> dict[str, Any]:
        """Constants and options; no contraction, denormals kept: the bits of eager's kernels."""
        return {
            "XBLOCK": choice[1], "RBLOCK": choice[2], "num_warps": choice[3],
            "debug": self.asserts, "sanitize_overflow": False, "enable_fp_fusion": False,
            "enable_reflect_ftz": False,
        }

    def measured(self, tensors: Sequence[torch.Tensor]) -> Choice:
        """The fastest choice on these tensors."""
        best, least = self.choices[0], float("inf")
        for choice in self.choices:
            self.through_triton(tensors, choice)
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            for _ in range(MEASURED_RUNS):
                self.through_triton(tensors, choice)
            end.record()
            end.synchronize()
            took = begin.elapsed_time(end)
            if took < least:
                best, least = choice, took
        return best


def _is_simple(compiled: Any) -> bool:
    """Whether the driver needs nothing but addresses to start the kernel."""
    facts = getattr(compiled, "metadata", None)
    if facts is None or not isinstance(getattr(compiled, "function", None), int):
        return False
    return getattr(facts, "num_ctas", 1) == 1 and not any(getattr(facts, n, 0) for n in SPECIAL)


@functools.cache
def _driver_launch() -> int:
    """The address of the driver's function that starts a kernel."""
    function = ctypes.CDLL("libcuda.so.1").cuLaunchKernel
    return ctypes.cast(function, ctypes.c_void_p).value or 0


@dataclass(slots=True)
class Preparation:
    """Makes the launchers of one module. measure: try all configs at the first call."""

    device: torch.device
    measure: bool = False
    launchers: list[tuple[Launcher, tuple[torch.dtype, ...]]] = field(default_factory=list)

    def prepare(
        self, function: Any, choices: tuple[Choice, ...], dtypes: tuple[torch.dtype, ...],
        unsure: tuple[int, ...], asserts: bool, again: bool,
    ) -> KernelCall:
        """What is called with a stream and tensors; see `codegen.python_wrapper`."""
        measure = self.measure and again and len(choices) > 1 and self.device.type == "cuda"
        made = Launcher(function, choices, unsure, asserts, measure, self.device.index or 0)
        self.launchers.append((made, dtypes))
        call = KernelCall(made, len(dtypes), unsure)
        if self.device.type == "cuda":
            made.call = call
        return call

    def compile_all(self, workers: int) -> None:
        """Compile ahead what the first call will run, several at a time."""
        if self.device.type != "cuda" or self.measure:
            return
        with ThreadPoolExecutor(workers) as pool:
            for _ in pool.map(lambda pair: pair[0].warm_up(pair[1]), self.launchers):
                pass
