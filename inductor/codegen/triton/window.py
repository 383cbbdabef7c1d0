"""Operands of a convolution's GEMM, which come out of images through a window.

In: a `Gemm` with a `Window`, blocks. Out: lines of the GEMM template, and the expressions of
its tiles. A step of the loop takes `depth` channels at one place of the window (a *tap*): where
channels are no multiple of the depth, each tap's last step reaches over their end, and counts
zeros there. With very few channels a step takes several taps instead, and looks up each column's.

The tiles may also come through descriptors (the device's copy engine): a program then computes a
box of pixels, images x height x width, and each tap of it is a box of the images that lies
elsewhere; beside the images the engine gives zeros. As a box goes to the matrix units straight from
where it was copied to only as the right operand, the sums are those of the turned GEMM.

Of a convolution with groups a tile has columns of one group, and reads the channels of that one;
the last tile of each may reach over its end.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from inductor.codegen.triton.launch import NotPrintable
from inductor.codegen.triton.numbers import Numbers
from inductor.ir.extent import divides, up_to_multiple
from inductor.scheduler.schedule import Blocks, Gemm, Window

FEW_CHANNELS = 16  # fewer of them do not fill a step
LEAST_CHANNELS = 16  # of a step through descriptors
ALIGNMENT = 16  # bytes, of what a descriptor describes


@dataclass(frozen=True, slots=True)
class WindowText:
    """rows: lines before the loop, about the rows of a tile. step: lines of a step. left, right:
    the tiles. inside: which rows are there, if not those below their number. turned: whether the
    sums are those of the turned GEMM."""

    rows: list[str]
    step: list[str]
    left: str
    right: str
    inside: str = ""
    turned: bool = False


def takes_taps(one: Gemm) -> bool:
    """Whether a step takes several taps."""
    return one.left.size[-1] < FEW_CHANNELS


def terms_of(one: Gemm, depth: int) -> int:
    """How far the loop of a GEMM counts, in multiples of the depth where taps are padded."""
    if one.window is None or takes_taps(one):
        return one.k
    channels = up_to_multiple(one.left.size[-1], depth) * depth
    return channels * one.window.size[0] * one.window.size[1]


def tiles_of_columns(one: Gemm, columns: int) -> int:
    """How many tiles stand side by side."""
    return one.groups * up_to_multiple(one.columns, columns)


def print_columns(one: Gemm, columns: int, wide: str) -> list[str]:
    """Lines that find the group of a tile (`gn`), its first column and where its group ends."""
    if one.groups == 1:
        return []
    tiles = up_to_multiple(one.columns, columns)
    return [
        f"gn = jn{wide} // {tiles}",
        f"end_n = (gn + 1) * {one.columns}",
        f"start_n = gn * {one.columns} + jn % {tiles} * BLOCK_N",
    ]


def end_of_columns(one: Gemm, spell: Callable[[int], str]) -> str:
    """Where the columns of a tile's group end."""
    return spell(one.n) if one.groups == 1 else "end_n"


def print_window(
    one: Gemm, blocks: Blocks, numbers: Numbers, pointers: tuple[str, str], row_mask: bool,
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
        f" + {spell(one.left.offset)}" + f" + gn * {channels} * {dense}" * (window.groups > 1),
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
    return WindowText(rows, step, left, right)


def can_describe_window(one: Gemm) -> bool:
    """Whether a convolution's operands can come through descriptors."""
    window, (left, right), size = one.window, (one.left, one.right), one.dtype.itemsize
    assert window is not None
    numbers = (*left.size, *left.stride, left.offset, *right.stride, right.offset, one.n)
    if size != 2 or any(type(number) is not int for number in numbers):
        return False
    if left.size[-1] % LEAST_CHANNELS or _strides(window) != (1, 1) and not _has_steps(one):
        return False
    step = 1
    for axis in (2, 1, 0, 3):  # channels, the window's width and height, results
        if right.size[axis] != 1 and right.stride[axis] != step:
            return False
        step *= right.size[axis]
    steps = (*left.stride[:3], left.offset, right.offset)
    return left.stride[-1] == 1 and not any(each * size % ALIGNMENT for each in steps)


def _strides(window: Window) -> tuple[int, int]:
    """How far the window moves, if it sees more than every so manieth pixel."""
    alone = window.size == (1, 1) and window.padding == (0, 0)
    return (1, 1) if alone else window.stride


def _has_steps(one: Gemm) -> bool:
    """Whether the images fall into steps of the window, all of the same size."""
    assert one.window is not None
    (height, width), (down, along) = one.left.size[1:3], one.window.stride
    dense = along == 1 or one.left.stride[2] == _all_channels(one)
    return height % down == 0 and width % along == 0 and dense


def _all_channels(one: Gemm) -> int:
    """Of a pixel."""
    return one.left.size[-1] * one.groups


def box_of(one: Gemm, rows: int) -> tuple[int, int, int]:
    """The images, height and width of a tile: powers of two of which the product is `rows`, and
    which cover the result with the fewest boxes; wide ones rather than deep ones."""
    found = []
    for height in range(rows.bit_length()):
        for width in range(rows.bit_length() - height):
            box = (rows >> (height + width), 1 << height, 1 << width)
            count = math.prod(boxes_of(one, box))
            found.append((count, -box[1] * box[2], abs(height - width), box))
    return min(found)[-1]


def boxes_of(one: Gemm, box: tuple[int, int, int]) -> tuple[int, int, int]:
    """How many there are along each axis."""
    assert one.window is not None
    sizes = zip((one.left.size[0], *one.window.result), box, strict=True)
    images, height, width = (up_to_multiple(size, step) for size, step in sizes)
    return images, height, width


def tiles_of_rows(one: Gemm, blocks: Blocks) -> int:
    """How many tiles make up the rows."""
    if one.window is not None and blocks.descriptors:
        return math.prod(boxes_of(one, box_of(one, blocks.rows)))
    return up_to_multiple(one.m, blocks.rows)


def has_odd_rows(one: Gemm, blocks: Blocks) -> bool:
    """Whether a tile may reach over an end of the rows."""
    if one.window is None or not blocks.descriptors:
        return not divides(blocks.rows, one.m)
    sizes = (one.left.size[0], *one.window.result)
    return any(size % step for size, step in zip(sizes, box_of(one, blocks.rows), strict=True))


def describe_window(
    one: Gemm, blocks: Blocks, pointers: tuple[str, str]
) -> tuple[WindowText, list[str]]:
    """The same through descriptors, and the lines that make them."""
    window, channels = one.window, one.left.size[-1]
    assert window is not None
    if channels % blocks.depth:
        raise NotPrintable(f"{channels} channels are no multiple of {blocks.depth}")
    box = box_of(one, blocks.rows)
    _, down, along = boxes_of(one, box)
    height, width = window.result
    rows = [
        f"image = im // {down * along} * {box[0]}",
        f"top = im // {along} % {down} * {box[1]}",
        f"side = im % {along} * {box[2]}",
        "pixel = tl.arange(0, BLOCK_M)",
        f"z = image + pixel // {box[1] * box[2]}",
        f"y = top + pixel // {box[2]} % {box[1]}",
        f"u = side + pixel % {box[2]}",
        f"om = (z * {height} + y) * {width} + u",
    ]
    sizes = (one.left.size[0], height, width)
    limits = [
        f"({name} < {size})"
        for name, size, step in zip("zyu", sizes, box, strict=True) if size % step
    ]
    step = [line.replace("ok + ", "") for line in _step(window, channels, blocks.depth, False)]
    place, more = _place(window, _all_channels(one))
    place += f" + gn * {channels}" * (window.groups > 1)
    left = f"pixels.load([{place}]).reshape([BLOCK_M, BLOCK_K]).T"
    column = "start_n" if window.groups > 1 else "jn * BLOCK_N"
    right = f"weights.load([{column}, base])"
    inside = f"({' & '.join(limits)})" if limits else ""
    text = WindowText(rows, [*step, *more], left, right, inside, True)
    return text, _descriptors(one, box, pointers)


def _place(window: Window, channels: int) -> tuple[str, list[str]]:
    """Where the box of a tap begins, and lines before. A window that moves by several pixels sees
    an axis as steps of so many: a tap is a pixel of each step, counted from the first one that
    lies beside the image. channels: of a pixel."""
    (down, along), (above, before) = _strides(window), window.padding
    if (down, along) == (1, 1):
        return f"image, top + ky - {above}, side + kx - {before}, channel", []
    first = up_to_multiple(above, down), up_to_multiple(before, along)
    lines = [f"ky = ky + {first[0] * down - above}", f"kx = kx + {first[1] * along - before}"]
    return (
        f"image, top + ky // {down} - {first[0]}, ky % {down}, "
        f"side + kx // {along} - {first[1]}, kx % {along} * {channels} + channel"
    ), lines


def _descriptors(
    one: Gemm, box: tuple[int, int, int], pointers: tuple[str, str]
) -> list[str]:
    left, window = one.left, one.window
    assert window is not None
    (images, height, width, _), channels = left.size, _all_channels(one)
    by_image, by_row, by_pixel, _ = left.stride
    down, along = window.stride
    shape: tuple[int, ...]
    steps: tuple[int, ...]
    sides: tuple[int, ...]
    if (down, along) == (1, 1):
        shape, steps, sides = (images, height, width, channels), (by_image, by_row, by_pixel), box
    elif _strides(window) == (1, 1):  # of one pixel: what it skips is not there
        shape = (images, *window.result, channels)
        steps, sides = (by_image, by_row * down, by_pixel * along), box
    else:
        shape = (images, height // down, down, width // along, along * channels)
        steps = (by_image, by_row * down, by_row, by_pixel * along)
        sides = (box[0], box[1], 1, box[2])
    return [
        f"pixels = tl.make_tensor_descriptor({pointers[0]} + {left.offset}, {[*shape]}, "
        f"{[*steps, 1]}, [{', '.join(map(str, sides))}, BLOCK_K])",
        f"weights = tl.make_tensor_descriptor({pointers[1]} + {one.right.offset}, "
        f"[{one.n}, {one.k}], [{one.k}, 1], [BLOCK_N, BLOCK_K])",
    ]


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
    one: Gemm, spell: Callable[[int], str], pointer: str, taps: bool, inside: str, masked: bool
) -> str:
    assert one.window is not None
    down = "[:, None]" if taps else ""
    y, x, channel, column = (spell(each) for each in one.right.stride)
    across = one.window.size[1]
    at = f"tap{down} // {across} * {y} + tap{down} % {across} * {x} + channel[:, None] * {channel}"
    at += f" + on[None, :] * {column} + {spell(one.right.offset)}"
    seen = [f"({inside})"] if inside else []
    limit = end_of_columns(one, spell)
    return _load(pointer, at, [*seen, *([f"(on[None, :] < {limit})"] * masked)])


def _load(pointer: str, at: str, seen: list[str]) -> str:
    mask = f", {' & '.join(seen)}, other=0.0" if seen else ""
    return f"tl.load({pointer} + ({at}){mask})"
