"""Answers of the tuner: measured once, kept on disk, without the ways that failed."""

from __future__ import annotations

import torch

from inductor.ir.graph import InputBuffer, Layout, LoopGraph
from inductor.runtime.store import Store
from inductor.tuning import Question, Tuner, Way, make_question_key

CPU = torch.device("cpu")
GRAPH = LoopGraph((InputBuffer("arg0", Layout(CPU, torch.float32, (4, 3), (3, 1)), 0),), (), (), (), CPU)


def question(store, ran, text="a") -> Question:
    def ways():
        ran.append(text)
        return [Way(name, GRAPH, name) for name in ("slow", "fast", "broken", "large")]

    return Question(make_question_key(CPU, {"text": text}), "a product", ways)


def load(text, graph, measure):
    if text == "broken":
        raise RuntimeError("does not compile")
    return lambda: (lambda x: text)


def timer(call, sets):
    (x,) = sets[0]
    assert x.shape == (4, 3)
    took = {"slow": 2.0, "fast": 1.0}.get(call(x))
    if took is None:
        raise torch.OutOfMemoryError("no memory")
    return took


def test_each_question_is_measured_once(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("inductor.tuning._triton_version", lambda: "3.6")
    ran: list[str] = []
    store = Store(tmp_path)
    tuner = Tuner(store, load, timer)
    a, b = question(store, ran), question(store, ran, "b")
    expected = {"slow": 2.0, "fast": 1.0}
    assert tuner.answers([a, b, a]) == [expected, expected, expected]
    assert ran == ["a", "b"]
    assert Tuner(store, load, None).answers([b, a]) == [expected, expected]
    assert ran == ["a", "b"] and len(tuner.failed) == 2


def test_an_answer_that_cannot_be_read_is_measured_again(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("inductor.tuning._triton_version", lambda: "3.6")
    ran: list[str] = []
    store = Store(tmp_path)
    one = question(store, ran)
    store.write(one.key, ".json", b"{")
    assert Tuner(store, load, timer).answers([one])[0]["fast"] == 1.0
    assert ran == ["a"]


def test_ways_with_other_results_are_left_out(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("inductor.tuning._triton_version", lambda: "3.6")
    results = {"first": 1.0, "near": 1.001, "wrong": 1.2, "nan": float("nan")}

    def bound(text, graph, measure):
        return lambda: (lambda x: (torch.full((3,), results[text]),))

    for tolerance, expected in ((0.01, {"first", "near"}), (0.0, set(results))):
        key = make_question_key(CPU, {"text": str(tolerance)})
        one = Question(key, "it", lambda: [Way(n, GRAPH, n) for n in results], tolerance)
        tuner = Tuner(Store(tmp_path), bound, lambda call, sets: 1.0)
        assert set(tuner.answers([one])[0]) == expected
