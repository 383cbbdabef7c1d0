"""How the weight of a GEMM of few rows is read: element by element, in words, by matrix units.

In: the operands of a GEMM, the weight as a tensor that may be computed. Out: its `Reading`, which
goes by the loads that make an element of the weight; None where the GEMM is a library's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from inductor.ir.body import LoopBody, Op, Ops, Value, trace_body
from inductor.ir.graph import contiguous
from inductor.ir.index import Atom, FloorDiv, Index, Mod, Var, constant, mod, values_in_period
from inductor.lowering.packed import InWords, nibble_weights
from inductor.lowering.registry import Call
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
# Of words that matrix units multiply, those with one scale; the same where several rows have a
# column each, so that units take sixteen elements at a time with one scale: halves of words, or, by
# columns, words.
FEWEST_ALIKE, FEWEST_ALIKE_OF_SEVERAL = 4, (8, 16)
# What is copied begins at multiples of 16 bytes: each row of a weight, and each plane of what it is
# multiplied with (a fourth of the terms, or an eighth where words lie along columns); columns of
# words that lie so, or that have eight columns each.
EVEN_TERMS_OF_UNITS, EVEN_COLUMNS_OF_UNITS, EVEN_COLUMNS_OF_SPREAD = (32, 64), (1, 4), 32
EVEN_TERMS_OF_SPREAD, FEWEST_ALIKE_OF_SPREAD = 8, 32  # terms with one scale
FIRST_WITH_UNITS = 80  # compute capability
MOST_VECTORS = 16  # columns of two matrix units
BYTES = (torch.int8, torch.uint8)
IN_WORD, IN_LONG_WORD = 4, 8  # bytes
BY_LIBRARY = "a library's is faster"


@dataclass(frozen=True, slots=True)
class Reading:
    """How a weight is read. steps: so many neighbouring terms of a sum are computed at a time.
    words: the buffer of bytes that is loaded in words of this dtype, with all of these terms in
    one; "" where elements are loaded as they are. by_units: sums go through matrix units.
    by_columns: neighbours in memory are columns, not terms."""

    steps: int
    words: str = ""
    dtype: torch.dtype = torch.int32
    by_units: bool = False
    by_columns: bool = False


def reading_of(call: Call, left: Tensor, right: Tensor) -> Reading | None:
    """How the weight is read; None, and a reason, where the GEMM is the library's."""
    numbers = (*left.size, *right.size)
    if not call.builder.convolves:
        call.reason = "libraries have kernels"
    elif any(type(number) is not int for number in numbers) or 0 in numbers:
        call.reason = "sizes that are known at a call, or nothing"
    elif call.result.dtype not in (*HALVES, torch.float32):
        call.reason = "a library's dtype"
    elif left.size[0] > max(most_rows(call, True), MOST_ROWS_OF_WORDS, MOST_VECTORS):
        call.reason = BY_LIBRARY
    else:
        return _reading_of_weight(call, left, right)
    return None


def most_rows(call: Call, is_narrow: bool) -> int:
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
    read, by_columns, in_groups = dict[str, torch.dtype](), set[bool](), False
    for op in _moving(body):
        assert op.index is not None
        along = _along(op.index)
        if along and _is_spread(op.index):
            return _by_spread_units(call, left, right, body)
        if along not in (0, 1) and op.index.stride_of("i0") != 1:
            return None
        if along:
            read[op.buffer] = op.dtype
            by_columns.add(along != 1)
        else:
            in_groups = True
    width = sum(dtype.itemsize for dtype in read.values()) / steps
    is_narrow = 0 < width < call.result.dtype.itemsize
    if True in by_columns and not (is_narrow and reads_words(call) and len(by_columns) == 1):
        return None
    few, is_gathered = most_rows(call, is_narrow), any(op.name == "indirect" for op in body.ops)
    in_words = is_narrow and reads_words(call) and (steps > 1 or in_groups)
    if not (is_narrow or read and call.result.dtype in HALVES):
        return None
    size = width * columns * terms
    if terms < FEWEST_TERMS or size < scaled(call, FEWEST_BYTES):
        return None
    if not is_narrow and (size < scaled(call, FEWEST_OF_HALVES) or terms % EVEN_TERMS):
        return None
    reading = Reading(steps, by_columns=True in by_columns)
    bytes_of = [name for name, dtype in read.items() if dtype in BYTES]
    if in_words:
        by_units = _by_units(call, left, right, body, reading, bytes_of)
        if by_units is not None:
            return by_units
        # Rows share what they read, but not at places that are read themselves.
        few = 1 if is_gathered else max(few, MOST_ROWS_OF_WORDS)
    if left.size[0] > few:
        return None
    if in_words and len(read) == len(bytes_of) == 1 and not reading.by_columns:
        for count in (IN_LONG_WORD, IN_WORD) if steps > 1 else (IN_WORD,):
            longer = _body_of(right, columns, terms, steps * count)
            if terms % (steps * count) == 0 and _has_words(call, longer, bytes_of[0], count):
                dtype = torch.int64 if count == IN_LONG_WORD else torch.int32
                return Reading(steps * count, bytes_of[0], dtype)
    return reading


def _by_units(
    call: Call, left: Tensor, right: Tensor, body: LoopBody, reading: Reading,
    bytes_of: Sequence[str],
) -> Reading | None:
    """The reading by matrix units of a weight of eight numbers in a word, with a scale and a shift
    for many words; None where it is something else."""
    terms, columns = right.size
    if not has_matrix_units(call) or call.result.dtype not in HALVES:
        return None
    if left.size[0] > MOST_VECTORS:
        return None
    if left.dtype is not call.result.dtype:
        return None
    by_columns = reading.by_columns
    if terms % EVEN_TERMS_OF_UNITS[by_columns] or columns % EVEN_COLUMNS_OF_UNITS[by_columns]:
        return None
    words = ""
    if reading.steps * IN_WORD == MOST_PACKED and len(bytes_of) == 1 and not reading.by_columns:
        (words,) = bytes_of
        body = _body_of(right, columns, terms, MOST_PACKED)
        if terms % MOST_PACKED or not _has_words(call, body, words, IN_WORD):
            return None
    elif reading.steps != MOST_PACKED:
        return None
    fewest = FEWEST_ALIKE if left.size[0] == 1 else FEWEST_ALIKE_OF_SEVERAL[by_columns]
    if not _has_long_groups(body, fewest):
        return None
    reading = replace(reading, steps=MOST_PACKED, words=words, by_units=True)
    return reading if _is_of_nibbles(call, right, reading) else None


def _is_spread(index: Index) -> bool:
    """Whether what is read is the same for as many neighbouring columns as a word has numbers, and
    then comes the next column."""
    of_columns = [(atom, factor) for atom, factor in index.terms if _has_variable(atom, "i0")]
    return _along(index) > 1 and len(of_columns) == 1 and all(
        factor == 1 and isinstance(atom, FloorDiv) and atom.divisor == MOST_PACKED
        and atom.base.stride_of("i0") == 1 and not atom.base.offset and len(atom.base.terms) == 1
        for atom, factor in of_columns)


def _has_variable(atom: Atom, name: str) -> bool:
    if isinstance(atom, Var):
        return atom.name == name
    assert isinstance(atom, FloorDiv | Mod)
    return atom.base.depends_on(name)


def _by_spread_units(
    call: Call, left: Tensor, right: Tensor, body: LoopBody
) -> Reading | None:
    """The reading by matrix units of words that have one term of eight columns each."""
    terms, columns = right.size
    if not has_matrix_units(call) or call.result.dtype not in HALVES:
        return None
    if left.size[0] > MOST_VECTORS or left.dtype is not call.result.dtype:
        return None
    if columns % EVEN_COLUMNS_OF_SPREAD or terms % EVEN_TERMS_OF_SPREAD or terms < FEWEST_TERMS:
        return None
    if not _has_long_groups(body, FEWEST_ALIKE_OF_SPREAD):
        return None
    if columns * terms // 2 < scaled(call, FEWEST_BYTES):
        return None
    reading = Reading(1, by_units=True, by_columns=True)
    return reading if _is_of_nibbles(call, right, reading) else None


def has_matrix_units(call: Call) -> bool:
    device = call.builder.device
    return device.type != "cpu" and properties_of(device).capability >= FIRST_WITH_UNITS


def _has_long_groups(body: LoopBody, fewest: int) -> bool:
    """Whether all that is not of the weight itself stays the same for so many words."""
    for op in _moving(body):
        assert op.index is not None
        divisors = [
            atom.divisor for atom, _ in op.index.terms
            if isinstance(atom, FloorDiv) and atom.base.depends_on("r0")
        ]
        if not _along(op.index) and any(each % fewest for each in divisors):
            return False
    return True


def _is_of_nibbles(call: Call, right: Tensor, reading: Reading) -> bool:
    """Whether the weights of a word are its bits, scaled and shifted."""
    terms, columns = right.size
    found = []
    words = as_words(call, reading.words, reading.dtype) if reading.words else None

    def body(ops: Ops, i: Indices, r: Indices) -> None:
        bytewise: Any = ops if words is None else InWords(ops, reading.words, words)
        steps = reading.steps
        weights = [right.load(bytewise, (r[0] * steps + at, i[0])) for at in range(steps)]
        made = nibble_weights(ops, weights)
        if made is not None and made.amount is not None:
            made = made if _has_places(ops, made.amount) else None
        found.append(made)
        ops.store("", constant(0), weights[0])

    trace_body((columns,), (terms // reading.steps,), body)
    return found[-1] is not None


def _has_places(ops: Ops, amount: Value) -> bool:
    """Whether the column says, as it does for the next eight, at which bit of a word its number
    begins."""
    op = ops.recorded[amount.position]
    while op.name == "to_dtype":
        op = ops.recorded[op.args[0]]
    if op.name != "index_expr" or op.index is None:
        return False
    places = values_in_period(op.index, "i0", MOST_PACKED)
    return places is not None and set(places) <= {*range(0, 32, 4)}


def scaled(call: Call, count: int) -> int:
    """Bytes for the memory of the graph's device, where that is a GPU."""
    device = call.builder.device
    return count if device.type == "cpu" else properties_of(device).scaled_by_bandwidth(count)


def reads_words(call: Call) -> bool:
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


def as_words(call: Call, buffer: str, dtype: torch.dtype) -> Tensor:
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
            atom.divisor for atom, _ in op.index.terms
            if isinstance(atom, FloorDiv) and type(atom.divisor) is int
            and atom.base.depends_on("r0")
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
