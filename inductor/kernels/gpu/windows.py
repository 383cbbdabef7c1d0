"""Sums over large windows of pixels, channel by channel, by a Triton kernel that loops over lines.

In: images [N, C, H, W] of any dense layout and a window for each channel. Out: what a depthwise
convolution of stride 1 gives. The windows of small sizes are written out in the loops that other
operators fuse with (`lowering/depthwise.py`); of 11 x 11, which SSIM has, a compiler takes 8 s for
that, and a library's kernel of any size reads each pixel for each place of each window.

A program computes `DEPTH` lines of results side by side. It goes over the lines of pixels that
their windows see, and over a line's places in stretches: what it has loaded of a stretch stands in
registers for all those of its lines whose windows reach it. Sums are float32. A pixel that no
window sees is multiplied with nothing, so that infinities stay where they are.
"""

from __future__ import annotations

import functools

import torch

from inductor.kernels.attention_spec import Blocks
from inductor.kernels.gpu.calls_by_form import CallsByForm, Prepared
from inductor.kernels.gpu.text_launches import KernelName, TextLaunch
from inductor.runtime._launch import Allocation

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
# Lines of results, places in registers; elements of a program, its channels and its warps, where
# rows and where channels are neighbours. Measured on an H200: with twice the elements of rows 66 us
# for 57 (4 x 3 x 512 x 512, 11 x 11), with half of those channels last 210 for 164 (16 x 96 x 64 x
# 64, 9 x 9); 2 and 8 lines are slower or equal.
DEPTH, STRETCH = 4, 8
ROW_MAJOR, CHANNELS_LAST = (64, 1, 1), (512, 32, 2)
MOST_PROGRAMS = 1 << 16  # along the second and third axis of a grid
MOST_PLACE = (1 << 31) - (1 << 16)  # of an image, in elements: int32, and a tile goes beyond it

HEAD = '''\
import triton
import triton.language as tl


@triton.jit
def window_sums(
    X, W, OUT, C: tl.constexpr, H: tl.constexpr, WIDTH: tl.constexpr,
    OH: tl.constexpr, OW: tl.constexpr, TOP: tl.constexpr, SIDE: tl.constexpr,
    XN: tl.constexpr, XC: tl.constexpr, XY: tl.constexpr, XX: tl.constexpr,
    ON: tl.constexpr, OC: tl.constexpr, OY: tl.constexpr, OX: tl.constexpr,
    WC: tl.constexpr, WY: tl.constexpr, WX: tl.constexpr, ACROSS: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):
    px = tl.program_id(0) % ACROSS * ROWS + tl.arange(0, ROWS)[:, None]
    first = tl.program_id(0) // ACROSS * {depth}
    c = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    image = tl.program_id(2).to(tl.int64)
    inside = (px < OW) & (c < C)
    pixels = X + image * XN + c * XC
'''
START = "    acc{r} = tl.zeros([ROWS, COLUMNS], tl.float32)\n"
LINES = """\
    for line in range({depth} + {high} - 1):
        y = first + line - TOP
        if (y >= 0) & (y < H):
"""
LOAD = """\
            u = px + ({at} - SIDE)
            v{at} = tl.load(
                pixels + (y * XY + u * XX), mask=inside & (u >= 0) & (u < WIDTH), other=0.0,
            ).to(tl.float32)
"""
REACHED = "            if (line >= {r}) & (line < {r} + {high}):\n"
ADD = """\
                w = tl.load(W + (c * WC + {line} * WY + {place} * WX), mask=c < C, other=0.0)
                acc{r} += v{at} * w.to(tl.float32)
"""
STORE = """\
    to = OUT + image * ON + c * OC + (first + {r}) * OY + px * OX
    tl.store(to, acc{r}.to(OUT.dtype.element_ty), mask=inside & (first + {r} < OH))
"""


@functools.cache
def kernel_text(high: int, wide: int, flipped: bool) -> str:
    """The kernel for windows of high x wide places; flipped: their last place comes first."""
    every = range(DEPTH)
    lines = [HEAD.format(depth=DEPTH)]
    lines += [START.format(r=r) for r in every]
    lines.append(LINES.format(depth=DEPTH, high=high))
    for begin in range(0, wide, STRETCH):
        stretch = range(begin, min(begin + STRETCH, wide))
        lines += [LOAD.format(at=at) for at in stretch]
        for r in every:
            lines.append(REACHED.format(r=r, high=high))
            line = f"({high - 1 + r} - line)" if flipped else f"(line - {r})"
            for at in stretch:
                place = wide - 1 - at if flipped else at
                lines.append(ADD.format(r=r, at=at, line=line, place=place))
    lines += [STORE.format(r=r) for r in every]
    return "".join(lines)


class WindowCall(CallsByForm):
    """Sums over windows, for whatever images come."""

    __slots__ = ()

    def __call__(
        self, x: torch.Tensor, weight: torch.Tensor, padding: tuple[int, int], flipped: bool
    ) -> torch.Tensor:
        """x: [N, C, H, W]; weight: [C, 1, high, wide]; padding: of zeros around images, top and
        side. The result is laid out as `result_form` says."""
        return self.run(prepare, (x, weight), padding, flipped)[0]


def result_form(
    x: torch.Tensor, weight: torch.Tensor, padding: tuple[int, int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Size and strides of the result: channels last where those of the images are neighbours in
    memory, else row-major."""
    count, channels, *extents = x.shape
    high, wide = (
        extent + 2 * pad - size + 1
        for extent, pad, size in zip(extents, padding, weight.shape[2:], strict=True)
    )
    size = count, channels, high, wide
    if is_last(x):
        return size, (high * wide * channels, 1, wide * channels, channels)
    return size, (channels * high * wide, high * wide, wide, 1)


def is_last(x: torch.Tensor) -> bool:
    """Whether channels are neighbours in memory."""
    return x.shape[1] > 1 and x.stride(1) == 1 and x.stride(3) != 1


def prepare(
    x: torch.Tensor, weight: torch.Tensor, padding: tuple[int, int], flipped: bool
) -> Prepared:
    """The kernel, not compiled yet, and its result."""
    size, strides = result_form(x, weight, padding)
    count, channels, high, wide = size
    elements, columns, warps = CHANNELS_LAST if is_last(x) else ROW_MAJOR
    columns = min(columns, _power_of_two(channels))
    rows = min(elements // columns, _power_of_two(wide))
    across = -(-wide // rows)
    names = ("XN", "XC", "XY", "XX", "ON", "OC", "OY", "OX", "WC", "WY", "WX")
    steps = (*x.stride(), *strides, weight.stride(0), *weight.stride()[2:])
    constants = {
        "C": channels, "H": x.shape[2], "WIDTH": x.shape[3], "OH": high, "OW": wide,
        "TOP": padding[0], "SIDE": padding[1], "ACROSS": across,
        **dict(zip(names, steps, strict=True)),
    }  # fmt: skip
    grid = across * -(-high // DEPTH), -(-channels // columns), count
    name = KernelName(kernel_text(*weight.shape[2:], flipped), "window_sums")
    call = TextLaunch.of(name, grid, constants, Blocks(rows, columns, warps, 1), 3)
    return call, (Allocation(size, strides, x.dtype, x.device),)


def _power_of_two(number: int) -> int:
    return 1 << (number - 1).bit_length()
