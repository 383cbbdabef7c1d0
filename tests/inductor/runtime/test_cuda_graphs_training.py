"""Recordings of a forward and of its backward, without a GPU."""

from __future__ import annotations

from typing import Any

import torch
from recorded_memory import FakeRecorder

from inductor.runtime import cuda_graphs
from inductor.runtime.cuda_graphs import GraphedCall
from inductor.runtime.recorder import Pools

Tensor = torch.Tensor


class Pair:
    """A forward that keeps something for its backward, both recorded, under autograd."""

    def __init__(self) -> None:
        self.recorders = FakeRecorder(), FakeRecorder()
        pools = Pools()
        forward = GraphedCall(
            lambda w, x: (w @ x, (w @ x).cos(), x + 1), self.recorders[0], values=1, pools=pools
        )
        backward = GraphedCall(lambda c, x1, g: ((g * c) @ x1,), self.recorders[1], pools=pools)
        self.calls = forward, backward

        class Function(torch.autograd.Function):
            @staticmethod
            def forward(ctx: Any, w: Tensor, x: Tensor) -> Tensor:
                value, *kept = forward(w, x)
                ctx.save_for_backward(*kept)
                return value

            @staticmethod
            def backward(ctx: Any, g: Tensor) -> Any:
                with torch.no_grad():
                    return backward(*ctx.saved_tensors, g)[0], None

        self.apply = Function.apply

    def start(self) -> tuple[Tensor, Tensor, Tensor]:
        w = self.weight = getattr(self, "weight", torch.randn(4, 4, requires_grad=True))
        x = torch.randn(4, 4)
        y = self.apply(w, x)
        assert torch.equal(y, w @ x)
        return w, x, y

    def finish(self, w: Tensor, x: Tensor, y: Tensor, retain: bool = False) -> None:
        g = torch.randn(4, 4)
        (grad,) = torch.autograd.grad(y, w, g, retain_graph=retain)
        assert torch.equal(grad, (g * (w @ x).cos()) @ (x + 1))


def test_backward_reads_what_forward_keeps() -> None:
    """Nothing that goes from one to the other is copied, and both replay from the third step on."""
    pair = Pair()
    alive = []
    for _ in range(6):
        alive.append(pair.start())
        pair.finish(*alive[-1])
    assert [r.recorded for r in pair.recorders] == [1, 1]
    assert [r.replayed for r in pair.recorders] == [4, 4]
    (recording,) = pair.calls[1].recordings
    assert pair.recorders[1].copied == [2] and recording.resident == {0, 1}


def test_a_forward_before_the_backward_of_the_last_one() -> None:
    pair = Pair()
    for _ in range(4):
        pair.finish(*pair.start())
    first, second, third = pair.start(), pair.start(), pair.start()
    assert pair.recorders[0].replayed == 3
    pair.finish(*second)
    pair.finish(*first, retain=True)
    fourth = pair.start()
    pair.finish(*first)
    pair.finish(*third)
    pair.finish(*fourth)
    assert [r.replayed for r in pair.recorders] == [3, 4]
    pair.finish(*pair.start())
    assert [r.recorded for r in pair.recorders] == [1, 1] and pair.recorders[0].replayed == 4


def test_what_is_kept_outlives_its_recording() -> None:
    pair = Pair()
    for _ in range(3):
        pair.finish(*pair.start())
    step = pair.start()
    pair.calls[0].recordings = ()
    pair.finish(*step)


def test_a_forward_without_backward_gives_back() -> None:
    pair = Pair()
    for _ in range(6):
        pair.start()
    assert pair.recorders[0].replayed == 4


def test_two_forwards_for_each_step(monkeypatch: Any) -> None:
    """There are recordings for both, and each backward reads what its forward has kept."""
    monkeypatch.setattr(cuda_graphs, "LARGE", 100)
    pair = Pair()
    for order in [(0, 1), (1, 0)] * 8:
        steps = [pair.start(), pair.start()]
        for n in order:
            pair.finish(*steps[n])
        steps.clear()
    forward, backward = pair.calls
    assert len(forward.recordings) == len(backward.recordings) == 2
    before = [r.replayed for r in pair.recorders]
    for _ in range(2):
        first, second = pair.start(), pair.start()
        pair.finish(*second)
        pair.finish(*first)
        del first, second
    assert [r.replayed - n for r, n in zip(pair.recorders, before)] == [4, 4]
