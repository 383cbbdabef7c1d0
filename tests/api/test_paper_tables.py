"""`benchmarks.paper`: rows become tables, wrong results are seen, a run ends in time."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from benchmarks.paper import __main__ as paper
from benchmarks.paper import batches, capture, lazily, overhead, slots, speed, without
from benchmarks.paper.__main__ import arguments, measure, name_of, runs_of
from benchmarks.paper.apart import LATE, Apart
from benchmarks.paper.batches import BESIDE, batch, collect, fitting
from benchmarks.paper.judge import judge_of
from benchmarks.paper.models import Case, build, every, kinds_of, timed
from benchmarks.paper.report import Row, known_rows, markdown, not_run, write
from benchmarks.paper.table import Run
from benchmarks.paper.timing import held, medians, ticket, turn
from inductor.config import config
from inductor.config import left_out as left_out_of


def test_models_have_names_of_their_own() -> None:
    for names in (every(), timed()):
        assert len(names) == len(set(names)) > 50
    assert set(timed()) <= set(every())
    assert kinds_of("micro:added") == ("inference",)
    assert kinds_of("micro:feed") == ("inference", "training")


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
    (exact,) = judge.exact()
    assert exact.dtype is torch.float64 and judge.accepts([exact.float()])
    assert not judge.accepts([exact.float() + 0.01])
    infinite = exact.float()
    infinite[0, 0] = math.inf
    assert not judge.accepts([infinite])
    assert not judge.accepts([exact.float()[:2]])
    assert not judge.accepts([exact.float().fill_(math.nan)])
    assert not judge.accepts([])


def test_training_is_judged_by_gradients() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    judge = judge_of(Case(model, (torch.randn(4, 8),), {}), True, torch.float32)
    assert [e.shape for e in judge.exact()] == [p.shape for p in model.parameters()]
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
    rows = [{"model": "hf:a", "kind": "inference", "all": 2.0, "patterns": 2.01}]
    assert "(+0.01); it is for attention that is written out" in without.notes(rows)[1]
    assert without.REASONS.keys() == without.SETTINGS.keys() - {"fusion, inlining"}


def test_rows_that_cost_more_than_they_may_are_told() -> None:
    rows = [{"model": name, "kind": "inference", "dynamo": value, "spread": 1.3}
            for name, value in (("hf:a", 0.9), ("hf:b", 1.2), ("hf:MambaForCausalLM", 1.1))]  # fmt: skip
    notes = overhead.notes(rows)
    assert notes[1].startswith("inference, dynamo: 1 of 3 are within 1.01; beyond it")
    assert "hf:b 1.20 (1.30)" in notes[1] and "hf:a" not in notes[1]
    assert len(notes) == 3 and "associative scan" in notes[2]
    assert overhead.notes(rows[:1]) == ["inference, dynamo: 0.900 of eager's time (geometric mean of 1)"]


def test_a_table_is_written_with_the_machine(tmp_path: Path) -> None:
    rows = [{"model": "a", "x": 1.5}, {"model": "b", "y": "a|b"}, {"model": "c", "skipped": "why"}]
    text = write("t", "Title", "About.", rows, ["a note"], False, "command", tmp_path)
    assert "| a | 1.5 |  |" in text and "| b |  | a\\|b |" in text and "- not run: c: why" in text
    data = json.loads((tmp_path / "t.json").read_text())
    assert data["rows"] == rows and data["machine"]["torch"] == torch.__version__
    assert "none" in markdown("T", "A", [], ["none"], {}, "c")


def test_what_is_not_run_is_told_by_reason() -> None:
    rows = [{"model": name, "kind": kind, "skipped": why} for name, kind, why in (
        ("a", "inference", "late"), ("b", "training", "late"), ("c", "inference", "late"),
        ("d", "inference", "broken"))]  # fmt: skip
    assert not_run([{"model": "e", "x": 1}, *rows]) == [
        "- not run, inference: a, c: late", "- not run, training: b: late",
        "- not run, inference: d: broken"]  # fmt: skip


def test_a_cache_goes_to_the_device_of_its_module() -> None:
    case = build("hf:Llama-decode-static", "small", "meta")
    assert case.run(case.model).device.type == "meta"


def test_rows_of_this_machine_stay(tmp_path: Path) -> None:
    assert known_rows("t", False, "small", tmp_path) == []
    write("t", "T", "A.", [{"model": "a"}], [], False, "c", tmp_path, "small")
    assert known_rows("t", False, "small", tmp_path) == [{"model": "a"}]
    assert known_rows("t", False, "real", tmp_path) == []
    path = tmp_path / "t.json"
    path.write_text(path.read_text().replace(torch.__version__, "1.0"))  # another version's
    assert known_rows("t", False, "small", tmp_path) == []


def test_a_run_ends_in_time() -> None:
    start = time.perf_counter()
    ((row,),) = collect("table3", [Run("micro:normed", "small", kind="inference")], 5.0, 1)
    assert row == {"model": "micro:normed", "kind": "inference", "skipped": "no time was left"}
    assert time.perf_counter() - start < 5
    assert Run("m", "small", limit=10.0).has_time(0.5)
    assert not Run("m", "small", limit=10.0, began=time.perf_counter() - 6).has_time(0.5)


def test_a_batch_is_as_large_as_its_timing_fits() -> None:
    runs = [Run(name, "small", seconds=1.0) for name in "abcd"]
    assert [run.model for run in fitting(runs, 2.5 * (1.0 + BESIDE))] == ["a", "b"]
    assert not fitting(runs, 0.5) and len(fitting(runs, 100.0)) == 4
    untimed = [Run(name, "small", seconds=0.0) for name in "ab"]
    assert len(fitting(untimed, 0.0)) == 2 and not fitting(untimed, -1.0)


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Lets processes run a text; `run` has the facts that they are told."""
    real = subprocess.Popen

    def set_to(text: str) -> None:
        head = ("import json, os, sys, time; run = json.loads(sys.argv[1]); "
                "ready = lambda: open(f'{run[\"folder\"]}/ready-{run[\"number\"]}', 'w')\n"
                "def told(**row): print('RESULT ' + json.dumps({'model': run['model'], **row}), "
                "flush=True)\n")  # fmt: skip
        monkeypatch.setattr(subprocess, "Popen", lambda command, **more: real(
            [command[0], "-c", head + text, command[-1]], **more))  # fmt: skip

    return set_to


def test_rows_before_an_end_are_kept(program: Callable[[str], None]) -> None:
    run = Run("m", "real", seconds=0.0, limit=3.0)
    for end, why in (("sys.exit('out of luck')", "out of luck"), ("time.sleep(60)", "more than")):
        program(f"told(x=1); {end}")
        ((one, two),) = batch("table3", [run], 30.0)
        assert one == {"model": "m", "x": 1} and two["skipped"].startswith(why)


def test_an_engine_that_crashes_is_one_cell(program: Callable[[str], None]) -> None:
    run = Run("m", "real", seconds=0.0, limit=60.0, kind="inference")
    wait = "while not os.path.exists(run['folder'] + '/go'): time.sleep(0.01)\n"
    for text, cell in (
        ("assert run['apart'] and run['ways'] == ['onnxrt']; ready(); " + "\n" + wait
         + "told(onnxrt=1.5)", 1.5),
        ("os.kill(os.getpid(), 11)", "crashed (SIGSEGV)"), ("sys.exit('no engine')", "no engine"),
    ):  # fmt: skip
        program(text)
        with Apart("table3", run, "onnxrt") as engine:
            engine.prepared()
            assert engine.cell() == cell
    program("time.sleep(600)")
    with Apart("table3", Run("m", "real", seconds=0.0, limit=1.0), "onnxrt") as engine:
        engine.prepared()
        assert engine.cell() == LATE
    assert engine.child.process.poll() is not None


def test_no_batch_is_begun_in_less_than_half_the_time_of_the_last(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]

    def batch_of_a_minute(table: str, runs: list[Run], limit: float) -> Iterator[list[Row]]:
        clock[0] += 60.0
        yield from ([{"model": run.model, "x": 1}] for run in runs)

    monkeypatch.setattr(batches, "batch", batch_of_a_minute)
    monkeypatch.setattr(batches, "time", SimpleNamespace(perf_counter=lambda: clock[0]))
    runs = [Run(name, "real", seconds=0.0) for name in "abc"]
    for limit, begun in ((151.0, 3), (149.0, 2), (89.0, 1)):
        clock[0] = 0.0
        rows = [row for (row,) in collect("table1", runs, limit, 1)]
        assert [row.get("skipped") for row in rows] == (
            [None] * begun + ["no time was left"] * (3 - begun))  # fmt: skip


def test_a_batch_is_timed_when_all_are_ready(program: Callable[[str], None]) -> None:
    program("time.sleep(run['number']); ready(); began = time.time()\n"
            "while not os.path.exists(run['folder'] + '/go'): time.sleep(0.01)\n"
            "told(began=began, went=time.time())")  # fmt: skip
    runs = [Run(name, "real", seconds=0.1, limit=60.0) for name in "ab"]
    (one,), (two,) = batch("table3", runs, 60.0)
    assert (one["model"], two["model"]) == ("a", "b")
    assert two["began"] - one["began"] > 0.5 and one["went"] >= two["began"]


def test_one_is_timed_at_a_time(tmp_path: Path) -> None:
    (tmp_path / "go").touch()
    order: list[str] = []

    def timed_in_turn(number: int) -> None:
        with turn(Run("m", "real", folder=str(tmp_path), number=number)):
            order.append("in")
            time.sleep(0.05)
            order.append("out")

    threads = [threading.Thread(target=timed_in_turn, args=(n,)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert order == ["in", "out"] * 3
    assert len(list(tmp_path.glob("ready-*"))) == 3


def test_a_killed_run_goes_on(program: Callable[[str], None], tmp_path: Path) -> None:
    """Rows are written as they come; models that failed, and new ones, are run again."""
    def run(*more: str) -> list[dict[str, object]]:
        given = ["table3", "hf:a", "hf:b", "--kinds", "inference", "--out", str(tmp_path), *more]
        options = arguments().parse_intermixed_args(given)
        measure(options, runs_of(options))
        return json.loads((tmp_path / "table3.json").read_text())["rows"]  # type: ignore[no-any-return]

    program("told(kind='inference', x=1) if run['model'] == 'hf:a' else sys.exit('killed')")
    assert [row.get("skipped") for row in run()] == [None, "killed"]
    program("told(kind='inference', x=2)")
    assert [(row["model"], row["x"]) for row in run("--resume")] == [("hf:a", 1), ("hf:b", 2)]
    assert [row["x"] for row in run("--keep")] == [2, 2]


def test_a_row_of_lazy_tensors() -> None:
    (row,) = lazily.rows(Run("micro:feed", "small", kind="training", seconds=0.0))
    assert row["lazy"] == "works" and row["error"] < 1e-5
    assert (row["compiles, 1st"], row["later"], row["followed"]) == (1, 0, 1.0)
    assert row["error in float64"] is None
    assert lazily.error_in_float64(Run("micro:feed", "small", kind="training")) < lazily.EXACT
    ones = [torch.ones(2)]
    assert lazily.errors(ones, ones, [torch.ones(2).double()])[2]
    assert not lazily.errors([torch.ones(2) + 1e-3], ones, [torch.ones(2).double()])[2]


def test_steps_are_judged_in_float64_where_rounding_does_not_tell(
    monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lazily, "errors", lambda *parts: (0.5, 1e-6, False))
    for wide, verdict in ((1e-12, "works"), (1e-3, "other results")):
        monkeypatch.setattr(lazily, "error_in_float64", lambda run, wide=wide: wide)
        (row,) = lazily.rows(Run("micro:feed", "small", kind="inference", seconds=0.0))
        assert (row["lazy"], row["error in float64"]) == (verdict, wide)


def test_calls_take_turns_while_the_machine_is_held() -> None:
    order: list[str] = []
    with held("cat"):
        times = medians({"a": lambda: order.append("a"), "b": lambda: order.append("b")}, 0.0)
    assert times.keys() == {"a", "b"} and order[:6] == ["a"] * 3 + ["b"] * 3
    with pytest.raises(RuntimeError, match="ended without a word"), held("true"):
        pass


SLOT = """
import json, os, sys, time
from benchmarks.paper import slots
slots._import_suites = lambda: None
def work(run):
    row = {"model": run.model, "cores": sorted(os.sched_getaffinity(0)), "server": os.getppid()}
    row["threads"] = os.environ["OMP_NUM_THREADS"]
    print("RESULT " + json.dumps(row), flush=True)
    if run.model == "stuck":
        time.sleep(600)
    if run.model == "killed":
        os.kill(os.getpid(), 9)
    if run.model == "wrong":
        raise ValueError("no such model")
slots.serve(work, [sys.executable, "-c", "raise SystemExit(3)"])
"""


def test_a_slot_runs_models_one_by_one_on_its_cores() -> None:
    """One that hangs is ended with its server; one that fails leaves the server as it is."""
    before = os.sched_getaffinity(0)
    runs = [Run(name, "real", seconds=0.0, limit=2.0) for name in "a b wrong killed stuck c".split()]
    runs[4] = Run("stuck", "real", seconds=-slots.LONGER, limit=2.0)  # at most two seconds
    rows = [row for found in slots.collect([sys.executable, "-c", SLOT], runs, 120.0, 1)
            for row in found]  # fmt: skip
    good = {row["model"]: row for row in rows if "server" in row}
    bad = {row["model"]: row["skipped"] for row in rows if "skipped" in row}
    assert list(good) == [run.model for run in runs]
    assert bad == {"wrong": "ValueError: no such model", "killed": "SIGKILL: no word",
                   "stuck": "more than 2 s"}  # fmt: skip
    assert {row["server"] for name, row in good.items() if name != "c"} == {good["a"]["server"]}
    assert good["c"]["server"] != good["a"]["server"]
    assert all(row["cores"] == slots.places(1)[0] and row["threads"] == "2" for row in good.values())
    assert os.sched_getaffinity(0) == before


def test_slots_end_in_time_and_tell_of_a_server_that_fails() -> None:
    runs = [Run(name, "real", seconds=0.0) for name in "ab"]
    found = list(slots.collect([sys.executable, "-c", SLOT], runs, 5.0, 1))
    assert [row["skipped"] for (row,) in found] == ["no time was left"] * 2
    ((row,),) = slots.collect([sys.executable, "-c", "raise SystemExit(1)"], runs[:1], 60.0, 1)
    assert row["skipped"] == "the server of the slot does not start"


def test_threads_of_a_core_share_a_slot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(4):
        folder = tmp_path / f"cpu{number}" / "topology"
        folder.mkdir(parents=True)
        (folder / "physical_package_id").write_text("0\n")
        (folder / "core_id").write_text(f"{number % 2}\n")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(4)))
    assert slots.places(2, tmp_path) == [[0, 2], [1, 3]]
    assert slots.places(2, tmp_path / "none") == [[0, 1], [2, 3]]
    with pytest.raises(SystemExit, match="4 cores are enough for 2"):
        slots.places(3, tmp_path)


def test_as_many_are_timed_at_a_time_as_there_are_tickets(tmp_path: Path) -> None:
    paths = [str(tmp_path / name) for name in "ab"]
    inside: list[int] = []
    most: list[int] = []

    def timed_row() -> None:
        with ticket(paths):
            inside.append(1)
            most.append(len(inside))
            time.sleep(0.1)
            inside.pop()

    threads = [threading.Thread(target=timed_row) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(most) == 2 and len(most) == 6
    with ticket(()):
        pass


def test_a_crash_is_told_with_its_calls() -> None:
    lines = ["Fatal Python error: Segmentation fault", '  File "a.py", line 1 in f',
             '  File "b.py", line 2 in g', "noise"]  # fmt: skip
    assert batches._where_it_was(lines) == 'File "a.py", line 1 in f < File "b.py", line 2 in g'
    assert batches._where_it_was(["a warning"]) == "a warning"


def test_small_models_have_files_of_their_own() -> None:
    assert name_of("table2", "small") == "table2-small"
    assert name_of("table2", "real") == name_of("table2", "large") == "table2"
    assert (name_of("table1", "small"), name_of("lazy", "small")) == ("table1", "lazy")
    assert name_of("lazy", "real") == "lazy-real"


def test_only_a_whole_table_is_published(
    program: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page is replaced, all rows: by a part of a table, or a run that was cut, it is not."""
    published = tmp_path / "published"
    monkeypatch.setattr(paper, "PUBLISHED", published)
    monkeypatch.setitem(paper.TABLES, "fx", replace(paper.TABLES["fx"], models=lambda: ["a", "b"], notes=lambda _: []))

    def run(*more: str) -> list[Path]:
        options = arguments().parse_intermixed_args(["fx", "--out", str(tmp_path), *more])
        measure(options, runs_of(options))
        return sorted(path for path in published.glob("*"))

    def models() -> list[object]:
        return [row["model"] for row in json.loads((published / "fx.json").read_text())["rows"]]

    program("told(x=1)")
    assert not run() and (tmp_path / "fx.json").exists()
    for part in (["a"], ["a", "--keep"], ["--kinds", "inference"]):
        with pytest.raises(SystemExit, match="no whole table"):
            run("--publish", *part)
    with pytest.raises(SystemExit, match="not published: no time was left for a, b"):
        run("--publish", "--here", "--seconds", "-1")
    assert not published.exists()
    assert [path.name for path in run("--publish")] == ["fx.json", "fx.md"] and models() == ["a", "b"]
    run("a", "--publish", "--keep")
    assert sorted(models(), key=str) == ["a", "b"]
