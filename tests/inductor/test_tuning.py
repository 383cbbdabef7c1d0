"""Answers of the tuner: measured once, kept on disk, without the candidates that failed."""

from __future__ import annotations

import functools
import math

import pytest
import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from dynamo.aot.api import simplify
from dynamo.aot.capture import capture_forward
from dynamo.aot.worlds import capture_in_world
from dynamo.store.content import Key, Store
from inductor.autotune import gpu_blocks
from inductor.autotune.gpu_blocks import least_bytes, tune_blocks
from inductor.autotune.tuning import Candidate, Question, Tuner, make_question_key
from inductor.codegen.triton.print_kernel import print_kernel
from inductor.fx_passes.pipeline import decompositions
from inductor.ir.graph import InputBuffer, Layout, LoopGraph
from inductor.lowering.run import lower_graph
from inductor.scheduler.run import schedule_graph

CPU = torch.device("cpu")
GRAPH = LoopGraph((InputBuffer("arg0", Layout(CPU, torch.float32, (4, 3), (3, 1)), 0),), (), (), (), CPU)


def question(store, ran, text="a") -> Question:
    def candidates():
        ran.append(text)
        return [Candidate(name, GRAPH, name) for name in ("slow", "fast", "broken", "large")]

    return Question(make_question_key(CPU, {"text": text}), "a product", candidates)


def load(modules):
    return [RuntimeError("does not compile") if text == "broken" else loaded(text) for text, _ in modules]


def loaded(text):
    return lambda: (lambda x: text)


def timer(call, sets):
    (x,) = sets[0]
    assert x.shape == (4, 3)
    took = {"slow": 2.0, "fast": 1.0}.get(call(x))
    if took is None:
        raise torch.OutOfMemoryError("no memory")
    return took


def test_each_question_is_measured_once(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("inductor.autotune.tuning._triton_version", lambda: "3.6")
    ran: list[str] = []
    store = Store(tmp_path)
    tuner = Tuner(store, load, timer)
    a, b = question(store, ran), question(store, ran, "b")
    expected = {"slow": 2.0, "fast": 1.0}
    assert tuner.answers([a, b, a]) == [expected, expected, expected]
    assert ran == ["a", "b"]
    assert Tuner(store, load, None).answers([b, a]) == [expected, expected]
    assert ran == ["a", "b"] and len(tuner.failed) == 2


@pytest.mark.parametrize("content", [b"{", b'{"fast": 9}', b""])
def test_an_answer_that_cannot_be_read_is_measured_again(content, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("inductor.autotune.tuning._triton_version", lambda: "3.6")
    ran: list[str] = []
    store = Store(tmp_path)
    one = question(store, ran)
    store.write(one.key, ".json", content)
    assert Tuner(store, load, timer).answers([one])[0]["fast"] == 1.0
    assert ran == ["a"]


def test_ways_with_other_results_are_left_out(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("inductor.autotune.tuning._triton_version", lambda: "3.6")
    results = {"first": 1.0, "near": 1.001, "wrong": 1.2, "nan": float("nan")}

    def bound(modules):
        return [functools.partial(made, results[text]) for text, _ in modules]

    def made(result):
        return lambda x: (torch.full((3,), result),)

    for tolerance, expected in ((0.01, {"first", "near"}), (0.0, set(results))):
        key = make_question_key(CPU, {"text": str(tolerance)})
        one = Question(key, "it", lambda: [Candidate(n, GRAPH, n) for n in results], tolerance)
        tuner = Tuner(Store(tmp_path), bound, lambda call, sets: 1.0)
        assert set(tuner.answers([one])[0]) == expected


class Device:
    """A tuner whose device takes what `took` says of each config, by its place among those asked."""

    def __init__(self, took, speed: float) -> None:
        self.took, self.speed, self.asked = took, speed, []

    def copied_a_microsecond(self, device):
        return self.speed

    def answers(self, questions):
        found = []
        for one in questions:
            names = [way.name for way in one.candidates()]
            found.append({name: self.took(len(self.asked) + n) for n, name in enumerate(names)})
            self.asked += names
        return found


@pytest.fixture
def one_kernel(monkeypatch):
    """A kernel for a GPU: 8192 x 4096 numbers are read, as many are written."""
    monkeypatch.setattr(gpu_blocks, "make_question_key", lambda device, parts: Key("autotuning", str(parts), parts))
    mode, gpu = FakeTensorMode(), torch.device("cuda", 0)
    fakes = [FakeTensor(mode, torch.empty(8192, 4096, device="meta"), gpu)]
    module = fx.symbolic_trace(lambda x: torch.softmax(x, -1))
    graph, world = capture_in_world(
        lambda world: capture_forward(module, fakes, world=world), module, fakes, False)
    lowered = lower_graph(simplify(graph.module, decompositions(), world)).graph
    schedule = schedule_graph(lowered, 8)
    (kernel,) = schedule.kernels()
    return lowered, schedule, kernel, {kernel.name: print_kernel(kernel, lowered.layouts())}


MOVED = 2 * 8192 * 4096 * 4


def test_a_kernel_as_fast_as_a_copy_is_not_tried_further(one_kernel) -> None:
    graph, schedule, kernel, kernels = one_kernel
    assert least_bytes(kernel, graph.layouts()) == MOVED
    near = Device(lambda n: MOVED / 4e6 / 0.95, 4e6)
    tuned = tune_blocks(graph, schedule, kernels, near)
    first = kernels[kernel.name].sources[0].choices.all()
    assert near.asked == [str(first[0])]
    assert tuned[kernel.name].sources[0].choices.all() == first[:1]


@pytest.mark.parametrize("speed", [4e6, 0.0])
def test_other_kernels_are_tried_until_they_are(one_kernel, speed: float) -> None:
    graph, schedule, kernel, kernels = one_kernel
    first = kernels[kernel.name].sources[0].choices.all()
    slow = Device(lambda n: MOVED / 4e6 * (2 - 0.03 * n), speed)
    tuned = tune_blocks(graph, schedule, kernels, slow)
    assert len(slow.asked) > len(first) and slow.asked[: len(first)] == list(map(str, first))
    assert len(set(slow.asked)) == len(slow.asked)
    (best,) = tuned[kernel.name].sources[0].choices.all()
    assert str(best) == slow.asked[-1] and math.isfinite(slow.took(0))
