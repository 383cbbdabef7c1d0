"""Triton text of what makes a tile of a template's right operand out of a stored weight.

In: the stage that computes an element (`x` is its row, a term of the sum, `r` its column). Out:
lines of a step of the loop, and the tile. Where several neighbouring elements lie in one word, the
words are a tile of their own, smaller by that number: each is loaded once and the elements at each
place in it are computed side by side, so that what hangs on the place alone is a number. They are
then put together in registers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from inductor.codegen.triton.launch import Launch, Stage
from inductor.codegen.triton.print_stage import Columns, Frame, Memory, StagePrinter, Writer
from inductor.codegen.triton.relax import relax_stages
from inductor.ir.body import Op
from inductor.ir.index import Atom, FloorDiv, Mod, Var, variable
from inductor.scheduler.gemms import epilogue_ops, place_of_right
from inductor.scheduler.schedule import Gemm, Kernel

PACKED = (8, 4, 2)  # elements of a word
WORD = "w"  # the variable that counts words
WORDS = {"x": "right_word_of_", "r": "right_words_of_"}  # how it is spelled, with how many elements


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


def print_weight(
    stage: Stage, columns: Columns, frame: Frame, mask: str, dtype: str, first: int,
    terms: int,
) -> tuple[str, str]:
    """Lines, and the tile. mask: of the tile's rows, "" where all are there. first: the number of
    the first variable. terms: rows of the whole operand."""
    (stage,) = relax_stages([stage], ())
    writer = Writer()
    writer.depth, writer.count = 2, first
    masked = bool(mask or columns.mask)
    axis, count = ("", 1) if masked else packing_of(stage, terms, columns.extent)
    planes = []
    for place in range(count):
        planes.append(_print_plane(stage, columns, frame, writer, (axis, count, place), terms))
    if count == 1:
        right = f"tl.broadcast_to({planes[0]}, [BLOCK_K, BLOCK_N])"
        right = f"tl.where({mask}, {right}, 0.0)" if mask else right
        return "\n".join(writer.lines), f"{right}.to({dtype})"
    size = [f"BLOCK_K // {count}", "BLOCK_N"] if axis == "x" else ["BLOCK_K", f"BLOCK_N // {count}"]
    narrow = [f"tl.broadcast_to({plane}, [{', '.join(size)}]).to({dtype})" for plane in planes]
    joined, new = _joined(narrow), [*range(2, 1 + count.bit_length())]
    order = (0, *new, 1) if axis == "x" else (0, 1, *new)
    return "\n".join(writer.lines), f"tl.reshape(tl.permute({joined}, {order}), [BLOCK_K, BLOCK_N])"


def words_of(weights: Sequence[str]) -> tuple[tuple[str, int], ...]:
    """Which counts of words these lines want: those along terms, or columns, and of how many
    elements."""
    text = "\n".join(weights)
    return tuple(
        (name, count) for name in WORDS.values() for count in PACKED if f"{name}{count}" in text)


def _joined(parts: Sequence[str]) -> str:
    """Tiles along new last axes of two, the first of which counts halves of them."""
    if len(parts) == 1:
        return parts[0]
    return f"tl.join({_joined(parts[0::2])}, {_joined(parts[1::2])})"


def _print_plane(
    stage: Stage, columns: Columns, frame: Frame, writer: Writer, where: tuple[str, int, int],
    terms: int,
) -> str:
    """The elements at one place of each word; the name of their tile."""
    axis, count, place = where
    *ops, store = stage.ops
    block = "BLOCK_K"
    if count > 1:
        words = (terms if axis == "x" else columns.extent) // count
        at = variable(WORD, words) * count + place
        ops = [
            op if op.index is None else replace(op, index=op.index.substitute({axis: at}))
            for op in ops
        ]  # fmt: skip
        if axis == "x":
            block = f"(BLOCK_K // {count})"
        else:
            columns = replace(columns, block=f"(BLOCK_N // {count})")
    launch = Launch(frame.launch.name, 1, (replace(stage, ops=tuple(ops)),), tiled=True)
    begin = len(writer.lines)
    printer = StagePrinter(
        launch.stages[0], columns, replace(frame, launch=launch), writer, Memory())
    printer.names["x"] = "right_row"
    if count > 1:
        printer.names[WORD] = f"{WORDS[axis]}{count}"
        printer.axes[WORD] = frozenset(axis)
    printer.print()
    lines = [line.replace("XBLOCK", block) for line in writer.lines[begin:]]
    writer.lines[begin:] = lines
    (value,) = (printer.values[arg] for arg in store.args)
    return value.name
