"""GEMMs of a schedule that one generated function can compute with what follows them.

In: a schedule. Out: candidates (`TemplateKernel`s, each with the steps that it would replace), and
the schedule where some of them stand for those steps. Nothing here says what is faster.

A kernel may follow a GEMM if it has one iteration for each element of the result and reads it at
its own place only; it is then the epilogue. The GEMM moves down to its epilogue, so nothing in
between may read the result or write the operands. A kernel that has one iteration for each element
of the left operand, which nothing else reads, may be the prologue. GEMMs with the same left
operand may stand side by side where the first of them stands.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from inductor.ir.body import OF_ROWS, IndirectVar, LoopBody, Op
from inductor.ir.graph import Argument, ExternKernel, Layout, LoopGraph, ViewRef
from inductor.ir.index import Index, variable
from inductor.scheduler.domain import product as total
from inductor.scheduler.domain import unflatten
from inductor.scheduler.schedule import (
    Gemm,
    Kernel,
    Part,
    Schedule,
    TemplateKernel,
    Window,
)
from inductor.scheduler.uses import Uses, with_placed, written

aten = torch.ops.aten
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
MOST_SIDE_BY_SIDE = 4  # query, key, value, gate; chosen, not measured
MOST_OPS = 120  # of an epilogue
STRUCTURAL = ("indirect", "reduction", "keep", *OF_ROWS)


@dataclass(frozen=True, slots=True)
class TemplateCandidate:
    """What could replace the steps at `positions`; it stands at the position `at`."""

    template: TemplateKernel
    positions: tuple[int, ...]
    at: int


def as_gemm(call: ExternKernel, layouts: dict[str, Layout]) -> Gemm | None:
    """The GEMM that a call computes; None if it is none, or an odd one."""
    if call.kwargs or call.layout is None or call.layout.dtype not in DTYPES:
        return None
    if call.target is aten.convolution.default:
        found = _pointwise_convolution(call) or _convolution(call)
    else:
        found = _matmul_of(call)
    if found is None or 0 in (found.batch, found.m, found.k, found.n):
        return None
    for view in (found.left, found.right, *([found.bias] if found.bias is not None else [])):
        layout = layouts[view.buffer]
        if view.dtype is not found.dtype or layout.dtype is not view.dtype:
            return None
        if layout.device != call.layout.device:
            return None
    return found


def _matmul_of(call: ExternKernel) -> Gemm | None:
    bias: Argument = None
    views = list(call.args)
    if call.target in (aten.addmm.default, aten.baddbmm.default) and len(views) == 3:
        bias = views.pop(0)
    elif call.target not in (aten.mm.default, aten.bmm.default):
        return None
    left, right = views
    result = call.layout
    assert isinstance(left, ViewRef) and isinstance(right, ViewRef) and result is not None
    if not _is_dense(result) or not (bias is None or isinstance(bias, ViewRef)):
        return None
    batch = left.size[0] if len(left.size) == 3 else 1
    m, k, n = left.size[-2], left.size[-1], right.size[-1]
    return Gemm(call, result.dtype, batch, m, n, k, left, right, bias)


def _pointwise_convolution(call: ExternKernel) -> Gemm | None:
    """A convolution with a window of one element, from channels last to channels last."""
    x, weight, bias, stride, padding, dilation, transposed, _, groups = call.args
    result = call.layout
    assert isinstance(x, ViewRef) and isinstance(weight, ViewRef) and result is not None
    if transposed or groups != 1 or len(x.size) != 4 or tuple(weight.size[2:]) != (1, 1):
        return None
    if {1} != {*stride, *dilation} or {0} != {*padding}:  # type: ignore[misc]
        return None
    batch, channels, height, width = x.size
    rows = batch * height * width
    order = (batch, height, width, channels)
    moved = Layout(result.device, x.dtype, order, tuple(x.stride[axis] for axis in (0, 2, 3, 1)))
    target = tuple(result.stride[axis] for axis in (0, 2, 3, 1))
    made = Layout(result.device, result.dtype, (*order[:3], result.size[1]), target, result.offset)
    if not _is_dense(moved) or not _is_dense(made):
        return None
    left = ViewRef(x.buffer, (rows, channels), (channels, 1), x.offset, x.dtype)
    right = replace(weight, size=weight.size[1::-1], stride=weight.stride[1::-1])
    if bias is not None and not isinstance(bias, ViewRef):
        return None
    n = weight.size[0]
    return Gemm(call, result.dtype, 1, rows, n, channels, left, right, bias, rounds_first=True)


def _convolution(call: ExternKernel) -> Gemm | None:
    """Another convolution of images, from channels that lie densely to channels last."""
    x, weight, bias, *steps, transposed, _, groups = call.args
    result = call.layout
    assert isinstance(x, ViewRef) and isinstance(weight, ViewRef) and result is not None
    if transposed or len(x.size) != 4 or not (x.stride[1] == 1 or x.size[1] == 1):
        return None
    pairs = [_pair(each) for each in steps]
    if None in pairs or not (bias is None or isinstance(bias, ViewRef)):
        return None
    last = (0, 2, 3, 1)
    sizes, target = (tuple(each[n] for n in last) for each in (result.size, result.stride))
    if not _is_dense(Layout(result.device, result.dtype, sizes, target, result.offset)):
        return None
    images, height, width, n = sizes
    left = replace(x, size=tuple(x.size[n] for n in last), stride=tuple(x.stride[n] for n in last))
    inner = (2, 3, 1, 0)
    right = replace(
        weight, size=tuple(weight.size[n] for n in inner),
        stride=tuple(weight.stride[n] for n in inner),
    )  # fmt: skip
    if any(type(size) is not int for size in right.size):
        return None
    assert isinstance(groups, int)
    left = replace(left, size=(*left.size[:3], right.size[2]))  # channels of one group
    form: Any = (*pairs, groups)
    window = Window(right.size[:2], (height, width), *form)  # type: ignore[arg-type]
    return Gemm(
        call, result.dtype, 1, images * height * width, n, total(right.size[:3]), left, right, bias,
        rounds_first=True, window=window,
    )  # fmt: skip


def _pair(numbers: Argument) -> tuple[int, int] | None:
    """A number for the height and one for the width; one alone is for both."""
    if not isinstance(numbers, (list, tuple)) or any(type(each) is not int for each in numbers):
        return None
    found = tuple(numbers) * (3 - len(numbers))
    return found if len(found) == 2 else None  # type: ignore[return-value]


def _is_dense(layout: Layout) -> bool:
    """Whether elements lie in order, from the beginning."""
    step = 1
    for size, stride in zip(reversed(layout.size), reversed(layout.stride), strict=True):
        if size != 1 and stride != step:
            return False
        step *= size
    return layout.offset == 0


def place(one: Gemm) -> Index:
    """Where the element in row x (of all batches) and column r of the result lies."""
    return variable("x", one.batch * one.m) * one.n + variable("r", one.n)


def place_of_left(one: Gemm) -> Index:
    """The same of the dense left operand, with a column r of it."""
    return variable("x", one.m) * one.k + variable("r", one.k)


def place_of_right(one: Gemm) -> Index:
    """The same of the dense right operand, with a row x and a column r of it."""
    down, along = one.right.stride[-2:]
    return variable("x", one.k) * down + variable("r", one.n) * along


def epilogue_ops(kernel: Kernel, flat: Index) -> tuple[Op, ...]:
    """The operations of a kernel of one stage, whose iterations are counted by `flat`."""
    (stage,) = kernel.stages
    names = [f"o{n}" for n in range(len(kernel.outer))]
    names += [f"i{n}" for n in range(len(stage.ranges))]
    values = unflatten(flat, names, (*kernel.outer, *stage.ranges))
    return tuple(
        op if op.index is None else replace(op, index=op.index.substitute(values))
        for op in stage.ops
    )


def epilogue_over_rows(kernel: Kernel, one: Gemm) -> Kernel:
    """The same kernel with loops over the rows and the columns of the GEMM's result."""
    sizes = (one.batch * one.m, one.n)
    flat = variable("i0", sizes[0]) * one.n + variable("i1", one.n)
    return replace(kernel, outer=(), stages=(LoopBody(sizes, (), epilogue_ops(kernel, flat)),))


class _Finder(Uses):
    def __init__(self, graph: LoopGraph, schedule: Schedule) -> None:
        super().__init__(graph, schedule)
        self.gemms: dict[str, tuple[int, Gemm]] = {}
        shown: set[str] = set()  # memory that has another name, too
        for position, step in enumerate(self.steps):
            if not isinstance(step, ExternKernel):
                continue
            if step.target.is_view:
                shown.add(step.name)
            found = as_gemm(step, self.layouts)
            if found is not None and shown.isdisjoint(step.reads()):
                self.gemms[found.name] = (position, found)

    def with_epilogue(self) -> Iterator[TemplateCandidate]:
        """Kernels behind the GEMMs that they read: all that fit together, or the last one."""
        for position, step in enumerate(self.steps):
            if not isinstance(step, Kernel) or not is_plain(step):
                continue
            found = [self.gemms[name] for name in step.reads() if name in self.gemms]
            fit = [each for each in found if self._fits(*each, step, position)]
            if not fit:
                continue
            start, last = max(fit, key=lambda each: each[0])
            like = [each for each in fit if _are_alike(each[1], last)]
            if len(like) == 2:
                yield self._behind(like, step, position)
            yield self._behind([(start, last)], step, position)

    def _behind(
        self, found: Sequence[tuple[int, Gemm]], kernel: Kernel, position: int
    ) -> TemplateCandidate:
        gemms = tuple(each for _, each in found)
        stored = tuple(
            each.name for each in gemms
            if each.name in self.outside or self.readers[each.name] != [position]
        )
        part = Part(gemms, kernel, stored)
        template = TemplateKernel(f"{kernel.name}_template", (part,))
        return TemplateCandidate(template, (*(start for start, _ in found), position), position)

    def _fits(self, start: int, one: Gemm, kernel: Kernel, position: int) -> bool:
        """Whether the GEMM can move down to the kernel, and the kernel be its epilogue."""
        (stage,) = kernel.stages
        count = total((*kernel.outer, *stage.ranges))
        if count != one.batch * one.m * one.n or one.name in self._overwritten():
            return False
        if min(self.readers[one.name]) < position:
            return False
        if self.is_written(one.call.reads(), start, position):
            return False
        if set(written(kernel)) & set(one.call.reads()):
            return False  # a program may read what another one has overwritten
        flat = place(one)
        ops = epilogue_ops(kernel, flat)
        return all(op.index == flat for op in ops if op.buffer == one.name)

    def _overwritten(self) -> set[str]:
        """GEMMs that somebody overwrites later."""
        return {name for name in self.gemms if len(self.writers.get(name, ())) > 1}

    def alone(self) -> Iterator[TemplateCandidate]:
        """Each GEMM without anything."""
        for name, (position, one) in self.gemms.items():
            part = Part((one,), None, (name,))
            template = TemplateKernel(f"{name}_template", (part,))
            yield TemplateCandidate(template, (position,), position)

    def with_prologue(self, candidate: TemplateCandidate) -> TemplateCandidate | None:
        """The same with the kernel that makes the left operand; None where there is none for it."""
        template = candidate.template
        if len(template.gemms()) != 1:
            return None
        (one,), (part,) = template.gemms(), template.parts
        if tuple(one.left.stride[-2:]) != (one.k, 1):
            return None
        made = self._maker(one, one.left, place_of_left(one), candidate)
        if made is None:
            return None
        found = replace(template, parts=(replace(part, prologue=made[1]),))
        return TemplateCandidate(found, (made[0], *candidate.positions), candidate.at)

    def with_weights(self, candidate: TemplateCandidate) -> TemplateCandidate | None:
        """The same with the kernels that make the right operands; None where some have none."""
        template, found = candidate.template, list[tuple[int, Kernel]]()
        if len(template.parts) != 1:
            return None
        for one in template.gemms():
            if not _is_dense_in_rows(one):
                return None
            made = self._maker(one, one.right, place_of_right(one), candidate)
            if made is None:
                return None
            found.append(made)
        (part,) = template.parts
        parts = (replace(part, weights=tuple(kernel for _, kernel in found)),)
        positions = (*(start for start, _ in found), *candidate.positions)
        return TemplateCandidate(replace(template, parts=parts), positions, candidate.at)

    def _maker(
        self, one: Gemm, view: ViewRef, place: Index, candidate: TemplateCandidate
    ) -> tuple[int, Kernel] | None:
        """The plain kernel that stores an operand of a GEMM, all of it and nothing else, for
        nobody else, and where it stands, if it can move down to the candidate."""
        makers = self.writers.get(view.buffer, [])
        kernel = self.steps[makers[0]] if len(makers) == 1 else None
        looks_up = view == one.right  # scales of groups in any order, say
        if not isinstance(kernel, Kernel) or not is_plain(kernel, looks_up):
            return None
        if not self._makes(kernel, one, view, place):
            return None
        if set(kernel.reads()) & set(candidate.template.writes()):
            return None
        start = makers[0]
        if self.is_written(kernel.reads(), start, candidate.at):
            return None
        return start, kernel

    def _makes(self, kernel: Kernel, one: Gemm, view: ViewRef, place: Index) -> bool:
        """Whether a plain kernel stores an operand, whose elements lie at `place`, and no more."""
        start, _ = self.gemms[one.name]
        if one.window is not None or one.batch != 1 or view.offset != 0:
            return False
        if kernel.writes() != (view.buffer,) or self.readers[view.buffer] != [start]:
            return False
        given = [each.buffer for each in one.call.views()]
        if view.buffer in self.outside or given.count(view.buffer) != 1:
            return False
        (stage,) = kernel.stages
        count = total((*kernel.outer, *stage.ranges))
        if count != total(view.size[-2:]) and not (view is one.right and _is_part(view, kernel)):
            return False
        if stage.ops[-1].name != "store":
            return False
        stores = [op for op in epilogue_ops(kernel, place) if op.name == "store"]
        return len(stores) == 1 and stores[0].index == place

    def side_by_side(self) -> Iterator[TemplateCandidate]:
        """GEMMs with the same left operand, all where the first one stands."""
        groups: dict[tuple[Any, ...], list[tuple[int, Gemm]]] = {}
        for start, one in self.gemms.values():
            if one.batch == 1 and one.window is None:
                alike = (one.left, one.dtype, one.right.stride)
                groups.setdefault(alike, []).append((start, one))
        for members in groups.values():
            first = members[0][0]
            found = [each for each in members if self._may_move_up(*each, first)]
            if 2 <= len(found) <= MOST_SIDE_BY_SIDE:
                parts = tuple(Part((one,), None, (one.name,)) for _, one in found)
                template = TemplateKernel(f"{found[0][1].name}_template", parts)
                yield TemplateCandidate(template, tuple(start for start, _ in found), first)

    def _may_move_up(self, start: int, one: Gemm, first: int) -> bool:
        return not self.is_written(one.call.reads(), first - 1, start)


def _is_dense_in_rows(one: Gemm) -> bool:
    """Whether rows or columns of the right operand are dense, one behind another, perhaps with
    something in between."""
    down, along = one.right.stride[-2:]
    if type(down) is not int or type(along) is not int:
        return (down, along) in ((1, one.k), (one.n, 1))
    return down == 1 and along >= one.k or along == 1 and down >= one.n


def _is_part(view: ViewRef, kernel: Kernel) -> bool:
    """Whether a weight is a part of what the kernel makes, of which nothing else need be made:
    groups that the terms do not fill were filled up, say."""
    (stage,) = kernel.stages
    count, size = total((*kernel.outer, *stage.ranges)), view.size[-2:]
    if any(type(n) is not int for n in (count, *size)):
        return False
    if any(isinstance(op.imm, IndirectVar) and op.imm.check for op in stage.ops):
        return False  # places that are out of range are an error, in what is left out, too
    steps = view.stride[-2:]
    return sum((n - 1) * step for n, step in zip(size, steps, strict=True)) < count


def find_candidates(
    graph: LoopGraph, schedule: Schedule, prologues: bool = False
) -> list[TemplateCandidate]:
    """What could become templates, those of more steps first; they may overlap. prologues: also
    with kernels that make operands."""
    finder = _Finder(graph, schedule)
    found = [*finder.with_epilogue(), *finder.side_by_side(), *finder.alone()]
    if prologues:
        more = [finder.with_prologue(each) for each in found]
        more += [finder.with_weights(each) for each in found]
        found += [each for each in more if each is not None]
    return sorted(found, key=lambda each: -len(each.positions))


def with_templates(schedule: Schedule, chosen: Iterable[TemplateCandidate]) -> Schedule:
    """The schedule with these candidates (no two of which replace the same step)."""
    placed: dict[int, TemplateKernel] = {}
    gone: set[int] = set()
    for each in chosen:
        if gone & set(each.positions):
            raise ValueError(f"{each.template.name} replaces what another template has replaced")
        placed[each.at] = each.template
        gone |= set(each.positions)
    return with_placed(schedule, placed, gone)


def choose_disjoint(
    candidates: Iterable[TemplateCandidate],
    wanted: Callable[[TemplateCandidate], TemplateKernel | None],
) -> list[TemplateCandidate]:
    """The first candidates that are wanted, do not overlap and stay in order. wanted: what is
    used, or None."""
    found: list[TemplateCandidate] = []
    taken: set[int] = set()
    for each in candidates:
        if taken & set(each.positions) or any(_clash(each, other) for other in found):
            continue
        template = wanted(each)
        if template is not None:
            found.append(replace(each, template=template))
            taken |= set(each.positions)
    return found


def _clash(one: TemplateCandidate, other: TemplateCandidate) -> bool:
    """Whether the one that stands first reads what the other one writes."""
    above, below = sorted((one, other), key=lambda each: each.at)
    return not set(above.template.reads()).isdisjoint(below.template.writes())


def is_plain(kernel: Kernel, looks_up: bool = False) -> bool:
    """One stage, no reductions, each element stored once at a place that is known. looks_up: it
    may load at places that it has loaded."""
    if len(kernel.stages) != 1 or kernel.locals or kernel.stages[0].reduction_ranges:
        return False
    stage: LoopBody = kernel.stages[0]
    if len(stage.ops) > MOST_OPS:
        return False
    if any(op.name in STRUCTURAL and not (looks_up and op.name == "indirect") for op in stage.ops):
        return False
    stored = {op.buffer for op in stage.stores()}
    return all(op.imm == "set" for op in stage.stores()) and not any(
        op.buffer in stored for op in stage.loads()
    )


def _are_alike(one: Gemm, other: Gemm) -> bool:
    """Whether a tile of both can be computed in one go."""
    if one.left != other.left or one.n != other.n or one.window != other.window:
        return False
    return one.batch == other.batch == 1
