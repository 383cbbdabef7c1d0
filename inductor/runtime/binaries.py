"""Compiled kernels as bytes that the driver loads: Triton is not needed, and not imported.

In: what Triton has compiled. Out: a `Binary`, which is kept; of one, what the driver starts.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch

from dynamo.store.content import Stale
from inductor.runtime.ptx import install_unpacking
from inductor.runtime.triton_binary import is_simple

PLAINLY_SHARED = 48 << 10  # bytes; more have to be asked for
PREFER_SHARED, SHARED_BYTES, MOST_DYNAMIC = 1, 1, 8  # of the driver
_loading = threading.Lock()


class NotLoaded(Stale):
    """The driver does not take a kernel; the text says why."""


@dataclass(frozen=True, slots=True)
class Binary:
    """name: of the kernel in the cubin. threads: of a block. shared: bytes of shared memory."""

    name: str
    cubin: bytes
    threads: int
    shared: int


@dataclass(frozen=True, slots=True)
class Started:
    """What the driver needs to start a kernel: `KernelCall.ready` without the grid."""

    function: int
    threads: int
    shared: int


def binary_of(compiled: Any, threads: int, with_scratch: bool = False) -> Binary | None:
    """What Triton has compiled as bytes; None for what only Triton can start. with_scratch: memory
    for descriptors comes as a tensor."""
    cubin = getattr(compiled, "asm", {}).get("cubin")
    if type(cubin) is not bytes or not (with_scratch or is_simple(compiled)):
        return None
    return Binary(compiled.name, cubin, threads, compiled.metadata.shared)


def start_of(binary: Binary, device: torch.device) -> Started:
    """What starts the kernel on a device, for as long as the process lives. Errors: NotLoaded."""
    facts: Any = torch.cuda.get_device_properties(device)
    most = facts.shared_memory_per_block_optin
    if binary.shared > most:
        raise NotLoaded(f"{binary.name} needs {binary.shared} bytes of shared memory, of {most}")
    with _loading, torch.cuda.device(device):
        _need_context(device)
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        _ask("cuModuleLoadData", ctypes.byref(module), binary.cubin)
        _ask("cuModuleGetFunction", ctypes.byref(function), module, binary.name.encode())
        if binary.shared > PLAINLY_SHARED:
            own = ctypes.c_int()
            _ask("cuFuncSetCacheConfig", function, PREFER_SHARED)
            _ask("cuFuncGetAttribute", ctypes.byref(own), SHARED_BYTES, function)
            _ask("cuFuncSetAttribute", function, MOST_DYNAMIC, most - own.value)
    return Started(function.value or 0, binary.threads, binary.shared)


def _need_context(device: torch.device) -> None:
    """This thread has a context from here on."""
    context = ctypes.c_void_p()
    _ask("cuCtxGetCurrent", ctypes.byref(context))
    if not context.value:
        torch.zeros((), device=device)


def _ask(name: str, *args: Any) -> None:
    code = getattr(_driver(), name)(*args)
    if code != 0:
        raise NotLoaded(f"{name} gives the CUDA error {code}")


@functools.cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


class Later:
    """A Triton function of a module that is imported when it is first called: for tensors for which
    no kernel is there."""

    def __init__(self, name: str, module: Callable[[], ModuleType]) -> None:
        self.__name__, self._module = name, module

    def _function(self) -> Any:
        function = getattr(self._module(), self.__name__)
        install_unpacking()
        return function

    def warmup(self, *args: Any, **kwargs: Any) -> Any:
        return self._function().warmup(*args, **kwargs)

    def __getitem__(self, grid: Any) -> Any:
        return self._function()[grid]
