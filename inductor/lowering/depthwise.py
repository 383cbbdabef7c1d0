"""Lowerings of depthwise convolutions on a GPU: windows unrolled into the loop over the outputs.
One channel in all, convolved to few, is such a one, too.

Each channel has a window of its own, so there is no product for matrix units: a convolution and the
gradient of its input are sums of a few elements, which wait for memory and take what follows them
along. A library has no kernel for some of them, and then launches one for each channel. The
gradient of the weight is a sum over images and pixels for each place of the window.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch

from inductor.fx_passes.single_channels import reads_single_channels
from inductor.ir.body import Ops, Value
from inductor.ir.extent import hint_of, surely_less
from inductor.ir.graph import Layout, contiguous
from inductor.ir.index import Index, constant, flatten, floordiv, mod
from inductor.ir.scalar_ops import dtype_kind
from inductor.lowering.builder import layout_of
from inductor.lowering.registry import Call, lowering
from inductor.lowering.tensor import HALVES, Compute, Indices, Tensor, compute_dtype
from inductor.runtime.gpu_properties import properties_of

aten = torch.ops.aten
MOST_PLACES = 49  # of a window, 7 x 7 as ConvNeXt has; larger ones were not measured
MOST_SUMS = 9  # that a loop has in registers
# Of elements, on the device measured: beside them a kernel that lays the weight out anew is little
# (of 2^23.4, 5x5, the loop alone took 13 us, and of twelve times as many, laid out anew, 20 with
# that kernel); by a kernel that takes about as long as its launch.
MANY_READS, FEW_READS = 1 << 23, 1 << 22
# So many times as many elements in half precision channels last, where ours is slower: cuDNN
# builds a kernel for each size at its first call in a process, 0.27 to 0.87 s for a gradient of a
# weight on an H200 (0.14 to 0.64 s forward), one after the other. With so few reads it is faster
# than ours by 20 us at most, which takes tens of thousands of steps to pay for that.
BUILT = 32
CHANNELS_OF_TILE = 32
MEASURED, FEW_PLACES = 25, 9  # of a window, in float32
FASTER = "a library's is faster"
FIRST = constant(0)
COUNTS = (4, 7, 5, 6, 3, 2)  # of pixels side by side in a sum, the best first
# Of a program, as `codegen/triton/split.py` has them; programs that keep the device measured busy,
# each with so much to do (an estimate by instructions).
ROWS_OF_SUMS, TERMS_OF_SUMS, ENOUGH_PROGRAMS = 32, 128, 200
MOST_OF_A_READ = 16  # operations; chosen, not measured


@dataclass(frozen=True, slots=True)
class Window:
    """Of a depthwise convolution: sizes along the spatial dimensions. multiple: results of each
    channel. transposed: the result is what the gradient of the input is otherwise."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    multiple: int
    transposed: bool

    def places(self) -> Iterator[tuple[Index, ...]]:
        """All places of the window."""
        for place in product(*map(range, self.size)):
            yield tuple(constant(at) for at in place)

    def source(self, pixel: Sequence[Index], place: Sequence[Index]) -> tuple[Index, ...]:
        """The pixel that a result reads at a place of its window; it may lie outside."""
        return tuple(
            p * step + at * gap - pad for p, step, at, gap, pad in
            zip(pixel, self.stride, place, self.dilation, self.padding, strict=True)
        )  # fmt: skip


@lowering(aten.convolution.default, of_library=True)
def convolution(
    call: Call, x: Tensor, weight: Tensor, bias: Tensor | None, stride: Sequence[int],
    padding: Sequence[int], dilation: Sequence[int], transposed: bool,
    output_padding: Sequence[int], groups: int,
) -> Any:
    """A depthwise convolution; others are the library's."""
    form = (stride, padding, dilation, output_padding)
    window = _window_of(call, x, weight, form, transposed, groups)
    if window is None:
        return NotImplemented
    part = "input" if transposed else "result"
    of = x.layout if transposed else layout_of(call.result)
    if not _is_ours(part, of, window, call.users):
        return call.refuse(FASTER)
    if not _is_read(x, window):
        x.realize()
    weights = _Weights(call, weight, call.result, window)
    products = _scattered if transposed else _gathered

    def compute(ops: Ops, indices: Indices) -> Value:
        image, channel, *pixel = indices
        at = _At(ops, x, image, floordiv(channel, window.multiple), pixel)
        total = None if bias is None else bias.load(ops, (channel,))
        return _sum(ops, total, products(at, window, weights, channel))

    inputs = [x, weights.tensor] if bias is None else [x, weights.tensor, bias]
    return _stored(call, call.result, inputs, window, compute)


@lowering(aten.convolution_backward.default, of_library=True)
def convolution_backward(
    call: Call, grad: Tensor, x: Tensor, weight: Tensor, bias_sizes: Any, stride: Sequence[int],
    padding: Sequence[int], dilation: Sequence[int], transposed: bool,
    output_padding: Sequence[int], groups: int, wanted: Sequence[bool],
) -> Any:
    """The gradients of a depthwise convolution's input and weight; others are the library's."""
    sizes = (stride, padding, dilation, output_padding)
    window = _window_of(call, x, weight, sizes, transposed, groups)
    if window is None:
        return NotImplemented
    parts = ("result" if transposed else "input", "weight")
    ours = [
        want and _is_ours(part, x.layout if transposed else grad.layout, window)
        for part, want in zip(parts, wanted, strict=False)
    ]
    if not any(ours):
        return call.refuse(FASTER)
    grad.realize()
    x.realize()
    found: list[Tensor | None] = [None, None, None]
    rest = [want and not own for want, own in zip(wanted, ours, strict=False)]
    if any(rest):
        fakes = [fake if want else None for fake, want in zip(call.result, rest, strict=False)]
        form = (None, stride, padding, dilation, transposed, output_padding, groups)
        args = (grad, x, weight, *form, (*rest, False))
        found[:2] = call.builder.extern(call.target, args, {}, fakes, FASTER)
    if ours[0]:
        found[0] = _grad_of_input(call, grad, weight, window)
    if ours[1]:
        found[1] = _grad_of_weight(call, grad, x, window)
    if wanted[2]:
        axes = [0, *range(2, len(grad.size))]
        found[2] = call.builder.reduce(layout_of(call.result[2]), grad, axes, "sum")
    return tuple(found)


def _window_of(
    call: Call, x: Tensor, weight: Tensor, form: tuple[Sequence[int], ...], transposed: bool,
    groups: int,
) -> Window | None:
    """None where the convolution is not one of these; `call.reason` says why."""
    rank = len(x.size) - 2
    numbers = (*weight.size, *(number for numbers in form for number in numbers))
    if _is_left_to_libraries(call):
        call.reason = "libraries have kernels"
    elif rank not in (1, 2) or dtype_kind(x.dtype) != "f":
        call.reason = "no convolution of lines or images"
    elif x.dtype is not weight.dtype:
        call.reason = "dtypes that differ"
    elif not reads_single_channels(x.size[1], weight.size, groups, transposed):
        call.reason = "channels are added, or a GEMM"
    elif any(type(number) is not int for number in numbers) or 0 in (*x.size, *weight.size):
        call.reason = "a window that is known at a call, or nothing"
    elif math.prod(weight.size[2:]) > MOST_PLACES:
        call.reason = "a large window"
    else:
        stride, padding, dilation = (
            tuple(value) * rank if len(value) == 1 else tuple(value) for value in form[:3])
        multiple = weight.size[1] if transposed else weight.size[0] // groups
        return Window(weight.size[2:], stride, padding, dilation, multiple, transposed)
    return None


def _is_ours(part: str, layout: Layout, window: Window, users: int = 1) -> bool:
    """Whether the result, or the gradient of the input or of the weight, is computed by loops.

    users: of the result. One that is read once may be computed where it is read, and again there.
    layout: of the result, or of a transposed convolution's input. Small ones always, as a library
    may need a kernel for each channel, or time to build one. Lines always: ATen's kernels for them,
    and cuDNN's for transposed ones, took 17 and 47 us on an H200 for each of a vocoder's
    activations, of which memory takes 2. Images of one channel, too, but for the gradient of the
    weight: cuDNN takes 26 to 200 us for one where memory takes 5. Large images where that was
    faster on an H200 (docs/gpu_models.md), against kernels of the library that are much the same on
    other devices.
    """
    places = math.prod(window.size)
    is_last, is_half = layout.stride[1] == 1, layout.dtype in HALVES
    few = FEW_READS * (BUILT if is_half and is_last else 1)
    few = properties_of(layout.device).scaled_by_bandwidth(few)
    if len(window.size) == 1 or hint_of(layout.numel()) * places <= few:
        return True
    if part != "weight" and layout.size[1] == (1 if window.transposed else window.multiple):
        return True
    if not is_half:
        return places <= MEASURED and (part == "result" or not is_last or places > FEW_PLACES)
    if part == "weight":  # channels last 1.0 to 1.6 times the library's time
        return not is_last
    fills_tiles = is_last and layout.size[1] % CHANNELS_OF_TILE == 0
    # Forward of 144 channels took 131 us, the library's 83. What a norm reads alone is left to the
    # library, as whole models (EfficientNet, ConvNeXt) took 1.05 to 1.12 times as long.
    return part == "input" or fills_tiles and users > 1


def _is_left_to_libraries(call: Call) -> bool:
    return call.builder.device.type == "cpu" or not call.builder.convolves


class _Borders:
    """Tests whether pixels lie inside of an image. extents: its spatial sizes."""

    def __init__(self, ops: Ops, extents: Sequence[int]) -> None:
        self.ops = ops
        self.extents = extents

    def around(self, pixel: Sequence[Index], *more: Value | None) -> Value | None:
        """None where the pixel does so always, and no more tests are given."""
        ops, tests = self.ops, [test for test in more if test is not None]
        for index, extent in zip(pixel, self.extents, strict=True):
            if not surely_less(-1, index.low):
                tests.append(ops.ge(ops.index_expr(index), ops.index_expr(0)))
            if not surely_less(index.high, extent):
                tests.append(ops.lt(ops.index_expr(index), ops.index_expr(extent)))
        return functools.reduce(ops.bitwise_and, tests) if tests else None


class _Weights:
    """A weight as a kernel reads it: where that has many elements side by side in memory for each
    pixel, channels last like these.

    result: the fake of what is computed.
    """

    def __init__(self, call: Call, weight: Tensor, result: Any, window: Window) -> None:
        layout = layout_of(result)
        reads = hint_of(layout.numel()) * math.prod(weight.size[2:])
        many = properties_of(layout.device).scaled_by_bandwidth(MANY_READS)
        self.is_turned = layout.stride[1] == 1 and reads > many
        self.window = window
        self.tensor = weight
        if self.is_turned:
            size = (*weight.size[2:], weight.size[0] * weight.size[1])
            turned: Compute = lambda ops, i: weight.load(ops, self._place(i[-1], i[:-1]))  # noqa: E731
            form = contiguous(size, weight.dtype, weight.layout.device)
            self.tensor = call.builder.computed(form, [weight], 1, turned)
        self.tensor.realize()

    def load(self, ops: Ops, channel: Index, place: tuple[Index, ...]) -> Value:
        """channel: of what has `multiple` times the channels of the other."""
        if self.is_turned:
            return self.tensor.load(ops, (*place, channel))
        return self.tensor.load(ops, self._place(channel, place))

    def _place(self, channel: Index, place: tuple[Index, ...]) -> Indices:
        if not self.window.transposed:
            return (channel, FIRST, *place)
        multiple = self.window.multiple
        return (floordiv(channel, multiple), mod(channel, multiple), *place)


@dataclass(frozen=True, slots=True)
class _At:
    """Where a sum over a window reads: around a pixel of a channel."""

    ops: Ops
    tensor: Tensor
    image: Index
    channel: Index
    pixel: Sequence[Index]

    def load(self, pixel: Sequence[Index], *tests: Value | None) -> Value:
        """0 where the pixel lies outside, or a test says so."""
        inside = _Borders(self.ops, self.tensor.size[2:]).around(pixel, *tests)
        where = (self.image, self.channel, *pixel)
        load = functools.partial(self.tensor.load, self.ops, where)
        if inside is None or self.tensor.root().view is not None:
            return self.ops.read_within(inside, load)
        return self.ops.masked(inside, load, 0)  # what is computed of a zero may be none


def _gathered(
    at: _At, window: Window, weights: _Weights, channel: Index
) -> Iterator[tuple[Value, Value]]:
    """What a pixel's window sees, each with its weight. channel: of the weights."""
    for place in window.places():
        yield at.load(window.source(at.pixel, place)), weights.load(at.ops, channel, place)


def _scattered(
    at: _At, window: Window, weights: _Weights, channel: Index
) -> Iterator[tuple[Value, Value]]:
    """The pixels whose windows see this one, each with the weight of the place at which it does."""
    if _has_phases(at.tensor.layout, window):
        yield from _scattered_by_phase(at, window, weights, channel)
        return
    for place in window.places():
        there = [
            p - k * gap + pad for p, k, gap, pad in
            zip(at.pixel, place, window.dilation, window.padding, strict=True)
        ]  # fmt: skip
        pairs = list(zip(there, window.stride, strict=True))
        tests = (_divides(at.ops, index, step) for index, step in pairs)
        found = at.load([floordiv(index, step) for index, step in pairs], *tests)
        yield found, weights.load(at.ops, channel, place)


def _has_phases(layout: Layout, window: Window) -> bool:
    """Whether to visit only places of the window at which some pixel sees another: they depend on
    where that lies among the steps of the window, and so do the weights, which are one vector for
    a tile only where channels are neighbours in memory."""
    moves = any(step > 1 for step in window.stride)
    return moves and layout.stride[1] != 1 and all(gap == 1 for gap in window.dilation)


def _scattered_by_phase(
    at: _At, window: Window, weights: _Weights, channel: Index
) -> Iterator[tuple[Value, Value]]:
    """The same with every so manieth place of the window, as the window moves."""
    ops = at.ops
    shifted = [p + pad for p, pad in zip(at.pixel, window.padding, strict=True)]
    phases = [mod(p, step) for p, step in zip(shifted, window.stride, strict=True)]
    firsts = [floordiv(p, step) for p, step in zip(shifted, window.stride, strict=True)]
    turns = [range(-(-size // step)) for size, step in zip(window.size, window.stride, strict=True)]
    for turn in product(*turns):
        place = tuple(
            phase + n * step for phase, n, step in zip(phases, turn, window.stride, strict=True))
        is_place = _Borders(ops, window.size).around(place)
        found = at.load([first - n for first, n in zip(firsts, turn, strict=True)], is_place)
        yield found, ops.read_within(is_place, functools.partial(weights.load, ops, channel, place))


def _grad_of_input(call: Call, grad: Tensor, weight: Tensor, window: Window) -> Tensor:
    """Each pixel gathers from the results that read it, at each place of their windows; of a
    transposed convolution those lie in a window."""
    weights = _Weights(call, weight, call.result[0], window)
    products = _gathered if window.transposed else _scattered

    def compute(ops: Ops, indices: Indices) -> Value:
        image, channel, *pixel = indices
        total = None
        for number in range(window.multiple):
            of = channel * window.multiple + number
            at = _At(ops, grad, image, of, pixel)
            total = _sum(ops, total, products(at, window, weights, of))
        assert total is not None
        return total

    return _stored(call, call.result[0], [grad, weights.tensor], window, compute)


def _divides(ops: Ops, index: Index, step: int) -> Value | None:
    if step == 1:
        return None
    return ops.eq(ops.index_expr(mod(index, step)), ops.index_expr(0))


def _grad_of_weight(call: Call, grad: Tensor, x: Tensor, window: Window) -> Tensor:
    """For each place of the window a sum over images and pixels: places that stand side by side
    have their sums in one loop over the gradient, others are rows of a kernel as channels are."""
    layout, held = layout_of(call.result[1]), compute_dtype(x.dtype)
    rank = len(window.size)
    unrolled = next((n for n in range(rank) if math.prod(window.size[n:]) <= MOST_SUMS), rank - 1)
    outer, inner = [*window.size[:unrolled]], [*window.size[unrolled:]]
    turns = -(-inner[0] // MOST_SUMS) if len(inner) == 1 else 1
    inner[0] = -(-inner[0] // turns)  # of long lines; in the last turn there may be too many
    channels = layout.size[0] * layout.size[1]
    terms = _Terms(grad, x, window, (*outer, turns), inner[0], channels)
    rows = contiguous((*outer, turns, channels), held, layout.device)
    axes = [unrolled + 1, *range(unrolled + 3, unrolled + 3 + rank)]
    sums = [
        call.builder.reduce(rows, terms.at(place), axes, "sum")
        for place in product(*map(range, inner))
    ]

    def compute(ops: Ops, indices: Indices) -> Value:
        channel, number, *place = indices
        first, *rest = place[unrolled:]
        at = (*place[:unrolled], floordiv(first, inner[0]), channel * layout.size[1] + number)
        turn = ops.index_expr(flatten((mod(first, inner[0]), *rest), _steps(inner)))
        found = sums[0].load(ops, at)
        for n, each in enumerate(sums[1:], 1):
            is_here = ops.eq(turn, ops.constant(n, torch.int64))
            found = ops.where(is_here, each.load(ops, at), found)
        return found

    return call.builder.computed(layout, sums, len(sums), compute)


def _steps(extents: Sequence[int]) -> tuple[int, ...]:
    return tuple(math.prod(extents[n + 1 :]) for n in range(len(extents)))


class _Terms:
    """What is summed for the gradient of a weight: each element of the gradient times the pixel
    that its result read at a place of the window. Of a transposed convolution, each element of the
    input times the result that read it.

    outer: extents of the dimensions in front, the window's first ones, and turns through the next
    one in steps of `step`. channels: of that with more of them.
    """

    def __init__(
        self, grad: Tensor, x: Tensor, window: Window, outer: tuple[int, ...], step: int,
        channels: int,
    ) -> None:
        self.still, self.moving = (x, grad) if window.transposed else (grad, x)
        self.window, self.step, self.outer = window, step, outer
        size, stride = self.still.size, self.still.layout.stride
        self.count = _side_by_side(self.still.layout, math.prod(outer) * channels)
        self.layout = Layout(
            grad.layout.device, compute_dtype(x.dtype),
            (*outer, size[0], channels, *size[2:-1], size[-1] // self.count),
            (*[0] * len(outer), *stride[:-1], stride[-1] * self.count),
        )
        self.owner, self.reads = grad.owner, grad.reads | x.reads

    def at(self, place: tuple[int, ...]) -> Tensor:
        """Those of one place of the window, of which the last numbers are given."""
        compute = functools.partial(self._compute, place)
        cost = 4 * self.count
        return Tensor(self.layout, self.owner, compute=compute, cost=cost, reads=self.reads)

    def _compute(self, place: tuple[int, ...], ops: Ops, indices: Indices) -> Value:
        *first, turn = indices[: len(self.outer)]
        image, channel, *pixel, last = indices[len(self.outer) :]
        few = floordiv(channel, self.window.multiple)  # the channel of the input
        ones = (few, channel) if self.window.transposed else (channel, few)
        where = (*first, turn * self.step + place[0], *map(constant, place[1:]))
        factors = []
        for n in range(self.count):
            near = (*pixel, last * self.count + n)
            at = self.window.source(near, where)
            found = _At(ops, self.moving, image, ones[1], near).load(at)
            factors.append((self.still.load(ops, (image, ones[0], *near)), found))
        return _sum(ops, None, iter(factors))


def _side_by_side(layout: Layout, rows: int) -> int:
    """How many pixels of a line are one term, as their windows have most of their pixels in common.
    Only channels last, as neighbours in memory are read at once, and where enough programs remain:
    of 32 of the `rows` of sums and 128 terms. layout: of what is gone through."""
    size, gpu = layout.size, properties_of(layout.device)
    if layout.stride[1] != 1 or any(type(each) is not int for each in size):
        return 1
    pixels = size[0] * math.prod(size[2:])
    for count in COUNTS:
        if size[-1] % count == 0:
            programs = -(-rows // ROWS_OF_SUMS) * (pixels // count // TERMS_OF_SUMS)
            if programs >= gpu.scaled(ENOUGH_PROGRAMS):
                return count
    return 1


def _sum(ops: Ops, total: Value | None, products: Iterator[tuple[Value, Value]]) -> Value:
    for one, other in products:
        total = ops.mul(one, other) if total is None else ops.fma(one, other, total)
    assert total is not None
    return total


def _is_read(x: Tensor, window: Window) -> bool:
    """Whether what a window sees is little more than a read itself, as a line is whose ends are
    repeated: then a kernel for that alone takes longer than all windows. Images have their pixels
    in registers for several windows, of which each should be a load."""
    return len(window.size) == 1 and x.view is None and (
        x.cost <= MOST_OF_A_READ and len(x.reads) == 1)


def _stored(
    call: Call, result: Any, inputs: list[Tensor], window: Window, compute: Compute,
) -> Tensor:
    """In memory, unless the only kernel that reads it is that which computes it. A line of which
    only a part is used, as its ends are cut off, is computed where it is: those windows lie inside.
    """
    visited = math.prod(window.size)
    if window.transposed:
        visited = -(-visited // math.prod(window.stride))
    cost = 8 * visited * window.multiple
    found = call.builder.computed(layout_of(result), inputs, cost, compute)
    if len(window.size) != 1 or call.users != 1:
        found.realize()
    return found
