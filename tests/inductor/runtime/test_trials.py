"""Measuring in turns: as long as it is not clear, not longer, and never beyond the time for it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest

from inductor.autotune import trials

MARGINS = dict.fromkeys(("slow", "fast", "near", "other", "y"), math.log(0.95))


class Clock:
    """A clock that calls move on; what they took is taken from `took` in turn."""

    def __init__(self) -> None:
        self.now = 0.0
        self.calls: list[str] = []

    def __call__(self) -> float:
        return self.now

    def way(self, name: str, *took: float) -> list[Callable[[], Any]]:
        def call() -> None:
            self.now += took[self.calls.count(name) % len(took)]
            self.calls.append(name)

        return [call]


def test_what_is_clear_ends_after_few_rounds() -> None:
    clock = Clock()
    ways = {"slow": clock.way("slow", 2.0), "usual": clock.way("usual", 1.0), "fast": clock.way("fast", 0.5)}
    found = trials.compare(ways, "usual", MARGINS, clock, 60.0)
    assert found == {"slow": pytest.approx(math.log(2)), "usual": 0.0, "fast": pytest.approx(-math.log(2))}
    assert clock.calls.count("usual") == clock.calls.count("fast") == 1 + trials.FEWEST_ROUNDS


def test_only_what_is_unclear_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(trials.time, "perf_counter", clock)
    ways = {"usual": clock.way("usual", 1.0), "slow": clock.way("slow", 3.0), "near": clock.way("near", 0.95)}
    found = trials.compare(ways, "usual", MARGINS, clock, 60.0)
    assert found["near"] == pytest.approx(math.log(0.95))
    assert clock.calls.count("slow") == 1 + trials.FIRST_ROUNDS
    assert clock.calls.count("near") > 20 and clock.now < 67.0


def test_each_way_has_its_own_margin(monkeypatch: pytest.MonkeyPatch) -> None:
    """0.95 is far from 0.75, but not from 0.95: only the other one goes on."""
    clock = Clock()
    monkeypatch.setattr(trials.time, "perf_counter", clock)
    ways = {name: clock.way(name, took) for name, took in (("usual", 1.0), ("a", 0.95), ("b", 0.95), ("c", 0.6))}
    found = trials.compare(
        ways, "usual", {"a": math.log(0.95), "b": math.log(0.75), "c": math.log(0.75)}, clock, 60.0)
    assert found["a"] == found["b"] == pytest.approx(math.log(0.95))
    assert clock.calls.count("a") > 20 and clock.calls.count("b") == 1 + trials.FIRST_ROUNDS
    assert clock.calls.count("c") == 1 + trials.FEWEST_ROUNDS  # what is chosen is measured longer


def test_one_slow_round_in_the_beginning_tells_nothing() -> None:
    clock = Clock()
    ways = {"usual": clock.way("usual", 1.0), "other": clock.way("other", 0.5, 9.0, *[0.5] * 90)}
    found = trials.compare(ways, "usual", MARGINS, clock, 60.0)
    assert found["other"] == pytest.approx(math.log(0.5))


def test_rounds_that_contradict_one_another_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(trials.time, "perf_counter", clock)
    ways = {"usual": clock.way("usual", 1.0), "other": clock.way("other", 0.5, 1.2)}
    trials.compare(ways, "usual", MARGINS, clock, 50.0)
    assert clock.calls.count("other") > 15


def best(ways: dict[str, list[Callable[[], Any]]], clock: Clock) -> dict[str, float]:
    return trials.compare(ways, "usual", MARGINS, clock, 60.0, best_only=True)


def test_the_best_is_known_after_the_first_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """`near` is near the usual way, but far behind `fast`."""
    clock = Clock()
    monkeypatch.setattr(trials.time, "perf_counter", clock)
    ways = {name: clock.way(name, took) for name, took in (("usual", 1.0), ("near", 0.95), ("fast", 0.5))}
    found = best(ways, clock)
    assert found == {"usual": 0.0, "near": pytest.approx(math.log(0.95)), "fast": pytest.approx(-math.log(2))}
    for name in ways:
        assert clock.calls.count(name) == 1 + trials.FIRST_ROUNDS


def test_what_may_be_the_best_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(trials.time, "perf_counter", clock)
    ways = {"usual": clock.way("usual", 1.0), "near": clock.way("near", 0.95), "slow": clock.way("slow", 1.5)}
    best(ways, clock)
    assert clock.calls.count("slow") == 1 + trials.FIRST_ROUNDS
    assert clock.calls.count("near") > 20


def test_one_fast_round_in_the_beginning_does_not_decide() -> None:
    clock = Clock()
    ways = {"usual": clock.way("usual", 1.0), "other": clock.way("other", 1.2, 0.3, *[1.2] * 90)}
    found = best(ways, clock)
    assert clock.calls.count("other") > 1 + trials.FIRST_ROUNDS
    assert found["other"] == pytest.approx(math.log(1.2))


def test_disturbances_do_not_count() -> None:
    clock = Clock()
    ways = {"usual": clock.way("usual", 1.0), "other": clock.way("other", 0.5, 0.5, 30.0, 0.5)}
    found = trials.compare(ways, "usual", MARGINS, clock, 60.0)
    assert found["other"] == pytest.approx(math.log(0.5))


def test_ends_where_it_counts_for_nothing() -> None:
    clock = Clock()
    ways = {"usual": clock.way("usual", 1.0), "near": clock.way("near", 0.95)}
    trials.compare(ways, "usual", MARGINS, clock, 60.0, lambda: False)
    assert clock.calls.count("near") == 1 + trials.FEWEST_ROUNDS


def test_a_clock_that_stands_still() -> None:
    ways = {"usual": [lambda: None], "other": [lambda: None]}
    assert trials.compare(ways, "usual", MARGINS, lambda: 0.0, 0.0) == {"usual": 0.0, "other": 0.0}


def test_weights_take_turns() -> None:
    seen: list[str] = []
    ways = {
        name: [lambda part=name + v: seen.append(part) for v in "ab"]  # type: ignore[misc]
        for name in ("x", "y")
    }
    trials.compare(ways, "x", MARGINS, lambda: 0.0, 0.0)
    assert seen[:2] == ["xa", "ya"]
    assert seen[2:6] == ["xb", "yb", "xa", "ya"]


def test_time_of_a_graph_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(trials.time, "perf_counter", clock)
    assert trials.is_time_left()
    with trials.spending(3.0):
        for left in (True, True, False):
            with trials.measuring():
                clock.now += 1.5 if left else 0.0
            clock.now += 100.0  # is not measured
            assert trials.is_time_left() == (clock.now < 200.0)
        with trials.spending(1.0):
            assert trials.is_time_left()
        assert not trials.is_time_left()
    assert trials.is_time_left()
