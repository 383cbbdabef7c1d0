"""Operators of libraries that write their arguments, in place.

In: a functional ATen graph in which such an operator is its twin, which gives new values
(`dynamo.graph_operators.written_operators`). Out: the same graph (changed in place) where the
operator itself writes what the graph has made, or an input that gets this value in the end, if
nothing wants the old contents after it. Of other arguments it writes a copy.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

from dynamo.aot.fakes import facts_of, is_fake
from dynamo.aot.graphs import remove_dead_code
from dynamo.graph_operators.written_operators import operator_of, written_places
from inductor.fx_passes.in_place import is_made
from inductor.fx_passes.places import PLACE, NotInPlace, is_view, run_on_fake

aten = torch.ops.aten


def call_in_place(module: fx.GraphModule) -> fx.GraphModule:
    """See the top of the file."""
    graph = module.graph
    twins = [node for node in graph.nodes if operator_of(node.target) is not None]
    if not twins:
        return module
    order = {node: n for n, node in enumerate(graph.nodes)}
    for twin in twins:
        _call(graph, twin, order)
    remove_dead_code(graph)
    graph.lint()
    module.recompile()
    return module


def _call(graph: fx.Graph, twin: fx.Node, order: dict[fx.Node, int]) -> None:
    target: Any = operator_of(twin.target)
    places = written_places(target)
    results = _results_of(twin, len(places))
    if target._schema.returns or results is None:
        return
    if any(isinstance(arg, fx.Node) and twin.args.count(arg) > 1 for arg in twin.args):
        return
    given = list(twin.args)
    copies: dict[int, Any] = {}
    for n, result in zip(places, results, strict=True):
        if not _is_free(given[n], twin, result, order):  # type: ignore[arg-type]
            copies[n] = _fake_copy(given[n])  # type: ignore[arg-type]
            if copies[n] is None:
                return
    with graph.inserting_before(twin):
        for n, fake in copies.items():
            source: Any = given[n]
            clone = graph.call_function(aten.clone.default, (source,))
            clone.meta = {**twin.meta, "val": fake}
            order[clone], given[n] = order[twin], clone
        call = graph.call_function(target, tuple(given), dict(twin.kwargs))
    call.meta = {**twin.meta, "val": None}
    order[call] = order[twin]
    for n, result in zip(places, results, strict=True):
        written: Any = given[n]
        written.meta.setdefault(PLACE, written.name)
        for node in result:
            for user in list(node.users):
                if user.target is aten.copy_.default and user.args == (written, node):
                    graph.erase_node(user)
            node.replace_all_uses_with(written)
            if node is not twin:
                graph.erase_node(node)
    graph.erase_node(twin)


def _results_of(twin: fx.Node, count: int) -> list[list[fx.Node]] | None:
    """For each written argument the nodes of its new value; None where it is unknown."""
    if count == 1:
        return [[twin]]
    found: list[list[fx.Node]] = [[] for _ in range(count)]
    for user in twin.users:
        if user.target is not operator.getitem:
            return None
        found[user.args[1]].append(user)  # type: ignore[index]
    return found


def _is_free(
    node: fx.Node, twin: fx.Node, result: list[fx.Node], order: dict[fx.Node, int]
) -> bool:
    """Whether the memory of a node may be written at this call."""
    ends = [
        user for user in node.users
        if user.target is aten.copy_.default and user.args[0] is node and user.args[1] in result
    ]
    if not (ends if node.op == "placeholder" else is_made(node)):
        return False
    pending, seen = [node], {twin, *ends}
    while pending:
        for user in pending.pop().users:
            if user in seen:
                continue
            seen.add(user)
            if order[user] > order[twin] or user.op == "output":
                return False
            if is_view(user) or not is_fake(user.meta.get("val")):
                pending.append(user)
    return True


def _fake_copy(node: fx.Node) -> Any:
    """What a copy would be; None where it has not the strides on which the operator may count."""
    try:
        fake = run_on_fake(aten.clone.default, node.meta["val"])
    except NotInPlace:
        return None
    return fake if facts_of(fake).stride == facts_of(node.meta["val"]).stride else None
