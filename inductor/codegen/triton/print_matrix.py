"""The statements of a stage whose sums go through matrix units (`matrix_sums.py`).

In: what `StagePrinter` takes, and the sums. Out: lines in the writer. The program's rows of the
weight are the rows of matrix units, in three axes: the shares of the terms (each warp sums one),
the rows, the terms. The last of the rows, and of the terms, may fill a tile in part. A vector that
the rows are multiplied with has its terms in the column of their stretch and zeros elsewhere. So a
column sums a stretch; scale and shift are tiles of the same shape, and what the columns and the
shares hold is added behind the loop. Several vectors have a column each.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch

from inductor.codegen.triton.exact_sums import needed_for
from inductor.codegen.triton.launch import Stage
from inductor.codegen.triton.matrix_sums import (
    BYTES,
    COLUMNS,
    ELEMENT,
    NIBBLES,
    PLANES,
    ROWS_OF_WORD,
    SPREAD,
    STRETCHES,
    MatrixSum,
    MatrixSums,
    in_elements,
    index_of_words,
    shape_of,
)
from inductor.codegen.triton.print_stage import Memory, StagePrinter
from inductor.codegen.triton.spelling import print_dtype, print_index
from inductor.codegen.triton.writer import ROWS, Columns, Frame, Text, Writer, program
from inductor.ir.body import Op
from inductor.ir.extent import up_to_multiple
from inductor.ir.index import variable

BITS = 4
ROW_MASK = "row_inside"  # of the loop's tiles, which have an axis of shares before the rows
ABOVE = {torch.bfloat16: "128.0", torch.float16: "1024.0"}  # what nibbles are added to
SUFFIX = {torch.bfloat16: "bf16", torch.float16: "fp16"}


class MatrixPrinter(StagePrinter):
    """Prints a stage with matrix sums."""

    def __init__(
        self, stage: Stage, columns: Columns, frame: Frame, writer: Writer, memory: Memory,
        made: MatrixSums,
    ) -> None:
        # What is outside of the loop has no columns, and the loop has masks of its own.
        super().__init__(stage, replace(columns, mask=""), frame, writer, memory)
        self.made = made
        self.shape_of_sums = shape_of(frame.launch, made)
        self.in_stretches = replace(stage, ops=tuple(map(self._in_stretch, self.stage.ops)))

    def _print_columns(self) -> None:
        late = []
        for position, op in enumerate(self.stage.ops):
            if op.name == "reduction" or self.phases.inside[position] or position in self.unlikely:
                continue
            if self.phases.after[position] or op.name == "store":
                late.append(position)
            else:
                self._print_op(position)
        totals = self._print_sums()
        for each, total in zip(self.made.sums, totals, strict=True):
            if self.made.vectors == 1:
                self._end_sum(each.reductions[0], f"tl.sum(tl.sum({total}, 2), 0)")
                continue
            together = self.writer.define(f"tl.sum({total}, 0)")
            column = f"tl.arange(0, {self.made.columns})[None, :]"
            for n, reduction in enumerate(each.reductions):
                self._end_sum(reduction, f"tl.sum(tl.where({column} == {n}, {together}, 0.0), 1)")
        self._print_exact_sums()
        for position in late:
            self._print_op(position)

    def _end_sum(self, reduction: int, text: str) -> None:
        self.values[reduction] = Text(self.writer.define(f"{text}[:, None]"), ROWS)

    def _print_sums(self) -> list[str]:
        """The loop; the names of what it sums, a tile for each weight."""
        line, made, shape = self.writer.line, self.made, self.shape_of_sums
        wide = ".to(tl.int64)" if self.frame.wide else ""
        line(f"STEP: tl.constexpr = {shape.step}")
        line(f"rows = ({program(self.frame)} * XBLOCK + tl.arange(0, XBLOCK))[None, :, None]{wide}")
        if self.frame.row_mask:
            line(f"{ROW_MASK} = rows < {self.frame.numbers.spell(self.frame.launch.rows)}")
        line(f"share = tl.arange(0, {shape.shares})[:, None, None]{wide}")
        line(f"column = tl.arange(0, {made.columns})[None, None, :]")
        width = self._width_of_part()
        for number, n in enumerate(self._parts_of_step()):
            first = f"{width} * {number} + " if number else ""
            line(f"along{n} = {first}tl.arange(0, {width})")
            if made.vectors == 1:
                line(f"own{n} = (along{n} // {shape.stretch})[None, :, None] == column")
            else:
                line(f"own{n} = (along{n} >= 0)[None, :, None] & (column < {made.vectors})")
        tile = f"[{shape.shares}, XBLOCK, {made.columns}]"
        totals = [self.writer.fresh("acc") for _ in made.sums]
        for total in totals:
            line(f"{total} = tl.zeros({tile}, tl.float32)")
        bounds = f"0, {shape.terms}, STEP, num_stages={shape.stages}"
        with self.writer.block(f"for base in tl.range({bounds}):"):
            line(f"begin = share * {shape.terms} + base")
            line("terms = begin + along[None, None, :]")
            if self._ends_in_step():
                for n in self._parts_of_step():
                    line(f"inside{n} = base + along{n} < {shape.terms}")
                    line(f"own_inside{n} = own{n} & inside{n}[None, :, None]")
            self._print_step_of_sums(totals)
        return totals

    def _ends_in_step(self) -> bool:
        """Whether a share's last step has fewer terms."""
        return self.shape_of_sums.terms % self.shape_of_sums.step != 0

    def _parts_of_step(self) -> tuple[str, ...]:
        """What the names of each part of a step end with."""
        return "", *map(str, range(1, self.shape_of_sums.parts))

    def _width_of_part(self) -> str:
        parts = self.shape_of_sums.parts
        return "STEP" if parts == 1 else f"STEP // {parts}"

    def _print_step_of_sums(self, totals: list[str]) -> None:
        line, made = self.writer.line, self.made
        dtype = made.left[0].dtype
        lefts = []
        for load in made.left:
            assert load.index is not None
            place = load.index.substitute({"r": 0}).offset
            for n in self._parts_of_step():
                own = f"own_inside{n}" if self._ends_in_step() else f"own{n} & (share >= 0)"
                lefts.append(self.writer.fresh("left"))
                at = f"begin + along{n}[None, :, None] + {made.apart} * column + {place}"
                pointer = f"{self.frame.parameters[load.buffer]} + ({at})"
                line(f"{lefts[-1]} = tl.load({pointer}, {own}, other=0.0)")
        shift = ""
        if made.kind != BYTES:
            shift = self._print_sums_of_left(lefts, dtype)
        for each, total in zip(made.sums, totals, strict=True):
            part = self._print_products(each, lefts, dtype)
            if made.kind != BYTES:
                part = f"({part} - {ABOVE[dtype]} * {shift})"
            scale, more = self._print_stretches(each)
            part = f"{part} * {scale}" if scale else part
            part = f"{part} + {shift} * {more}" if more else part
            line(f"{total} += {part}")

    def _print_sums_of_left(self, lefts: list[str], dtype: torch.dtype) -> str:
        """The sums of the stretches, which the units make, too."""
        size = f"[{self.shape_of_sums.shares}, XBLOCK, {self._width_of_part()}]"
        ones = f"tl.full({size}, 1.0, tl.float32)"
        name = self.writer.define(f"{ones}.to({print_dtype(dtype)})")
        total = self.writer.fresh("sums")
        for n, left in enumerate(lefts):
            self.writer.line(f"{total} = tl.dot({name}, {left}{f', {total}' if n else ''})")
        return total

    def _print_products(self, each: MatrixSum, lefts: list[str], dtype: torch.dtype) -> str:
        assert each.weight.index is not None
        kind = self.made.kind
        index = in_elements(each.weight.index, self.made, self.columns.extent)
        if kind == SPREAD:
            return self._print_spread(each, lefts, dtype)
        at = print_index(index, {"x": "rows", "r": "terms"}, self.frame.numbers)
        pointer = self.frame.parameters[each.weight.buffer]
        if ELEMENT[kind] is not each.weight.dtype:
            pointer = f"{pointer}.to(tl.pointer_type({print_dtype(ELEMENT[kind])}))"
        word = self.writer.fresh("words")
        masks = [ROW_MASK if self.frame.row_mask else "(rows >= 0)"]
        if self._ends_in_step():
            masks.append("inside[None, None, :]")
        masked = f", {' & '.join(masks)}, other=0" if len(masks) > 1 or self.frame.row_mask else ""
        self.writer.line(f"{word} = tl.load({pointer} + ({at}){masked})")
        if each.flip:
            self.writer.line(f"{word} = {word} ^ {self._flip(each.flip)}")
        part = self.writer.fresh("part")
        for n, numbers in enumerate(self._numbers(word, dtype)):
            before = f", {part}" if n else ""
            self.writer.line(f"{part} = tl.dot({numbers}, {lefts[n]}{before})")
        return part

    def _flip(self, bits: int) -> str:
        """Those of an element as it is read."""
        width = 8 * ELEMENT[self.made.kind].itemsize
        low = bits & ((1 << width) - 1)
        number = low - (1 << width) if low >> (width - 1) else low
        return f"tl.full([1, 1, 1], {number}, {print_dtype(ELEMENT[self.made.kind])})"

    def _print_spread(self, each: MatrixSum, lefts: list[str], dtype: torch.dtype) -> str:
        """The same of words that have a number of each of eight rows. A thread unpacks a word and
        stores its numbers side by side in shared memory, from where they are loaded as operands,
        turned; terms are the rows of this tile."""
        define, launch, shape = self.writer.define, self.frame.launch, self.shape_of_sums
        assert each.weight.index is not None and type(launch.rows) is int
        index = index_of_words(each.weight.index, launch.rows)
        count = f"XBLOCK // {ROWS_OF_WORD}"
        first = f"({program(self.frame)} * ({count}) + tl.arange(0, {count}))[None, None, :]"
        first = define(first)
        part = self.writer.fresh("part")
        for n, left in zip(self._parts_of_step(), lefts, strict=True):
            names = {"c": first, "r": define(f"begin + along{n}[None, :, None]")}
            at = print_index(index, names, self.frame.numbers)
            masks = [f"({first} < {launch.rows // ROWS_OF_WORD})"] if self.frame.row_mask else []
            masks += [f"inside{n}[None, :, None]"] if self._ends_in_step() else []
            mask = f", {' & '.join([*masks, '(share >= 0)'])}, other=0" if masks else ""
            word = define(f"tl.load({self.frame.parameters[each.weight.buffer]} + ({at}){mask})")
            eight = define(f"k_eight_{SUFFIX[dtype]}({word}, {', '.join(map(str, each.places))})")
            size = f"[{shape.shares}, {self._width_of_part()}, XBLOCK]"
            turned = f"tl.permute(tl.reshape({eight}, {size}), (0, 2, 1))"
            before = f", {part}" if n else ""
            self.writer.line(f"{part} = tl.dot({turned}, {left}{before})")
        return part

    def _numbers(self, word: str, dtype: torch.dtype) -> list[str]:
        """What the planes of a tile of weights are, as operands of units."""
        kind = self.made.kind
        if kind == BYTES:
            return [f"k_bytes_{SUFFIX[dtype]}({word})"]
        halves = [word]
        if kind == COLUMNS:
            parts = (word, f"({word} >> 16)")
            halves = [self.writer.define(f"{part}.to(tl.int16)") for part in parts]
        return [
            f"k_nibbles_{SUFFIX[dtype]}({half}, {BITS * n})"
            for half in halves for n in range(PLANES[NIBBLES])
        ]

    def _print_stretches(self, each: MatrixSum) -> tuple[str, str]:
        """Scale and shift of each row and stretch, "" for those that there are not."""
        wanted = [at for at in (each.scale, each.shift) if at is not None]
        if not wanted:
            return "", ""
        with self._in_stretches():
            for position in sorted(needed_for(self.stage.ops, wanted)):
                self._print_op(position)
            scale, shift = (
                "" if at is None else self.values[at].name for at in (each.scale, each.shift))
        return scale, shift

    def _in_stretch(self, op: Op) -> Op:
        """The op at the first column of the stretch `q`."""
        columns = self.shape_of_sums.stretch // self.made.per_column
        if op.index is None:
            return op
        number = variable("q", up_to_multiple(self.columns.extent, columns))
        return replace(op, index=op.index.substitute({"r": number * columns}))

    @contextmanager
    def _in_stretches(self) -> Iterator[None]:
        """Indices are those of the rows and the stretches."""
        shape, masks = self.shape_of_sums, []
        of_column = " + column" if self.made.vectors == 1 else ""
        number = self.writer.define(f"begin // {shape.stretch}{of_column}")
        if of_column and shape.step // shape.stretch < STRETCHES:
            masks.append(f"(column < {shape.step // shape.stretch})")
        if shape.terms % shape.step:
            last = f"(share * {shape.terms} + {shape.terms - 1}) // {shape.stretch}"
            masks.append(f"({number} <= {last})")
        stage, names, values, columns = self.stage, self.names, dict(self.values), self.columns
        frame = self.frame
        if frame.row_mask:
            self.frame = replace(frame, row_mask=ROW_MASK)
        self.stage, self.axes["q"] = self.in_stretches, frozenset("r")
        self.names = {**names, "x": "rows", "q": number}
        if masks:
            self.columns = replace(columns, mask=self.writer.define(" & ".join(masks)))
        yield
        self.stage, self.names, self.values, self.columns = stage, names, values, columns
        self.frame = frame


def printer_of(
    stage: Stage, columns: Columns, frame: Frame, writer: Writer, memory: Memory,
    made: MatrixSums | None,
) -> StagePrinter:
    """What prints a stage, with or without matrix sums."""
    if made is None:
        return StagePrinter(stage, columns, frame, writer, memory)
    return MatrixPrinter(stage, columns, frame, writer, memory, made)
