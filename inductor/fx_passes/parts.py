"""Parts of tensors are read and added where they are.

In: a functional ATen graph with fakes. Out: the same graph (changed in place), where

- a part of a tensor of which another part was replaced is a part of the former tensor, so that
  backward of a chain of writes, which reads each part and replaces it by zeros, copies nothing;
- a long sum of tensors that are zero but for a part, as backward of reads of parts makes them, is
  one tensor to whose parts something is added (`in_place` writes them).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

from dynamo.aot.graphs import must_run, remove_dead_code
from inductor.fx_passes.in_place import time_of_parts
from inductor.fx_passes.places import PARTS, NotInPlace, geometry, run_on_fake

aten = torch.ops.aten
ZEROS = (aten.new_zeros.default, aten.zeros.default, aten.zeros_like.default)
SELECTS = (aten.select.int, aten.select_scatter.default)
BEGINS = (aten.select.int, aten.slice.Tensor)  # parts along one dimension
FEWEST_TERMS = 4  # of a chain of additions; chosen, not measured


def read_parts(module: fx.GraphModule) -> fx.GraphModule:
    """See the top of the file."""
    graph = module.graph
    changed = _read_former(graph)
    gone: set[fx.Node] = set()
    for node in list(reversed(graph.nodes)):
        if node.target is aten.add.Tensor and node not in gone:
            gone.update(_add_in_parts(graph, node))
    if changed or gone:
        remove_dead_code(graph)
        graph.lint()
        module.recompile()
    return module


# -- reads ------------------------------------------------------------------------------------


def _read_former(graph: fx.Graph) -> bool:
    """Reads of parts are those of former tensors where the later ones are not wanted then."""
    changed = False
    moved: dict[fx.Node, tuple[Any, list[fx.Node]]] = {}
    for node in graph.nodes:
        if node.target in PARTS:
            given = node.args[0]
            node.args = (_uncopied(given), *node.args[1:])
            changed |= node.args[0] is not given
        elif node.target in BEGINS and (skipped := _skipped(node)):
            moved[node] = node.args[0], skipped
    for node, (_, skipped) in moved.items():
        node.args = (_uncopied(skipped[-1].args[0]), *node.args[1:])
    while moved:
        wanted = _wanted(graph)
        used = [node for node, (_, skipped) in moved.items() if not wanted.isdisjoint(skipped)]
        if not used:
            return True
        for node in used:
            node.args = (moved.pop(node)[0], *node.args[1:])
    return changed


def _wanted(graph: fx.Graph) -> set[fx.Node]:
    """The nodes that results depend on."""
    found: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        if must_run(node) or not found.isdisjoint(node.users):
            found.add(node)
    return found


def _uncopied(node: Any) -> Any:
    """What a tensor is that was copied into new memory of the same form."""
    while node.target is aten.copy.default and not node.kwargs:
        memory, source = node.args[:2]
        if geometry(memory.meta["val"]) != geometry(source.meta["val"]):
            break
        node = source
    return node


def _skipped(node: fx.Node) -> list[fx.Node]:
    """The writes, from the last one, that do not touch the part that the node reads."""
    found: list[fx.Node] = []
    source = _uncopied(node.args[0])
    wanted = _range(node, node.args[1:])
    while wanted is not None and source.target in PARTS and PARTS[source.target] in BEGINS:
        written = _range(source, source.args[2:])
        former = _uncopied(source.args[0])
        if written is None or written[0] != wanted[0]:
            break
        if written[1] < wanted[2] and wanted[1] < written[2]:
            break
        if geometry(former.meta["val"]) != geometry(source.meta["val"]):
            break
        found.append(source)
        source = former
    return found


def _range(node: fx.Node, where: tuple[Any, ...]) -> tuple[int, int, int] | None:
    """Dimension, begin and end of the part that a node reads or replaces; None where they are not
    static. where: its arguments behind the tensors."""
    shape = node.args[0].meta["val"].shape  # type: ignore[union-attr]
    if node.kwargs or any(type(number) not in (int, type(None)) for number in where):
        return None
    dim = where[0] % len(shape) if where else 0
    size = shape[dim]
    if type(size) is not int:
        return None
    if node.target in SELECTS:
        return dim, where[1] % size, where[1] % size + 1
    begin, end, _ = slice(*(*where[1:3], None, None)[:2]).indices(size)
    return dim, begin, max(begin, end)


# -- sums -------------------------------------------------------------------------------------


def _add_in_parts(graph: fx.Graph, last: fx.Node) -> list[fx.Node]:
    """Makes a sum that ends in this node one of parts; the additions that are then gone.

    Eager adds zeros to what lies elsewhere, which turns -0.0 into 0.0: so it begins with zeros."""
    first, sums, terms = _sum_of_parts(last)
    fake = last.meta["val"]
    if len(terms) < FEWEST_TERMS or time_of_parts(fake, len(terms)) < 2 * len(terms):
        return []
    try:
        views = [
            run_on_fake(PARTS[term.target], fake, term.args[2:])  # type: ignore[index]
            for term in terms
        ]
        fakes = [
            run_on_fake(aten.add.Tensor, view, (term.args[1],))
            for view, term in zip(views, terms, strict=True)
        ]
    except NotInPlace:
        return []
    with graph.inserting_before(sums[0]):
        total = graph.call_function(aten.add.Tensor, (first, 0))
    total.meta = dict(last.meta)
    nodes = sums if len(sums) == len(terms) else [sums[0], *sums]
    for node, term, view, added in zip(nodes, terms, views, fakes, strict=True):
        where = term.args[2:]
        with graph.inserting_before(node):
            old = graph.call_function(PARTS[term.target], (total, *where))  # type: ignore[index]
            new = graph.call_function(aten.add.Tensor, (old, term.args[1]))
            whole = graph.call_function(term.target, (total, new, *where))  # type: ignore[arg-type]
        for made, value in ((old, view), (new, added), (whole, fake)):
            made.meta = {**node.meta, "val": value}
        total = whole
    last.replace_all_uses_with(total)
    return sums


def _sum_of_parts(last: fx.Node) -> tuple[fx.Node, list[fx.Node], list[fx.Node]]:
    """What comes first, additions up to this one, and their terms, zero but for a part each. What
    comes first are zeros, where there is one term more than additions."""
    sums: list[fx.Node] = []
    terms: list[fx.Node] = []
    form = geometry(last.meta["val"])
    node: Any = last
    while node.target is aten.add.Tensor and not node.kwargs:
        if node is not last and len(node.users) > 1:
            break
        one, other = node.args
        if not _is_part_of_zeros(other, form):
            one, other = other, one
        if not _is_part_of_zeros(other, form) or not isinstance(one, fx.Node):
            break
        if geometry(one.meta["val"]) != form:
            break
        sums.insert(0, node)
        terms.insert(0, other)
        node = one
    if terms and _is_part_of_zeros(node, form):
        terms.insert(0, node)
        node = node.args[0]
    return node, sums, terms


def _is_part_of_zeros(node: Any, form: Any) -> bool:
    return (
        isinstance(node, fx.Node)
        and node.target in PARTS
        and PARTS[node.target] in BEGINS
        and node.args[0].target in ZEROS  # type: ignore[operator, union-attr]
        and geometry(node.meta["val"]) == form
        and node.args[1].meta["val"].dtype is form[0] is not torch.bool  # type: ignore[union-attr]
        and not node.kwargs
    )
