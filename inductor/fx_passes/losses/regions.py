"""What is computed row by row from a GEMM whose result is large: the logits of a loss.

In: a functional ATen graph with fakes, forward alone or joint, and a GEMM. Out: a `Region`: the
form of each node that can be computed for some of the rows alone. A node is *wide*, with all
columns for each row in whatever dimensions, or a *column* of one number for each row; masks and
the like that are made of labels alone are among them.

Programs may take some of the rows only, `logits[:, :-1]`: one such slice, `Selection`, is known.
Rows are counted before it (space 0) and behind it (space 1).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from dynamo.aot.fakes import facts_of, is_fake, is_static
from dynamo.aot.graphs import is_once
from dynamo.aot.joint import TANGENT
from dynamo.aot.records import LATE, RECOMPUTED

aten = torch.ops.aten

VIEWS = frozenset({
    aten.view.default, aten._unsafe_view.default, aten.unsqueeze.default, aten.squeeze.default,
    aten.squeeze.dim, aten.squeeze.dims, aten.alias.default, aten.detach.default,
})  # fmt: skip
SAME = frozenset({aten.expand.default, aten.clone.default})  # gives its elements as they are
UNTAGGED = frozenset({aten._to_copy.default, aten.masked_fill.Tensor, *SAME})
SOFTMAX = frozenset({aten._log_softmax.default, aten._softmax.default})
SUMS = frozenset({
    aten.sum.dim_IntList, aten.mean.dim, aten.amax.default, aten.amin.default,
    aten.any.dim, aten.argmax.default, aten.argmin.default,
})  # fmt: skip
# Where such an operator has its size, if it has one, and its number.
FILLED: dict[Any, tuple[int | None, Any]] = {
    aten.new_zeros.default: (1, 0), aten.zeros.default: (0, 0), aten.zeros_like.default: (None, 0),
    aten.ones_like.default: (None, 1), aten.new_ones.default: (1, 1), aten.ones.default: (0, 1),
}  # fmt: skip
GEMMS = (aten.mm.default, aten.addmm.default)


@dataclass(frozen=True, slots=True)
class Form:
    """wide: with all columns; else one number for each row. space: how rows are counted."""

    wide: bool
    space: int


@dataclass(frozen=True, slots=True)
class Selection:
    """The rows that go on: a slice of the dimension `where[0]` of rows in the sizes `before`."""

    before: tuple[int, ...]
    after: tuple[int, ...]
    where: tuple[int, ...]


def size_of(node: fx.Node) -> tuple[int, ...]:
    """The sizes of a node's tensor."""
    return tuple(node.meta["val"].shape)


def is_tensor(node: Any) -> bool:
    """Whether it is a node with one tensor of known sizes."""
    if not isinstance(node, fx.Node):
        return False
    value = node.meta.get("val")
    return is_fake(value) and is_static(facts_of(value))


def dependents_of(graph: fx.Graph, roots: set[fx.Node]) -> set[fx.Node]:
    """The nodes that are computed from these, and these."""
    found = set(roots)
    for node in graph.nodes:
        if not found.isdisjoint(node.all_input_nodes):
            found.add(node)
    return found


class Region:
    """The nodes around a GEMM, and their forms.

    left, right, bias: its operands. dependents: all that is computed from it. late: all that is
    computed from the gradient of a result of the program.
    """

    def __init__(self, graph: fx.Graph, gemm: fx.Node) -> None:
        self.graph, self.gemm = graph, gemm
        operands: Any = (None, *gemm.args)[-3:]
        self.bias, self.left, self.right = operands
        self.rows, self.columns = size_of(gemm)
        self.device, self.dtype = gemm.meta["val"].device, gemm.meta["val"].dtype
        self.dependents = dependents_of(graph, {gemm})
        self.late = dependents_of(graph, {
            node for node in graph.nodes
            if node.op == "placeholder" and node.name.startswith(TANGENT)
        })  # fmt: skip
        self.selection = next(self._selections(), None)
        self.counts = [self.rows]
        if self.selection is not None:
            self.counts.append(math.prod(self.selection.after))
        self.forms: dict[fx.Node, Form] = {gemm: Form(True, 0)}
        if self.counts[-1] * self.columns == self.rows:  # else a size does not tell what it is
            return
        for node in graph.nodes:
            form = self._form_of(node)
            if form is not None:
                self.forms[node] = form

    @property
    def last_space(self) -> int:
        """The space of the rows that the loop goes over."""
        return len(self.counts) - 1

    def space_of(self, node: Any, wide: bool) -> int | None:
        """By its size; None for what is neither."""
        size = size_of(node)
        width = self.columns if wide else 1
        if wide and (not size or size[-1] != self.columns):
            return None
        count = math.prod(size)
        return next((n for n, rows in enumerate(self.counts) if rows * width == count), None)

    def _selections(self) -> Iterator[Selection]:
        for node in self.graph.nodes:
            if node.target is aten.slice.Tensor and node in self.dependents - self.late:
                found = self._selection_of(node, node.args[0])
                if found is not None and found.before != found.after:
                    yield found

    def _selection_of(self, node: fx.Node, whole: Any) -> Selection | None:
        """What a slice, or the write of one into zeros, takes of the rows of `whole`."""
        skipped = 1 if node.target is aten.slice.Tensor else 2
        if not is_tensor(node) or not is_tensor(whole) or node.kwargs:
            return None
        before = size_of(whole)
        if before[-1:] != (self.columns,) or math.prod(before[:-1]) != self.rows:
            return None
        where: list[Any] = [*node.args[skipped:]]
        where += (0, None, None, 1)[len(where) :]
        dim, start, end, step = where
        dim %= len(before)
        start, end, step = slice(start, end, step).indices(before[dim])
        if dim == len(before) - 1:
            return None
        after = (*before[:dim], len(range(start, end, step)), *before[dim + 1 :])
        return Selection(before[:-1], after[:-1], (dim, start, end, step))

    # -- the form of one node ---------------------------------------------------------------------

    def _form_of(self, node: fx.Node) -> Form | None:
        if node.op != "call_function" or not is_tensor(node) or is_once(node):
            return None
        if RECOMPUTED in node.meta or LATE in node.meta:
            return None
        if node.meta["val"].device != self.device:
            return None
        rule = RULES.get(node.target)
        if rule is None and is_elementwise(node.target):
            rule = Region._elementwise
        return None if rule is None else rule(self, node)

    def _elementwise(self, node: fx.Node) -> Form | None:
        space, wide = self.space_of(node, True), True
        if space is None:
            if self.forms.keys().isdisjoint(node.all_input_nodes):
                return None
            space, wide = self.space_of(node, False), False
        if space is None:
            return None
        form = Form(wide, space)
        fits = all(self._fits(given, node, form) for given in node.all_input_nodes)
        return form if fits and set(node.kwargs) <= PLAIN_OPTIONS else None

    def _fits(self, given: fx.Node, node: fx.Node, form: Form) -> bool:
        """Whether an operand of an elementwise operation can be had for some of the rows."""
        if not is_tensor(given):
            return False
        known = self.forms.get(given)
        if known is None:
            may_miss_rows = self.selection is not None and form.space == 0
            return self._is_leaf(given) and not (
                may_miss_rows and (given in self.late or self.has_rows(given, node, form)))
        if known.space != form.space or known.wide and not form.wide:
            return False
        return known.wide or not form.wide or _padded(given, len(size_of(node)))[-1] == 1

    def _is_leaf(self, given: fx.Node) -> bool:
        """Whether it may be computed before the loop, perhaps for another upstream gradient."""
        count = math.prod(size_of(given))
        return given not in self.dependents or given in self.late and count == 1

    def has_rows(self, given: fx.Node, node: fx.Node, form: Form) -> bool:
        """Whether an operand from outside differs from row to row."""
        padded = _padded(given, len(size_of(node)))
        return any(n != 1 for n in (padded[:-1] if form.wide else padded))

    def _view(self, node: fx.Node) -> Form | None:
        known = self.forms.get(node.args[0])  # type: ignore[arg-type]
        if known is None:
            return None
        return known if self.space_of(node, known.wide) == known.space else None

    def _slice(self, node: fx.Node) -> Form | None:
        known = self.forms.get(node.args[0])  # type: ignore[arg-type]
        if known is None or not known.wide or known.space != 0:
            return None
        found = self._selection_of(node, node.args[0])
        if found is None:
            return None
        if found.before == found.after:
            return known
        return Form(True, 1) if found == self.selection else None

    def _slice_scatter(self, node: fx.Node) -> Form | None:
        base, part = self.forms.get(node.args[0]), self.forms.get(node.args[1])  # type: ignore[arg-type]
        if base != Form(True, 0) or part != Form(True, 1) or filling(node.args[0]) != 0:
            return None
        return base if self._selection_of(node, node) == self.selection else None

    def _softmax(self, node: fx.Node) -> Form | None:
        known = self.forms.get(node.args[0])  # type: ignore[arg-type]
        if known is None or not known.wide:
            return None
        return known if node.args[1] in (-1, len(size_of(node)) - 1) else None

    def _reduced(self, node: fx.Node) -> Form | None:
        source: Any = node.args[0]
        known = self.forms.get(source)
        if known is None or not known.wide or len(node.args) < 2:
            return None
        dims: Any = node.args[1] if isinstance(node.args[1], (list, tuple)) else [node.args[1]]
        last = len(size_of(source)) - 1
        return Form(False, known.space) if list(dims) in ([-1], [last]) else None

    def _gathered(self, node: fx.Node) -> Form | None:
        source, dim, index = node.args[:3]
        known = self.forms.get(source)  # type: ignore[arg-type]
        if known is None or not known.wide or dim not in (-1, len(size_of(source)) - 1):  # type: ignore[arg-type]
            return None
        if self.space_of(node, False) != known.space or size_of(node)[-1] != 1:
            return None
        form = Form(False, known.space)
        return form if self._fits(index, node, form) else None  # type: ignore[arg-type]

    def _scattered(self, node: fx.Node) -> Form | None:
        base, dim, index, source = node.args
        known = self.forms.get(base)  # type: ignore[arg-type]
        if known is None or not known.wide or filling(base) != 0:
            return None
        if dim not in (-1, len(size_of(node)) - 1):
            return None
        ends = [size_of(given)[-1:] for given in (index, source)]  # type: ignore[arg-type]
        fits = all(self._fits(given, node, known) for given in (index, source))  # type: ignore[arg-type]
        spaces = [self.space_of(given, False) for given in (index, source)]
        return known if fits and ends == [(1,), (1,)] and spaces == [known.space] * 2 else None

    def _filled(self, node: fx.Node) -> Form | None:
        space = self.space_of(node, True)
        return None if space is None else Form(True, space)


PLAIN_OPTIONS = {"dtype", "layout", "device", "pin_memory", "memory_format", "alpha",
                 "rounding_mode", "approximate", "implicit", "non_blocking"}
Rule = Callable[[Region, fx.Node], Form | None]
RULES: dict[Any, Rule] = {
    **dict.fromkeys(VIEWS, Region._view),
    **dict.fromkeys(SOFTMAX, Region._softmax),
    **dict.fromkeys(SUMS, Region._reduced),
    **dict.fromkeys(FILLED, Region._filled),
    aten.slice.Tensor: Region._slice,
    aten.slice_scatter.default: Region._slice_scatter,
    aten.gather.default: Region._gathered,
    aten.scatter_add.default: Region._scattered,
}


def is_elementwise(target: Any) -> bool:
    """Whether an operator computes each element from those at the same place."""
    if not isinstance(target, torch._ops.OpOverload) or target in FILLED:
        return False
    return target in UNTAGGED or torch.Tag.pointwise in target.tags


def filling(node: Any) -> Any:
    """The number that a node's tensor is full of; None where it is not known."""
    if not isinstance(node, fx.Node):
        return None
    if node.target in FILLED:
        return FILLED[node.target][1]
    place = {aten.full.default: 1, aten.scalar_tensor.default: 0, aten.full_like.default: 1}
    at = place.get(node.target)  # type: ignore[call-overload]
    value = None if at is None or len(node.args) <= at else node.args[at]
    return value if type(value) in (int, float) else None


def _padded(node: fx.Node, rank: int) -> Sequence[int]:
    size = size_of(node)
    return (*(1,) * (rank - len(size)), *size)
