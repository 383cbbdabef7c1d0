"""Which sums of a few vectors times a weight go through matrix units, and how.

In: a `Launch` whose loop sums products of a narrow weight, row by row, with what all rows have in
common. Out: its `MatrixSums`, or None. A scalar unit converts and multiplies each number by
itself, which takes longer than memory does to bring int4 (4.6 instructions a number, on an H200
33 us for 2 x 14336 x 4096 where memory takes 14.5; through matrix units 1.6, and 22 us). Units
multiply with eight columns. One vector is in all of them, each with another stretch of the terms,
so that each stretch may have a scale and a shift of its own; of several vectors each has a column,
and a step of the loop is a stretch.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from inductor.codegen.triton.exact_sums import SUM_OR_EXACT
from inductor.codegen.triton.launch import Launch
from inductor.ir.body import Op
from inductor.ir.extent import power_of_two, up_to_multiple
from inductor.ir.index import (
    Atom,
    FloorDiv,
    Index,
    Mod,
    Var,
    floordiv,
    mod,
    values_in_period,
    variable,
)

FIRST_WITH_UNITS = 80  # compute capability, of asynchronous copies and matrix units of bfloat16
STRETCHES = 8  # columns of a matrix unit
MOST_VECTORS = 16  # in two units
LEAST_ROWS = 16
# COLUMNS: words of nibbles, of which neighbours in memory belong to neighbouring rows of the sums
# (columns of the GEMM), not to neighbouring terms; they are turned on their way into registers.
# SPREAD: words of nibbles of eight neighbouring rows each, of one term.
NIBBLES, BYTES, COLUMNS, SPREAD = "nibbles", "bytes", "columns", "spread"
PLANES = {NIBBLES: 4, BYTES: 1, COLUMNS: 8, SPREAD: 1}  # terms of an element as it is read
ELEMENT = {
    NIBBLES: torch.int16, BYTES: torch.int8, COLUMNS: torch.int32, SPREAD: torch.int32,
}  # fmt: skip
ROWS_OF_WORD = 8  # numbers of 4 bits in 32
LEAST_TERMS = 16  # elements that units multiply at a time
# Elements of a stretch, at least: a copy of what they are multiplied with has eight, or four.
LEAST_STRETCH = {NIBBLES: 8, BYTES: 8, COLUMNS: 4, SPREAD: 8}
ALIGNMENT = 16  # bytes of a copy
HALVES = (torch.float16, torch.bfloat16)


@dataclass(frozen=True, slots=True)
class MatrixSum:
    """Sums of one weight: scale * (weight @ left) + shift * sum of left, for each vector.

    reductions: their positions among the ops, a vector each. weight: its load. scale, shift:
    positions of values that are the same for a stretch, or None. flip: bits of a word that are
    taken the other way round. places: for each row of a word where in it its number begins.
    """

    reductions: tuple[int, ...]
    weight: Op
    scale: int | None = None
    shift: int | None = None
    flip: int = 0
    places: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class MatrixSums:
    """kind: how weights are stored. left: the loads of what they are multiplied with, one for each
    number of an element as it is read, of the first vector; the next begins `apart` elements
    behind it."""

    kind: str
    left: tuple[Op, ...]
    sums: tuple[MatrixSum, ...]
    apart: int = 0

    @property
    def vectors(self) -> int:
        return len(self.sums[0].reductions)

    @property
    def columns(self) -> int:
        """Of a tile of sums."""
        return STRETCHES if self.vectors <= STRETCHES else MOST_VECTORS

    @property
    def per_column(self) -> int:
        """Elements as they are read for each column of the launch."""
        return 2 if self.kind == NIBBLES else 1


@dataclass(frozen=True, slots=True)
class _Found:
    """One reduction so."""

    reduction: int
    kind: str
    weight: Op
    left: tuple[Op, ...]
    scale: int | None = None
    shift: int | None = None
    flip: int = 0
    places: tuple[int, ...] = ()

    @property
    def per_column(self) -> int:
        return 2 if self.kind == NIBBLES else 1


def find_matrix_sums(launch: Launch) -> MatrixSums | None:
    """See the top of the file."""
    first, *others = launch.stages
    known = type(launch.rows) is int and type(first.columns) is int
    if launch.gpu.capability < FIRST_WITH_UNITS or not known:
        return None
    if launch.persistent or launch.tiled or launch.splits != 1:
        return None
    if not first.reduction or first.serial != 1 or any(stage.columns != 1 for stage in others):
        return None
    if any(op.name == "store" and _moves(op) for op in first.ops):
        return None
    stored = {op.buffer for stage in launch.stages for op in stage.ops if op.name == "store"}
    stored |= {local.name for local in launch.locals}
    if any(op.name == "load" and _moves(op) and op.buffer in stored for op in first.ops):
        return None
    found: list[_Found] = []
    for position, op in enumerate(first.ops):
        if op.name == "reduction":
            each = _sum_of(first.ops, position, launch.rows, first.columns)
            if each is None or found and each.kind != found[0].kind:
                return None
            found.append(each)
    made = _by_weight(found) if found else None
    if made is not None and made.vectors > 1 and longest_stretch(launch, made) < LEAST_TERMS:
        return None
    if made is not None and made.kind == BYTES:
        count = len(made.sums) * launch.rows * first.columns
        if made.vectors > 1 or count < launch.gpu.scaled_by_bandwidth(FEWEST_BYTES):
            return None
    return made


def _by_weight(found: Sequence[_Found]) -> MatrixSums | None:
    """The same, those of one weight together; None unless each has all vectors."""
    groups: dict[tuple[Any, ...], list[_Found]] = {}
    for each in found:
        key = (each.weight, each.scale, each.shift, each.flip, each.places)
        groups.setdefault(key, []).append(each)
    sums = []
    lefts: list[tuple[Op, ...]] = []
    for key, group in groups.items():
        group.sort(key=lambda each: _index(each.left[0]).offset)
        lefts = lefts or [each.left for each in group]
        if [each.left for each in group] != lefts:
            return None
        reductions = tuple(each.reduction for each in group)
        sums.append(MatrixSum(reductions, *key))
    apart = _index(lefts[1][0]).offset - _index(lefts[0][0]).offset if len(lefts) > 1 else 0
    for n, left in enumerate(lefts):
        for one, other in zip(lefts[0], left, strict=True):
            if one.buffer != other.buffer or _index(one) + n * apart != _index(other):
                return None
    if len(lefts) > MOST_VECTORS or apart * lefts[0][0].dtype.itemsize % ALIGNMENT:
        return None
    return MatrixSums(found[0].kind, lefts[0], tuple(sums), apart)


def longest_stretch(launch: Launch, made: MatrixSums) -> int:
    """So many elements as they are read, a power of two, have one scale and one shift at least."""
    ops, found = launch.stages[0].ops, 0
    for each in made.sums:
        for index in _indices_behind(ops, (each.scale, each.shift)):
            for step in _steps(index):
                found |= step * made.per_column
    return found & -found if found else 1 << 30


@dataclass(frozen=True, slots=True)
class Shape:
    """How a launch sums. shares: warps that share the terms of a row. terms: elements, as they are
    read, of a share; step: of those that are summed at a time; stretch: of those in one column.
    stages: of the pipeline of loads. parts: tiles of terms of a step, one after the other."""

    rows: int
    shares: int
    terms: int
    step: int
    stretch: int
    stages: int
    parts: int = 1


# On an H200, torch 2.11, triton 3.6, us with weights that are not in the cache, by scalar units and
# so (rows x terms): int4 in groups of 128, 4096 x 4096 8.4 and 6.9, 6144 x 4096 11.1 and 8.8,
# 11008 x 4096 17.4 and 12.7, 8192 x 8192 25.9 and 13.8, 4096 x 14336 22.0 and 13.6, 8192 x 28672
# 75.5 and 42.5, 128256 x 4096 162 and 75.3; two of 14336 x 4096 32.8 and 22.6. Of int8, 4096 x 4096
# 7.6 and 7.8, 8192 x 8192 24.1 and 21.2, 4096 x 14336 19.5 and 18.1, two of 14336 x 4096 33.7 and
# 32.3, so that only large ones do. More stages or longer steps leave room for fewer programs.
# Steps of columns have as many bytes of weights as those of nibbles (chosen, not measured).
# (Those of SPREAD likewise; a program's rows are as many as a tile of numbers needs to be stored
# and loaded in 16 bytes on its way from words to operands, 2.8 instructions a number; 4.5 of 32.)
STEPS = {NIBBLES: 128, BYTES: 256, COLUMNS: 64, SPREAD: 128}  # elements as they are read
ROWS_OF_SPREAD, MOST_SHARES_OF_SPREAD, STAGES_OF_SPREAD = 64, 8, 3
MOST_TERMS_OF_SPREAD = 64  # of a tile in shared memory; chosen, not measured
ENOUGH_WARPS = 384  # sum at a time
ENOUGH_TERMS, FEWEST_STEPS = {NIBBLES: 1024, COLUMNS: 512, SPREAD: 512}, 2  # of a share
MOST_SHARES = 4
STAGES_OF_SEVERAL = 4  # vectors, of which a step is short (chosen, not measured)
FEWEST_BYTES = 48 << 20  # of int8
MANY_PROGRAMS = 512  # of which several run beside each other


def shape_of(launch: Launch, made: MatrixSums) -> Shape:
    """The likely best."""
    terms = launch.stages[0].columns * made.per_column
    step, longest = STEPS[made.kind], longest_stretch(launch, made)
    if made.vectors > 1:
        step = stretch = min(step, longest)
    else:
        stretch = step // STRETCHES if longest > step else longest
        step = min(step, STRETCHES * stretch)
    alone = len(made.sums) == 1
    rows = 2 * LEAST_ROWS if made.kind != BYTES and alone else LEAST_ROWS
    least_rows = ROWS_OF_SPREAD if made.kind == SPREAD else LEAST_ROWS
    rows = max(rows, least_rows)
    wanted = MOST_SHARES_OF_SPREAD if made.kind == SPREAD else MOST_SHARES
    if made.kind != BYTES:
        programs = up_to_multiple(launch.rows, rows)
        few = power_of_two(up_to_multiple(launch.gpu.scaled(ENOUGH_WARPS), programs))
        wanted = min(wanted, max(few, power_of_two(up_to_multiple(terms, ENOUGH_TERMS[made.kind]))))
    shares = wanted
    while shares > 1 and (terms % (shares * stretch) or terms < shares * FEWEST_STEPS * step):
        shares //= 2
    if shares < wanted or launch.rows % rows:
        rows = least_rows
    many = launch.rows // rows >= launch.gpu.scaled(MANY_PROGRAMS)
    stages = 2 if not alone or made.kind == BYTES and many else 3
    parts = 1
    if made.vectors > 1:
        stages = STAGES_OF_SEVERAL
    if made.kind == SPREAD:
        stages, parts = STAGES_OF_SPREAD, max(1, step // MOST_TERMS_OF_SPREAD)
    found = Shape(rows, shares, terms // shares, step, stretch, stages, parts)
    while _shared_of(found, made) > launch.gpu.shared and (found.stages > 2 or found.shares > 1):
        if found.stages > 2:
            found = replace(found, stages=found.stages - 1)
        else:
            found = replace(found, shares=found.shares // 2, terms=found.terms * 2)
    return found


def _shared_of(shape: Shape, made: MatrixSums) -> int:
    """Bytes of shared memory: what is loaded while another step is summed, and what goes from warp
    to warp in the end."""
    count = len(made.sums)
    weights = count * shape.rows * ELEMENT[made.kind].itemsize
    if made.kind == SPREAD:
        weights //= ROWS_OF_WORD
    left = PLANES[made.kind] * made.columns * made.left[0].dtype.itemsize
    stretches = 2 * count * shape.rows * made.columns * torch.float32.itemsize
    of_step = shape.shares * (shape.step * (weights + left) + stretches)
    turned = 0
    if made.kind == SPREAD:
        turned = shape.shares * shape.step // shape.parts * shape.rows * torch.float16.itemsize
    return (shape.stages - 1) * of_step + turned


def _moves(op: Op) -> bool:
    return op.index is not None and op.index.depends_on("r")


def _sum_of(ops: Sequence[Op], position: int, rows: int, columns: int) -> _Found | None:
    op = ops[position]
    if op.imm not in ("sum", SUM_OR_EXACT) or op.dtype is not torch.float32:
        return None
    found = _nibbles_of(ops, position) or _bytes_of(ops, position)
    if found is None or not _reads_rows(found, rows, columns):
        return None
    stretch = [step for index in _indices_behind(ops, (found.scale, found.shift))
               for step in _steps(index)]
    if any(step * found.per_column % LEAST_STRETCH[found.kind] for step in stretch):
        return None
    return found if _are_loads_of_stretches(ops, (found.scale, found.shift)) else None


def _bytes_of(ops: Sequence[Op], position: int) -> _Found | None:
    """The sum of x * weight, where the weight is int8."""
    product = ops[ops[position].args[0]]
    if product.name != "mul":
        return None
    for one, other in (product.args, product.args[::-1]):
        weight, left = _loaded(ops, one), _loaded(ops, other)
        if weight is None or left is None:
            continue
        if weight.dtype is torch.int8 and left.dtype in HALVES:
            return _Found(position, BYTES, weight, (left,))
    return None


def _loaded(ops: Sequence[Op], position: int) -> Op | None:
    """The load that is converted to float32 here."""
    op = ops[position]
    if op.name != "to_dtype" or op.dtype is not torch.float32:
        return None
    source = ops[op.args[0]]
    return source if source.name == "load" and not source.args else None


def _nibbles_of(ops: Sequence[Op], position: int) -> _Found | None:
    """The sum of scale * nibbles_dot + shift * sum of what the nibbles are multiplied with."""
    at = ops[position].args[0]
    shift, total = None, None
    if ops[at].name == "add":
        at, shifted = ops[at].args
        if ops[shifted].name != "mul":
            return None
        total, shift = ops[shifted].args
    scale = None
    if ops[at].name == "mul" and not _is_of_nibble(ops, at):
        at, scale = ops[at].args
    if _is_of_nibble(ops, at):
        return _spread_of(ops, position, at, scale, total, shift)
    dot = ops[at]
    if dot.name != "nibbles_dot" or total is not None and not _adds(ops, total, dot.args[1:]):
        return None
    word, *numbers = dot.args
    weight, flip = _flipped(ops, word)
    left = [_loaded(ops, number) for number in numbers]
    if weight.name != "load" or weight.args or weight.dtype is not torch.int32:
        return None
    known = [load for load in left if load is not None]
    planes = PLANES[NIBBLES]
    if len(known) != 2 * planes or any(load.dtype not in HALVES for load in known):
        return None
    if weight.index is not None and weight.index.stride_of("x") == 1:
        return _Found(position, COLUMNS, weight, tuple(known), scale, shift, flip)
    low, high = known[:planes], known[planes:]
    beside = all(
        one.buffer == other.buffer and _index(one) + 1 == _index(other)
        for one, other in zip(low, high, strict=True)
    )
    if not beside:
        return None
    return _Found(position, NIBBLES, weight, tuple(low), scale, shift, flip)


def _flipped(ops: Sequence[Op], word: int) -> tuple[Op, int]:
    """The load of a word, and the bits of it that are the other way round."""
    op = ops[word]
    if op.name == "bitwise_xor" and ops[op.args[1]].name == "constant":
        number = ops[op.args[1]].imm
        assert type(number) is int
        return ops[op.args[0]], number
    return op, 0


def _is_of_nibble(ops: Sequence[Op], at: int) -> bool:
    """Whether it is the product with one number of a word."""
    return ops[at].name == "mul" and any(ops[arg].name == "nibble" for arg in ops[at].args)


def _spread_of(
    ops: Sequence[Op], position: int, at: int, scale: int | None, total: int | None,
    shift: int | None,
) -> _Found | None:
    """The sum of scale * x * nibble + shift * x, where the nibble is that of a row in a word that
    it has in common with its neighbours."""
    number, nibble = ops[at].args
    if ops[nibble].name != "nibble":
        number, nibble = nibble, number
    word, place = ops[nibble].args
    weight, left = ops[word], _loaded(ops, number)
    if left is None or left.dtype not in HALVES or total not in (None, number):
        return None
    if weight.name != "load" or weight.args or weight.dtype is not torch.int32:
        return None
    while ops[place].name == "to_dtype":
        (place,) = ops[place].args
    index = ops[place].index
    if ops[place].name != "index_expr" or index is None:
        return None
    places = values_in_period(index, "x", ROWS_OF_WORD)
    if places is None or not set(places) <= {*range(0, 32, 4)}:
        return None
    return _Found(position, SPREAD, weight, (left,), scale, shift, 0, places)


def _adds(ops: Sequence[Op], position: int, numbers: Sequence[int]) -> bool:
    """Whether the value is the sum of just these."""
    leaves, waiting = [], [position]
    while waiting:
        at = waiting.pop()
        if ops[at].name == "add" and at not in numbers:
            waiting += ops[at].args
        else:
            leaves.append(at)
    return sorted(leaves) == sorted(numbers)


def _index(op: Op) -> Index:
    assert op.index is not None
    return op.index


def _reads_rows(found: _Found, rows: int, columns: int) -> bool:
    """Whether rows of the weight lie in memory element by element, in stretches at least, and what
    they are multiplied with too, all at multiples of what is copied at a time."""
    index, lies = _index(found.weight), _lies_in_stretches
    if found.kind == SPREAD:
        if rows % ROWS_OF_WORD:
            return False
        index = index_of_words(index, rows)
        if index.depends_on("x"):
            return False
        index = index.substitute({"c": variable("x", rows // ROWS_OF_WORD)})
    if found.kind in (COLUMNS, SPREAD):
        lies = _lies_in_columns
    if not lies(index, found.weight.dtype.itemsize):
        return False
    r = variable("r", columns)
    first = found.left[0]
    for load in found.left:
        rest = _index(load) - r * found.per_column
        if not rest.is_constant or rest.offset * load.dtype.itemsize % ALIGNMENT:
            return False
        if (load.buffer, load.dtype) != (first.buffer, first.dtype):
            return False
    return True


def _lies_in_stretches(index: Index, itemsize: int) -> bool:
    """Whether an index goes element by element along `r`, or along stretches that begin at
    multiples of what is copied at a time."""
    counted = 0
    for atom, factor in index.terms:
        along = _goes_along(atom, itemsize)
        if along and not isinstance(atom, FloorDiv):
            counted += factor
        elif factor * itemsize % ALIGNMENT or not (along or _is_of_rows(atom)):
            return False
    return counted == 1 and not index.offset * itemsize % ALIGNMENT


def _lies_in_columns(index: Index, itemsize: int) -> bool:
    """Whether an index goes element by element along `x`, from multiples of what is copied at a
    time on."""
    at_start = index.substitute({"x": 0})
    return index.stride_of("x") == 1 and not at_start.offset * itemsize % ALIGNMENT and all(
        factor * itemsize % ALIGNMENT == 0 for _, factor in at_start.terms)


def _goes_along(atom: Atom, itemsize: int) -> bool:
    """Whether it is `r`, or the number of a stretch, or the place in one."""
    if isinstance(atom, Var):
        return atom.name == "r"
    assert isinstance(atom, FloorDiv | Mod)
    base = atom.base
    alone = len(base.terms) == 1 and not base.offset and base.stride_of("r") == 1
    return alone and atom.divisor * itemsize % ALIGNMENT == 0


def _is_of_rows(atom: Atom) -> bool:
    if isinstance(atom, Var):
        return atom.name == "x"
    assert isinstance(atom, FloorDiv | Mod)
    return all(var.name == "x" for var in atom.base.variables())


def index_of_words(index: Index, rows: int) -> Index:
    """The index of a word as `c`, the number of its eight rows, has it."""
    return index.substitute({"x": variable("c", rows // ROWS_OF_WORD) * ROWS_OF_WORD})


def in_elements(index: Index, made: MatrixSums, columns: int) -> Index:
    """The index of a weight in elements as they are read; `r` counts those, too."""
    count = made.per_column
    if made.kind in (COLUMNS, SPREAD):
        return index
    r = variable("r", columns * count)
    total = index.substitute({"r": 0}) * count
    for atom, factor in index.terms:
        if isinstance(atom, Var):
            total += r if atom.name == "r" else 0
        elif isinstance(atom, Mod) and atom.base.depends_on("r"):
            total += mod(r, atom.divisor * count)
        elif isinstance(atom, FloorDiv) and atom.base.depends_on("r"):
            total += floordiv(r, atom.divisor * count) * (factor * count)
    return total


def _behind(ops: Sequence[Op], positions: Sequence[int | None]) -> Iterator[Op]:
    """The ops of which these values are made."""
    waiting = [position for position in positions if position is not None]
    seen: set[int] = set()
    while waiting:
        at = waiting.pop()
        if at not in seen:
            seen.add(at)
            waiting += ops[at].args
            yield ops[at]


def _indices_behind(ops: Sequence[Op], positions: Sequence[int | None]) -> Iterator[Index]:
    for op in _behind(ops, positions):
        if op.index is not None:
            yield op.index


def _steps(index: Index) -> Iterator[int]:
    """How many columns an index stays at a place for, for each of its parts; 1 if that is not
    sure."""
    for atom, _ in index.terms:
        if isinstance(atom, FloorDiv) and atom.base.depends_on("r"):
            base = atom.base
            simple = len(base.terms) == 1 and not base.offset and base.stride_of("r") == 1
            yield atom.divisor if simple and type(atom.divisor) is int else 1
        elif isinstance(atom, Mod):
            if atom.base.depends_on("r"):
                yield 1
        elif isinstance(atom, Var) and atom.name == "r":
            yield 1


def _are_loads_of_stretches(ops: Sequence[Op], positions: Sequence[int | None]) -> bool:
    """Whether scales and shifts are made of loads and arithmetic alone."""
    return all(
        op.name not in ("reduction", "indirect", "keep", "nibble", "nibbles_dot", "store")
        and not (op.name == "load" and op.args)
        for op in _behind(ops, positions)
    )
