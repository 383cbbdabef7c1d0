"""The minimum cut, compared with trying all cuts of small networks."""

from __future__ import annotations

import itertools
import random

from dynamo.aot.flow import FlowNetwork

INFINITE = 1 << 40


def cost(edges: list[tuple[int, int, int | None]], side: set[int]) -> int:
    return sum(
        INFINITE if capacity is None else capacity
        for a, b, capacity in edges
        if a in side and b not in side
    )


def test_random_networks() -> None:
    rng = random.Random(0)
    infinite = 0
    for _ in range(300):
        nodes = rng.randint(2, 7)
        edges: list[tuple[int, int, int | None]] = []
        for _ in range(rng.randint(1, 14)):
            a, b = rng.sample(range(nodes), 2)
            edges.append((a, b, None if rng.random() < 0.2 else rng.randint(0, 9)))
        network = FlowNetwork()
        for edge in edges:
            network.add(*edge)
        side = network.source_side(0, 1)
        others = range(2, nodes)
        cuts = [
            {0, *chosen} for size in range(nodes - 1) for chosen in itertools.combinations(others, size)
        ]
        best = min(cost(edges, cut) for cut in cuts)
        if side is None:
            infinite += 1
            assert best >= INFINITE
            continue
        assert 0 in side and 1 not in side
        assert cost(edges, side) == best
        largest = set.union(*(cut for cut in cuts if cost(edges, cut) == best))
        assert side == largest & {0, *(node for edge in edges for node in edge[:2])}
    assert 10 < infinite < 200
