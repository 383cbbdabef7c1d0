"""Triton text of a `TemplateKernel`: a template (`templates/`) with its holes filled.

In: a `TemplateKernel` with blocks and the layouts of the buffers that it touches. Out: a
`TemplateSource`. What becomes of the elements of a tile (bias, rounding as the operator rounds, the
operations of the epilogue, stores) is printed by `StagePrinter`: `x` is the row of the result in
all batches, `r` the column, and what was accumulated is a value that is known before. So is what a
prologue makes of the left operand: `r` is then its column. Where several
programs share the sum of a tile (`g` says which), each stores its part of it, and a kernel like any
other adds the parts, in order, and does the rest.
"""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jinja2
import torch

from inductor.codegen.triton.launch import Launch, NotPrintable, Scratch, Stage
from inductor.codegen.triton.numbers import MOST_INT32, Numbers, Parameter, reaches
from inductor.codegen.triton.print_kernel import TritonKernel, print_kernel, title_of
from inductor.codegen.triton.print_stage import (
    Columns,
    Frame,
    Memory,
    StagePrinter,
    Text,
    Writer,
)
from inductor.codegen.triton.relax import relax_stages
from inductor.codegen.triton.spelling import needs_int64, print_dtype, print_index
from inductor.codegen.triton.template_configs import gpu_of
from inductor.codegen.triton.template_weights import (
    PROLOGUE_NAMES,
    WeightText,
    print_weight,
    stage_of_weight,
    words_of,
)
from inductor.codegen.triton.templates.gemm import GEMM
from inductor.codegen.triton.window import (
    WindowText,
    describe_window,
    end_of_columns,
    has_odd_rows,
    print_columns,
    print_window,
    terms_of,
    tiles_of_columns,
    tiles_of_rows,
)
from inductor.ir.body import LoopBody, Op
from inductor.ir.extent import divides, up_to_multiple
from inductor.ir.graph import Layout, ViewRef
from inductor.ir.index import Index, constant, floordiv, mod, variable
from inductor.scheduler.gemms import epilogue_ops, place, place_of_left
from inductor.scheduler.schedule import Blocks, Gemm, Kernel, Part, TemplateKernel

TEMPLATE_VERSION = "5"  # part of the keys under which choices are kept
TILE = frozenset("xr")
DESCRIPTOR = 128  # bytes, in memory of each program
MOST_BATCHES = 1 << 16  # of the second axis of a grid


@dataclass(frozen=True, slots=True)
class TemplateSource:
    """One Triton function, which takes the buffers `parameters` and then `numbers`.

    Equal functions have equal names. scratch: bytes for descriptors, which all programs share out.
    combine: what runs next where sums are split; it reads `partial`, which lives until then.
    """

    name: str
    text: str
    parameters: tuple[str, ...]
    numbers: tuple[Parameter, ...]
    grid: tuple[int, int, int]
    blocks: Blocks
    scratch: int
    partial: Scratch | None = None
    combine: TritonKernel | None = None

    @property
    def may_fail(self) -> bool:
        """Whether it checks what it reads at."""
        return "tl.device_assert" in self.text

    def options(self) -> dict[str, int]:
        """Options of the compiler."""
        return {"num_warps": self.blocks.warps, "num_stages": self.blocks.stages}


def print_template(template: TemplateKernel, layouts: Mapping[str, Layout]) -> TemplateSource:
    """The function of a template; raises NotPrintable for what Triton cannot do."""
    assert template.blocks is not None
    if reaches(template.gemms()[0].batch, MOST_BATCHES):
        raise NotPrintable("a grid has no place for so many products")
    if template.blocks.splits > 1:
        return _print_split(template, layouts)
    return _Printer(template, template.blocks, layouts).print()


def _print_split(template: TemplateKernel, layouts: Mapping[str, Layout]) -> TemplateSource:
    """The parts of the sums, and the kernel that adds them."""
    ((part,),) = (template.parts,)
    (one,) = part.gemms
    assert template.blocks is not None and one.batch == 1
    splits, elements = template.blocks.splits, one.m * one.n
    partial = Scratch(f"{template.name}_partial", torch.float32, splits * elements)
    place_of = {partial.name: Layout(_device(one), torch.float32, (partial.elements,), (1,))}
    known = {**layouts, **place_of}
    source = _Printer(template, template.blocks, known, partial.name).print()
    ops: list[Op] = []
    total = -1
    for split in range(splits):
        ops.append(Op("load", (), torch.float32, partial.name, place(one) + split * elements))
        if split:
            ops.append(Op("add", (total, len(ops) - 1), torch.float32))
        total = len(ops) - 1
    _append_results(ops, part, [total])
    values: dict[str, Index] = {"x": variable("o0", one.m), "r": variable("i0", one.n)}
    moved = [
        op if op.index is None else replace(op, index=op.index.substitute(values)) for op in ops
    ]
    stage = LoopBody((one.n,), (), tuple(moved))
    kernel = Kernel(f"{template.name}_sum", (one.m,), (stage,), origins=template.origins)
    return replace(source, partial=partial, combine=print_kernel(kernel, known))


def _print_sums(turned: bool) -> dict[str, Any]:
    """How sums are accumulated; turned: those of the turned GEMM, which end as they are."""
    shape, operands = "[BLOCK_M, BLOCK_N]", "left, right"
    if turned:
        shape, operands = "[BLOCK_N, BLOCK_M]", "right, left"
    return {"turned": turned, "shape": shape, "operands": operands}


def _print_precision(one: Gemm) -> str:
    """How operands in float32 are multiplied: in TF32 where the library may do so, too."""
    if one.dtype is not torch.float32:
        return ""
    library: Any = torch.backends.cuda.matmul
    if one.call.target is torch.ops.aten.convolution.default:
        library = torch.backends.cudnn.conv  # type: ignore[attr-defined]
    precision = "tf32" if library.fp32_precision == "tf32" else "ieee"
    return f', input_precision="{precision}"'


def _device(one: Gemm) -> torch.device:
    assert one.call.layout is not None
    return one.call.layout.device


class _Printer:
    def __init__(
        self, template: TemplateKernel, blocks: Blocks, layouts: Mapping[str, Layout],
        partial: str = "",
    ) -> None:
        """partial: where parts of sums are stored, and nothing else is done."""
        self.template = template
        self.blocks = blocks
        self.first = first = template.gemms()[0]
        reads, writes = template.reads(), template.writes()
        self.stages: list[Stage]
        if partial:
            self.stages = [_partial_stage(first, partial, blocks.splits)]
            reads, writes = (first.left.buffer, first.right.buffer), (partial,)
        else:
            self.stages = [_stage_of(part) for part in template.parts]
        self.before = [
            _stage_before(part.prologue, place_of_left(first), first.k)
            for part in template.parts if part.prologue is not None
        ]
        self.weights = [
            stage_of_weight(kernel, one)
            for kernel, one in zip(template.weights(), template.gemms(), strict=False)
        ]
        self.written = frozenset(writes)
        names = dict.fromkeys((*reads, *writes))
        self.parameters = {
            name: f"{'out' if name in self.written else 'in'}{n}" for n, name in enumerate(names)
        }
        counts = [layouts[name].storage_elements() for name in names]
        self.wide = self._is_wide(counts)
        self.numbers = Numbers(self.wide)
        self.descriptors: list[str] = []
        self.row_mask = "xmask" if has_odd_rows(self.first, blocks) else ""

    def _is_wide(self, counts: Iterable[int]) -> bool:
        """Whether positions need int64."""
        if any(reaches(count, MOST_INT32) for count in counts):
            return True
        stages = (*self.before, *self.weights, *self.stages)
        return any(op.index is not None and needs_int64(op.index) for s in stages for op in s.ops)

    def print(self) -> TemplateSource:
        first, spell = self.first, self.numbers.spell
        wide = ".to(tl.int64)" if self.wide else ""
        windows = self._windows()
        chosen: list[str] = []
        weights: list[WeightText] = []
        if windows:
            rights = [each.right for each in windows]
            prologue, left = "", windows[0].left
        else:
            if self.weights:
                weights = [self._weight(number) for number in range(len(self.weights))]
                rights = [each.tile for each in weights]
            else:
                chosen, rights = self._rights()
            prologue, left = self._prologue() if self.before else ("", self._left())
        return self._finished({
            "m": spell(first.m), "bounds": self._bounds(), "batched": first.batch != 1,
            "wide": wide, "blocks": self.blocks, "left": left,
            "precision": _print_precision(first),
            "row_mask": self.row_mask, "chosen": chosen, "rights": rights, "prologue": prologue,
            "weights": [each.lines for each in weights], "right_mask": self._right_mask(),
            "words": words_of(weights, wide, {
                "x": lambda count: spell(first.k // count),
                "r": lambda count: spell(first.n // count),
            }),
            "faults": [two for each in weights for two in each.faults],
            "window": windows[0] if windows else None,
            "columns": print_columns(first, self.blocks.columns, wide),
            "inside": windows[0].inside if windows else "",
            **_print_sums(bool(windows) and windows[0].turned),
            "tiles_m": spell(tiles_of_rows(first, self.blocks)) if self._is_boxed() else "",
            "k_mask": "" if divides(self.blocks.depth, first.k) else spell(first.k),
            "descriptors": self.descriptors, "programs": self._grid()[0],
            "parts": [
                self._part(part, self.stages[n]) for n, part in enumerate(self.template.parts)
            ],
            "head": "HEAD", "name": "NAME",
        })  # fmt: skip

    def _is_boxed(self) -> bool:
        """Whether rows are those of boxes of pixels."""
        return self.first.window is not None and self.blocks.descriptors

    def _windows(self) -> list[WindowText]:
        """Of each GEMM of the one part; none where they are no convolutions."""
        if self.first.window is None:
            return []
        (part,) = self.template.parts
        named = [
            (one, (self.parameters[one.left.buffer], self.parameters[one.right.buffer]))
            for one in part.gemms
        ]
        if self.blocks.descriptors:
            if self.wide or len(named) != 1:
                raise NotPrintable("descriptors for one convolution of int32 positions only")
            text, self.descriptors = describe_window(named[0][0], self.blocks, named[0][1])
            return [text]
        masked = not divides(self.blocks.columns, self.first.columns)
        return [
            print_window(one, self.blocks, self.numbers, at, self.row_mask != "", masked)
            for one, at in named
        ]

    def _left(self) -> str:
        left = self.first.left
        return self._operand(left, self.first, self.parameters[left.buffer], "om", "kk")

    def _prologue(self) -> tuple[str, str]:
        """Lines of a step of the loop, and the tile of the left operand that they make."""
        (stage,) = relax_stages(self.before, ())
        *ops, store = stage.ops
        masked = not divides(self.blocks.depth, self.first.k)
        launch = Launch(self.template.name, 1, (replace(stage, ops=tuple(ops)),), tiled=True)
        frame = Frame(
            launch, self.wide, False, "left_mask" if self.row_mask else "", self.written,
            self.parameters, self.numbers,
        )
        columns = Columns("k0", "k_mask" if masked else "", "BLOCK_K", stage.columns)
        writer = Writer()
        writer.depth, writer.count = 2, PROLOGUE_NAMES
        printer = StagePrinter(launch.stages[0], columns, frame, writer, Memory())
        printer.names["x"] = "left_row"
        printer.print()
        (value,) = (printer.values[at] for at in store.args)
        dtype = print_dtype(self.first.dtype)
        left = f"tl.broadcast_to({value.name}, [BLOCK_M, BLOCK_K])"
        if masked:  # what lies behind the end may be anything
            left = f"tl.where(k_mask, {left}, 0.0)"
        return "\n".join(writer.lines).replace("XBLOCK", "BLOCK_M"), f"{left}.to({dtype})"

    def _right_mask(self) -> str:
        """Which rows of a tile of a right operand that is computed are there; "" for all."""
        if not self.weights or divides(self.blocks.depth, self.first.k):
            return ""
        return f"right_row < {self.numbers.spell(self.first.k)}"

    def _weight(self, number: int) -> WeightText:
        """As `_prologue`, of the right operand of a GEMM: `x` is its row, `r` its column."""
        one, stage, mask = self.template.gemms()[number], self.weights[number], ""
        if self._right_mask():
            mask = "right_mask"
        launch = Launch(self.template.name, 1, (stage,), tiled=True)
        frame = Frame(
            launch, self.wide, False, mask, self.written, self.parameters, self.numbers
        )
        masked = not divides(self.blocks.columns, one.n)
        columns = Columns("n0", "n_mask" if masked else "", "BLOCK_N", stage.columns)
        first, dtype = PROLOGUE_NAMES * (number + 2), print_dtype(self.first.dtype)
        return print_weight(
            stage, columns, frame, mask, dtype, first, one.k, self.blocks.depth)

    def _bounds(self) -> str:
        """The part of the sum that a program computes."""
        k, splits = terms_of(self.first, self.blocks.depth), self.blocks.splits
        if splits == 1:
            return f"0, {self.numbers.spell(k)}"
        chunk = up_to_multiple(k, splits * self.blocks.depth) * self.blocks.depth
        return f"g * {chunk}, tl.minimum(g * {chunk} + {chunk}, {k})"

    def _rights(self) -> tuple[list[str], list[str]]:
        """What a program does to find its part, and the right operands."""
        parts = self.template.parts
        if len(parts) == 1:
            return [], [
                self._operand(each.right, each, self.parameters[each.right.buffer], "kk", "on")
                for each in parts[0].gemms
            ]
        spell = self.numbers.spell
        tops = [part.gemms[0] for part in parts]
        at = [f"{self.parameters[one.right.buffer]} + {spell(one.right.offset)}" for one in tops]
        lines = ["part = 0", "before = 0", f"right_at = {at[0]}", f"width = {spell(tops[0].n)}"]
        start = "tiles0"
        for number, one in enumerate(tops[1:], 1):
            lines += [
                f"part = tl.where(jn < {start}, part, {number})",
                f"before = tl.where(jn < {start}, before, {start})",
                f"right_at = tl.where(jn < {start}, right_at, {at[number]})",
                f"width = tl.where(jn < {start}, width, {spell(one.n)})",
            ]
            start += f" + tiles{number}"
        lines.append("jn = jn - before")
        right = replace(tops[0].right, offset=0)
        return lines, [self._operand(right, tops[0], "right_at", "kk", "on", "width")]

    def _finished(self, filled: dict[str, Any]) -> TemplateSource:
        known = tuple(self.numbers.parameters.values())
        typed = [f'{number.name}: "{number.kind}"' for number in known]
        filled["signature"] = ", ".join((*self.parameters.values(), *typed))
        text = _compiled(GEMM).render(filled)
        title = title_of(self.template.origins, "product")
        name = f"{title}_{hashlib.sha256(text.encode()).hexdigest()[:8]}"
        general = f"(do_not_specialize={[number.name for number in known]})" if known else ""
        text = text.replace("@triton.jitHEAD\ndef NAME", f"@triton.jit{general}\ndef {name}", 1)
        grid = self._grid()
        scratch = len(self.descriptors) * DESCRIPTOR * math.prod(grid)
        return TemplateSource(
            name, text, tuple(self.parameters), known, grid, self.blocks, scratch
        )

    def _grid(self) -> tuple[int, int, int]:
        columns = 0
        for part in self.template.parts:
            columns += tiles_of_columns(part.gemms[0], self.blocks.columns)
        tiles = tiles_of_rows(self.first, self.blocks) * columns
        if self.blocks.persistent:
            gpu = gpu_of(self.template)
            tiles = min(tiles, gpu.multiprocessors * self.blocks.resident)
        return (tiles, self.first.batch, self.blocks.splits)

    def _part(self, part: Part, stage: Stage) -> dict[str, Any]:
        one, spell = part.gemms[0], self.numbers.spell
        masked = not divides(self.blocks.columns, one.columns)
        tiles = f"({spell(one.n)} + BLOCK_N - 1) // BLOCK_N"
        if one.groups > 1:
            tiles = str(tiles_of_columns(one, self.blocks.columns))
        return {
            "n": spell(one.n), "end": end_of_columns(one, spell), "tiles": tiles,
            "column_mask": masked,
            "epilogue": self._epilogue(part, stage, masked),
        }

    def _operand(
        self, view: ViewRef, one: Gemm, pointer: str, row: str, column: str, width: str = ""
    ) -> str:
        """A tile of an operand, over variables of the template.

        width: the variable for the number of columns, where it depends on the part.
        """
        if self.blocks.descriptors:
            return self._described(view, one, pointer, row, column)
        batch = view.stride[0] if len(view.size) == 3 and one.batch != 1 else 0
        down, along = view.stride[-2:]
        limits = {"om": one.m, "on": one.n, "kk": one.k}
        names = {"b": "b", row: f"{row}[:, None]", column: f"{column}[None, :]"}
        index = constant(view.offset) + variable("b", one.batch) * batch
        index = index + variable(row, limits[row]) * down + variable(column, limits[column]) * along
        masks = []
        for name in (row, column):
            if self._is_masked(name, one.k):
                limit = width if name == "on" and width else self.numbers.spell(limits[name])
                masks.append(f"({names[name]} < {limit})")
        where = print_index(index, names, self.numbers)
        for name in (row, column):  # a tile, whatever the strides
            if names[name] not in where:
                where += f" + 0*{names[name]}"
        mask = f", {' & '.join(masks)}, other=0.0" if masks else ""
        return f"tl.load({pointer} + ({where}){mask})"

    def _described(self, view: ViewRef, one: Gemm, pointer: str, row: str, column: str) -> str:
        """The same through a descriptor, whose last axis is the dense one."""
        sizes = {"om": one.m, "on": one.n, "kk": one.k}
        starts = {"om": "im * BLOCK_M", "on": "jn * BLOCK_N", "kk": "base"}
        blocks = {"om": "BLOCK_M", "on": "BLOCK_N", "kk": "BLOCK_K"}
        turned = view.stride[-1] != 1
        axes = (column, row) if turned else (row, column)
        step = view.stride[-1] if turned else view.stride[-2]
        name = f"tiles_of_{len(self.descriptors)}"
        shape = ", ".join(str(sizes[axis]) for axis in axes)
        block = ", ".join(blocks[axis] for axis in axes)
        self.descriptors.append(
            f"{name} = tl.make_tensor_descriptor({pointer} + {view.offset}, [{shape}], "
            f"[{step}, 1], [{block}])"
        )
        start = ", ".join(starts[axis] for axis in axes)
        return f"{name}.load([{start}])" + (".T" if turned else "")

    def _is_masked(self, name: str, k: int) -> bool:
        """Whether a tile may reach over the end along that variable."""
        if name == "om":
            return self.row_mask != ""
        if name == "kk":
            return not divides(self.blocks.depth, k)
        parts = self.template.parts
        return not all(divides(self.blocks.columns, part.gemms[0].n) for part in parts)

    def _epilogue(self, part: Part, stage: Stage, masked: bool) -> str:
        """Lines for what becomes of a tile."""
        (stage,) = relax_stages((stage,), ())
        launch = Launch(self.template.name, 1, (stage,), tiled=True)
        frame = Frame(
            launch, self.wide, False, self.row_mask, self.written, self.parameters, self.numbers
        )
        columns = Columns("r0", "rmask0" if masked else "", "BLOCK_N", stage.columns)
        memory = Memory()
        for number, one in enumerate(part.gemms):
            memory.stored[f"acc{number}"] = (place(one), "r0", Text(f"acc{number}", TILE))
        writer = Writer()
        StagePrinter(stage, columns, frame, writer, memory).print()
        return "\n".join(writer.lines).replace("XBLOCK", "BLOCK_M")


def _partial_stage(one: Gemm, partial: str, splits: int) -> Stage:
    """What was accumulated goes to a place of its own for each split."""
    where = place(one) + variable("g", splits) * (one.m * one.n)
    return Stage((
        Op("load", (), torch.float32, "acc0", place(one)),
        Op("store", (0,), torch.float32, partial, where, "set"),
    ), 1, one.n, False)  # fmt: skip


def _stage_of(part: Part) -> Stage:
    """What becomes of each element of what was accumulated."""
    ops = [
        Op("load", (), torch.float32, f"acc{number}", place(one))
        for number, one in enumerate(part.gemms)
    ]
    _append_results(ops, part, range(len(ops)))
    return Stage(tuple(ops), 1, part.gemms[0].n, False)


def _stage_before(kernel: Kernel, where: Index, columns: int) -> Stage:
    """What makes each element of an operand, at row x and column r."""
    return Stage(epilogue_ops(kernel, where), 1, columns, False)


def _append_results(ops: list[Op], part: Part, sums: Sequence[int]) -> None:
    """Bias and rounding of each GEMM, then the operations of the epilogue. sums: positions."""
    results: dict[str, int] = {}
    for total, one in zip(sums, part.gemms, strict=True):
        results[one.name] = _append_gemm(ops, total, one)
        if one.name in part.stored:
            ops.append(Op("store", (results[one.name],), one.dtype, one.name, place(one), "set"))
    flat = place(part.gemms[0])
    found: list[int] = []
    for op in () if part.epilogue is None else epilogue_ops(part.epilogue, flat):
        if op.name == "load" and op.buffer in results:
            found.append(results[op.buffer])
        else:
            found.append(len(ops))
            ops.append(replace(op, args=tuple(found[arg] for arg in op.args)))


def _append_gemm(ops: list[Op], value: int, one: Gemm) -> int:
    """What makes the operator's result of a sum; the position of its value."""
    if one.rounds_first and one.bias is not None and one.dtype is not torch.float32:
        ops.append(Op("to_dtype", (value,), one.dtype))
        ops.append(Op("to_dtype", (len(ops) - 1,), torch.float32))
        value = len(ops) - 1
    if one.bias is not None:
        ops.append(Op("load", (), one.dtype, one.bias.buffer, _bias_index(one.bias, one)))
        if one.dtype is not torch.float32:
            ops.append(Op("to_dtype", (len(ops) - 1,), torch.float32))
        ops.append(Op("add", (value, len(ops) - 1), torch.float32))
        value = len(ops) - 1
    if one.dtype is not torch.float32:
        ops.append(Op("to_dtype", (value,), one.dtype))
        value = len(ops) - 1
    return value


def _bias_index(bias: ViewRef, one: Gemm) -> Index:
    """Where the bias of the element at row x and column r lies; axes of size 1 are repeated."""
    row, column = variable("x", one.batch * one.m), variable("r", one.n)
    axes = (column, mod(row, one.m), floordiv(row, one.m))
    index = constant(bias.offset)
    for axis, size, stride in zip(axes, bias.size[::-1], bias.stride[::-1], strict=False):
        if size != 1:
            index = index + axis * stride
    return index


@functools.cache
def _compiled(text: str) -> jinja2.Template:
    return jinja2.Environment(undefined=jinja2.StrictUndefined).from_string(text)
