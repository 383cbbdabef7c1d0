"""Which outputs of a program autograd can tell apart: those that share no way back to an input.

In: a joint graph. Out: its tangents and gradients in groups. A gradient of one group depends on no
tangent of another, so each group is a node of its own in autograd's graph, as eager has it: a
backward through one frees nothing of another, and does not go on into the other's inputs.

Many groups stay one: each costs a compile of its backward. Outputs that give no input a gradient
are groups, too, of which backward goes on with nothing, to where eager's does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from dynamo.aot.joint import JointGraph
from dynamo.aot.records import LATE, Unsupported

aten = torch.ops.aten
MOST = 4  # groups, each a node of autograd and a backward; chosen, not measured


@dataclass(frozen=True, slots=True)
class Group:
    """outputs: values of the program. gradients: positions in `joint.gradients`. edges: inputs that
    autograd's graph leads to although they get no gradient."""

    outputs: tuple[int, ...]
    gradients: tuple[int, ...]
    edges: frozenset[int] = frozenset()


def find_groups(joint: JointGraph) -> tuple[Group, ...]:
    """The groups; one of all where an input gets a history.

    Errors: Unsupported where the graph does not tell which outputs lead to which inputs.
    """
    outputs = tuple([tangent.output for tangent in joint.tangents])
    reached = _tangents_reaching(joint)
    results: Any = joint.module.graph.output_node().args[0]
    met = {at: reached[node] for at, node in enumerate(results[joint.values :]) if node is not None}
    if len(outputs) == 1 and met:
        return (Group(outputs, tuple(range(len(joint.gradients)))),)
    if not all(met.values()) or _adds_zeros(reached):
        raise Unsupported("a gradient is the same whatever the outputs' gradients are")
    written = any(
        mutation.output is not None and joint.reference.histories[mutation.input]
        for mutation in joint.mutations
    )
    single = written or any(LATE in node.meta for node in joint.module.graph.nodes)
    dead = _dead_groups(joint)
    if dead and single:
        raise Unsupported("an output requires grad that gives no input a gradient, beside writes")
    outputs = tuple([output for output in outputs if output not in joint.edges])
    if not outputs:
        return dead
    everything = (Group(outputs, tuple(range(len(joint.gradients)))), *dead)
    if single:
        return everything
    parts: list[tuple[set[int], list[int]]] = [({output}, []) for output in outputs]
    for gradient, tangents in met.items():
        touched = [part for part in parts if not part[0].isdisjoint(tangents)]
        for outputs_of, gradients in touched[1:]:
            touched[0][0].update(outputs_of)
            touched[0][1].extend(gradients)
        touched[0][1].append(gradient)
        parts = [part for part in parts if not any(part is other for other in touched[1:])]
    if not 1 < len(parts) <= MOST:
        return everything
    return (*[Group(tuple(sorted(a)), tuple(sorted(b))) for a, b in parts], *dead)


def outputs_apart(joint: JointGraph, outputs: tuple[int, ...]) -> Mapping[tuple[int, ...], Any]:
    """Of the outputs of a group, those that lead to the same inputs together, with these inputs."""
    reached = _tangents_reaching(joint)
    results: Any = joint.module.graph.output_node().args[0]
    grads = [*zip(joint.gradients, results[joint.values :], strict=True)]
    found: dict[frozenset[int], list[int]] = {}
    for output in outputs:
        inputs = frozenset([
            at for at, node in grads if node is not None and output in reached[node]])
        found.setdefault(inputs, []).append(output)
    return {tuple(each): inputs for inputs, each in found.items()}


def _dead_groups(joint: JointGraph) -> tuple[Group, ...]:
    """Those of outputs that give no input a gradient: they require grad all the same, and backward
    goes on from them as eager's does. Errors: Unsupported where there are many."""
    found: dict[frozenset[int], list[int]] = {}
    for output, edges in joint.edges.items():
        found.setdefault(edges, []).append(output)
    if frozenset() in found:
        raise Unsupported("an output requires grad, and no input does that it is computed from")
    if len(found) > MOST:
        raise Unsupported("many outputs require grad that give no input a gradient")
    return tuple([Group(tuple(sorted(each)), (), edges) for edges, each in found.items()])


def _tangents_reaching(joint: JointGraph) -> dict[fx.Node, frozenset[int]]:
    """For each node: the outputs whose tangents it is computed from."""
    inputs = len(joint.reference.inputs)
    placeholders = [node for node in joint.module.graph.nodes if node.op == "placeholder"]
    reached: dict[fx.Node, frozenset[int]] = {
        node: frozenset([tangent.output])
        for node, tangent in zip(placeholders[inputs:], joint.tangents, strict=True)
    }
    none: frozenset[int] = frozenset()
    for node in joint.module.graph.nodes:
        if node.op != "placeholder":
            sources = node.all_input_nodes
            reached[node] = none.union(*[reached.get(given, none) for given in sources])
    for node in placeholders[:inputs]:
        reached[node] = none
    return reached


def _adds_zeros(reached: Mapping[fx.Node, frozenset[int]]) -> bool:
    """True where a gradient has an addend of zeros that come from no tangent."""
    addends = {
        given for node, tangents in reached.items()
        if tangents and node.target is aten.add.Tensor for given in node.all_input_nodes
    }  # fmt: skip
    return any(node.target is aten.zeros.default and not reached[node] for node in addends)
