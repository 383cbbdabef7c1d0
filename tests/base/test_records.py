"""Events, counters and the check of the extension."""

from __future__ import annotations

import gc
import json
import sys
import threading
import types
from pathlib import Path

import pytest

from dynamo.base import counters
from dynamo.base.events import Event, EventLog
from dynamo.base.extension import check_extension
from dynamo.base.loading import collection_paused


def test_events_are_bounded_and_kept_in_order() -> None:
    log = EventLog(limit=3)
    for number in range(5):
        log.record(Event("compile" if number % 2 else "break", str(number)))
    assert [event.compile_id for event in log.events()] == ["2", "3", "4"]
    assert [event.compile_id for event in log.events("compile")] == ["3"]
    log.clear()
    assert not log.events()


def test_events_go_to_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl"
    monkeypatch.setenv("DYNAMO_TRACE", str(path))
    log = EventLog()
    threads = [
        threading.Thread(target=log.record, args=(Event("compile", str(i), {"x": {1}}),))
        for i in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert sorted(row["id"] for row in rows) == [str(i) for i in range(8)]
    assert all(row["kind"] == "compile" and row["x"] == "{1}" for row in rows)


def test_times_nest_and_reset() -> None:
    counters.reset()
    with pytest.raises(KeyError), counters.timed("outer"), counters.timed("inner"):
        raise KeyError
    times = counters.compile_times()
    assert times["outer"] >= times["inner"] >= 0
    counters.counters["stats"]["x"] += 2
    counters.reset()
    assert not counters.compile_times() and not counters.counters["stats"]["x"]


def test_extension_of_another_torch_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    extension = types.ModuleType("dynamo._other")
    monkeypatch.setitem(sys.modules, "dynamo._other", extension)
    extension.torch_version = "2.11.0+cu130"  # type: ignore[attr-defined]
    assert check_extension("dynamo._other", "2.11.0+cpu") == "2.11.0+cu130"
    with pytest.raises(
        ImportError, match="built against torch 2.11.0.*, this is torch 2.13.0; install dynamo-jit again"
    ):
        check_extension("dynamo._other", "2.13.0")


def test_missing_extension_is_one_sentence() -> None:
    with pytest.raises(
        ImportError, match="dynamo._missing is not built for this Python; install dynamo-jit again"
    ):
        check_extension("dynamo._missing", "2.13.0")


def test_collector_is_as_it_was_after_loading() -> None:
    before = gc.get_threshold()
    with pytest.raises(KeyError), collection_paused():
        assert gc.get_threshold()[0] == 0
        with collection_paused():
            pass
        assert gc.get_threshold()[0] == 0  # the outer one goes on
        raise KeyError
    assert gc.get_threshold() == before


def test_what_a_program_sets_while_collection_is_paused_stays() -> None:
    before = gc.get_threshold()
    try:
        with collection_paused():
            gc.disable()
            gc.set_threshold(900, 5, 5)
        assert not gc.isenabled()
        assert gc.get_threshold()[:2] == (900, 5)
    finally:
        gc.enable()
        gc.set_threshold(*before)

