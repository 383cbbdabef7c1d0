"""The partition: a joint graph is cut into a forward and a backward graph.

In: a joint graph (decomposed or not) and a function that chooses what is saved (`min_cut`). Out: a
`Partition`: the modules, and what goes from one to the other; there is one backward for each of the
joint graph's groups (`groups.py`). Rules of the choice:

- Backward recomputes cheap elementwise operations and views only, never random ones, reductions,
  GEMMs, convolutions, attention, and none that it would have to write to memory again for such
  an operation.
- Inputs and outputs of the program are saved only where eager saves them too: a program may write
  into them before backward, and eager's error about that must be raised where eager raises it, and
  nowhere else. They cost no memory.
- A copy of an input that eager does not save is saved where backward would otherwise need more
  memory: eager keeps the float32 of a bfloat16 that it computes with, twice as much (`copied`).
- An output that eager does not save is saved all the same (the logits, say) where backward can
  compute it again from what is saved beside it, if the program has written into it: `loose`.
- What a pass over the joint graph made backward independent of is saved for eager's error alone
  (`CHECKS`), and not read.
- A view is recomputed from what it views.
- No decision is made twice on values that may differ: see `repeats`.
- What a checkpoint recomputes belongs to backward.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import torch
from torch import fx

from dynamo.aot.fakes import (
    bytes_of,
    is_fake,
    is_symbolic_number,
    number_at,
    symbols_of,
    symbols_shown,
)
from dynamo.aot.graphs import ancestors, is_effect, make_module, must_run, remove_dead_code
from dynamo.aot.groups import Group, find_groups
from dynamo.aot.joint import SAVED, TANGENT, JointGraph
from dynamo.aot.numbers import NumberNodes
from dynamo.aot.records import CHECKS, LATE, RECOMPUTED, Place, SymbolTable, Unsupported
from dynamo.aot.repeats import mark_decided, saved_decisions
from dynamo.graph_operators.operator_effects import acts


@dataclass(frozen=True, slots=True)
class Backward:
    """The backward of a group.

    module: (saved..., tangents...) -> gradients of the program's inputs, None for other groups'.
    outputs: the values of the program that the tangents belong to.
    saved: ("input", i), ("output", i) or ("loose", i) of forward, in the order of the module's
        placeholders. loose: outputs that may have other values by then; `restore` computes these
        from the others, in that order, and from the inputs at `helpers`, which are as they were.
    sizes: where numbers that backward needs are read from forward's inputs; their placeholders
        follow those of saved. Empty for static sizes.
    edges: see `Group`.
    """

    module: fx.GraphModule
    outputs: tuple[int, ...]
    saved: tuple[tuple[str, int], ...]
    sizes: tuple[Place, ...] = ()
    restore: fx.GraphModule | None = None
    helpers: tuple[int, ...] = ()
    edges: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Partition:
    """forward: the program's inputs -> (values..., extra saved values...)."""

    forward: fx.GraphModule
    backwards: tuple[Backward, ...]


DIES = "dies"  # marks placeholders of backward that hold what nobody else does: see `boxed`
SMALL = 1 << 20  # bytes of an input that is kept for what may not be needed
Cutter = Callable[["Halves"], list[fx.Node]]


@dataclass(frozen=True, slots=True)
class Halves:
    """A joint graph's nodes, sorted out.

    inputs, tangents: placeholders. values, gradients: what the output node gives. outputs: those of
    the values that the program returns and the graph computes (the others are written into inputs).
    backward: all that depends on a tangent. available: all nodes that do not, in order: forward can
    compute them. Symbolic numbers are in neither: each half computes its own.
    loose: outputs that may be saved though eager does not. copied: inputs of which a copy may be
    saved. late: what backward does for its effect.
    differentiated: inputs that have a gradient, weights most of all. decided: not recomputed,
    since something is decided by them.
    """

    module: fx.GraphModule
    inputs: list[fx.Node]
    tangents: list[fx.Node]
    values: list[fx.Node | None]
    outputs: list[fx.Node]
    gradients: list[fx.Node | None]
    backward: set[fx.Node]
    available: list[fx.Node]
    loose: frozenset[fx.Node] = frozenset()
    copied: frozenset[fx.Node] = frozenset()
    late: tuple[fx.Node, ...] = ()
    differentiated: frozenset[fx.Node] = frozenset()
    decided: frozenset[fx.Node] = frozenset()

    @property
    def computed(self) -> list[fx.Node]:
        """The values that the graph computes."""
        return [node for node in self.values if node is not None]


def partition_joint(
    joint: JointGraph, module: fx.GraphModule, cut: Cutter, table: SymbolTable | None = None,
    copies: bool = False,
) -> Partition:
    """Cuts `module` (the joint module, perhaps decomposed). `cut` says which values to save.

    table: the symbols of the joint module, where its sizes are symbolic. copies: whether copies of
    inputs may be saved.
    """
    halves = _sort_out(joint, module)
    groups = find_groups(joint)
    if table is None and len(groups) == 1:
        halves = replace(halves, loose=_loose(joint, halves))
    if copies:
        halves = replace(halves, copied=_copied(joint, halves))
    halves, saved = _choose(halves, cut, _small_inputs(joint, halves))
    copied = [node for node in saved if node in halves.copied]
    known = {node: ("input", at) for at, node in reversed(list(enumerate(halves.inputs)))}
    for at, node in reversed(list(enumerate(halves.values))):
        if node is not None:
            known.setdefault(node, ("output", at))
    extra = [node for node in saved if node not in known or node in copied]
    for at, node in enumerate(extra, len(halves.values)):
        known[node] = ("output", at)
    extra = [_copy_of(node) if node in copied else node for node in extra]
    computed = ancestors([*halves.computed, *extra])
    mark_decided(module.graph, computed & set(_needed(halves, saved)))
    forward = _extract(module, halves.inputs, [*halves.values, *extra], effects=True)
    backwards = [_backward_of(group, joint, halves, saved, known, table) for group in groups]
    return Partition(forward, tuple(backwards))


def _choose(
    halves: Halves, cut: Cutter, fixed: set[fx.Node]
) -> tuple[Halves, list[fx.Node]]:
    """What is saved, and the halves with what was found of them meanwhile."""
    saved = cut(halves)
    while True:
        unsure = _not_restorable(halves, saved, fixed)
        known = set(saved) - halves.loose
        decisions = saved_decisions(halves.module.graph, halves.backward, halves.gradients, known)
        if not unsure and decisions <= halves.decided:
            return halves, saved
        halves = replace(
            halves, loose=halves.loose - unsure, decided=halves.decided | decisions)
        saved = cut(halves)


def _backward_of(
    group: Group, joint: JointGraph, halves: Halves, saved: list[fx.Node],
    known: Mapping[fx.Node, tuple[str, int]], table: SymbolTable | None,
) -> Backward:
    """The backward of a group, which saves what it needs."""
    if len(group.outputs) < len(joint.tangents):
        tangents = [node for node, tangent in zip(halves.tangents, joint.tangents, strict=True)
                    if tangent.output in group.outputs]  # fmt: skip
        gradients = [node if at in group.gradients else None
                     for at, node in enumerate(halves.gradients)]  # fmt: skip
        halves = replace(halves, tangents=tangents, gradients=gradients)
        read = {given for node in _needed(halves, saved) for given in node.all_input_nodes}
        saved = [node for node in saved if node in read or node in gradients]
    saved = [*saved, *_checked(halves, saved)]
    loose = [node for node in saved if node in halves.loose]
    origins = tuple(
        ("loose", known[node][1]) if node in loose else known[node] for node in saved
    )
    if table is not None:
        module, sizes = _extract_backward(halves, saved, table)
        return Backward(module, group.outputs, origins, sizes, edges=group.edges)
    module = _extract(
        halves.module, [*saved, *halves.tangents], halves.gradients, also=halves.late)
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    for node, given in zip(saved, placeholders, strict=False):
        kind, at = known[node]
        if kind == "output" and at >= len(halves.values):
            given.meta[DIES] = True
    if not loose:
        return Backward(module, group.outputs, origins, edges=group.edges)
    others = [node for node in saved if node not in loose]
    small = _small_inputs(joint, halves)
    found = _ancestors(loose, {*others, *small})
    helpers = [at for at, node in enumerate(halves.inputs)
               if node in found and node not in others]  # fmt: skip
    others += [halves.inputs[at] for at in helpers]
    restore = _extract(halves.module, others, [*loose])
    return Backward(module, group.outputs, origins, (), restore, tuple(helpers))


def _checked(halves: Halves, saved: list[fx.Node]) -> list[fx.Node]:
    """What is to be saved beside these for the sake of eager's error about writes."""
    found: dict[fx.Node, None] = {}
    for node in _needed(halves, saved):
        for kind, at in node.meta.get(CHECKS, ()):
            checked = (halves.inputs if kind == "input" else halves.values)[at]
            assert checked is not None
            found[checked] = None
    return [node for node in found if node not in saved]


def _ancestors(nodes: list[fx.Node], stop: set[fx.Node]) -> set[fx.Node]:
    """What they are computed from, down to these."""
    work, found = list(nodes), set[fx.Node]()
    while work:
        node = work.pop()
        if node not in found:
            found.add(node)
            if node not in stop:
                work.extend(node.all_input_nodes)
    return found


def _small_inputs(joint: JointGraph, halves: Halves) -> set[fx.Node]:
    """Inputs that cost nothing to keep, a bias say, and that the graph does not write into."""
    written = {mutation.input for mutation in joint.mutations}
    return {
        node for at, node in enumerate(halves.inputs)
        if at not in written and is_fake(node.meta["val"]) and bytes_of(node.meta["val"]) <= SMALL
    }


def _loose(joint: JointGraph, halves: Halves) -> frozenset[fx.Node]:
    """The outputs that eager does not save, and that are nothing else's new value."""
    written = halves.values[len(joint.plan.values) :]
    return frozenset(
        node for node in halves.outputs
        if node.op == "call_function" and node in halves.available and SAVED not in node.meta
        and node not in written and is_fake(node.meta["val"])
    )


def _copied(joint: JointGraph, halves: Halves) -> frozenset[fx.Node]:
    """The inputs of known sizes that eager does not save, and that a copy is like in its strides,
    too."""
    written = {mutation.input for mutation in joint.mutations}
    return frozenset(
        node for at, node in enumerate(halves.inputs)
        if at not in written and SAVED not in node.meta and is_fake(node.meta["val"])
        and node.meta["val"].is_floating_point()
        and not any(map(is_symbolic_number, node.meta["val"].shape))
        and node.meta["val"].is_contiguous()
    )


def _copy_of(node: fx.Node) -> fx.Node:
    """A copy of an input, which forward makes and saves."""
    with node.graph.inserting_before(_first_operation(node.graph)):
        copy = node.graph.call_function(torch.ops.aten.clone.default, (node,))
    copy.meta = {"val": node.meta["val"].clone()}
    return copy


def _first_operation(graph: fx.Graph) -> fx.Node:
    return next(node for node in graph.nodes if node.op != "placeholder")


def _not_restorable(
    halves: Halves, saved: list[fx.Node], fixed: set[fx.Node]
) -> set[fx.Node]:
    """The loose ones among what is saved that the others and these inputs don't suffice for."""
    held = [node for node in saved if node in halves.loose]
    stop = (set(saved) | fixed) - set(held)
    return {
        wanted for wanted in held
        if any(
            node not in stop and (node.op == "placeholder" or must_run(node))
            for node in _ancestors([wanted], stop)
        )
    }


def _sort_out(joint: JointGraph, module: fx.GraphModule) -> Halves:
    placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
    count = len(joint.reference.inputs)
    late = [node for node in module.graph.nodes if LATE in node.meta]
    backward: set[fx.Node] = {*placeholders[count:], *_recomputed(module), *late}
    available = []
    results: Any = ()
    for node in module.graph.nodes:
        if node.op == "output":
            results = node.args[0]
        elif is_symbolic_number(node.meta["val"]):
            continue
        elif node in backward or not backward.isdisjoint(node.all_input_nodes):
            backward.add(node)
        else:
            available.append(node)
    return Halves(
        module=module,
        inputs=placeholders[:count],
        tangents=placeholders[count:],
        values=list(results[: joint.values]),
        outputs=[node for node in results[: len(joint.plan.values)] if node is not None],
        gradients=list(results[joint.values :]),
        backward=backward,
        available=available,
        late=tuple(filter(is_effect, late)),
        differentiated=frozenset([placeholders[at] for at in joint.gradients]),
    )


def _recomputed(module: fx.GraphModule) -> list[fx.Node]:
    """What a checkpoint leaves to backward; none where that would draw other numbers."""
    found = [
        node for node in module.graph.nodes
        if RECOMPUTED in node.meta and not is_symbolic_number(node.meta["val"])
    ]  # fmt: skip
    return [] if any(is_effect(node) and not acts(node.target) for node in found) else found


def _extract(
    module: fx.GraphModule, inputs: list[fx.Node], outputs: list[fx.Node | None], *,
    effects: bool = False, also: Sequence[fx.Node] = (),
) -> fx.GraphModule:
    """The part of a graph between these nodes; with all of forward that must run where wanted, and
    with these nodes."""
    stop = set(inputs)
    needed: set[fx.Node] = set()
    work = [*also, *(node for node in outputs if node is not None)]
    if effects:
        others = _dependents(module, stop)
        work += [node for node in module.graph.nodes if must_run(node) and node not in others]
    while work:
        node = work.pop()
        if node in needed or node in stop or node.op == "output":
            continue
        if node.op == "placeholder":
            raise Unsupported("a half of the graph needs an input of the other")
        needed.add(node)
        work.extend(node.all_input_nodes)
    graph = fx.Graph()
    env: dict[fx.Node, fx.Node] = {}
    for node in inputs:
        env[node] = graph.placeholder(node.name)
        env[node].meta = dict(node.meta)
    order = _in_order(module, needed) if effects else _on_demand(module, needed, stop)
    for node in order:
        if node not in env:
            env[node] = graph.node_copy(node, env.__getitem__)
    return finish_half(module, graph, [None if node is None else env[node] for node in outputs])


def _in_order(module: fx.GraphModule, needed: set[fx.Node]) -> list[fx.Node]:
    return [node for node in module.graph.nodes if node in needed]


def _on_demand(
    module: fx.GraphModule, needed: set[fx.Node], given: set[fx.Node]
) -> list[fx.Node]:
    """The nodes in order, but those that no tangent and no effect reaches right before what reads
    them first: so what is recomputed does not live longer than it must."""
    late = {
        node for node in given if node.op == "placeholder" and node.name.startswith(TANGENT)
    } | {node for node in needed if LATE in node.meta}
    for node in module.graph.nodes:
        if node in needed and not late.isdisjoint(node.all_input_nodes):
            late.add(node)
    found: dict[fx.Node, None] = {}
    for node in module.graph.nodes:
        if node not in needed or node not in late:
            continue
        work = [node]
        while work:
            missing = [n for n in work[-1].all_input_nodes if n in needed and n not in found]
            if missing:
                work += reversed(missing)
            else:
                found[work.pop()] = None
    rest = [node for node in module.graph.nodes if node in needed and node not in found]
    return [*found, *rest]


def finish_half(
    module: fx.GraphModule, graph: fx.Graph, outputs: list[fx.Node | None]
) -> fx.GraphModule:
    """The module of a half of the joint module."""
    graph.output(tuple(outputs))
    constants = {
        str(node.target): getattr(module, str(node.target))
        for node in graph.nodes
        if node.op == "get_attr"
    }
    remove_dead_code(graph)
    return make_module(graph, constants)


def _extract_backward(
    halves: Halves, saved: list[fx.Node], table: SymbolTable
) -> tuple[fx.GraphModule, tuple[Place, ...]]:
    """Backward with symbolic sizes: it reads symbols from the sizes of what is saved; the others
    become inputs (gradients tell none: there may be none). Gives where forward finds these, too."""
    found = _needed(halves, saved)
    needed = _on_demand(halves.module, set(found), {*saved, *halves.tangents})
    numbers_read = [given for node in needed for given in node.all_input_nodes]
    known = {*saved, *halves.tangents, *needed, *numbers_read}
    symbols = symbols_of(node.meta["val"] for node in known)
    graph = fx.Graph()
    env: dict[fx.Node, Any] = {}
    places: dict[Any, Place] = {}

    def add_input(name: str, value: Any) -> fx.Node:
        index = len(graph.nodes)
        node = graph.placeholder(name)
        node.meta["val"] = value
        for symbol, dim in symbols_shown(value):
            places.setdefault(symbol, (index, dim))
        return node

    for node in saved:
        env[node] = add_input(node.name, node.meta["val"])
    sizes: list[Place] = []
    for symbol in sorted(symbols - places.keys(), key=str):
        index, dim = table.symbols[symbol]
        given = number_at(halves.inputs[index].meta["val"], dim)
        add_input(f"size_{len(sizes)}", given)
        sizes.append((index, dim))
    for node in halves.tangents:
        env[node] = add_input(node.name, node.meta["val"])
    numbers = NumberNodes(graph, places)

    def copied(node: fx.Node) -> Any:
        value = node.meta["val"]
        return numbers.node(value) if is_symbolic_number(value) else env[node]

    for node in needed:
        env[node] = graph.node_copy(node, copied)
    outputs = [None if node is None else env[node] for node in halves.gradients]
    module = finish_half(halves.module, graph, outputs)
    assumed = tuple(a for a in table.assumptions if a.free_symbols <= places.keys())
    module.meta["symbols"] = SymbolTable(MappingProxyType(places), assumed)
    return module, tuple(sizes)


def _needed(halves: Halves, saved: list[fx.Node]) -> list[fx.Node]:
    """The nodes that backward computes, in order, numbers aside."""
    stop = {*saved, *halves.tangents}
    found: set[fx.Node] = set()
    work = [*halves.late, *(node for node in halves.gradients if node is not None)]
    while work:
        node = work.pop()
        if node in found or node in stop or is_symbolic_number(node.meta["val"]):
            continue
        if node.op == "placeholder":
            raise Unsupported("a half of the graph needs an input of the other")
        found.add(node)
        work.extend(node.all_input_nodes)
    return [node for node in halves.module.graph.nodes if node in found]


def _dependents(module: fx.GraphModule, inputs: set[fx.Node]) -> set[fx.Node]:
    """Placeholders that are no inputs of this half and what only backward does, and all that
    depends on them."""
    found: set[fx.Node] = set()
    for node in module.graph.nodes:
        foreign = LATE in node.meta or node.op == "placeholder" and node not in inputs
        if foreign or not found.isdisjoint(node.all_input_nodes):
            found.add(node)
    return found | inputs
