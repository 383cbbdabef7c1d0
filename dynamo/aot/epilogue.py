"""Writes into inputs as the end of a forward graph.

In: a partitioned joint graph, whose new values of mutated inputs are outputs of forward. Out: the
same, where forward itself writes those that neither a gradient nor backward needs: then its
compiler may write in place, and nothing is copied once more.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from dynamo.aot.joint import JointGraph, shares_storage
from dynamo.aot.partition import Partition
from dynamo.aot.records import AtenGraph, Mutation, Unsupported

aten = torch.ops.aten


def write_in_forward(joint: JointGraph, partition: Partition) -> tuple[Mutation, ...]:
    """Changes the forward graph; the mutations as they are then. An output that was a new value is
    None afterwards."""
    graph = partition.forward.graph
    inputs = [node for node in graph.nodes if node.op == "placeholder"]
    end = graph.output_node()
    results: list[Any] = list(end.args[0])  # type: ignore[arg-type]
    saved = {place for half in partition.backwards for place in half.saved}
    mutations = []
    for mutation in joint.mutations:
        place, at = mutation.input, mutation.output
        assert at is not None
        value = results[at]
        needed = joint.reference.histories[place] or not saved.isdisjoint(
            {("input", place), ("output", at)}
        )
        if needed or value.op != "call_function" or results.count(value) > 1:
            mutations.append(mutation)
            continue
        with graph.inserting_before(end):
            copy = graph.call_function(aten.copy_.default, (inputs[place], value))
        copy.meta["val"] = inputs[place].meta["val"]
        results[at] = None
        mutations.append(Mutation(place, None))
    end.args = (tuple(results),)
    partition.forward.recompile()
    return tuple(mutations)


def counted_first(graph: AtenGraph, joint: JointGraph, partition: Partition) -> AtenGraph:
    """The record of a forward graph, whose writes count before it runs where backward does not keep
    the input: others may share its counter, and what is kept of these is kept as it is after the
    write. Errors: Unsupported where both are so."""
    saved = {place for half in partition.backwards for place in half.saved}
    first = []
    for mutation in graph.mutations:
        at = mutation.input
        if at in graph.mutates_history or not joint.reference.written[at]:
            continue
        if ("input", at) not in saved:
            first.append(at)
        elif shares_storage(joint.reference, at):
            raise Unsupported("a mutated input shares a storage with another input")
    return replace(graph, quiet=(*graph.quiet, *first), touched=(*graph.touched, *first))
