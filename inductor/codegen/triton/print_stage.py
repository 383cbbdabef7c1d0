"""The statements of one stage of a launch.

In: a `Stage` and what the function around it offers (a `Writer`). Out: lines in the writer. A value
has axes: `x` if it differs from row to row, `r` if it differs from column to column; its tile has
extent 1 along the others. (No value is a scalar: Triton's interpreter treats those badly.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch

from inductor.codegen.triton.aligned import Unaligned
from inductor.codegen.triton.exact_sums import needed_for, only_for, without_exact
from inductor.codegen.triton.launch import NotPrintable, Stage
from inductor.codegen.triton.online import is_same, tiles_of
from inductor.codegen.triton.print_accesses import AccessPrinter, Memory
from inductor.codegen.triton.products import is_zero, may_vanish, products_in_sums
from inductor.codegen.triton.relax import PREFIX, RELAXED
from inductor.codegen.triton.spelling import (
    COMBINE,
    COMBINE_FUNCTIONS,
    LAST_POSITION,
    SCAN_FUNCTIONS,
    SUM_OF_EXP,
    neutral,
    print_conversion,
    print_dtype,
    print_index,
    print_number,
)
from inductor.codegen.triton.writer import (
    NO_AXES,
    ROWS,
    Columns,
    Frame,
    Text,
    Writer,
    print_columns,
    print_ends,
    print_stretches,
    print_whole_stretches,
)
from inductor.ir.body import IndirectVar, Op
from inductor.ir.index import variable
from inductor.ir.philox import LANES, Draw
from inductor.ir.scalar_ops import SCALAR_OPS

# Columns of a tile of what is computed where a sum is not finite: of few sums, of more. A program
# then takes no more registers than the rest of it does (ptxas for sm_90; with 16 for four and more,
# 95 for 80, 168 for 113, 249 for 128).
COLUMNS_OF_EXACT, COLUMNS_OF_MANY_EXACT, FEW_EXACT = 16, 2, 1
# Programs of the device measured that wait for memory together; a thread has registers to spare.
FEW_ROWS = 512


class StagePrinter(AccessPrinter):
    """Prints one stage."""

    def __init__(
        self, stage: Stage, columns: Columns, frame: Frame, writer: Writer,
        memory: Memory,
    ) -> None:
        super().__init__(stage, columns, frame, writer, memory)
        self.exact: dict[int, int] = {}  # of sums: the terms where they are not finite
        if stage.reduction:
            ops, self.exact = without_exact(stage.ops)
            self.stage = replace(stage, ops=ops)
        self.unlikely = only_for(self.stage.ops, [*self.exact.values()])
        self.partial: dict[int, tuple[str, ...]] = {}
        self.products = self._products()
        self.fused: set[int] = set()  # of these, the ones that a sum adds as it multiplies
        # Of a step of a loop: which variable, for each shape, gathers what is out of range. An
        # assertion in a loop would be a barrier, and loads would not be on their way before it.
        self.faults: dict[str, str] | None = None
        self.fault_name = ""
        self.maxima: set[int] = set()  # that a sum of exponentials keeps

    def _products(self) -> frozenset[int]:
        launch = self.frame.launch
        if not self.stage.reduction or launch.persistent or launch.tiled:
            return frozenset()
        return products_in_sums(self.stage.ops, self.exact.values())

    def print(self) -> None:
        """All lines of the stage, after a barrier if it needs what other threads did."""
        start, memory = len(self.writer.lines), self.memory
        self._print_loops()
        if self.needs_barrier:
            indent = "    " * self.writer.depth
            self.writer.lines.insert(start, f"{indent}tl.debug_barrier()")
            memory.dirty, memory.read = set(), set()
        touched = [(op.name, op.buffer) for op in self.stage.ops if op.buffer not in self.own]
        memory.dirty |= {name for what, name in touched if what == "store"}
        memory.read |= {name for what, name in touched if what == "load"}

    def print_early(self) -> None:
        """The loads of a stage behind a reduction that need nothing of it: memory answers while
        rows are summed. A row of 8 KB waited 0.7 us for its residual after the sum on an H200."""
        known = {"x", "r"} if self.frame.launch.persistent and self._has_few_rows() else {"x"}
        for position, op in enumerate(self.stage.ops):
            if op.name != "load" or op.args or op.index is None:
                continue
            names = {var.name for var in op.index.variables()}
            if names <= known and op.buffer not in {*self.own, *self.frame.written}:
                self._print_op(position)

    def _has_few_rows(self) -> bool:
        launch = self.frame.launch
        return type(launch.rows) is int and launch.rows <= launch.gpu.scaled(FEW_ROWS)

    def print_some(self, positions: Iterable[int]) -> None:
        """The lines of these ops, where each iteration stands alone."""
        for position in positions:
            self._print_op(position)

    def _print_loops(self) -> None:
        if self.stage.serial == 1:
            self._print_columns()
            return
        serial = self.frame.numbers.spell(self.stage.serial)
        with self.writer.block(f"for s_ in range(0, {serial}):"):
            kind = "tl.int64" if self.frame.wide else "tl.int32"
            self.writer.line(f"s = tl.full([], s_, {kind})")
            self._print_columns()

    def _print_columns(self) -> None:
        if self.frame.launch.persistent or self.frame.launch.tiled or self.stage.columns == 1:
            positions = [n for n in range(len(self.stage.ops)) if n not in self.unlikely]
            if self.exact:  # what follows from the sums comes last
                positions.sort(key=lambda n: self.phases.after[n] and n not in self.exact)
            for n, position in enumerate(positions):
                self._print_op(position)
                if position in self.exact and not self.exact.keys() & {*positions[n + 1 :]}:
                    self._print_exact_sums()
            return
        loops, stores = [], []
        for position, op in enumerate(self.stage.ops):
            if position in self.unlikely:
                continue
            moves = self.phases.inside[position]
            if op.name == "reduction" and self.stage.reduction:
                loops.append(position)
                self._begin_reduction(position, op)
            elif moves or (op.name == "store" and not self.stage.reduction):
                loops.append(position)
            elif self.phases.after[position] or op.name == "store":
                stores.append(position)
            else:
                self._print_op(position)
        if loops:
            self._print_loop(loops)
        for position in loops:
            if position in self.partial:
                self._end_reduction(position, self.stage.ops[position])
        self._print_exact_sums()
        for position in stores:
            self._print_op(position)

    def _print_loop(self, inside: list[int]) -> None:
        columns, launch = self.columns, self.frame.launch
        bounds = f"0, {self.frame.numbers.spell(columns.extent)}"
        if launch.splits != 1:
            bounds = f"g * {launch.chunk}, g * {launch.chunk} + {launch.chunk}"
        if self.unaligned is not None:
            bounds = self._print_ends(inside, self.unaligned)
        if tiles_of(self.stage) != 1:
            self._print_tiles(inside, bounds)
            return
        with self.writer.block(f"for base in range({bounds}, {columns.block}):"):
            self._print_tile_of_columns("base")
            self._print_step(inside)

    def _print_exact_sums(self) -> None:
        """A branch that replaces sums that are not finite, with a loop of its own over small tiles:
        it takes no registers that the other one has not."""
        if not self.exact:
            return
        ops, writer, launch = self.stage.ops, self.writer, self.frame.launch
        step = COLUMNS_OF_EXACT if len(self.exact) <= FEW_EXACT else COLUMNS_OF_MANY_EXACT
        wanted = [*self.exact.values()]
        needed = sorted(needed_for(ops, wanted))
        totals = [self.values[position].name for position in self.exact]
        tests = [writer.define(f'tl.abs({total}) < float("inf")') for total in totals]
        wrong = " | ".join(f"({test} == 0)" for test in tests)
        writer.line(f"EXACT: tl.constexpr = {step}")
        with writer.block(f"if tl.max(tl.max(({wrong}).to(tl.int32), 1), 0) != 0:"):
            for position in needed:
                if position in self.unlikely and not self.phases.inside[position]:
                    self._print_op(position)
            with self._in_columns(self._columns_of_exact(step)):
                sums = [writer.fresh("acc") for _ in wanted]
                for each in sums:
                    writer.line(f"{each} = tl.full([XBLOCK, EXACT], 0.0, tl.float32)")
                bounds = f"0, {self.frame.numbers.spell(self.columns.extent)}"
                if launch.splits != 1:
                    bounds = f"g * {launch.chunk}, g * {launch.chunk} + {launch.chunk}"
                with writer.block(f"for base in range({bounds}, EXACT):"):
                    print_columns(writer, self.columns, "base", self.frame)
                    for position in needed:
                        if self.phases.inside[position]:
                            self._print_op(position)
                    for each, position in zip(sums, wanted, strict=True):
                        terms = self._masked_operand(self.values[position], "sum", torch.float32)
                        writer.line(f"{each} = {each} + {terms}")
            for total, test, each in zip(totals, tests, sums, strict=True):
                exact = f"tl.sum({each}, 1, keep_dims=True)"
                writer.line(f"{total} = tl.where({test}, {total}, {exact})")

    def _columns_of_exact(self, step: int) -> Columns:
        extent, launch = self.columns.extent, self.frame.launch
        step = step if launch.splits == 1 else launch.chunk
        return Columns("e", "" if extent % step == 0 else "emask", "EXACT", extent)

    @contextmanager
    def _in_columns(self, columns: Columns) -> Iterator[None]:
        """Elements are those of other columns, one after the other."""
        kept = self.columns, self.names, self.values, self.unaligned
        self.columns, self.unaligned = columns, None
        self.names, self.values = {**self.names, "r": columns.name}, dict(self.values)
        yield
        self.columns, self.names, self.values, self.unaligned = kept

    def _print_step(self, inside: list[int]) -> None:
        """What is done with one tile of columns."""
        for position in inside:
            if position in self.partial:
                self._step_reduction(position, self.stage.ops[position])
            else:
                self._print_op(position)

    def _print_tile_of_columns(self, base: str) -> None:
        print_tile = print_columns if self.unaligned is None else print_whole_stretches
        print_tile(self.writer, self.columns, base, self.frame)

    def _print_ends(self, inside: list[int], rows: Unaligned) -> str:
        """What is done with the ends of a row; the bounds of the rest."""
        bounds = print_stretches(self.writer, self.columns, self.frame, rows)
        self.writer.scopes.append({})
        print_ends(self.writer, self.columns, self.frame, rows)
        self._print_step(inside)
        self.writer.scopes.pop()
        return bounds

    def _print_tiles(self, inside: list[int], bounds: str) -> None:
        """A loop over several tiles at a time."""
        block, count = self.columns.block, tiles_of(self.stage)
        seen: dict[int, list[str]] = {
            position: [] for position in inside if self.stage.ops[position].imm == SUM_OF_EXP
        }
        with self.writer.block(f"for base in range({bounds}, {count} * {block}):"):
            for tile in range(count):
                self.writer.scopes.append({})
                self._print_tile_of_columns(f"base + {tile} * {block}")
                for position in inside:
                    op = self.stage.ops[position]
                    if position in seen:
                        seen[position] += self._operands(op)
                    elif position in self.partial:
                        self._step_reduction(position, op)
                    else:
                        self._print_op(position)
                self.writer.scopes.pop()
            for position, values in seen.items():
                totals = ", ".join(self.partial[position])
                given = ", ".join(values)
                self.writer.line(f"{totals} = k_sum_of_four_exp({totals}, {given})")

    def _print_op(self, position: int) -> None:
        op = self.stage.ops[position]
        self.position = position
        if position in self.products and all(self._is_zero_beyond(arg) for arg in op.args):
            self.fused.add(position)
            return
        printer = _PRINTERS.get(op.name, StagePrinter._print_plain)
        result = printer(self, op)
        if result is not None:
            self.values[position] = result

    # one method for each structural operation

    def _print_plain(self, op: Op) -> Text:
        args = self._args(op)
        axes = frozenset().union(*(arg.axes for arg in args))
        source = self.stage.ops[op.args[0]].dtype
        if op.name == "to_dtype":
            is_loaded = self.stage.ops[op.args[0]].name == "load"
            is_loaded &= self.frame.launch.gpu.capability > 0  # by instructions of NVIDIA's
            text = print_conversion(args[0].name, source, op.dtype, is_loaded)
        else:
            relaxed = op.name.startswith(PREFIX)
            spelled = RELAXED[op.name[len(PREFIX) :]] if relaxed else SCALAR_OPS[op.name].triton
            if op.name == "truediv" and may_vanish(self.stage.ops, op.args[0]):
                spelled = "k_truediv_of_small({0}, {1})"
            text = spelled.format(*(arg.name for arg in args), T=print_dtype(op.dtype))
        return Text(self.writer.define(text), axes)

    def _print_constant(self, op: Op) -> Text:
        text = self._constant(op.imm, op.dtype)
        return Text(self.writer.define(text), NO_AXES)

    def _print_index_expr(self, op: Op) -> Text:
        assert op.index is not None
        text, axes = self._index(op.index)
        kind = print_dtype(op.dtype)
        text = f"({text}).to({kind})" if axes else f"tl.full({self.shape(axes)}, {text}, {kind})"
        return Text(self.writer.define(text), axes)

    def _print_indirect(self, op: Op) -> Text:
        imm = op.imm
        assert isinstance(imm, IndirectVar)
        value, *mask = self._args(op)
        size, axes = self.frame.numbers.spell(imm.var.size), value.axes
        name = self.writer.define(f"{value.name}.to(tl.int64)")
        if imm.wrap:
            name = self.writer.define(f"tl.where({name} < 0, {name} + {size}, {name})")
        if mask:
            axes |= mask[0].axes
            name = self.writer.define(f"tl.where({mask[0].name}, {name}, 0)")
        if imm.check:
            tiles = self._mask(axes)
            good = f"({name} >= 0) & ({name} < {size})"
            good += f" | ~({tiles})" if tiles else ""
            if self.faults is None:
                self.writer.line(f'tl.device_assert({good}, "index out of range")')
            else:
                shape = self.shape(axes)
                fault = self.faults.setdefault(shape, f"{self.fault_name}_{len(self.faults)}")
                good = self.writer.define(good)
                self.writer.line(f"{fault} = {fault} | ({good} == 0)")
                name = self.writer.define(f"tl.where({good}, {name}, 0)")
        if not self.frame.wide:
            name = self.writer.define(f"{name}.to(tl.int32)")
        self.names[imm.var.name] = name
        self.axes[imm.var.name] = axes
        return Text(name, axes)

    def _print_keep(self, op: Op) -> Text:
        draw = op.imm
        assert isinstance(draw, Draw)
        seed, offset, position = self._args(op)
        # a parameter, so that layers which differ in nothing else are one function
        skip = self.frame.numbers.exact(draw.skip)
        facts = f"{skip}, {draw.vector}, {draw.threads}, {draw.limit}, {draw.wraps}"
        text = f"k_keep({seed.name}, {offset.name}, {position.name}, {facts})"
        axis = self._axis_of_fours(self.stage.ops[op.args[2]], draw)
        if axis:  # and the tile is long enough, which Triton knows
            at = self._every_fourth(self.stage.ops[op.args[2]], axis)
            four = f"k_keep_four({seed.name}, {offset.name}, {at}, {facts})"
            if not self.frame.flat and axis == "x":
                four = f"tl.permute({four}, 0, 2, 3, 1)"
            four = f"tl.reshape({four}, {self.shape(position.axes)}) != 0"
            text = f"{four} if {self._block(axis)} % {LANES} == 0 else {text}"
        return Text(self.writer.define(text), position.axes)

    def _axis_of_fours(self, position: Op, draw: Draw) -> str:
        """The axis along which four neighbours, which share Philox's four numbers, lie side by
        side in a tile, of which each begins at a multiple of four; empty if there is none."""
        index = position.index
        if draw.vector < LANES or position.name != "index_expr" or index is None:
            return ""
        if index.offset % LANES or self.frame.launch.chunk % LANES:
            return ""
        wanted = ROWS if self.frame.flat else frozenset("xr")
        names = {var.name for var in index.variables()}
        if names - {"x", "r", "g", "s"} or self._index(index)[1] != wanted:
            return ""
        for axis, extent in (("r", self.columns.extent), ("x", self.frame.launch.rows)):
            rest = index.substitute({axis: 0})
            whole = all(factor % LANES == 0 for _, factor in rest.terms)
            if whole and axis in names and index - rest == variable(axis, extent):
                return axis
        return ""

    def _every_fourth(self, position: Op, axis: str) -> str:
        """The positions of the first of each four neighbours along the axis."""
        assert position.index is not None
        text = f"{LANES} * tl.arange(0, {self._block(axis)} // {LANES})"
        if axis == "x":
            text = f"tl.program_id(0) * XBLOCK + {text}" + ("" if self.frame.flat else "[:, None]")
        else:
            base = self.writer.bases[self.columns.name]
            text = f"{base} + {text}[None, :]" if base else f"{text}[None, :]"
        kind = "tl.int64" if self.frame.wide else "tl.int32"
        names = {**self.names, axis: f"({text}).to({kind})"}
        text = print_index(position.index, names, self.frame.numbers)
        return f"({text}).to({print_dtype(position.dtype)})"

    # reductions: at once over a tile, or step by step over the tiles of a loop

    def _masked_operand(self, value: Text, kind: str, dtype: torch.dtype) -> str:
        tile = self._tile(value, frozenset("xr"))
        if not self.columns.mask:
            return tile
        filler = self._constant(neutral(kind, dtype), dtype)
        return self.writer.define(f"tl.where({self.columns.mask}, {tile}, {filler})")

    def _is_zero_beyond(self, position: int) -> bool:
        """Whether a value is zero where there are no columns any more."""
        mask = self.columns.mask
        unread = [
            at for at, op in enumerate(self.stage.ops)
            if op.name == "load" and at in self.values
            and self.unread.get(self.values[at].name) == mask
        ]  # fmt: skip
        return not mask or is_zero(self.stage.ops, position, unread)

    def _operands(self, op: Op) -> tuple[str, ...]:
        kind = "max" if op.imm == SUM_OF_EXP else str(op.imm)
        if kind == "sum" and self._is_zero_beyond(op.args[0]):
            return (self._tile(self.values[op.args[0]], frozenset("xr")),)
        value = self._masked_operand(self.values[op.args[0]], kind, self._reduced_dtype(op))
        if len(op.args) == 1:
            return (value,)
        place = self._tile(self.values[op.args[1]], frozenset("xr"))
        if self.columns.mask:
            place = self.writer.define(
                f"tl.where({self.columns.mask}, {place}, {LAST_POSITION}).to(tl.int64)"
            )
        return value, place

    def _reduced_dtype(self, op: Op) -> torch.dtype:
        return self.stage.ops[op.args[0]].dtype

    def _finish(self, op: Op, operands: tuple[str, ...]) -> Text:
        kind = str(op.imm)
        if kind == SUM_OF_EXP:
            best, total = operands
            most = self.writer.define(f"tl.reduce({best}, 1, k_maximum, keep_dims=True)")
            scaled = f"{total} * libdevice.exp({best} - {most})"
            return Text(self.writer.define(f"tl.sum({scaled}, 1, keep_dims=True)"), ROWS)
        function = COMBINE_FUNCTIONS[kind]
        if len(operands) == 1:
            text = f"tl.reduce({operands[0]}, 1, {function}, keep_dims=True)"
            if kind == "sum" and op.dtype in (torch.float32, torch.float64):
                text = f"tl.sum({operands[0]}, 1, keep_dims=True)"
            name = self.writer.define(text)
            if op.dtype is not self._reduced_dtype(op):
                name = self.writer.define(f"{name}.to({print_dtype(op.dtype)})")
            return Text(name, ROWS)
        best, place = self.writer.fresh(), self.writer.fresh()
        pair = ", ".join(operands)
        self.writer.line(f"{best}, {place} = tl.reduce(({pair}), 1, {function}, keep_dims=True)")
        return Text(place, ROWS)

    def _print_reduction(self, op: Op) -> Text:
        if not self.stage.reduction:
            value = self._args(op)[-1]
            source = self.stage.ops[op.args[-1]].dtype
            if op.dtype is source:
                return value
            text = print_conversion(value.name, source, op.dtype)
            return Text(self.writer.define(text), value.axes)
        return self._finish(op, self._operands(op))

    def _print_scan(self, op: Op) -> Text:
        if not self.frame.launch.persistent:
            raise NotPrintable(f"{op} over a row that is no tile")
        tile = self._tile(self.values[op.args[0]], frozenset("xr"))  # whose end matters to nothing
        text = f"tl.associative_scan({tile}, 1, {SCAN_FUNCTIONS[str(op.imm)]})"
        return Text(self.writer.define(text), frozenset("xr"))

    def _print_sort(self, op: Op) -> Text:
        """Of keys of 32 bits their places are the lower half of what is sorted."""
        if not self.frame.launch.persistent:
            raise NotPrintable(f"{op} over a row that is no tile")
        key = self._tile(self.values[op.args[0]], frozenset("xr"))
        place = self.columns.name
        if self.stage.ops[op.args[0]].dtype is torch.int32:
            key = self.writer.define(f"({key}.to(tl.int64) << 32) | {place}")
        if self.columns.mask:
            key = self.writer.define(f"tl.where({self.columns.mask}, {key}, {LAST_POSITION})")
        if self.stage.ops[op.args[0]].dtype is torch.int32:
            text = f"k_sorted({key}).to(tl.int32)"
        else:
            place = self.writer.define(f"tl.broadcast_to({place}, {self.shape(frozenset('xr'))})")
            text = f"k_sorted_places({key}, {place}.to(tl.int32))"
        return Text(self.writer.define(text), frozenset("xr"))

    def _begin_reduction(self, position: int, op: Op) -> None:
        if position in self.partial:
            return
        kind, dtype = str(op.imm), self._reduced_dtype(op)
        shape = self.shape(frozenset("xr"))
        online = self._sum_of_exp_beside(op)
        if online is not None:
            self._begin_reduction(online, self.stage.ops[online])
            self.partial[position] = self.partial[online][:1]
            self.maxima.add(position)
            return
        if kind == SUM_OF_EXP:
            self._begin_sum_of_exp(position, shape, print_dtype(dtype))
            return
        first = self.writer.fresh("acc")
        start = print_number(neutral(kind, dtype))
        self.writer.line(f"{first} = tl.full({shape}, {start}, {print_dtype(dtype)})")
        self.partial[position] = (first,)
        if len(op.args) == 2:
            place = self.writer.fresh("acc")
            self.writer.line(f"{place} = tl.full({shape}, {LAST_POSITION}, tl.int64)")
            self.partial[position] = (first, place)

    def _sum_of_exp_beside(self, op: Op) -> int | None:
        """Of a maximum, the sum of exponentials that keeps the same one anyway."""
        if op.imm != "max":
            return None
        ops = self.stage.ops
        for position, other in enumerate(ops):
            if other.imm == SUM_OF_EXP and is_same(ops, other.args[0], op.args[0]):
                return position
        return None

    def _begin_sum_of_exp(self, position: int, shape: str, dtype: str) -> None:
        best, total = self.writer.fresh("acc"), self.writer.fresh("acc")
        self.writer.line(f'{best} = tl.full({shape}, float("-inf"), {dtype})')
        self.writer.line(f"{total} = tl.full({shape}, 0.0, {dtype})")
        self.partial[position] = (best, total)

    def _step_reduction(self, position: int, op: Op) -> None:
        if position in self.maxima:
            return
        kind, totals = str(op.imm), self.partial[position]
        if op.args[0] in self.fused:
            factors = [self.values[arg] for arg in self.stage.ops[op.args[0]].args]
            one, other = (self._tile(each, frozenset("xr")) for each in factors)
            self.writer.line(f"{totals[0]} = tl.fma({one}, {other}, {totals[0]})")
            return
        operands = self._operands(op)
        if kind == SUM_OF_EXP:
            best, total = totals
            self.writer.line(f"{best}, {total} = k_sum_of_exp({best}, {total}, {operands[0]})")
            return
        if len(totals) == 2:
            both = f"{totals[0]}, {totals[1]}, {operands[0]}, {operands[1]}"
            self.writer.line(f"{totals[0]}, {totals[1]} = {COMBINE_FUNCTIONS[kind]}({both})")
            return
        combined = COMBINE[kind].format(totals[0], operands[0])
        self.writer.line(f"{totals[0]} = {combined}")

    def _end_reduction(self, position: int, op: Op) -> None:
        self.values[position] = self._finish(op, self.partial[position])


_PRINTERS: dict[str, Callable[[StagePrinter, Op], Text | None]] = {
    "constant": StagePrinter._print_constant,
    "index_expr": StagePrinter._print_index_expr,
    "load": StagePrinter._print_load,
    "store": StagePrinter._print_store,
    "indirect": StagePrinter._print_indirect,
    "reduction": StagePrinter._print_reduction,
    "scan": StagePrinter._print_scan,
    "sort": StagePrinter._print_sort,
    "keep": StagePrinter._print_keep,
}
