"""Operands of a convolution's product, which come out of images through a window.

In: a `Product` with a `Window`, blocks. Out: lines of the product template, and the expressions of
its tiles. A step of the loop takes `depth` channels at one place of the window (a *tap*): where
channels are no multiple of the depth, each tap's last step reaches over their end, and counts
zeros there. With very few channels a step takes several taps instead, and looks up each column's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from inductor.codegen.triton.numbers import Numbers
from inductor.ir.extent import divides, up_to_multiple
from inductor.scheduler.schedule import Blocks, Product, Window

FEW_CHANNELS = 16  # fewer of them do not fill a step


@dataclass(frozen=True, slots=True)
class WindowText:
    """rows: lines before the loop, about the rows of a tile. step: lines of a step. left, right:
    the tiles. terms: how far the loop counts."""

    rows: list[str]
    step: list[str]
    left: str
    right: str
    terms: int


def takes_taps(one: Product) -> bool:
    """Whether a step takes several taps."""
    return one.left.size[-1] < FEW_CHANNELS


def terms_of(one: Product, depth: int) -> int:
    """How far the loop of a product counts, in multiples of the depth where taps are padded."""
    if one.window is None or takes_taps(one):
        return one.k
    channels = up_to_multiple(one.left.size[-1], depth) * depth
    return channels * one.window.size[0] * one.window.size[1]


def print_window(
    one: Product, blocks: Blocks, numbers: Numbers, pointers: tuple[str, str], row_mask: bool,
    column_mask: bool,
) -> WindowText:
    """pointers: of left and right. The masks: whether a tile may reach over the end there."""
    window = one.window
    assert window is not None
    spell = numbers.spell
    taps = takes_taps(one)
    channels = one.left.size[-1]
    masked = not divides(blocks.depth, one.k if taps else channels)
    step = _step(window, channels, blocks.depth, taps)
    inside = (f"kk{{}} < {one.k}" if taps else f"channel{{}} < {channels}") if masked else ""
    images, down, along, dense = (spell(each) for each in one.left.stride)
    (height, width), (stride_y, stride_x) = window.result, window.stride
    rows = [
        f"top = om // {spell(width)} % {spell(height)} * {stride_y} - {window.padding[0]}",
        f"side = om % {spell(width)} * {stride_x} - {window.padding[1]}",
        f"corner = om // {spell(height * width)} * {images} + top * {down} + side * {along}"
        f" + {spell(one.left.offset)}",
    ]
    across = "[None, :]" if taps else ""
    seen = [f"(om[:, None] < {spell(one.m)})"] if row_mask else []
    for name, tap, size, padding in zip(
        ("top", "side"), ("ky", "kx"), one.left.size[1:3], window.padding, strict=True
    ):
        if padding:
            at = f"{name}[:, None] + {tap}{across}"
            seen += [f"({at} >= 0)", f"({at} < {spell(size)})"]
    seen += [f"({inside.format('[None, :]')})"] if inside else []
    at = f"ky{across} * {down} + kx{across} * {along} + channel[None, :] * {dense}"
    left = _load(pointers[0], f"corner[:, None] + ({at})", seen)
    right = _right(one, spell, pointers[1], taps, inside.format("[:, None]"), column_mask)
    return WindowText(rows, step, left, right, terms_of(one, blocks.depth))


def _step(window: Window, channels: int, depth: int, taps: bool) -> list[str]:
    """The tap and the channels of a step; `ky`, `kx`: how far into the image the tap lies."""
    across = window.size[1]
    if taps:
        lines = ["kk = ok + base", f"tap = kk // {channels}", f"channel = kk % {channels}"]
    elif window.size == (1, 1):
        lines = ["tap = 0", "channel = ok + base"]
    else:
        padded = up_to_multiple(channels, depth) * depth
        # Triton takes nothing for granted of a remainder: channels would come one by one.
        lines = [f"tap = base // {padded}", f"channel = ok + (base - tap * {padded})"]
    lines += [
        f"ky = tap // {across} * {window.dilation[0]}",
        f"kx = tap % {across} * {window.dilation[1]}",
    ]
    return lines


def _right(
    one: Product, spell: Callable[[int], str], pointer: str, taps: bool, inside: str, masked: bool
) -> str:
    assert one.window is not None
    down = "[:, None]" if taps else ""
    y, x, channel, column = (spell(each) for each in one.right.stride)
    across = one.window.size[1]
    at = f"tap{down} // {across} * {y} + tap{down} % {across} * {x} + channel[:, None] * {channel}"
    at += f" + on[None, :] * {column} + {spell(one.right.offset)}"
    seen = [f"({inside})"] if inside else []
    return _load(pointer, at, [*seen, *([f"(on[None, :] < {spell(one.n)})"] * masked)])


def _load(pointer: str, at: str, seen: list[str]) -> str:
    mask = f", {' & '.join(seen)}, other=0.0" if seen else ""
    return f"tl.load({pointer} + ({at}){mask})"
