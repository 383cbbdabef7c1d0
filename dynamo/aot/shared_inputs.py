"""Programs that write into an input of which another input is a view, and the other way round.

In: a program, its inputs as fakes, and which of them it writes. Out: the same program, in which
each input that lies within another one is a view of that one, made at the start: a write into the
one is then seen in the other, as in memory. Steps of codebooks are such, which a graph break hands
a buffer and a view of it.

The inputs stay: a call brings both, and runs as it was captured if they lie elsewhere.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping

from torch import fx

from dynamo.aot.fakes import facts_of, is_fake, is_static, storage_key
from dynamo.aot.overlap import overlap
from dynamo.aot.records import Within
from dynamo.aot.reference import Reference
from dynamo.shapes.facts import Facts
from dynamo.shapes.fake import Fake


def with_views_of_inputs(
    gm: fx.GraphModule, reference: Reference, mutated: list[int]
) -> tuple[fx.GraphModule, tuple[Within, ...]] | None:
    """The program, and where those inputs have to lie, which a call checks. None where there is no
    such input, and where no such program has the same meaning: for an input of another dtype, one
    that requires grad or leaves the program itself, and where one of them is not row-major."""
    owners: dict[int, int] = {}
    used = used_inputs(gm, reference)
    for index in mutated:
        group = _sharing(reference, index, used)
        owner = max(sorted(group), key=lambda at: facts_of(reference.inputs[at]).numel())
        if not all(_lies_within(reference, at, owner) for at in group if at != owner):
            return None
        owners.update((at, owner) for at in group if at != owner)
    if not owners:
        return None
    changed = copy.copy(gm)
    changed.graph = copy.deepcopy(gm.graph)
    nodes = changed.graph.find_nodes(op="placeholder")
    if any(changed.graph.output_node() in nodes[at].users for at in owners):
        return None
    places = tuple(_place(reference, *pair) for pair in owners.items())
    last = nodes[-1]
    for place in places:
        last = _add_view(last, nodes, place, facts_of(reference.inputs[place.input]))
    changed.recompile()
    return changed, places


def _place(reference: Reference, at: int, owner: int) -> Within:
    one, whole = (facts_of(reference.inputs[index]) for index in (at, owner))
    return Within(at, owner, (one.offset - whole.offset) * one.dtype.itemsize)


def _add_view(last: fx.Node, nodes: list[fx.Node], place: Within, facts: Facts) -> fx.Node:
    """Behind a node. No place in the storage is named, since a value that is computed for the owner
    has a storage of its own."""
    given, source = nodes[place.input], nodes[place.owner]
    start = place.start // facts.dtype.itemsize
    for name, *args in (("view", -1), ("narrow", 0, start, facts.numel()), ("view", facts.size)):
        with last.graph.inserting_after(last):
            last = last.graph.call_method(name, (source, *args))
        last.meta = dict(given.meta)
        source = last
    given.replace_all_uses_with(last)
    return last


def used_inputs(gm: fx.GraphModule, reference: Reference) -> dict[int, Fake]:
    """Those that are tensors, and that the program takes."""
    nodes = gm.graph.find_nodes(op="placeholder")
    pairs = zip(nodes, reference.inputs, strict=True)
    return {at: fake for at, (node, fake) in enumerate(pairs) if node.users and is_fake(fake)}


def _sharing(reference: Reference, index: int, used: Mapping[int, Fake]) -> list[int]:
    """The used inputs that have an element in common with one, or with one of these."""
    key = storage_key(reference.inputs[index])
    rest = [at for at, fake in used.items() if storage_key(fake) == key and at != index]
    found = [index]
    for at in found:
        facts = facts_of(reference.inputs[at])
        met = [other for other in rest if overlap(facts, facts_of(reference.inputs[other]))]
        found += met
        rest = [other for other in rest if other not in met]
    return found


def _lies_within(reference: Reference, at: int, owner: int) -> bool:
    one, whole = reference.inputs[at], reference.inputs[owner]
    facts, outer = facts_of(one), facts_of(whole)
    if one.requires_grad or whole.requires_grad or one.dtype is not whole.dtype:
        return False
    if not (is_static(facts) and is_static(outer)) or facts.bits or outer.bits:
        return False  # a conjugate that is not computed yet is a view of other values
    if not (one.is_contiguous() and whole.is_contiguous()):
        return False
    begins = facts.offset >= outer.offset
    return begins and facts.offset + facts.numel() <= outer.offset + outer.numel()
