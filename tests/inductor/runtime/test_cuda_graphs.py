"""What is recorded as a CUDA graph and when, with a recorder that needs no GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch

from inductor.ir.body import trace_body
from inductor.ir.graph import ComputedBuffer, ExternKernel, InputBuffer, Layout, LoopGraph, ViewRef
from inductor.ir.index import constant
from inductor.runtime import cuda_graphs
from inductor.runtime.cuda_graphs import (
    MOST_RECORDINGS,
    WARM_UP_CALLS,
    GraphedCall,
    Pairing,
    refusal,
)
from inductor.scheduler.schedule import Schedule

Tensor = torch.Tensor
aten = torch.ops.aten


class Recorder:
    """Runs the call again on the recorded memory, as a CUDA graph would."""

    def __init__(self) -> None:
        self.stream: int | None = 7
        self.recorded = self.replayed = 0
        self.fails = False

    def place(self) -> int | None:
        return self.stream

    def record(
        self, call: Callable[..., Any], inputs: Sequence[Tensor]
    ) -> tuple[Callable[[], None], Sequence[Any]]:
        if self.fails:
            raise RuntimeError("operation not permitted when stream is capturing")
        self.recorded += 1
        addresses = [(x.data_ptr(), x.size(), x.stride()) for x in inputs]
        kept = [getattr(x, "owner", x) for x in inputs]  # as addresses, which keep nothing alive
        outputs = call(*inputs)

        def run() -> None:
            assert addresses == [(x.data_ptr(), x.size(), x.stride()) for x in kept]
            self.replayed += 1
            for old, new in zip(outputs, call(*kept), strict=True):
                if isinstance(old, Tensor):
                    cuda_graphs._span(old).copy_(cuda_graphs._span(new))

        return run, outputs


def program(weight: Tensor, x: Tensor) -> tuple[Any, ...]:
    return weight @ x, (x * 2).sum(0).expand(3, -1), 5, (x + 1).t()


def check(call: GraphedCall, *inputs: Tensor) -> tuple[Any, ...]:
    got, want = call(*inputs), program(*inputs)
    assert len(got) == len(want)
    for one, other in zip(got, want, strict=True):
        if isinstance(other, Tensor):
            assert torch.equal(one, other) and one.stride() == other.stride()
        else:
            assert one == other
    return got


def warmed_up(recorder: Recorder, weight: Tensor) -> tuple[GraphedCall, list[Tensor]]:
    call = GraphedCall(program, recorder)
    alive = [torch.randn(4, 4) for _ in range(WARM_UP_CALLS)]  # no address twice
    for x in alive:
        check(call, weight, x)
    assert recorder.recorded == 0
    return call, alive


def test_moving_inputs_are_copied_others_read_in_place() -> None:
    recorder, weight = Recorder(), torch.nn.Parameter(torch.randn(4, 4))
    call, alive = warmed_up(recorder, weight)
    for _ in range(5):
        alive.append(torch.randn(4, 4))
        with torch.no_grad():
            weight.add_(0.5)  # the same address: seen by the next call
        check(call, weight, alive[-1])
    assert recorder.recorded == 1 and recorder.replayed == 5


def test_results_outlive_later_calls() -> None:
    recorder, weight = Recorder(), torch.randn(4, 4)
    call, alive = warmed_up(recorder, weight)
    results = []
    for _ in range(4):
        alive.append(torch.randn(4, 4))
        results.append((alive[-1], check(call, weight, alive[-1])))
    for x, got in results:
        assert torch.equal(got[0], weight @ x) and torch.equal(got[3], (x + 1).t())


def test_an_input_at_another_address_is_copied_from_then_on() -> None:
    recorder, weight = Recorder(), torch.randn(4, 4)
    call, alive = warmed_up(recorder, weight)
    check(call, weight, alive[0])
    weights = [torch.randn(4, 4) for _ in range(4)]
    for other in weights:
        check(call, other, alive[0])
    assert recorder.recorded == 2 and call.moving == {0, 1}


def test_strides_with_gaps_and_repeats() -> None:
    call = GraphedCall(lambda x: (x[:, 0] * 2, x.sum()), Recorder())
    for _ in range(4):
        for x in (torch.randn(3, 1).expand(3, 4), ):
            got = call(x)
            assert torch.equal(got[0], x[:, 0] * 2) and torch.equal(got[1], x.sum())


def test_recordings_end(monkeypatch: Any) -> None:
    """Each of many inputs moves for the first time in another call."""
    recorder = Recorder()
    fixed = [torch.randn(2) for _ in range(MOST_RECORDINGS + 3)]
    call = GraphedCall(lambda *xs: (torch.stack(xs),), recorder)
    alive = []
    for n in range(WARM_UP_CALLS + len(fixed)):
        if n > WARM_UP_CALLS:
            alive.append(fixed[n - WARM_UP_CALLS])
            fixed[n - WARM_UP_CALLS] = torch.randn(2)
        (got,) = call(*fixed)
        assert torch.equal(got, torch.stack(fixed))
    assert call.off and recorder.recorded == MOST_RECORDINGS


def test_elsewhere_it_runs_as_it_is() -> None:
    recorder, weight = Recorder(), torch.randn(4, 4)
    call, alive = warmed_up(recorder, weight)
    check(call, weight, alive[0])
    for stream in (None, 8):
        recorder.stream = stream
        check(call, weight, alive[1])
    assert recorder.replayed == 1
    recorder.stream = 7
    check(call, weight, alive[1])
    assert recorder.replayed == 2 and recorder.recorded == 1


def test_a_recording_that_fails_is_the_last() -> None:
    recorder, weight = Recorder(), torch.randn(4, 4)
    recorder.fails = True
    call, alive = warmed_up(recorder, weight)
    for _ in range(2):
        check(call, weight, alive[0])
    assert call.off and not recorder.recorded


def test_large_moving_inputs_are_not_copied(monkeypatch: Any) -> None:
    monkeypatch.setattr(cuda_graphs, "MOST_COPIED", 32)
    recorder, weight = Recorder(), torch.randn(4, 4)
    call, alive = warmed_up(recorder, weight)
    check(call, weight, alive[0])
    assert call.off and not recorder.recorded


def test_inference_mode_and_gradients() -> None:
    recorder, weight = Recorder(), torch.nn.Parameter(torch.randn(4, 4))
    call, alive = warmed_up(recorder, weight)
    with torch.inference_mode():
        assert check(call, weight, torch.randn(4, 4))[0].is_inference()
    with torch.no_grad():
        got = check(call, weight, torch.randn(4, 4).requires_grad_())
    assert not got[0].requires_grad and not got[0].is_inference()


GPU = torch.device("cuda", 0)
LAYOUT = Layout(GPU, torch.float32, (4, 4), (4, 1))
X = ViewRef("arg0", (4, 4), (4, 1), 0, torch.float32)


def extern(target: Any = aten.mm.default, *args: Any, **changes: Any) -> ExternKernel:
    return replace(ExternKernel("buf0", LAYOUT, target, args or (X, X)), **changes)


def graph_of(*nodes: Any, layout: Layout = LAYOUT) -> tuple[LoopGraph, Schedule]:
    calls = [extern() for _ in range(3)]
    inputs = (InputBuffer("arg0", layout, 0), None)
    steps = [node for node in (*calls, *nodes) if isinstance(node, ExternKernel)]
    output = (ViewRef("buf0", (4, 4), (4, 1), 0, torch.float32), 3)
    graph = LoopGraph(inputs, (), (*calls, *nodes), output, layout.device)
    return graph, Schedule(tuple(steps))


def store_into(buffer: str) -> ComputedBuffer:
    body = trace_body((), (), lambda ops, i, r: ops.store(
        buffer, constant(0), ops.constant(1.0, torch.float32)))
    return ComputedBuffer("buf9", LAYOUT, body, "scatter", mutates=buffer)


ATTENTION = aten._scaled_dot_product_flash_attention.default


@pytest.mark.parametrize(("node", "reason"), [
    (None, ""),
    (extern(aten._softmax.default, X, -1, False), ""),
    (extern(ATTENTION, X, X, X), ""),
    (extern(ATTENTION, X, X, X, 0.1), "random"),
    (extern(aten.bernoulli.default, X), "random"),
    (extern(aten.nonzero.default, X), "waits"),
    (extern(aten.index_put.default, X, (X,), X), "may wait"),
    (extern(aten.linalg_solve_ex.default, X, X), "may wait"),
    (extern(aten.add_.Tensor, X, X, mutates=("arg0",)), "writes arg0"),
    (extern(torch.ops.mkldnn._linear_pointwise.default, X), "not known"),
    (store_into("arg0"), "written"),
    (store_into("buf0"), ""),
])  # fmt: skip
def test_what_is_recorded(node: Any, reason: str) -> None:
    graph, schedule = graph_of(*([node] if node else []))
    found = refusal(graph, schedule, ())
    assert reason in found and bool(reason) == bool(found)


def test_what_else_is_not_recorded(monkeypatch: Any) -> None:
    graph, schedule = graph_of()
    assert "runs as ATen" in refusal(graph, schedule, ("kernel3",))
    assert "too few" in refusal(graph, Schedule(schedule.steps[:2]), ())
    on_cpu, calls = graph_of(layout=replace(LAYOUT, device=torch.device("cpu")))
    assert "cpu" in refusal(on_cpu, calls, ())
    assert "another device" in refusal(replace(on_cpu, device=GPU), calls, ())
    monkeypatch.setattr(cuda_graphs, "MOST_COPIED", 63)
    assert "large" in refusal(graph, schedule, ())


class Pair:
    """A forward that keeps something for its backward, both recorded, under autograd."""

    def __init__(self) -> None:
        self.recorders = Recorder(), Recorder()
        pairing = Pairing()
        forward = GraphedCall(
            lambda w, x: (w @ x, (w @ x).cos(), x + 1), self.recorders[0], pairing, values=1
        )
        backward = GraphedCall(lambda c, x1, g: ((g * c) @ x1,), self.recorders[1], pairing)
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
    recording = pair.calls[1].recording
    assert set(recording.copied) == {2} and recording.kept == {0, 1}


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
    pair.calls[0].recording = None
    pair.finish(*step)


def test_a_forward_without_backward_gives_back() -> None:
    pair = Pair()
    for _ in range(6):
        pair.start()
    assert pair.recorders[0].replayed == 4
