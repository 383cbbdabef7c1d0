"""Triton text of what makes a tile of a template's right operand out of a stored weight.

In: the stage that computes an element (`x` is its row, a term of the sum, `r` its column). Out:
lines of a step of the loop, and the tile. Where several neighbouring elements lie in one word, the
words are a tile of their own, smaller by that number: each is loaded once and the elements at each
place in it are computed side by side, so that what depends on the place alone is a number. They are
then put together in registers.

What is the same for many terms in a row, as scales of groups are, is loaded once for them: each
thread would load it for each of its elements, from as many lines of the cache as there are columns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import gcd

from inductor.codegen.triton.launch import Launch, Stage
from inductor.codegen.triton.print_stage import Columns, Frame, Memory, StagePrinter, Writer
from inductor.codegen.triton.relax import relax_stages
from inductor.codegen.triton.writer import Text
from inductor.ir.body import Op
from inductor.ir.index import Atom, FloorDiv, Index, Mod, Var, variable
from inductor.scheduler.gemms import epilogue_ops, place_of_right
from inductor.scheduler.schedule import Gemm, Kernel

PACKED = (8, 4, 2)  # elements of a word
PROLOGUE_NAMES = 1000  # the number of the first variable of a prologue; those of epilogues are less
WORD = "w"  # the variable that counts words
# Variables that count runs of rows for which a load is the same, and rows of one.
RUN, WITHIN = "run", "within"
SHORTEST_RUN = 4  # below, each thread loads what it wants; chosen, not measured
WORDS = {"x": "right_word_of_", "r": "right_words_of_"}  # how it is spelled, with how many elements
WORD_MASKS = {"x": "right_word_mask_of_", "r": "right_words_mask_of_"}  # which words are there


def stage_of_weight(kernel: Kernel, one: Gemm) -> Stage:
    """What makes each element of a right operand, at row x and column r."""
    return Stage(epilogue_ops(kernel, place_of_right(one)), 1, one.n, False)


def packing_of(stage: Stage, terms: int, columns: int) -> tuple[str, int]:
    """The axis along which neighbours lie in one word, and how many; ("", 1) where they do not."""
    for axis, extent in (("x", terms), ("r", columns)):
        for count in PACKED:
            if extent % count == 0 and any(_is_word(op, axis, count) for op in stage.ops):
                return axis, count
    return "", 1


def is_word(op: Op, count: int) -> bool:
    """Whether a load is the same for so many neighbours along one of the axes."""
    return count > 1 and any(_is_word(op, axis, count) for axis in "xr")


def _is_word(op: Op, axis: str, count: int) -> bool:
    """Whether a load is the same for so many neighbours along an axis, and moves along both."""
    if op.name != "load" or op.index is None or op.args:
        return False
    if not (op.index.depends_on("x") and op.index.depends_on("r")):
        return False
    moving = [atom for atom, _ in op.index.terms if _depends_on(atom, axis)]
    return all(isinstance(atom, FloorDiv) and atom.divisor == count for atom in moving)


def _depends_on(atom: Atom, name: str) -> bool:
    if isinstance(atom, Var):
        return atom.name == name
    assert isinstance(atom, FloorDiv | Mod)
    return atom.base.depends_on(name)


@dataclass(frozen=True, slots=True)
class WeightText:
    """lines: of a step of the loop. tile: what they make. faults: variables that gather which
    places were out of range, and their shapes."""

    lines: str
    tile: str
    faults: tuple[tuple[str, str], ...]


def print_weight(
    stage: Stage, columns: Columns, frame: Frame, mask: str, dtype: str, first: int, terms: int,
    depth: int,
) -> WeightText:
    """mask: of the tile's rows, "" where all are there; words have a mask of their own. first: the
    number of the first variable. terms: rows of the whole operand; depth: of a tile."""
    (stage,) = relax_stages([stage], ())
    writer, faults = Writer(), dict[str, str]()
    writer.depth, writer.count = 2, first
    axis, count = packing_of(stage, terms, columns.extent)
    rows = f"(BLOCK_K // {count})" if axis == "x" else "BLOCK_K"
    width = f"(BLOCK_N // {count})" if axis == "r" else "BLOCK_N"
    columns = replace(columns, block=width)
    if axis == "x" and mask:  # words end where elements do, of which there are whole words
        mask = f"{WORD_MASKS[axis]}{count}"
        frame = replace(frame, row_mask=mask)
    if axis == "r" and columns.mask:
        columns = replace(columns, mask=f"{WORD_MASKS[axis]}{count}")
    planes = [
        _print_plane(stage, columns, frame, writer, (axis, count, place), (terms, depth), faults)
        for place in range(count)
    ]
    narrow = [f"tl.broadcast_to({plane}, [{rows}, {width}])" for plane in planes]
    if mask:
        narrow = [f"tl.where({mask}, {plane}, 0.0)" for plane in narrow]
    joined, new = _joined([f"{plane}.to({dtype})" for plane in narrow]), count.bit_length() + 1
    if count > 1:
        order = (0, *range(2, new), 1) if axis == "x" else range(new)
        joined = f"tl.reshape(tl.permute({joined}, {(*order,)}), [BLOCK_K, BLOCK_N])"
    return WeightText(
        "\n".join(writer.lines).replace("XBLOCK", rows), joined,
        tuple((name, shape.replace("XBLOCK", rows)) for shape, name in faults.items()))


def words_of(
    weights: Sequence[WeightText], wide: str, ends: Mapping[str, Callable[[int], str]]
) -> tuple[str, ...]:
    """The lines with the counts of words that these want, those along terms and those along
    columns, and the masks of them. wide: what makes positions int64. ends: for each axis, how many
    words of so many elements there are."""
    text = "\n".join(each.lines for each in weights)
    found = []
    for axis, name in WORDS.items():
        for count in PACKED:
            if f"{name}{count}" not in text:
                continue
            first = f"base // {count}" if axis == "x" else f"jn{wide} * (BLOCK_N // {count})"
            block, place = ("BLOCK_K", "[:, None]") if axis == "x" else ("BLOCK_N", "[None, :]")
            at = f"{first} + tl.arange(0, {block} // {count}){wide}"
            found.append(f"{name}{count} = ({at}){place}")
            masked = f"{WORD_MASKS[axis]}{count}"
            if masked in text or any(masked in each.tile for each in weights):
                found.append(f"{masked} = {name}{count} < {ends[axis](count)}")
    return tuple(found)


def _joined(parts: Sequence[str]) -> str:
    """Tiles along new last axes of two, the first of which counts halves of them."""
    if len(parts) == 1:
        return parts[0]
    return f"tl.join({_joined(parts[0::2])}, {_joined(parts[1::2])})"


def _print_plane(
    stage: Stage, columns: Columns, frame: Frame, writer: Writer, where: tuple[str, int, int],
    rows: tuple[int, int], faults: dict[str, str],
) -> str:
    """The elements at one place of each word; the name of their tile. rows: of the whole operand,
    and of a tile of elements."""
    axis, count, place = where
    terms, depth = rows
    *ops, store = stage.ops
    if count > 1:
        words = (terms if axis == "x" else columns.extent) // count
        at = variable(WORD, words) * count + place
        ops = [
            op if op.index is None else replace(op, index=op.index.substitute({axis: at}))
            for op in ops
        ]  # fmt: skip
    launch = Launch(frame.launch.name, 1, (replace(stage, ops=tuple(ops)),), tiled=True)
    frame = replace(frame, launch=launch)
    printer = _WeightPrinter(launch.stages[0], columns, frame, writer, Memory())
    along = count if axis == "x" else 1
    printer.terms = _Terms(WORD if along > 1 else "x", along, terms // along, depth // along)
    printer.faults, printer.fault_name = faults, f"fault{writer.count // PROLOGUE_NAMES}"
    printer.names["x"] = "right_row"
    if count > 1:
        printer.names[WORD] = f"{WORDS[axis]}{count}"
        printer.axes[WORD] = frozenset(axis)
    printer.print()
    (value,) = (printer.values[arg] for arg in store.args)
    return value.name


@dataclass(frozen=True, slots=True)
class _Terms:
    """The rows of a plane: the variable that counts them, terms in each, all of them, and how many
    a tile has."""

    name: str
    of_each: int
    rows: int
    in_tile: int


class _WeightPrinter(StagePrinter):
    terms: _Terms

    def _print_loaded(self, op: Op, masks: list[Text]) -> Text:
        assert op.index is not None
        terms = self.terms
        run = 1 if masks else _equal_rows(op.index, terms)
        if run < SHORTEST_RUN:
            return super()._print_loaded(op, masks)
        runs, index = terms.in_tile // run, op.index.substitute(
            {terms.name: variable(RUN, terms.rows // run) * run})
        kind = ".to(tl.int64)" if self.frame.wide else ""
        at = f"base // {terms.of_each * run} + tl.arange(0, {runs}){kind}"
        self.names[RUN] = self.writer.define(f"({at})[:, None]")
        self.axes[RUN] = frozenset("x")
        place, axes = self._index(index)
        limits = [self.columns.mask] if "r" in axes and self.columns.mask else []
        if self.frame.row_mask:
            end = self.frame.numbers.spell(terms.rows // run)
            limits.append(f"({self.names[RUN]} < {end})")
        pointer = f"{self.frame.parameters[op.buffer]} + ({place})"
        name = self.writer.define(self._load(op, pointer, axes, " & ".join(limits)))
        if runs == 1:
            return Text(name, axes - {"x"})
        columns = self.columns.block if "r" in axes else "1"
        each = f"tl.broadcast_to({name}[:, None, :], [{runs}, {run}, {columns}])"
        return Text(self.writer.define(f"tl.reshape({each}, [XBLOCK, {columns}])"), axes)


def _equal_rows(index: Index, terms: _Terms) -> int:
    """For how many rows in a row, from each multiple of that number on, a load is the same; so many
    that a tile, and all terms, are made of such runs. 1 where that cannot be said."""
    if type(terms.rows) is not int or not index.depends_on(terms.name):
        return 1
    run = gcd(terms.rows, terms.in_tile)
    for atom, _ in index.terms:
        if _depends_on(atom, terms.name):
            if not isinstance(atom, FloorDiv) or type(atom.divisor) is not int:
                return 1
            run = gcd(run, atom.divisor)
    if run == 1:
        return 1
    within = variable(RUN, terms.rows // run) * run + variable(WITHIN, run)
    return 1 if index.substitute({terms.name: within}).depends_on(WITHIN) else run
