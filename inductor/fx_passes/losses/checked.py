"""What backward must find unchanged, though it does not read it any more.

Eager keeps the operands of a loss for backward, and raises an error where one of them was written
into meanwhile. Gradients that forward has made don't need them, so they are named.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import fx

from dynamo.aot.joint import SAVED, TANGENT, viewed

Place = tuple[str, int]


def saved_by_eager(graph: fx.Graph, late: Iterable[fx.Node]) -> tuple[Place, ...]:
    """The program's inputs and results that eager keeps for these nodes of backward: ("input", n),
    or ("output", n) of what the joint graph gives."""
    places = _places(graph)
    found: dict[Place, None] = {}
    work, seen = list(late), set[fx.Node]()
    while work:
        node = work.pop()
        if node in seen:
            continue
        seen.add(node)
        if SAVED not in node.meta:
            work += node.all_input_nodes
            continue
        whole: fx.Node | None = node
        while whole is not None:
            if whole in places and SAVED in whole.meta:
                found[places[whole]] = None
            whole = viewed(whole)
    return tuple(sorted(found))


def _places(graph: fx.Graph) -> dict[fx.Node, Place]:
    given = [node for node in graph.nodes if node.op == "placeholder"]
    results = graph.output_node().args[0]
    assert isinstance(results, (tuple, list))
    places: dict[fx.Node, Place] = {
        node: ("output", at) for at, node in enumerate(results) if isinstance(node, fx.Node)
    }
    places.update(
        (node, ("input", at)) for at, node in enumerate(given) if not node.name.startswith(TANGENT)
    )
    return places
