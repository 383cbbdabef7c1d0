"""Launches of Triton kernels that are texts: attention's, and `topk`'s.

In: a text, the name of a function in it, a grid and constants. Out: a `KernelCall`, which is called
with a stream and tensors. The first call for tensors of some sizes and strides goes through Triton,
which compiles a kernel for just those; later ones hand addresses to the driver (`csrc/gpu.cpp`).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any, NamedTuple

import torch

from dynamo.base import logs
from dynamo.store import content
from dynamo.store.content import cache_store, make_key
from inductor.cache import kernel_binaries
from inductor.kernels.attention_spec import Blocks
from inductor.runtime._launch import KernelCall
from inductor.runtime.binaries import NotLoaded, binary_of, start_of
from inductor.runtime.modules import import_file
from inductor.runtime.ptx import OPTIONS, install_unpacking
from inductor.runtime.triton_binary import (
    WARP,
    driver_launch,
    function_of,
    is_simple,
    run,
    start,
)
from inductor.runtime.triton_launch import ALIGNED


class KernelName(NamedTuple):
    """A Triton function of a text, which is imported when the function is to be compiled."""

    text: str
    name: str

    def function(self) -> Any:
        return getattr(load_text(self.text), self.name)


@dataclass(slots=True)
class TextLaunch:
    """The slow way of a `KernelCall`: by what an earlier process has cached, or through Triton,
    until the call knows the compiled kernel. constants: some may be those of other functions;
    options: of Triton's, and the blocks."""

    kernel: KernelName
    grid: tuple[int, int, int]
    constants: dict[str, Any]
    options: dict[str, Any]
    call: KernelCall | None = None

    @staticmethod
    def of(
        kernel: KernelName, grid: tuple[int, int, int], constants: dict[str, Any], blocks: Blocks,
        tensors: int, options: dict[str, Any] | None = None,
    ) -> KernelCall:
        """What is called with a stream and so many tensors. options: more for Triton."""
        known = {
            "ROWS": blocks.rows, "COLUMNS": blocks.columns, "num_warps": blocks.warps,
            "num_stages": blocks.stages, "ptx_options": OPTIONS, **(options or {}),
        }  # fmt: skip
        slow = TextLaunch(kernel, grid, constants, known)
        slow.call = KernelCall(slow, tensors, tuple(range(tensors)))
        return slow.call

    def __call__(self, *tensors: torch.Tensor) -> None:
        """Run, and tell the call how, if later ones can follow."""
        aligned = not any(tensor.data_ptr() & ALIGNED for tensor in tensors)
        key = None
        if aligned and tensors[0].is_cuda:
            key = kernel_binaries.key_of(*self.kernel, self.constants | self.options, tensors)
        if key is not None and self._starts_cached(key, tensors):
            return
        function = self.kernel.function()
        known = {name: self.constants[name] for name in function.arg_names
                 if name in self.constants}  # fmt: skip
        install_unpacking()
        compiled = run(function, self.grid, tensors, (), b"", known | self.options)
        if self.call is not None and tensors[0].is_cuda and aligned and is_simple(compiled):
            threads = self.options["num_warps"] * WARP
            shared = compiled.metadata.shared
            self.call.ready(driver_launch(), function_of(compiled), self.grid, threads, shared)
            binary = binary_of(compiled, threads)
            if key is not None and binary is not None:
                kernel_binaries.keep(key, binary)

    def _starts_cached(self, key: content.Key, tensors: Sequence[torch.Tensor]) -> bool:
        """Starts the kernel that an earlier process has cached, if there is one."""
        binary = kernel_binaries.find(key)
        if binary is None or self.call is None:
            return False
        try:
            started = start_of(binary, tensors[0].device)
        except NotLoaded as why:
            logs.log("cache").emit(f"binary {key.digest}: it is not usable, {why}")
            return False
        start((started.function, self.grid, started.threads, started.shared), tensors, b"")
        self.call.ready(
            driver_launch(), started.function, self.grid, started.threads, started.shared)
        return True


@functools.lru_cache(256)
def load_text(text: str) -> ModuleType:
    """The module of a text, which lies in the cache folder: Triton reads functions from files."""
    key = make_key("attention", {"source": text})
    path, _ = cache_store().file_of(key, ".py", text.encode())
    return import_file(f"inductor_attention_{path.stem}", path)
