"""The loads and stores of one stage of a launch.

In: a `Stage` and what the function around it offers (a `Writer`). Out: lines in the writer. What is
stored is remembered, so that it need not be loaded; places that alternate are moved in pairs
(`pairs`), rows that begin anywhere in stretches (`aligned`).
"""

from __future__ import annotations

from dataclasses import replace

import torch

from inductor.codegen.triton.aligned import Unaligned, unaligned_rows
from inductor.codegen.triton.eviction import (
    EVICT_FIRST,
    EVICT_LAST,
    read_for_the_last_time,
    reread,
)
from inductor.codegen.triton.launch import NotPrintable, Phases, Stage
from inductor.codegen.triton.pairs import BOTH, Doubled, Swapped, joined_stores, pair_of
from inductor.codegen.triton.spelling import (
    ATOMIC_ADD,
    neutral,
    print_constant,
    print_dtype,
    print_index,
    print_number,
)
from inductor.codegen.triton.tiling import rows_alike
from inductor.codegen.triton.writer import (
    NO_AXES,
    ROWS,
    Axes,
    Columns,
    Frame,
    Text,
    Writer,
    program,
)
from inductor.ir.body import Immediate, Op, is_small
from inductor.ir.index import Index, variable

FIRST = "first"  # the first row of a tile


class Memory:
    """What the stages printed so far did to buffers, and the values of locals.

    stored: the last value at an index of a buffer, where it is known outside of loops. dirty, read:
    buffers that earlier stages wrote and read since the last barrier. halves: of buffers of which
    every second element has been computed, and is stored with the others, that and where it goes.
    """

    def __init__(self) -> None:
        self.locals: dict[str, Text] = {}
        self.stored: dict[str, tuple[Index, str, Text]] = {}
        self.dirty: set[str] = set()
        self.read: set[str] = set()
        self.halves: dict[str, tuple[Index, str]] = {}


class AccessPrinter:
    """Prints the loads and stores of a stage; `memory` goes from stage to stage."""

    def __init__(
        self, stage: Stage, columns: Columns, frame: Frame, writer: Writer,
        memory: Memory,
    ) -> None:
        self.stage = stage
        self.columns = columns
        self.frame = frame
        self.writer = writer
        self.memory = memory
        self.needs_barrier = False
        self.own = {local.name for local in frame.launch.locals}
        first = f"({program(frame)} * XBLOCK)"
        self.names = {"x": "x", "r": columns.name, "g": "g", "s": "s", FIRST: first}
        self.axes: dict[str, Axes] = {
            "x": ROWS, "r": frozenset("r"), "g": NO_AXES, "s": NO_AXES, FIRST: NO_AXES
        }
        self.values: dict[int, Text] = {}
        self.unread: dict[str, str] = {}  # of what was loaded: the columns beyond which it is zero
        self.phases = Phases(stage)
        self.read_last = read_for_the_last_time(frame.launch, stage)
        self.reread = reread(frame.launch, stage)
        self.unaligned = unaligned_rows(frame.launch, stage)
        self.axis = "x" if frame.flat else "r"  # along which a thread has neighbours
        self.joined = joined_stores(frame.launch, self.axis) if frame.elements else {}
        self.position = 0

    def _args(self, op: Op) -> list[Text]:
        return [self.values[arg] for arg in op.args]

    def shape(self, axes: Axes) -> str:
        """The shape of a tile with these axes."""
        if self.frame.flat:
            return "[XBLOCK]" if axes else "[1]"
        rows = "XBLOCK" if "x" in axes else "1"
        return f"[{rows}, {self.columns.block if 'r' in axes else '1'}]"

    def _index(self, index: Index) -> tuple[str, Axes]:
        axes = NO_AXES
        for var in index.variables():
            axes |= self.axes[var.name]
        return print_index(index, self.names, self.frame.numbers), axes

    def _constant(self, value: Immediate, dtype: torch.dtype) -> str:
        return print_constant(value, dtype, self.shape(NO_AXES), self.frame.numbers)

    def _pointer(self, op: Op, more: Axes) -> tuple[str, Axes]:
        assert op.index is not None
        text, axes = self._index(op.index)
        if self.unaligned is not None and op.index.depends_on("r"):
            text = self._place_in_stretches(op.index, self.unaligned) or text
        pointer = f"{self.frame.parameters[op.buffer]} + ({text})"
        if not axes or not more <= axes:
            axes |= more
            pointer = f"tl.broadcast_to({pointer}, {self.shape(axes)})"
        return pointer, axes

    def _place_in_stretches(self, index: Index, rows: Unaligned) -> str:
        name, beyond = self.columns.name, rows.beyond(index)
        if beyond is None:
            return ""
        more = "" if beyond == 0 else f" + {self._index(beyond)[0]}"
        return f"whole_{name} + at_{name}{more}"

    def _mask(self, axes: Axes, *more: str) -> str:
        parts = [self.frame.row_mask] if "x" in axes and self.frame.row_mask else []
        parts += [self.columns.mask] if "r" in axes and self.columns.mask else []
        return " & ".join([*parts, *more])

    def _tile(self, value: Text, axes: Axes) -> str:
        """The value with exactly these axes."""
        if value.axes == axes:
            return value.name
        return self.writer.define(f"tl.broadcast_to({value.name}, {self.shape(axes)})")

    def _block(self, axis: str) -> str:
        return "XBLOCK" if axis == "x" else self.columns.block

    def _print_load(self, op: Op) -> Text:
        masks = self._args(op)
        if op.buffer in self.own:
            value = self.memory.locals[op.buffer]
            if not masks:
                return value
            zero = print_number(neutral("sum", op.dtype))
            text = f"tl.where({masks[0].name}, {value.name}, {zero}).to({print_dtype(op.dtype)})"
            return Text(self.writer.define(text), value.axes | masks[0].axes)
        pair = self._pair_of(op)
        if isinstance(pair, Swapped):
            return self._print_swapped(op, pair)
        if isinstance(pair, Doubled):
            return self._print_doubled(op, pair)
        return self._print_loaded(op, masks)

    def _print_loaded(self, op: Op, masks: list[Text]) -> Text:
        known = self.memory.stored.get(op.buffer)
        if known is not None and not masks and known[:2] == (op.index, self.columns.name):
            return known[2]
        self.needs_barrier |= op.buffer in self.memory.dirty
        pointer, axes = self._pointer(self._once(op), masks[0].axes if masks else NO_AXES)
        for mask in masks[1:]:
            axes |= mask.axes
        text = self._load(op, pointer, axes, self._mask(axes, *(m.name for m in masks)))
        name = self.writer.define(text, reuse=op.buffer not in self.frame.written)
        if "r" in axes:
            self.unread[name] = self.columns.mask
        return Text(name, axes)

    def _load(self, op: Op, pointer: str, axes: Axes, mask: str) -> str:
        zero = "0.0" if is_small(op.dtype) else "0"  # an integer is no small float
        more = f", {mask}, other={zero}" if mask else ""
        if op.buffer in self.read_last and "r" in axes:
            more += f", {EVICT_FIRST}"
        elif op.buffer in self.reread and "r" in axes:
            more += f", {EVICT_LAST}"
        return f"tl.load({pointer}{more})"

    # one of a pair: see `pairs`

    def _pair_of(self, op: Op) -> Swapped | Doubled | None:
        elements = self.frame.elements.get(op.buffer)
        if elements is None or self.unaligned is not None:
            return None
        return pair_of(self.stage.ops, self.position, self.axis, elements)

    def _print_swapped(self, op: Op, pair: Swapped) -> Text:
        conditions = [self.values[position] for position in pair.conditions]
        both = self._print_loaded(replace(op, index=pair.both, args=()), conditions)
        if self.axis not in both.axes:  # stored by this kernel, the same everywhere
            return both
        other = self.writer.define(f"k_swapped({both.name})")
        side = f"({self.names[self.axis]} % 2) == {pair.side}"
        value = self.writer.define(f"tl.where({side}, {both.name}, {other})")
        axes, zero = both.axes, print_number(neutral("sum", op.dtype))
        for mask in self._args(op):  # what a masked load gives
            axes |= mask.axes
            value = self.writer.define(
                f"tl.where({mask.name}, {value}, {zero}).to({print_dtype(op.dtype)})")
        return Text(value, axes)

    def _print_doubled(self, op: Op, pair: Doubled) -> Text:
        self.needs_barrier |= op.buffer in self.memory.dirty
        masks = self._args(op)
        pointer, axes, limits = self._doubled(op, pair.both)
        if masks:
            axes |= masks[0].axes
            rows = [] if self.frame.flat else ["XBLOCK" if "x" in axes else "1"]
            shape = ", ".join([*rows, f"2 * {self._block(self.axis)}"])
            pointer = f"tl.broadcast_to({pointer}, [{shape}])"
        load = self._load(op, pointer, axes, " & ".join([*limits, *(m.name for m in masks)]))
        both = self.writer.define(load, reuse=op.buffer not in self.frame.written)
        name = self.writer.define(f"k_side({both}, {pair.side})")
        if self.axis == "r":
            self.unread[name] = self.columns.mask
        return Text(name, axes)

    def _doubled(self, op: Op, both: Index) -> tuple[str, Axes, list[str]]:
        """Pointers to a tile of twice as many elements along the axis, its axes, its limits."""
        axis, columns = self.axis, self.columns
        block, kind = self._block(axis), "tl.int64" if self.frame.wide else "tl.int32"
        text = f"tl.arange(0, 2 * {block})"
        if axis == "x":
            text = f"2 * {program(self.frame)} * XBLOCK + {text}"
        else:
            base = self.writer.bases[columns.name]
            text = f"2 * ({base}) + {text}[None, :]" if base else f"{text}[None, :]"
        name = self.writer.define(f"({text}).to({kind})")
        index = self._once(replace(op, index=both)).index
        assert index is not None
        place = print_index(index, {**self.names, BOTH: name}, self.frame.numbers)
        axes = frozenset(axis).union(
            *(self.axes[var.name] for var in index.variables() if var.name != BOTH))
        limits = []
        rows = "x", self.frame.launch.rows, self.frame.row_mask
        for each, extent, mask in (("r", columns.extent, columns.mask), rows):
            if each in axes and mask:
                end = self.frame.numbers.spell(2 * extent)
                limits.append(f"({name} < {end})" if each == axis else mask)
        return f"{self.frame.parameters[op.buffer]} + ({place})", axes, limits

    def _print_half(self, op: Op, both: Index, value: Text) -> None:
        """The store of every second element, with that of the others if they are there."""
        assert op.index is not None
        pointer, axes, limits = self._doubled(op, both)
        tile = self._tile(value, axes)
        if op.buffer not in self.memory.halves:
            self.memory.halves[op.buffer] = op.index, tile
            return
        index, other = self.memory.halves.pop(op.buffer)
        sides = (tile, other) if index == op.index + 1 else (other, tile)
        more = f", {' & '.join(limits)}" if limits else ""
        if self.read_last and "r" in axes:
            more += f", {EVICT_FIRST}"
        self.writer.line(f"tl.store({pointer}, k_joined({', '.join(sides)}){more})")

    def _once(self, op: Op) -> Op:
        """The load in terms of the tile's first row, where it is the same for all rows of a tile.
        """
        assert op.index is not None
        most = self.frame.most_rows
        if not most or not rows_alike(op.index, most):
            return op
        first = variable(FIRST, self.frame.launch.rows)
        return replace(op, index=op.index.substitute({"x": first}))

    def _print_store(self, op: Op) -> None:
        (value,) = self._args(op)
        if op.buffer in self.own:
            self._print_local_store(op, value)
            return
        if op.buffer in self.joined:
            self._print_half(op, self.joined[op.buffer], value)
            return
        self.needs_barrier |= op.buffer in self.memory.dirty | self.memory.read
        self._remember(op, value)
        if op.imm == "set":
            pointer, axes = self._pointer(op, value.axes)
            mask = self._mask(axes)
            more = f", {mask}" if mask else ""
            if self.read_last and "r" in axes:
                more += f", {EVICT_FIRST}"
            self.writer.line(f"tl.store({pointer}, {value.name}{more})")
            return
        if op.dtype not in ATOMIC_ADD:
            raise NotPrintable(f"no atomic add of {op.dtype}")
        columns = self.stage.columns != 1 and (
            not self.stage.reduction or self.phases.inside[self.position]
        )
        pointer, axes = self._pointer(op, frozenset("xr") if columns else ROWS)
        mask = self._mask(axes) or "None"
        self.writer.line(
            f'tl.atomic_add({pointer}, {self._tile(value, axes)}, {mask}, sem="relaxed")'
        )

    def _remember(self, op: Op, value: Text) -> None:
        """Keep what a later load of the same place gives; forget it where that is not sure."""
        assert op.index is not None
        lasting = len(self.writer.scopes) == 1 and op.imm == "set"
        if lasting and all(var.name in ("x", "r") for var in op.index.variables()):
            self.memory.stored[op.buffer] = (op.index, self.columns.name, value)
        else:
            self.memory.stored.pop(op.buffer, None)

    def _print_local_store(self, op: Op, value: Text) -> None:
        local = next(x for x in self.frame.launch.locals if x.name == op.buffer)
        axes = ROWS if self.stage.columns == 1 or local.elements == 1 else frozenset("xr")
        in_loop = len(self.writer.scopes) > 1
        if not value.axes <= axes or op.imm != "set" or in_loop:
            raise NotPrintable(f"{op} into a local")
        self.memory.locals[op.buffer] = Text(self._tile(value, axes), axes)
