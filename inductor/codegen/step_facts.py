"""What profilers and reports show of each step of a schedule: its name, the user's lines, and
how many bytes it moves and operations it does at least.

In: a step and the layouts of buffers. Out: a row of plain values, which is kept with the code:

    (title, ranges, kernel, kind, lines, bytes, operations)

title: for people and torch.profiler. ranges: names of the program's `record_function`s around the
first operation. kernel: the generated function, "" for a call of a library.
kind: "kernel" or "library". lines: `file:line`. bytes: each
element that is read or written once, those of temporary memory inside of the kernel left out.
operations: of a product a multiplication and an addition are two; else each arithmetic operation of
an iteration is one, a square root like a sum. Both are 0 where nothing is known of them, and
extents where sizes are known at a call only (`codegen/bind.py` makes numbers of them).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from inductor.ir.body import OF_ROWS, LoopBody, Op
from inductor.ir.graph import ExternKernel, Layout, ViewRef
from inductor.ir.scalar_ops import SCALAR_OPS
from inductor.operators.cpu_attention_ops import OPERATOR as ATTENTION
from inductor.scheduler.schedule import (
    ConvolutionChain,
    FusedConvolution,
    GemmChain,
    Generated,
    Kernel,
    KernelList,
    Step,
    TemplateKernel,
)

Layouts = Mapping[str, Layout]
Row = tuple[str, tuple[str, ...], str, str, tuple[str, ...], int, int]
SHOWN = 4  # operators in a title
MOVES = frozenset(("load", "store", "constant", "index_expr", "indirect", "to_dtype", "bitcast"))
# These read only as much of a table as they give.
GATHERS = frozenset((torch.ops.aten.embedding.default, torch.ops.aten.index_select.default,
                     torch.ops.aten.gather.default, torch.ops.aten.index.Tensor))  # fmt: skip

GEMMS = frozenset((torch.ops.aten.mm.default, torch.ops.aten.addmm.default,
                      torch.ops.aten.bmm.default, torch.ops.aten.baddbmm.default))  # fmt: skip

VOLUMES = frozenset((torch.ops.aten.mkldnn_convolution.default,))


def facts_of_step(step: Step, layouts: Layouts) -> Row | None:
    """See the top of the file. None for what is no call."""
    if isinstance(step, ExternKernel):
        title, kernel = step.target._schema.name + (" (our own)" if step.ours else ""), ""
    elif isinstance(step, Generated):
        title, kernel = f"{step.name} ({_operators(step.origins.targets)})", step.name
    else:
        return None
    origins = step.origins
    moved, operations = _moved(step, layouts), _operations(step, layouts)
    ranges = origins.ranges[0] if origins.ranges else ()
    kind = "kernel" if kernel else "library"
    return (title, ranges, kernel, kind, origins.lines, moved, operations)


@functools.cache
def _rules() -> dict[Any, Any]:
    """Torch's own, imported when they are needed: with them comes Triton."""
    from torch.utils.flop_counter import flop_registry

    return flop_registry


def _operators(targets: Iterable[str]) -> str:
    """`aten.gelu.default` as `gelu`, each once."""
    names = list(dict.fromkeys(target.split(".")[-2:][0] for target in targets))
    return ", ".join(names[:SHOWN] + ["..."] * (len(names) > SHOWN))


def without_extents(row: Row) -> Row:
    """The row with 0 for what is known at a call only."""
    moved, operations = (n if type(n) is int else 0 for n in row[-2:])
    return (*row[:-2], moved, operations)


def _least(*sizes: int) -> int:
    """The least of them; the first where that depends on a call: extents are not compared, which
    would be an assumption."""
    return min(sizes) if all(type(size) is int for size in sizes) else sizes[0]


def _most(one: int, other: int) -> int:
    return max(one, other) if type(one) is type(other) is int else one


# -- bytes -----------------------------------------------------------------------------------------


def _moved(step: Step, layouts: Layouts) -> int:
    if isinstance(step, Kernel):
        return sum(_moved_by_kernel(step, layouts).values())
    if isinstance(step, KernelList):
        return sum(_moved(kernel, layouts) for kernel in step.kernels)
    if isinstance(step, ExternKernel):
        return _moved_by_call(step)
    assert isinstance(step, Generated)
    between = step.between if isinstance(step, GemmChain | ConvolutionChain) else ()
    touched = {*step.reads(), *step.writes()}.difference(between)
    return sum(_bytes(layouts[name]) for name in touched)


def _moved_by_kernel(kernel: Kernel, layouts: Layouts) -> dict[str, int]:
    """By buffer, the most that one load or store of it touches."""
    own = {local.name for local in kernel.locals}
    found: dict[str, int] = {}
    for stage in kernel.stages:
        runs = math.prod((*kernel.outer, *stage.ranges, *stage.reduction_ranges))
        for op in (*stage.loads(), *stage.stores()):
            if op.buffer in own or op.index is None:
                continue
            layout = layouts[op.buffer]
            places = math.prod(variable.size for variable in op.index.variables())
            size = _least(places, runs, layout.storage_elements()) * layout.dtype.itemsize
            found[op.buffer] = _most(size, found[op.buffer]) if op.buffer in found else size
    return found


def _moved_by_call(call: ExternKernel) -> int:
    given: dict[str, int] = {}
    for view in call.views():
        size = math.prod(view.size) * view.dtype.itemsize
        given[view.buffer] = _most(size, given[view.buffer]) if view.buffer in given else size
    made = _bytes(call.layout) if call.layout is not None else 0
    if call.target in GATHERS:
        return made + sum(_least(made, size) for size in given.values())
    return made + sum(given.values())


def _bytes(layout: Layout) -> int:
    return math.prod(layout.size) * layout.dtype.itemsize


# -- operations ------------------------------------------------------------------------------------


def _operations(step: Step, layouts: Layouts) -> int:
    if isinstance(step, Kernel):
        return sum(math.prod(step.outer) * _in_body(stage) for stage in step.stages)
    if isinstance(step, KernelList):
        return sum(_operations(kernel, layouts) for kernel in step.kernels)
    if isinstance(step, ExternKernel):
        return _in_call(step)
    if isinstance(step, FusedConvolution):
        return _in_call(step.call) + _operations(step.epilogue, layouts)
    if isinstance(step, GemmChain | ConvolutionChain):
        return sum(_operations(link, layouts) for link in step.links)
    assert isinstance(step, TemplateKernel)
    behind = sum(_operations(kernel, layouts) for kernel in step.epilogues())
    return behind + sum(2 * math.prod((p.batch, p.m, p.n, p.k)) for p in step.gemms())


def _in_body(body: LoopBody) -> int:
    outside = math.prod(body.ranges)
    inside = outside * math.prod(body.reduction_ranges)
    repeated: list[bool] = []
    total = 0
    for op in body.ops:
        is_repeated = op.name in OF_ROWS or op.name != "reduction" and (
            any(repeated[at] for at in op.args) or _is_by_reduction(op))
        repeated.append(is_repeated)
        if op.name == "reduction":
            total += inside
        elif op.name in SCALAR_OPS and op.name not in MOVES:
            total += inside if is_repeated else outside
    return total


def _is_by_reduction(op: Op) -> bool:
    return op.index is not None and any(v.name.startswith("r") for v in op.index.variables())


def _in_call(call: ExternKernel) -> int:
    """Of a product, a convolution or attention; 0 for other operators."""
    views = [view.size for view in call.views()]
    if call.target is ATTENTION:
        (*batch, rows, width), key, value = views[:3]
        return 2 * math.prod(batch) * rows * key[-2] * (width + value[-1])
    if call.layout is None:
        return 0
    result = call.layout.size
    if call.target in GEMMS:
        return 2 * math.prod(result) * views[-2][-1]
    if call.target in VOLUMES or call.target.namespace == "mkldnn" and len(views) > 1:
        x, weight = views[:2]  # a convolution's weight has its channels first
        return 2 * math.prod(result) * (math.prod(weight[1:]) if len(x) == len(weight) > 2
                                        else x[-1])  # fmt: skip
    rule: Any = _rules().get(call.target._overloadpacket)
    sizes = [*result, *(size for view in views for size in view)]
    if rule is None or not all(type(size) is int for size in sizes):
        return 0
    given = [torch.Size(value.size) if isinstance(value, ViewRef) else value for value in call.args]
    named = {key: torch.Size(value.size) if isinstance(value, ViewRef) else value
             for key, value in call.kwargs}
    return int(rule(*given, **named, out_val=torch.Size(result)))
