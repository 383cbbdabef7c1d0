"""`benchmarks.paper`: rows become tables, wrong results are seen, a run ends in time."""

from __future__ import annotations

import json
import math
import subprocess
import time
from pathlib import Path

import pytest
import torch
from torch import nn

from benchmarks.paper import capture, speed, without
from benchmarks.paper.__main__ import collect, in_a_process
from benchmarks.paper.judge import judge_of
from benchmarks.paper.models import Case, every
from benchmarks.paper.report import markdown, with_kept, write
from benchmarks.paper.table import Run
from benchmarks.paper.timing import held, medians
from inductor.config import config
from inductor.config import left_out as left_out_of


def test_models_have_names_of_their_own() -> None:
    names = every()
    assert len(names) == len(set(names)) > 50


def test_a_row_of_capture() -> None:
    (row,) = capture.rows(Run("micro:attended", "small"))
    assert (row["dynamo.compile"], row["graphs"], row["breaks"], row["inside"]) == ("works", 1, 0, 1)
    assert row["lazy"] == "works" and row["jit.trace"] == "works"
    assert row["fx.symbolic_trace"] != "works"  # `torch.ones` of a traced size
    assert "ours: one graph without a break for 1 of 1" in capture.notes([row])[-1]


def test_a_rounded_result_is_right_and_another_is_not() -> None:
    torch.manual_seed(0)
    case = Case(nn.Linear(8, 8), (torch.randn(4, 8),), {})
    judge = judge_of(case, False, torch.float32)
    (exact,) = judge.exact
    assert judge.accepts([exact.float()])
    assert not judge.accepts([exact.float() + 0.01])
    assert not judge.accepts([exact.float()[:2]])
    assert not judge.accepts([exact.float().fill_(math.nan)])
    assert not judge.accepts([])


def test_training_is_judged_by_gradients() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    judge = judge_of(Case(model, (torch.randn(4, 8),), {}), True, torch.float32)
    assert [e.shape for e in judge.exact] == [p.shape for p in model.parameters()]
    assert not judge.accepts([torch.zeros_like(p) for p in model.parameters()])


def test_settings_of_the_ablation_exist() -> None:
    for cuda in (False, True):
        for options in without.settings(cuda).values():
            with config.patch(**options):
                left_out_of(config.leave_out)


def test_notes_are_geometric_means_and_count_failures() -> None:
    rows = [{"model": "hf:a", "kind": "inference", "inductor": 2.0, "onnxrt": "RuntimeError"},
            {"model": "hf:b", "kind": "inference", "inductor": 8.0, "onnxrt": 3.0}]
    assert speed.notes(rows)[-1] == "inference, all: inductor 4.00 (2/2), onnxrt 3.00 (1/2)"
    rows = [{"model": "hf:a", "kind": "inference", "all": 2.0, "fusion": 1.0},
            {"model": "hf:b", "kind": "inference", "all": 9.0, "fusion": "no time"}]
    assert without.notes(rows)[1] == "inference, without fusion: 1.00 (-1.00)"


def test_a_table_is_written_with_the_machine(tmp_path: Path) -> None:
    rows = [{"model": "a", "x": 1.5}, {"model": "b", "y": "a|b"}, {"model": "c", "skipped": "why"}]
    text = write("t", "Title", "About.", rows, ["a note"], False, "command", tmp_path)
    assert "| a | 1.5 |  |" in text and "| b |  | a\\|b |" in text and "- not run: c: why" in text
    data = json.loads((tmp_path / "t.json").read_text())
    assert data["rows"] == rows and data["machine"]["torch"] == torch.__version__
    assert "none" in markdown("T", "A", [], ["none"], {}, "c")


def test_rows_of_other_models_stay(tmp_path: Path) -> None:
    assert with_kept([{"model": "a"}], "t", False, tmp_path) == [{"model": "a"}]
    write("t", "T", "A.", [{"model": "a", "x": 1}, {"model": "b", "x": 2}], [], False, "c", tmp_path)
    found = with_kept([{"model": "a", "x": 3}], "t", False, tmp_path)
    assert found == [{"model": "b", "x": 2}, {"model": "a", "x": 3}]
    path = tmp_path / "t.json"
    path.write_text(path.read_text().replace(torch.__version__, "1.0"))  # another version's
    assert with_kept([{"model": "a"}], "t", False, tmp_path) == [{"model": "a"}]


def test_a_run_ends_in_time() -> None:
    start = time.perf_counter()
    (row,) = collect("table1", [Run("micro:normed", "small")], limit=5.0, processes=1)
    assert row == {"model": "micro:normed", "skipped": "no time was left"}
    assert time.perf_counter() - start < 5
    assert Run("m", "small", limit=10.0).has_time(0.5)
    assert not Run("m", "small", limit=10.0, began=time.perf_counter() - 6).has_time(0.5)


def test_rows_before_an_end_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    program = ("import sys, time; print('RESULT {\"model\": \"m\", \"x\": 1}', flush=True); "
               "sys.exit('out of luck') if {fails} else time.sleep(60)")

    real = subprocess.Popen
    for fails, why in (("True", "out of luck"), ("False", "more than 5 s")):
        text = program.replace("{fails}", fails)
        monkeypatch.setattr(subprocess, "Popen", lambda command, text=text, **more: real(
            [command[0], "-c", text], **more))
        assert in_a_process("table3", Run("m", "real", limit=5.0)) == [
            {"model": "m", "x": 1}, {"model": "m", "skipped": why}]


def test_calls_take_turns_while_the_machine_is_held() -> None:
    order: list[str] = []
    with held("cat"):
        times = medians({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, 0.0)
    assert times.keys() == {"a", "b"} and order[:6] == ["a"] * 3 + ["b"] * 3
    with pytest.raises(RuntimeError, match="ended without a word"), held("true"):
        pass
