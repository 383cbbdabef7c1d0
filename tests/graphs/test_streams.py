"""Branches on streams of a GPU: how a graph is divided, and that every lane waits for what it reads.

There is no GPU here: a stand-in of the lanes keeps, for each, what it has seen of the others (a
clock for each lane), so that a value that is read too early is noticed.
"""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import fx, nn
from torch.utils import _pytree as pytree

import dynamo
from dynamo import graphs
from dynamo.graphs.copies import copied
from dynamo.graphs.cost import Peaks
from dynamo.graphs.streams import Overlapped, running

pytestmark = pytest.mark.filterwarnings("error::FutureWarning")
SLOW = Peaks(1e9, 1e9)  # products of 64 x 64 take half a millisecond


class Clocks:
    """Lanes that tell of reads before a value was there."""

    def __init__(self, count: int) -> None:
        self.count, self.now = count, 0
        self.ticks = [0] * count
        self.seen = [[0] * count for _ in range(count)]  # of the others, by lane
        self.made: dict[int, tuple[int, int]] = {}  # values: lane, tick
        self.kept: set[tuple[int, int]] = set()
        self.used: set[int] = set()
        self.left = False

    def enter(self) -> None:
        self.ticks, self.now, self.left = [0] * self.count, 0, False

    def leave(self) -> None:
        self.now, self.left = 0, True

    def switch(self, lane: int) -> None:
        self.now = lane

    def mark(self, lane: int) -> tuple[int, ...]:
        self.seen[lane][lane] = self.ticks[lane]
        return tuple(self.seen[lane])

    def wait(self, lane: int, event: tuple[int, ...]) -> None:
        self.seen[lane] = [max(pair) for pair in zip(self.seen[lane], event)]

    def keep(self, lane: int, value: Any) -> None:
        self.kept.update((id(leaf), lane) for leaf in pytree.tree_leaves(value))


class Checking(fx.Interpreter):
    """Runs a graph on clocks, and checks each operation."""

    def __init__(self, module: fx.GraphModule, lanes: dict[str, int], clocks: Clocks) -> None:
        super().__init__(module)
        self.lanes, self.clocks, self.alive = lanes, clocks, []  # type: ignore[var-annotated]

    def run_node(self, n: fx.Node) -> Any:
        result = super().run_node(n)
        self.alive.append(result)
        clocks = self.clocks
        if n.name in self.lanes:
            assert clocks.now == self.lanes[n.name], n
            self.check(n, clocks.now)
            clocks.used.add(clocks.now)
            clocks.ticks[clocks.now] += 1
            for leaf in pytree.tree_leaves(result):
                clocks.made[id(leaf)] = clocks.now, clocks.ticks[clocks.now]
        if n.op == "output":
            self.check(n, 0)
        return result

    def check(self, n: fx.Node, lane: int) -> None:
        for leaf in pytree.tree_leaves(self.map_nodes_to_values((n.args, n.kwargs), n)):
            other, tick = self.clocks.made.get(id(leaf), (lane, 0))
            if other != lane:
                assert self.clocks.seen[lane][other] >= tick, f"{n} reads too early"
                assert (id(leaf), lane) in self.clocks.kept, f"{n} reads memory of another lane"


def checked(made: Overlapped, *args: Any) -> tuple[Any, Clocks]:
    clocks = Clocks(made.count)
    with torch.no_grad(), running(clocks):
        found = Checking(made.graph, made.lanes, clocks).run(*args)
    assert clocks.left
    return found, clocks


def branches(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
    left, right = x, x
    for _ in range(3):
        left, right = (left @ w).relu(), (right @ w.mT).tanh()
    low, high = (left + right).chunk(2)
    return low @ w, high.T, left


def chain(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    for _ in range(4):
        x = (x @ w).relu()
    return x


def inception() -> nn.Module:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.ways = nn.ModuleList([nn.Conv2d(8, 8, size, padding=size // 2) for size in (1, 3, 5)])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cat([way(x).relu() for way in self.ways], 1)[:, 8:16] + x

    return nn.Sequential(Block(), Block())


def graph_of(f: Callable[..., Any], *args: Any) -> fx.GraphModule:
    with torch.no_grad():
        return dynamo.export(f, *args)[0]


X, W = (torch.randn(64, 64, generator=torch.Generator().manual_seed(seed)) / 8 for seed in (0, 1))


def test_branches_have_lanes_of_their_own() -> None:
    made = graphs.overlap(graph_of(branches, X, W), X, W, peaks=SLOW)
    products = [lane for name, lane in made.lanes.items() if name.startswith("matmul")]
    assert sorted(products[:6]) == [0, 0, 0, 1, 1, 1]
    found, clocks = checked(made, X, W)
    torch.testing.assert_close(found, branches(X, W))
    assert clocks.used == {0, 1}


@pytest.mark.parametrize("count", [2, 3, 4])
def test_every_lane_waits_for_what_it_reads(count: int) -> None:
    torch.manual_seed(0)
    model, x = inception().eval(), torch.randn(2, 8, 16, 16)
    made = graphs.overlap(graph_of(model, x), x, count=count, peaks=SLOW)
    found, clocks = checked(made, x)
    torch.testing.assert_close(found, [model(x)] if isinstance(found, list) else model(x))
    assert len(clocks.used) == min(count, 3)


def test_a_missing_wait_would_be_seen() -> None:
    made = graphs.overlap(graph_of(branches, X, W), X, W, peaks=SLOW)
    (wait, *_) = [node for node in made.graph.graph.nodes if str(node.target).startswith("wait")]
    made.graph.graph.erase_node(wait)
    with pytest.raises(AssertionError, match="reads too early"):
        checked(made, X, W)


def test_a_chain_stays_on_one_stream() -> None:
    made = graphs.overlap(graph_of(chain, X, W), X, W, peaks=SLOW)
    assert made.count == 1 and all(node.op != "call_module" for node in made.graph.graph.nodes)


def test_tiny_branches_are_not_worth_a_handover() -> None:
    made = graphs.overlap(graph_of(branches, X, W), X, W, peaks=Peaks(1e15, 1e15))
    assert made.count == 1


def test_writes_keep_their_order() -> None:
    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        y = x @ w
        y.add_(1)
        return y + (w @ w)

    made = graphs.overlap(graph_of(f, X, W), X, W, peaks=SLOW)
    assert made.count == 1
    torch.testing.assert_close(made(X, W), f(X, W))


def test_it_runs_in_order_without_a_gpu_and_can_be_copied() -> None:
    model, x = inception().eval(), torch.randn(2, 8, 16, 16)
    made = graphs.overlap(graph_of(model, x), x, peaks=SLOW)
    assert made.count == 2
    warnings.filterwarnings("ignore", ".*LeafSpec", FutureWarning)  # of pickle
    for module in (made, copied(made), pickle.loads(pickle.dumps(made))):
        torch.testing.assert_close(module(x), model(x))


def test_lanes_are_left_after_an_error() -> None:
    made = graphs.overlap(graph_of(branches, X, W), X, W, peaks=SLOW)
    clocks = Clocks(2)
    with pytest.raises(RuntimeError), running(clocks):
        made.graph(X, W[:3])
    assert clocks.left and clocks.now == 0


def test_gradients_go_through() -> None:
    x = X.clone().requires_grad_()
    made = graphs.overlap(graph_of(branches, X, W), X, W, peaks=SLOW)
    found = torch.autograd.grad(sum(part.sum() for part in made(x, W)), x)
    wanted = torch.autograd.grad(sum(part.sum() for part in branches(x, W)), x)
    torch.testing.assert_close(found, wanted)
