"""The minimum cut, compared with trying all cuts of small networks."""

from __future__ import annotations

import itertools
import random

from dynamo.aot.flow import FlowNetwork

INFINITE = 1 << 40


def cost(edges: list[tuple[int, int, int | None]], near: set[int]) -> int:
    return sum(
        INFINITE if capacity is None else capacity
        for a, b, capacity in edges
        if a in near and b not in near
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
        near = network.near_side(0, 1)
        others = range(2, nodes)
        cuts = [
            {0, *chosen} for size in range(nodes - 1) for chosen in itertools.combinations(others, size)
        ]
        best = min(cost(edges, cut) for cut in cuts)
        if near is None:
            infinite += 1
            assert best >= INFINITE
            continue
        assert 0 in near and 1 not in near
        assert cost(edges, near) == best
        smallest = set.intersection(*(cut for cut in cuts if cost(edges, cut) == best))
        assert near == smallest
    assert 10 < infinite < 200
