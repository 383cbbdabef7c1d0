"""Our own convolution (`kernels/cpu/convolution.py`): built once per machine, for all graphs.

In: a store and a toolchain. Out: its functions for Python; graphs loaded later find them by name.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from dynamo.store.content import Store
from dynamo.store.toolchain import Toolchain
from inductor.ir.convolutions import Geometry
from inductor.kernels.cpu.convolution import (
    CONVOLUTION_NAME,
    CONVOLUTION_UNITS,
    DEPTHWISE_NAME,
    WINOGRAD_NAME,
)
from inductor.runtime.own_libraries import own_library


@dataclass(frozen=True, slots=True)
class Convolver:
    """The functions of the library, for float32 on the CPU, channels last."""

    function: Callable[..., None]
    by_winograd: Callable[..., None]
    by_channels: Callable[..., None]
    columns: int
    lanes: int

    def convolve(
        self, geometry: Geometry, x: Tensor, panels: Tensor, bias: Tensor | None, out: Tensor,
        threads: int, winograd: bool = False, bounds: tuple[float, float] | None = None,
    ) -> None:
        """out = x convolved with the weight of which `panels` (`winograd_panels`,
        `channel_panels`) were made. threads: 0 for one that takes no memory; bounds: of what is
        stored, not with Winograd's."""
        numbers = geometry.numbers()
        given = (ctypes.c_long * len(numbers))(*numbers)
        start = None if bias is None else bias.data_ptr()
        tensors = (x.data_ptr(), panels.data_ptr(), start, out.data_ptr())
        if winograd:
            self.by_winograd(ctypes.addressof(given), *tensors, None, None, threads)
            return
        ends = None if bounds is None else (ctypes.c_float * 2)(*bounds)
        function = self.by_channels if geometry.is_depthwise() else self.function
        function(ctypes.addressof(given), *tensors, ends, None, None, threads)

    def panels_size(self, weight: tuple[int, ...]) -> int:
        """Elements of `panels`, for the sizes of a weight."""
        out_channels, channels, height, width = weight
        whole, rest = divmod(out_channels, self.columns)
        last = 0 if rest == 0 else self.lanes if rest <= self.lanes else self.columns
        return (whole * self.columns + last) * channels * height * width

    def panels(self, weight: Tensor) -> Tensor:
        """A copy of a weight in the order in which convolutions read it: `columns` output channels
        side by side for each tap and input channel; the last ones maybe `lanes`."""
        made = weight.new_zeros(self.panels_size(tuple(weight.shape)))
        begin, rows = 0, weight[0].numel()
        for part in weight.split(self.columns):
            width = self.lanes if part.shape[0] <= self.lanes else self.columns
            ordered = part.permute(2, 3, 1, 0)
            panel = made[begin : begin + rows * width].view(*ordered.shape[:3], width)
            panel[..., : part.shape[0]].copy_(ordered)
            begin += rows * width
        return made

    def channel_panels_size(self, weight: tuple[int, ...]) -> int:
        """Elements of `channel_panels`."""
        channels, _, height, width = weight
        return -(-channels // self.lanes) * self.lanes * height * width

    def channel_panels(self, weight: Tensor) -> Tensor:
        """A weight [channels, 1, height, width] as a depthwise convolution reads it: blocks of
        `lanes` channels, side by side for each tap; the last block ends with the last channel."""
        ordered = weight.flatten(1).t()
        channels = weight.shape[0]
        firsts = [min(at, channels - self.lanes) for at in range(0, channels, self.lanes)]
        parts = [ordered[:, first : first + self.lanes].reshape(-1) for first in firsts]
        return torch.cat(parts)

    def winograd_panels(self, weight: Tensor) -> Tensor:
        """`panels` of a weight [out channels, channels, 3, 3] with all taps of a channel side by
        side, as they are transformed."""
        return self.panels(weight.flatten(2).transpose(1, 2)[..., None])


def load_convolver(store: Store, toolchain: Toolchain) -> Convolver:
    """Build (or find) and load the library."""
    return _load(own_library(CONVOLUTION_UNITS, store, toolchain))


@functools.cache
def _load(path: str) -> Convolver:
    library = ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
    names = (CONVOLUTION_NAME, WINOGRAD_NAME, DEPTHWISE_NAME)
    usual, winograd, depthwise = functions = [library[name] for name in names]
    for function in functions:
        pointers = [ctypes.c_void_p] * (7 if function is winograd else 8)
        function.argtypes, function.restype = [*pointers, ctypes.c_long], None
    columns, lanes = (library[f"{CONVOLUTION_NAME}_{what}"]() for what in ("columns", "lanes"))
    return Convolver(usual, winograd, depthwise, columns, lanes)
