"""What the nodes of a compiled program in autograd's graph do: plans of what `training.py` runs.

In: a captured module, its joint graph and a `Partition`. Out: a `NodePlan` for each group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx

from dynamo.aot.groups import outputs_apart
from dynamo.aot.joint import JointGraph, Tangent
from dynamo.aot.partition import Backward, Partition
from dynamo.aot.plain_graphs import CachedGraph
from dynamo.aot.records import NodeView, Place, Unsupported
from dynamo.aot.second_order import SecondOrder, second_order

MOST_PARTS = 16  # nodes that stand for one, each with a backward; chosen, not measured


@dataclass(frozen=True, slots=True)
class NodePlan:
    """What a node of autograd's graph does beside the two halves of its graph.

    shown: the values of the program that it gives. inputs, outputs, loose: what it saves; strict:
    the kinds of those that are not loose, in backward's order. foreign: what other nodes give.
    views: (value, what it is a view of) of those that it makes itself. tangents: (output, its place
    among the shown, what its gradient looks like). arrival: the order
    in which eager gives the gradients. cut: inputs that get no edge. dirty: (input, value) of the
    inputs that it writes. order: where backward's placeholders lie among the saved. marks: it saves
    something for an error that eager raises. absent: outputs whose gradients its graph takes and
    another node has. apart: what stands for it where an input at `partial` is followed.
    """

    graph: CachedGraph
    shown: tuple[int, ...]
    half_outputs: tuple[int, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    loose: tuple[int, ...]
    strict: tuple[str, ...]
    helpers: tuple[int, ...]
    restore: CachedGraph | None
    foreign: frozenset[int]
    sizes: tuple[Place, ...]
    views: tuple[tuple[int, NodeView], ...]
    without_gradient: tuple[int, ...]
    tangents: tuple[tuple[int, int, Tangent], ...]
    gradients: tuple[int, ...]
    arrival: tuple[int, ...]
    values: int
    arity: int
    dirty: tuple[tuple[int, int], ...]
    cut: frozenset[int]
    second: SecondOrder | None
    order: tuple[int, ...]
    marks: bool
    absent: tuple[int, ...] = ()
    apart: tuple[NodePlan, ...] = ()
    partial: tuple[int, ...] = ()


def plan_nodes(
    gm: fx.GraphModule, joint: JointGraph, partition: Partition
) -> tuple[NodePlan, ...]:
    """The nodes of a partitioned program. Errors: Unsupported."""
    alone = len(partition.backwards) == 1
    return tuple([_plan_parts(gm, joint, half, _plan_node(gm, joint, half, alone))
                  for half in partition.backwards])


def _plan_parts(
    gm: fx.GraphModule, joint: JointGraph, half: Backward, whole: NodePlan
) -> NodePlan:
    """The plan, with the nodes that stand for it (`followed_inputs.py`)."""
    if len(half.outputs) < 2 or whole.dirty:
        return whole
    parts = outputs_apart(joint, half.outputs)
    edges: list[frozenset[int]] = [*parts.values()]
    partial = frozenset().union(*edges) - edges[0].intersection(*edges)
    # A function's backward runs once for all outputs that lead to it, unless two runs add up to it.
    joined = any(len([part for part in parts if not outputs.isdisjoint(part)]) > 1
                 for outputs in joint.nonlinear.values())  # fmt: skip
    if not partial or len(parts) > MOST_PARTS or joined:
        return whole
    every = frozenset(joint.gradients)
    apart = [
        replace(
            _plan_node(gm, joint, replace(half, outputs=outputs), False, every - inputs),
            graph=whole.graph, restore=whole.restore,
            absent=tuple([at for at in half.outputs if at not in outputs]),
        )
        for outputs, inputs in parts.items()
    ]  # fmt: skip
    return replace(whole, apart=tuple(apart), partial=tuple(sorted(partial)))


def _plan_node(
    gm: fx.GraphModule, joint: JointGraph, half: Backward, alone: bool,
    without: frozenset[int] = frozenset(),
) -> NodePlan:
    """alone: the node gives all values, not only those of its group. without: inputs that get no
    edge beside those that get no gradient."""
    shown = tuple(range(joint.values)) if alone else half.outputs
    inputs = tuple(at for kind, at in half.saved if kind == "input")
    outputs = tuple(at for kind, at in half.saved if kind == "output")
    mutated = {mutation.output for mutation in joint.mutations}
    absent = {at for at in range(len(joint.plan.values), joint.values) if at not in mutated}
    place = {output: at for at, output in enumerate(shown)}
    dirty = tuple(
        (mutation.input, mutation.output)
        for mutation in joint.mutations
        if mutation.output is not None and joint.reference.histories[mutation.input]
    )
    views = tuple([(at, view) for at, view in joint.plan.views.items() if at in half.outputs])
    viewed = {view.index for _, view in views if view.is_input and not view.detach}
    cut = (_without_edge(joint, half) | without) - {given for given, _ in dirty} - viewed
    if not set(inputs).isdisjoint(at for at, _ in dirty):
        raise Unsupported("backward needs the old value of a mutated input")
    second = second_order(gm, joint, inputs, cut, half.outputs)
    # What the other nodes give has their history, which is none of this node's affair.
    foreign = frozenset() if alone else frozenset(outputs) - set(half.outputs)
    if second is not None:
        outputs += tuple(at for at in second.results if at not in outputs)
    # Some kept tensor leads to every input: what can't be differentiated again is refused there.
    # What an input is overwritten with is not given: it has no history.
    known = second is not None or set(joint.gradients) - cut <= set(inputs)
    leading = set(half.outputs) - {at for _, at in dirty}
    return NodePlan(
        graph=CachedGraph(half.module),
        shown=shown,
        half_outputs=half.outputs,
        inputs=inputs,
        outputs=outputs,
        loose=tuple(at for kind, at in half.saved if kind == "loose"),
        strict=tuple(kind for kind, _ in half.saved if kind != "loose"),
        helpers=half.helpers,
        restore=None if half.restore is None else CachedGraph(half.restore),
        foreign=foreign,
        sizes=half.sizes,
        views=views,
        without_gradient=tuple(
            at for at in shown if at not in half.outputs and at not in absent),
        tangents=tuple((tangent.output, place[tangent.output], tangent)
                       for tangent in joint.tangents if tangent.output in half.outputs),
        gradients=joint.gradients,
        arrival=joint.arrival,
        values=joint.values,
        arity=len(joint.reference.inputs),
        dirty=dirty,
        cut=cut,
        second=second,
        order=_restore_order(half, len(inputs) + len(outputs)),
        marks=not known and leading.isdisjoint(outputs),
    )  # fmt: skip


def _without_edge(joint: JointGraph, half: Backward) -> frozenset[int]:
    """The inputs that require a gradient, and get none from this half, nor are behind it."""
    found: Any = half.module.graph.output_node().args[0]
    without = [at for at, grad in zip(joint.gradients, found, strict=True) if grad is None]
    return frozenset(without) - half.edges


def _restore_order(half: Backward, count: int) -> tuple[int, ...]:
    """Where each of backward's placeholders lies among the `count` saved tensors, inputs first,
    and the loose ones behind them."""
    kinds = [kind for kind, _ in half.saved]
    counts = {"input": 0, "output": kinds.count("input"), "loose": count}
    order = []
    for kind in kinds:
        order.append(counts[kind])
        counts[kind] += 1
    return tuple(order)


def may_learn(plan: NodePlan, at: int, tensors: Sequence[torch.Tensor]) -> bool:
    """True where what is saved at a place may have a history: of what the program does not give it
    is not known, nor of an input without an edge."""
    count = len(plan.inputs)
    if at < count:
        return tensors[at].requires_grad or plan.inputs[at] in plan.cut
    given = set(plan.half_outputs).difference(written for _, written in plan.dirty)
    is_given = at - count < len(plan.outputs) and plan.outputs[at - count] in given
    return tensors[at].requires_grad or not is_given
