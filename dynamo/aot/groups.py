"""Which outputs of a program autograd can tell apart: those that share no way back to an input.

In: a joint graph. Out: its tangents and gradients in groups. A gradient of one group depends on no
tangent of another, so each group is a node of its own in autograd's graph, as eager has it: a
backward through one frees nothing of another, and does not go on into the other's inputs.

Many groups stay one: each costs a compile of its backward.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import fx

from dynamo.aot.joint import JointGraph

MOST = 4


@dataclass(frozen=True, slots=True)
class Group:
    """outputs: values of the program. gradients: positions in `joint.gradients`."""

    outputs: tuple[int, ...]
    gradients: tuple[int, ...]


def find_groups(joint: JointGraph) -> tuple[Group, ...]:
    """The groups; one of all where a gradient depends on no tangent or an input gets a history."""
    outputs = tuple([tangent.output for tangent in joint.tangents])
    everything = (Group(outputs, tuple(range(len(joint.gradients)))),)
    written = any(
        mutation.output is not None and joint.reference.histories[mutation.input]
        for mutation in joint.mutations
    )
    if len(outputs) == 1 or written:
        return everything
    met = _tangents_of_gradients(joint)
    if any(not outputs for outputs in met.values()):
        return everything
    parts: list[tuple[set[int], list[int]]] = [({output}, []) for output in outputs]
    for gradient, reached in met.items():
        touched = [part for part in parts if not part[0].isdisjoint(reached)]
        for outputs_of, gradients in touched[1:]:
            touched[0][0].update(outputs_of)
            touched[0][1].extend(gradients)
        touched[0][1].append(gradient)
        parts = [part for part in parts if not any(part is other for other in touched[1:])]
    if not 1 < len(parts) <= MOST:
        return everything
    return tuple([Group(tuple(sorted(a)), tuple(sorted(b))) for a, b in parts])


def _tangents_of_gradients(joint: JointGraph) -> dict[int, frozenset[int]]:
    """For each gradient that there is: the outputs whose tangents it is computed from."""
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
    results: Any = joint.module.graph.output_node().args[0]
    gradients = enumerate(results[joint.values :])
    return {at: reached[node] for at, node in gradients if isinstance(node, fx.Node)}
