"""Triton text of a `TemplateKernel`: a template (`templates/`) with its holes filled.

In: a `TemplateKernel` with blocks and the layouts of the buffers that it touches. Out: a
`TemplateSource`. What becomes of the elements of a tile (bias, rounding as the operator rounds, the
operations of the epilogue, stores) is printed by `StagePrinter`: `x` is the row of the result in
all batches, `r` the column, and what was accumulated is a value that is known before.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import jinja2
import torch

from inductor.codegen.triton.launch import Launch, Stage
from inductor.codegen.triton.numbers import MOST_INT32, Numbers, Parameter, reaches
from inductor.codegen.triton.print_kernel import title_of
from inductor.codegen.triton.print_stage import (
    Columns,
    Frame,
    Memory,
    StagePrinter,
    Text,
    Writer,
)
from inductor.codegen.triton.spelling import needs_int64, print_index
from inductor.codegen.triton.templates.product import PRODUCT
from inductor.ir.body import Op
from inductor.ir.extent import divides, up_to_multiple
from inductor.ir.graph import Layout, ViewRef
from inductor.ir.index import Index, constant, floordiv, mod, variable
from inductor.scheduler.products import epilogue_ops, place
from inductor.scheduler.schedule import Blocks, Part, Product, TemplateKernel

TEMPLATE_VERSION = "1"  # part of the keys under which choices are kept
TILE = frozenset("xr")


@dataclass(frozen=True, slots=True)
class TemplateSource:
    """One Triton function, which takes the buffers `parameters` and then `numbers`.

    Equal functions have equal names.
    """

    name: str
    text: str
    parameters: tuple[str, ...]
    numbers: tuple[Parameter, ...]
    grid: tuple[int, int, int]
    blocks: Blocks


def print_template(template: TemplateKernel, layouts: Mapping[str, Layout]) -> TemplateSource:
    """The function of a template; raises NotPrintable for what Triton cannot do."""
    assert template.blocks is not None
    return _Printer(template, template.blocks, layouts).print()


class _Printer:
    def __init__(
        self, template: TemplateKernel, blocks: Blocks, layouts: Mapping[str, Layout]
    ) -> None:
        self.template = template
        self.blocks = blocks
        self.first = template.products()[0]
        self.stages = [_stage_of(part) for part in template.parts]
        self.written = frozenset(template.writes())
        names = dict.fromkeys((*template.reads(), *template.writes()))
        self.parameters = {
            name: f"{'out' if name in self.written else 'in'}{n}" for n, name in enumerate(names)
        }
        counts = [layouts[name].storage_elements() for name in names]
        self.wide = self._is_wide(counts)
        self.numbers = Numbers(self.wide)
        self.row_mask = "" if divides(blocks.rows, self.first.m) else "xmask"

    def _is_wide(self, counts: Iterable[int]) -> bool:
        """Whether positions need int64."""
        if any(reaches(count, MOST_INT32) for count in counts):
            return True
        return any(
            op.index is not None and needs_int64(op.index) for s in self.stages for op in s.ops
        )

    def print(self) -> TemplateSource:
        first, spell = self.first, self.numbers.spell
        filled: dict[str, Any] = {
            "m": spell(first.m), "k": spell(first.k), "batched": first.batch != 1,
            "wide": ".to(tl.int64)" if self.wide else "", "blocks": self.blocks,
            "left": self._operand(first.left, first, "om", "kk", self.row_mask != ""),
            "precision": ', input_precision="ieee"' if first.dtype is torch.float32 else "",
            "row_mask": self.row_mask, "parts": [], "head": "HEAD", "name": "NAME",
        }
        start = ""
        for number, part in enumerate(self.template.parts):
            until = f"{start} + tiles{number}" if start else f"tiles{number}"
            filled["parts"].append(self._part(part, self.stages[number], start, until))
            start = f"({until})" if number else until
        return self._finished(filled)

    def _finished(self, filled: dict[str, Any]) -> TemplateSource:
        known = tuple(self.numbers.parameters.values())
        typed = [f'{number.name}: "{number.kind}"' for number in known]
        filled["signature"] = ", ".join((*self.parameters.values(), *typed))
        text = _compiled(PRODUCT).render(filled)
        title = title_of(self.template.origins, "product")
        name = f"{title}_{hashlib.sha256(text.encode()).hexdigest()[:8]}"
        general = f"(do_not_specialize={[number.name for number in known]})" if known else ""
        text = text.replace("@triton.jitHEAD\ndef NAME", f"@triton.jit{general}\ndef {name}", 1)
        return TemplateSource(
            name, text, tuple(self.parameters), known, self._grid(), self.blocks
        )

    def _grid(self) -> tuple[int, int, int]:
        columns = 0
        for part in self.template.parts:
            columns += up_to_multiple(part.products[0].n, self.blocks.columns)
        return (up_to_multiple(self.first.m, self.blocks.rows) * columns, self.first.batch, 1)

    def _part(self, part: Part, stage: Stage, start: str, until: str) -> dict[str, Any]:
        n = part.products[0].n
        masked = not divides(self.blocks.columns, n)
        return {
            "n": self.numbers.spell(n), "start": start, "until": until, "column_mask": masked,
            "products": [
                self._operand(each.right, each, "kk", "on", masked) for each in part.products
            ],
            "epilogue": self._epilogue(part, stage, masked),
        }

    def _operand(
        self, view: ViewRef, one: Product, row: str, column: str, masked: bool
    ) -> dict[str, str]:
        """Pointers to a tile of an operand, and the mask, both over variables of the template."""
        batch = view.stride[0] if len(view.size) == 3 and one.batch != 1 else 0
        down, along = view.stride[-2:]
        limits = {"om": one.m, "on": one.n, "kk": one.k}
        names = {"b": "b", row: f"{row}[:, None]", column: f"{column}[None, :]"}
        index = constant(view.offset) + variable("b", one.batch) * batch
        index = index + variable(row, limits[row]) * down + variable(column, limits[column]) * along
        masks = [] if divides(self.blocks.depth, one.k) else [f"{names['kk']} < {{}}"]
        masks = [text.format(self.numbers.spell(one.k)) for text in masks]
        other = row if column == "kk" else column
        if masked:
            masks.append(f"{names[other]} < {self.numbers.spell(limits[other])}")
        where = print_index(index, names, self.numbers)
        for name in (row, column):  # a tile, whatever the strides
            if names[name] not in where:
                where += f" + 0*{names[name]}"
        return {
            "text": f"{self.parameters[view.buffer]} + ({where})",
            "mask": f", {' & '.join(f'({text})' for text in masks)}, other=0.0" if masks else "",
        }

    def _epilogue(self, part: Part, stage: Stage, masked: bool) -> str:
        """Lines for what becomes of a tile."""
        launch = Launch(self.template.name, 1, (stage,), tiled=True)
        frame = Frame(
            launch, self.wide, False, self.row_mask, self.written, self.parameters, self.numbers
        )
        columns = Columns("r0", "rmask0" if masked else "", "BLOCK_N", stage.columns)
        memory = Memory()
        for number, one in enumerate(part.products):
            memory.stored[f"acc{number}"] = (place(one), "r0", Text(f"acc{number}", TILE))
        writer = Writer()
        StagePrinter(stage, columns, frame, writer, memory).print()
        return "\n".join(writer.lines).replace("XBLOCK", "BLOCK_M")


def _stage_of(part: Part) -> Stage:
    """Bias and rounding of each product, then the operations of the epilogue, stores last."""
    ops: list[Op] = []
    results: dict[str, int] = {}
    for number, one in enumerate(part.products):
        results[one.name] = _add_product(ops, f"acc{number}", one)
        if one.name in part.kept:
            ops.append(Op("store", (results[one.name],), one.dtype, one.name, place(one), "set"))
    flat = place(part.products[0])
    found: list[int] = []
    for op in () if part.epilogue is None else epilogue_ops(part.epilogue, flat):
        if op.name == "load" and op.buffer in results:
            found.append(results[op.buffer])
        else:
            found.append(len(ops))
            ops.append(replace(op, args=tuple(found[arg] for arg in op.args)))
    return Stage(tuple(ops), 1, part.products[0].n, False)


def _add_product(ops: list[Op], accumulator: str, one: Product) -> int:
    """Append what makes the operator's result; the position of its value."""
    ops.append(Op("load", (), torch.float32, accumulator, place(one)))
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


def _bias_index(bias: ViewRef, one: Product) -> Index:
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
