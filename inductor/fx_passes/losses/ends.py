"""What leaves a region: numbers for each row, and GEMMs with the gradient of its logits.

In: a `Region`. Out: `Ends`, or None where somebody wants the logits themselves, or where the
gradients can't be computed in the forward half.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from dynamo.aot.graphs import is_effect
from dynamo.aot.joint import TANGENT
from dynamo.aot.records import FAILS, LATE, RECOMPUTED
from inductor.fx_passes.losses.linear import Degrees, NotLinear
from inductor.fx_passes.losses.regions import Form, Region, dependents_of, is_tensor, size_of

aten = torch.ops.aten
TURNED = (aten.t.default, aten.permute.default, aten.transpose.int)

ROWS = "rows"  # wide @ other: a row of the result for each row
TOTAL = "total"  # wide.T @ other, a sum over the rows
TURNED_TOTAL = "turned_total"  # other @ wide, where other has a column for each row
SUM = "sum"  # over the rows
SUM_OF_ALL = "sum_of_all"  # over rows and columns


@dataclass(frozen=True, slots=True)
class Root:
    """A node outside of the region that reads wide values, and no more than their rows one by one
    or a sum over these. kind: see above."""

    node: fx.Node
    kind: str
    wide: fx.Node
    other: fx.Node | None = None


@dataclass(frozen=True, slots=True)
class Ends:
    """exits: columns that others read. roots: see there. needed: the nodes of the region that are
    computed for them. number: what the late roots are proportional to; late: all that is computed
    from it."""

    exits: tuple[fx.Node, ...]
    roots: tuple[Root, ...]
    needed: frozenset[fx.Node]
    number: fx.Node | None
    late: frozenset[fx.Node]

    def is_late(self, root: Root) -> bool:
        """Whether it is to be multiplied by the number."""
        return root.wide in self.late


def find_ends(region: Region) -> Ends | None:
    """See the top of the file."""
    exits: dict[fx.Node, None] = {}
    roots: dict[fx.Node, Root] = {}
    nodes = region.graph.nodes
    work = [node for node in nodes if node.op == "output" or is_effect(node)]
    seen: set[fx.Node] = set()
    while work:
        node = work.pop()
        if node in seen:
            continue
        seen.add(node)
        root = _root_of(region, node)
        form = region.forms.get(node)
        if root is not None:
            roots[node] = root
            work += [] if root.other is None else [root.other]
        elif node in region.dependents and form is not None:
            if form != Form(False, region.last_space) or node in region.late:
                return None
            exits[node] = None
        else:
            work += node.all_input_nodes
    if any(RECOMPUTED in node.meta or LATE in node.meta for node in roots):
        return None
    if any(_misses_rows(region, root) for root in roots.values()):
        return None
    needed, leaves = _needed(region, [*exits, *(root.wide for root in roots.values())])
    unread = region.dependents - needed - seen
    if not needed or any(FAILS in node.meta for node in unread):
        return None
    number = None
    late_roots = [root for root in roots.values() if root.wide in region.late]
    if region.late & (needed | leaves):
        number = _number(region, needed, leaves, late_roots)
        if number is None:
            return None
    late = frozenset() if number is None else frozenset(dependents_of(region.graph, {number}))
    return Ends(tuple(exits), tuple(roots.values()), frozenset(needed), number, late)


def _misses_rows(region: Region, root: Root) -> bool:
    """Whether rows that are not selected count: those of a gradient are zeros."""
    return region.forms[root.wide].space != region.last_space and root.wide not in region.late


def _root_of(region: Region, node: fx.Node) -> Root | None:
    if node not in region.dependents or not is_tensor(node):
        return None
    if node.target is aten.mm.default:
        return _gemm_root(region, node)
    if node.target not in (aten.sum.default, aten.sum.dim_IntList):
        return None
    source: Any = node.args[0]
    form = region.forms.get(source)
    if form is None or not form.wide:
        return None
    if not node.meta["val"].dtype.is_floating_point:
        return None
    rank = len(size_of(source))
    named: Any = node.args[1] if len(node.args) > 1 else None
    dims = sorted(dim % rank for dim in named or ())
    if dims in ([], list(range(rank))):
        return Root(node, SUM_OF_ALL, source)
    return Root(node, SUM, source) if dims == list(range(rank - 1)) else None


def _gemm_root(region: Region, node: fx.Node) -> Root | None:
    left: Any
    right: Any
    left, right = node.args
    outside = region.dependents | region.late
    if right not in outside:
        if _is_matrix(region, left):
            return Root(node, ROWS, left, right)
        if left.target in TURNED and _is_matrix(region, left.args[0]):
            if _is_turned(left):
                return Root(node, TOTAL, left.args[0], right)
    elif left not in outside and _is_matrix(region, right):
        return Root(node, TURNED_TOTAL, right, left)
    return None


def _is_turned(node: fx.Node) -> bool:
    """Whether a view really exchanges both dimensions."""
    rest: Any = node.args[1:]
    if node.target is aten.permute.default:
        return [dim % 2 for dim in rest[0]] == [1, 0]
    return node.target is aten.t.default or {dim % 2 for dim in rest} == {0, 1}


def _is_matrix(region: Region, node: fx.Node) -> bool:
    form = region.forms.get(node)
    return form is not None and form.wide and len(size_of(node)) == 2


def _needed(
    region: Region, wanted: Iterable[fx.Node]
) -> tuple[set[fx.Node], set[fx.Node]]:
    """The nodes of the region that these are computed from, and what they read from outside."""
    needed: set[fx.Node] = set()
    leaves: set[fx.Node] = set()
    work = list(wanted)
    while work:
        node = work.pop()
        if node not in region.forms:
            leaves.add(node)
        elif node not in needed:
            needed.add(node)
            if node is not region.gemm:
                work += node.all_input_nodes
    return needed, leaves


def _number(
    region: Region, needed: set[fx.Node], leaves: set[fx.Node], roots: list[Root]
) -> fx.Node | None:
    """A number that everything late in the region comes from, and that the late roots are
    proportional to: the first one. It must not be computed from what the loop gives."""
    late_leaves = leaves & region.late
    for node in region.graph.nodes:
        if node not in region.late or node in region.dependents or not is_tensor(node):
            continue
        value = node.meta["val"]
        if value.numel() == 1 and value.dtype.is_floating_point:
            if _comes_from(region, late_leaves, node) and _is_proportional(region, node, roots):
                return node  # type: ignore[no-any-return]
    return None


def _comes_from(region: Region, leaves: set[fx.Node], number: fx.Node) -> bool:
    """Whether leaves can be computed from the number, and from what is there before the loop."""
    work, seen = list(leaves), {number}
    while work:
        node = work.pop()
        if node in seen or node not in region.late:
            if node in region.dependents:
                return False
            continue
        seen.add(node)
        tangent = node.op == "placeholder" and node.name.startswith(TANGENT)
        if tangent or node in region.dependents or is_effect(node) or RECOMPUTED in node.meta:
            return False
        work += node.all_input_nodes
    return True


def _is_proportional(region: Region, number: fx.Node, roots: list[Root]) -> bool:
    degrees = Degrees(number, dependents_of(region.graph, {number}))
    try:
        return all(degrees.of(root.wide) == 1 for root in roots)
    except NotLinear:
        return False
