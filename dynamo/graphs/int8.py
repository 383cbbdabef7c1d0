"""Two operators of int8 layers, for graphs: oneDNN's kernels behind weights that are plain tensors.

oneDNN reads weights in an order of its own. A tensor in that order can't be saved, copied or looked
at, so a graph holds the plain int8 weight, and the operator keeps what it has packed of it for as
long as the weight lives and is not written.
"""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor

# float32, and nothing behind the product
FLOAT_RESULT: tuple[Any, ...] = (1.0, 0, torch.float32, "none", [], "")


class Packed:
    """Packed weights by the storage they were made of, with the version that they were made at."""

    def __init__(self) -> None:
        self._known: WeakKeyDictionary[Any, dict[Any, Tensor]] = WeakKeyDictionary()

    def get(self, weight: Tensor, key: Any, make: Callable[[], Tensor]) -> Tensor:
        """What `make` gave for this weight and key."""
        storage = weight.untyped_storage()
        key = key, weight._version, weight.storage_offset(), weight.shape, weight.stride()
        known = self._known.get(storage)
        if known is None or key not in known:
            known = self._known[storage] = {key: make()}
        return known[key]


PACKED = Packed()


def most_of_weights() -> int:
    """The largest int8 weight. x86 processors without VNNI add two products in 16 bits, which hold
    2 * 255 * 64 and not more: a larger one would be cut off without a word."""
    narrow = platform.machine() in ("x86_64", "AMD64") and not torch.cpu._is_vnni_supported()
    return 64 if narrow else 127


def checked(weight: Tensor) -> Tensor:
    """The weight, if it can be added up here. Errors: ValueError."""
    most = most_of_weights()
    if most < 127 and weight.numel() and int(weight.to(torch.int16).abs().max()) > most:
        raise ValueError(f"int8 weights above {most} overflow on this processor, which has no VNNI "
                         "instructions: convert the model on it")
    return weight


@torch.library.custom_op("dynamo_jit::int8_linear", mutates_args=())
def linear(
    x: Tensor, scale: Tensor, zero: Tensor, weight: Tensor, scales: Tensor, bias: Tensor | None
) -> Tensor:
    """x uint8 [m, k], weight int8 [n, k], scales [n] -> float32 [m, n]."""
    packed = PACKED.get(
        weight, "linear",
        lambda: torch.ops.onednn.qlinear_prepack(checked(weight).contiguous(), None),
    )  # fmt: skip
    zeros = torch.zeros(len(scales), dtype=torch.int64)
    made: Tensor = torch.ops.onednn.qlinear_pointwise.tensor(
        x, scale, zero, packed, scales, zeros, bias, *FLOAT_RESULT
    )
    return made


@linear.register_fake
def _(x: Tensor, scale: Any, zero: Any, weight: Tensor, scales: Any, bias: Any) -> Tensor:
    return x.new_empty((x.shape[0], weight.shape[0]), dtype=torch.float32)


@torch.library.custom_op("dynamo_jit::int8_convolution", mutates_args=())
def convolution(
    x: Tensor, scale: Tensor, zero: Tensor, weight: Tensor, scales: Tensor, bias: Tensor | None,
    stride: list[int], padding: list[int], dilation: list[int], groups: int,
) -> Tensor:
    """x uint8 [batch, channels, h, w], weight int8 -> float32, channels last."""
    how = stride, padding, dilation, groups
    ranges = float(scale), int(zero)
    packed = PACKED.get(
        weight, (*map(tuple, how[:3]), groups, *ranges),
        lambda: torch.ops.onednn.qconv_prepack(checked(weight), scales, *ranges, *how, None),
    )  # fmt: skip
    zeros = torch.zeros(len(scales), dtype=torch.int64)
    made: Tensor = torch.ops.onednn.qconv2d_pointwise.default(
        x, *ranges, packed, scales, zeros, bias, *how, *FLOAT_RESULT
    )
    return made.contiguous(memory_format=torch.channels_last)


@convolution.register_fake
def _(
    x: Tensor, scale: Any, zero: Any, weight: Tensor, scales: Any, bias: Any, stride: list[int],
    padding: list[int], dilation: list[int], groups: int,
) -> Tensor:
    sizes = [
        (size + 2 * pad - apart * (window - 1) - 1) // step + 1
        for size, pad, apart, window, step in zip(
            x.shape[2:], padding, dilation, weight.shape[2:], stride, strict=True
        )
    ]
    made = x.new_empty((x.shape[0], weight.shape[0], *sizes), dtype=torch.float32)
    return made.contiguous(memory_format=torch.channels_last)
