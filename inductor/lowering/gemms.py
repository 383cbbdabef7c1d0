"""Lowerings of GEMMs of few rows: sums over what a weight is made of.

Such a GEMM waits for its weight to come from memory. As a loop, it reads the weight as it is
stored (in int8, say, with scales) and converts it in registers, and takes along what follows it.
Others are a library's.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from inductor.ir.body import LoopBody, Op, Ops, Value, trace_body
from inductor.ir.graph import Layout
from inductor.ir.index import FloorDiv, Index, Var, constant, floordiv, mod
from inductor.lowering.builder import contiguous, converting
from inductor.lowering.packed import (
    InWords,
    NibbleWeights,
    nibble_weights,
    nibbles_of,
    sum_by_units,
    sum_of_products,
)
from inductor.lowering.registry import Call, lowering
from inductor.lowering.sizes import Shaped
from inductor.lowering.tensor import HALVES, Indices, Tensor
from inductor.runtime.gpu_properties import properties_of

aten = torch.ops.aten
MOST_ROWS = 1  # more go through matrix units (`codegen/triton/template.py`)
# Of weights that are read as words, and of narrow ones on a CPU; chosen, not measured.
MOST_ROWS_OF_WORDS = 4
MOST_ROWS_ON_CPU = 1
MOST_ROWS_OF_HALVES = 1  # where the weight is stored as it is multiplied
FEWEST_TERMS = 256  # of a sum that fills the threads of a program; chosen, not measured
# Of a weight, on a GPU of that on which choices were measured: the launch is what a smaller one
# takes; smaller ones of one input are one launch of a template.
FEWEST_BYTES, FEWEST_OF_HALVES = 1 << 20, 1 << 24
EVEN_TERMS = 64  # of a weight as it is multiplied
MOST_PACKED = 8  # values in an element of a packed weight
# Of words that matrix units multiply: rows of the weight at a time, terms that four warps have
# eight columns of, words with one scale.
ROWS_OF_UNITS, TERMS_OF_UNITS, FEWEST_ALIKE = 16, 256, 4
FIRST_WITH_UNITS = 80  # compute capability
MOST_VECTORS = 16  # columns of two matrix units
PACK_TERMS = 32  # of the terms that the four lanes of a column have in one word each
BYTES = (torch.int8, torch.uint8)
IN_WORD, IN_LONG_WORD = 4, 8  # bytes
BY_LIBRARY = "a library's is faster"


@dataclass(frozen=True, slots=True)
class Reading:
    """How a weight is read. steps: so many neighbouring terms of a sum are computed at a time.
    words: the buffer of bytes that is loaded in words of this dtype, with all of these terms in
    one; "" where elements are loaded as they are. by_units: sums go through matrix units."""

    steps: int
    words: str = ""
    dtype: torch.dtype = torch.int32
    by_units: bool = False


@lowering(aten.mm.default, of_library=True)
def mm(call: Call, left: Tensor, right: Tensor) -> Any:
    """A GEMM of few rows; others are the library's."""
    return _gemm(call, left, right, lambda ops, total, i: total)


@lowering(aten.addmm.default, of_library=True)
def addmm(
    call: Call, bias: Tensor, left: Tensor, right: Tensor, *, beta: float = 1, alpha: float = 1
) -> Any:
    """The same with a bias."""
    if (beta, alpha) != (1, 1):
        return call.refuse("a library scales it")
    return _gemm(call, left, right, lambda ops, v, i: ops.add(v, _load(ops, bias, i)), bias)


@lowering(aten._weight_int8pack_mm.default, of_library=True)
def weight_int8pack_mm(call: Call, left: Tensor, weight: Tensor, scales: Tensor) -> Any:
    """The same of a weight [columns, terms] in int8 with a scale for each column."""
    if call.builder.device.type == "cpu":
        return call.refuse(BY_LIBRARY)
    wide = converting(weight, left.dtype)
    terms, columns = reversed(weight.size)
    layout = contiguous((terms, columns), left.dtype, call.builder.device)
    right = wide.as_view(layout, lambda i: (i[1], i[0]))
    return _gemm(
        call, left, right, lambda ops, v, i: ops.mul(v, _load(ops, scales, i)), scales)


@lowering(aten._weight_int4pack_mm.default, of_library=True)
def weight_int4pack_mm(
    call: Call, left: Tensor, weight: Tensor, group: int, scales: Tensor
) -> Any:
    """The same of a weight in 4 bits as tensor cores of an NVIDIA GPU take it: [columns // 8,
    terms // tile, 8 * 4, words]; scales and zero points [terms // group, columns, 2]."""
    if not _takes_pack(call, left, weight, scales):
        return call.refuse(BY_LIBRARY)
    (rows, terms), columns, words = left.size, weight.size[0] * 8, weight.size[3]
    by_units = _packs_for_units(call, left, words, group)
    single = by_units or words % 2 or group < 2 * PACK_TERMS
    dtype = torch.int32 if single else torch.int64
    stored = _as_words(call, weight.realize().buffer, dtype)
    halves = dtype.itemsize // torch.int32.itemsize
    words //= halves
    tile, steps = words * halves * PACK_TERMS, halves * MOST_PACKED
    count = terms // steps

    def place(at: Index, step: Index) -> Index:
        """The term of a word's nibble: each fourth word goes on two terms later."""
        first = floordiv(step, 4 * words) * tile + mod(step, words) * (halves * PACK_TERMS)
        lane, nibble = mod(floordiv(step, words), 4), mod(at, MOST_PACKED)
        return (
            first + floordiv(at, MOST_PACKED) * PACK_TERMS + lane * 2
            + mod(nibble, 4) * MOST_PACKED + floordiv(nibble, 4)
        )

    def place_of_half(at: Index, half: Index) -> Index:
        return place(at + 4 * mod(half, 2), floordiv(half, 2))

    if by_units:
        turned = _turned(call, left, steps // 2, tile, place_of_half)
    else:
        turned = _turned(call, left, steps, tile, place)

    def element(ops: Ops, i: Indices) -> Value:
        row, column, step = i
        lane = mod(column, 8) * 4 + mod(floordiv(step, words), 4)
        where = (floordiv(column, 8), floordiv(step, 4 * words), lane, mod(step, words))
        of_group = floordiv(place(constant(0), step), group)
        scale, zero = (
            ops.to_dtype(scales.load(ops, (of_group, column, constant(n))), torch.float32)
            for n in (0, 1)
        )
        less = ops.constant(8.0, torch.float32)
        if by_units:
            shift = ops.sub(zero, ops.mul(scale, less))
            weight = NibbleWeights(stored.load(ops, where), tuple(range(steps)), scale, shift)
            return sum_by_units(ops, weight, _by_halves(turned, ops, row, step))
        nibbles = nibbles_of(ops, stored.load(ops, where))
        weights = [ops.add(ops.mul(ops.sub(n, less), scale), zero) for n in nibbles]
        given = [turned.load(ops, (row, constant(at), step)) for at in range(steps)]
        return sum_of_products(ops, given, weights, True)

    layout = contiguous((rows, columns, count), torch.float32, call.builder.device)
    total = _summed(call, call.builder.computed(layout, [turned, stored, scales], 2, element))
    return call.builder.computed(call.layout, [total], 1, lambda ops, i: total.load(ops, i))


def _packs_for_units(call: Call, left: Tensor, words: int, group: int) -> bool:
    """Whether matrix units take such a weight: a scale for whole tiles of it."""
    return (
        _has_matrix_units(call) and left.dtype in HALVES and group % (words * PACK_TERMS) == 0
        and left.size[1] % TERMS_OF_UNITS == 0 and call.result.shape[1] % ROWS_OF_UNITS == 0
    )


def _by_halves(turned: Tensor, ops: Ops, row: Index, step: Index) -> list[Value]:
    """What the eight numbers of a word are multiplied with, where units read halves of words."""
    planes = MOST_PACKED // 2
    return [
        turned.load(ops, (row, constant(at % planes), step * 2 + at // planes))
        for at in range(MOST_PACKED)
    ]


def _takes_pack(call: Call, left: Tensor, weight: Tensor, scales: Tensor) -> bool:
    """Whether the GEMM is of few rows, and a weight of known sizes that nothing writes."""
    numbers = (*left.size, *weight.size, *scales.size)
    if any(type(number) is not int for number in numbers) or 0 in numbers:
        return False
    layout = weight.realize()
    dense = contiguous(weight.size, weight.dtype, call.builder.device)
    by_units = _packs_for_units(call, left, weight.size[3], left.size[1] // scales.size[0])
    most = MOST_VECTORS if by_units else MOST_ROWS_OF_WORDS
    return (
        _reads_words(call) and torch.version.hip is None and left.size[0] <= most
        and layout.buffer.startswith(("arg", "const"))
        and not weight.layout.offset and weight.layout.stride == dense.stride
        and math.prod(weight.size) * weight.dtype.itemsize >= _scaled(call, FEWEST_BYTES)
    )


@lowering(aten._scaled_mm.default, of_library=True)
def scaled_mm(
    call: Call, left: Tensor, right: Tensor, scale_a: Tensor, scale_b: Tensor,
    bias: Tensor | None = None, scale_result: Tensor | None = None, out_dtype: Any = None,
    use_fast_accum: bool = False,
) -> Any:
    """The same of 8-bit floats with a scale for all of an operand, or for each row or column."""
    plain = all(
        scale.dtype is torch.float32 and _broadcasts(scale, size) for scale, size in
        ((scale_a, (left.size[0], 1)), (scale_b, (1, right.size[1])))
    )
    if scale_result is not None or not plain or call.result.dtype not in (*HALVES, torch.float32):
        return call.refuse("a library's way to scale")

    def finish(ops: Ops, value: Value, i: Indices) -> Value:
        value = ops.mul(value, ops.mul(_load(ops, scale_a, i), _load(ops, scale_b, i)))
        return value if bias is None else ops.add(value, _load(ops, bias, i))

    more = [scale_a, scale_b] if bias is None else [scale_a, scale_b, bias]
    return _gemm(call, left, right, finish, *more)


def _broadcasts(scale: Tensor, size: Sequence[int]) -> bool:
    """Whether a scale is one number, or one for each row or column as `size` has them."""
    return math.prod(scale.size) == 1 or tuple(scale.size) == tuple(size)


def _load(ops: Ops, x: Tensor, indices: Indices) -> Value:
    """An element of what is broadcast to the result, as float32."""
    tail = indices[max(0, len(indices) - len(x.size)) :]
    where = tuple(constant(0) if n == 1 else at for n, at in zip(x.size, tail, strict=True))
    return ops.to_dtype(x.load(ops, where), torch.float32)


def _gemm(
    call: Call, left: Tensor, right: Tensor, finish: Callable[[Ops, Value, Indices], Value],
    *more: Tensor,
) -> Any:
    """finish: makes the result of a sum, and of `more`."""
    reading = _reading_of(call, left, right)
    if reading is None:
        return NotImplemented
    (rows, terms), columns, steps = left.size, right.size[1], reading.steps
    planes = steps // 2 if reading.by_units else steps
    turned = _turned(call, left, planes)
    words = _as_words(call, reading.words, reading.dtype) if reading.words else None
    layout = contiguous((rows, columns, terms // steps), torch.float32, call.builder.device)
    quick = _reads_words(call) and call.result.dtype in HALVES

    def given(ops: Ops, row: Index, step: Index) -> list[Value]:
        if reading.by_units:
            return _by_halves(turned, ops, row, step)
        return [turned.load(ops, (row, constant(at), step)) for at in range(steps)]

    def element(ops: Ops, i: Indices) -> Value:
        row, column, step = i
        bytewise: Any = ops if words is None else InWords(ops, reading.words, words)
        weights = [right.load(bytewise, (step * steps + at, column)) for at in range(steps)]
        if reading.by_units:
            of_nibbles = nibble_weights(ops, weights)
            assert of_nibbles is not None
            return sum_by_units(ops, of_nibbles, given(ops, row, step))
        return sum_of_products(ops, given(ops, row, step), weights, quick)

    def exact(ops: Ops, i: Indices) -> Value:
        row, column, step = i
        weights = [right.load(ops, (step * steps + at, column)) for at in range(steps)]
        return functools.reduce(ops.add, map(ops.mul, given(ops, row, step), weights))

    quick_terms = call.builder.computed(layout, [turned, right], 2, element)
    has_second_loop = steps > 1 and _may_sum_twice(call)
    total = _summed(call, quick_terms, exact if has_second_loop else None)
    return call.builder.computed(
        call.layout, [total, *more], 1, lambda ops, i: finish(ops, total.load(ops, i), i))


def _summed(
    call: Call, terms: Tensor, exact: Callable[[Ops, Indices], Value] | None = None
) -> Tensor:
    """Sums over the last dimension of three. exact: the terms where the sum is not finite. Where
    one of the row is infinite or very large, what is taken out of a sum makes NaN or infinity of
    it where eager has another one, or a number."""
    sums = contiguous(terms.size[:2], torch.float32, call.builder.device)
    reduce = call.builder.reduce
    if exact is None:
        return reduce(sums, terms, [2], "sum")
    quick: list[Value] = []  # the sum, and whether it is finite; of the only body that is traced

    def exact_sum(ops: Ops, value: Value, i: Indices) -> tuple[Value, ...]:
        total = ops.reduction("sum", value)
        infinity = ops.constant(math.inf, total.dtype)
        is_finite = ops.call("lt", ops.call("abs", total), infinity)
        quick[:] = is_finite, total
        return (ops.call("where", is_finite, ops.constant(0.0, total.dtype), exact(ops, i)),)

    return reduce(sums, terms, [2], "sum", exact_sum, lambda ops, v: ops.call("where", *quick, v))


def _turned(
    call: Call, left: Tensor, steps: int, tile: int = 0,
    place: Callable[[Index, Index], Index] | None = None,
) -> Tensor:
    """The left operand as [rows, steps, terms // steps]: neighbours in memory are what is
    multiplied with neighbouring elements of a packed weight. place: the term of a step and an
    element, by default the elements' values lie one after the other; tile: another for each."""
    rows, terms = left.size
    left.realize()  # else each program would compute it
    size = (rows, steps, terms // steps)
    layout = contiguous(size, left.dtype, call.builder.device)
    if steps == 1:
        down, along = left.layout.stride
        same = Layout(layout.device, left.dtype, size, (down, 0, along), left.layout.offset)
        return left.as_view(same, lambda i: (i[0], i[2]))
    key = (left.realize(), steps, tile)
    known, since = call.builder.turned.get(key, (None, 0))
    if known is not None and not call.builder.is_written(key[0].buffer, since):
        return known
    if place is None:
        place = lambda at, step: step * steps + at  # noqa: E731
    found = call.builder.computed(
        layout, [left], 0, lambda ops, i: left.load(ops, (i[0], place(i[1], i[2]))))
    found.realize()
    call.builder.turned[key] = found, len(call.builder.nodes)
    return found


def _reading_of(call: Call, left: Tensor, right: Tensor) -> Reading | None:
    """How the weight is read; None, and a reason, where the GEMM is the library's."""
    numbers = (*left.size, *right.size)
    if not call.builder.convolves:
        call.reason = "libraries have kernels"
    elif any(type(number) is not int for number in numbers) or 0 in numbers:
        call.reason = "sizes that are known at a call, or nothing"
    elif call.result.dtype not in (*HALVES, torch.float32):
        call.reason = "a library's dtype"
    elif left.size[0] > max(_most_rows(call, True), MOST_ROWS_OF_WORDS, MOST_VECTORS):
        call.reason = BY_LIBRARY
    else:
        return _reading_of_weight(call, left, right)
    return None


def _most_rows(call: Call, is_narrow: bool) -> int:
    """Of GEMMs that are sums; is_narrow: the weight is stored in fewer bits than it has in the
    GEMM."""
    if call.builder.device.type == "cpu":
        return MOST_ROWS_ON_CPU if is_narrow else 0
    return MOST_ROWS if is_narrow else MOST_ROWS_OF_HALVES


def _reading_of_weight(call: Call, left: Tensor, right: Tensor) -> Reading | None:
    terms, columns = right.size
    call.reason = BY_LIBRARY
    steps = _packing(_body_of(right, columns, terms, 1))
    if not steps or terms % steps:
        return None
    body = _body_of(right, columns, terms, steps)
    read, in_groups = dict[str, torch.dtype](), False
    for op in _moving(body):
        assert op.index is not None
        along = _along(op.index)
        if along not in (0, 1):
            return None
        if along:
            read[op.buffer] = op.dtype
        else:
            in_groups = True
    width = sum(dtype.itemsize for dtype in read.values()) / steps
    is_narrow = 0 < width < call.result.dtype.itemsize
    few = _most_rows(call, is_narrow)
    reads_words = is_narrow and _reads_words(call) and (steps > 1 or in_groups)
    if not (is_narrow or read and call.result.dtype in HALVES):
        return None
    size = width * columns * terms
    if terms < FEWEST_TERMS or size < _scaled(call, FEWEST_BYTES):
        return None
    if not is_narrow and (size < _scaled(call, FEWEST_OF_HALVES) or terms % EVEN_TERMS):
        return None
    bytes_of = [name for name, dtype in read.items() if dtype in BYTES]
    if reads_words:
        by_units = _reading_by_units(call, left, right, body, steps, bytes_of)
        if by_units is not None:
            return by_units
        few = max(few, MOST_ROWS_OF_WORDS)
    if left.size[0] > few:
        return None
    if reads_words:
        if len(read) == len(bytes_of) == 1:
            for count in (IN_LONG_WORD, IN_WORD) if steps > 1 else (IN_WORD,):
                longer = _body_of(right, columns, terms, steps * count)
                if terms % (steps * count) == 0 and _has_words(call, longer, bytes_of[0], count):
                    dtype = torch.int64 if count == IN_LONG_WORD else torch.int32
                    return Reading(steps * count, bytes_of[0], dtype)
    return Reading(steps)


def _reading_by_units(
    call: Call, left: Tensor, right: Tensor, body: LoopBody, steps: int, bytes_of: Sequence[str]
) -> Reading | None:
    """How matrix units read a weight of eight numbers in a word, with a scale and a shift for many
    words; None where it is something else."""
    terms, columns = right.size
    if not _has_matrix_units(call) or call.result.dtype not in HALVES:
        return None
    if left.size[0] > MOST_VECTORS:
        return None
    if left.dtype is not call.result.dtype or columns % ROWS_OF_UNITS:
        return None
    words = ""
    if steps * IN_WORD == MOST_PACKED and len(bytes_of) == 1:
        (words,) = bytes_of
        body = _body_of(right, columns, terms, MOST_PACKED)
        if terms % MOST_PACKED or not _has_words(call, body, words, IN_WORD):
            return None
    elif steps != MOST_PACKED:
        return None
    if terms % TERMS_OF_UNITS or not _has_long_groups(body):
        return None
    reading = Reading(MOST_PACKED, words, torch.int32, True)
    return reading if _is_of_nibbles(call, right, reading) else None


def _has_matrix_units(call: Call) -> bool:
    device = call.builder.device
    return device.type != "cpu" and properties_of(device).capability >= FIRST_WITH_UNITS


def _has_long_groups(body: LoopBody) -> bool:
    """Whether all that is not of the weight itself stays the same for `FEWEST_ALIKE` words."""
    for op in _moving(body):
        assert op.index is not None
        divisors = [
            atom.divisor for atom, _ in op.index.terms
            if isinstance(atom, FloorDiv) and atom.base.depends_on("r0")
        ]
        if not _along(op.index) and any(each % FEWEST_ALIKE for each in divisors):
            return False
    return True


def _is_of_nibbles(call: Call, right: Tensor, reading: Reading) -> bool:
    """Whether the weights of a word are its bits, scaled and shifted."""
    terms, columns = right.size
    found = []
    words = _as_words(call, reading.words, reading.dtype) if reading.words else None

    def body(ops: Ops, i: Indices, r: Indices) -> None:
        bytewise: Any = ops if words is None else InWords(ops, reading.words, words)
        weights = [right.load(bytewise, (r[0] * 8 + at, i[0])) for at in range(MOST_PACKED)]
        found.append(nibble_weights(ops, weights))
        ops.store("", constant(0), weights[0])

    trace_body((columns,), (terms // MOST_PACKED,), body)
    return found[-1] is not None


def _scaled(call: Call, count: int) -> int:
    """Bytes for the memory of the graph's device, where that is a GPU."""
    device = call.builder.device
    return count if device.type == "cpu" else properties_of(device).scaled_by_bandwidth(count)


def _may_sum_twice(call: Call) -> bool:
    """Whether a kernel can sum again where its first sum is not finite: not on a GPU."""
    return call.builder.device.type == "cpu" and not _reads_words(call)


def _reads_words(call: Call) -> bool:
    """Whether numbers are read out of words by NVIDIA's instructions."""
    device = call.builder.device
    return device.type != "cpu" and properties_of(device).capability > 0


def _has_words(call: Call, body: LoopBody, buffer: str, count: int) -> bool:
    """Whether a buffer, an input that nothing writes, lies in words of `count` bytes, of which
    `body` reads each byte at a place that is known."""
    layout = call.builder.layouts[buffer]
    dense = contiguous(layout.size, layout.dtype, layout.device)
    if not buffer.startswith(("arg", "const")) or layout.stride != dense.stride:
        return False
    if layout.offset or not layout.size or layout.size[-1] % count:
        return False
    places = [op.index for op in body.loads() if op.buffer == buffer]
    return all(index is not None and mod(index, count).is_constant for index in places)


def _as_words(call: Call, buffer: str, dtype: torch.dtype) -> Tensor:
    """The memory of a buffer as longer integers."""
    layout = call.builder.layouts[buffer]
    size = (*layout.size[:-1], layout.size[-1] * layout.dtype.itemsize // dtype.itemsize)
    words = contiguous(size, dtype, layout.device)
    fake = Shaped(words.size, words.stride, 0, words.dtype, words.device)
    stored = call.builder.stored(layout, buffer)
    found: Tensor = call.builder.extern(aten.view.dtype, (stored, dtype), {}, fake)
    return found


def _body_of(right: Tensor, columns: int, terms: int, steps: int) -> LoopBody:
    """How an element of the weight, and those in the same element of its storage, are made."""

    def body(ops: Ops, i: Indices, r: Indices) -> None:
        for at in range(steps):
            value = right.load(ops, (r[0] * steps + at, i[0]))
            ops.store("", constant(at), value)

    return trace_body((columns,), (terms // steps,), body)


def _packing(body: LoopBody) -> int:
    """How many neighbouring terms are read from one place of what is stored for the weight; 0 where
    no few."""
    found = {MOST_PACKED + 1}
    for op in _moving(body):
        assert op.index is not None
        if _along(op.index):
            return 1
        found |= {
            atom.divisor for atom, factor in op.index.terms
            if isinstance(atom, FloorDiv) and factor == 1 and type(atom.divisor) is int
        }
    least = min(found)
    return 0 if least > MOST_PACKED else least


def _moving(body: LoopBody) -> Iterator[Op]:
    """Loads that differ from term to term and from column to column."""
    for op in body.loads():
        if op.index is not None and op.index.depends_on("i0") and op.index.depends_on("r0"):
            yield op


def _along(index: Index) -> int:
    """How far one step along the terms moves, but for what is the same for several of them."""
    return sum(
        factor for atom, factor in index.terms if isinstance(atom, Var) and atom.name == "r0"
    )
