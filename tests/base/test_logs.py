"""DYNAMO_LOGS: grammar, help, unknown words, output."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import dynamo
from dynamo.base import logs
from dynamo.base.logs import ARTIFACTS, log, set_logs


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    before = {name: (log(name).enabled, log(name).verbose) for name in ARTIFACTS}
    set_logs("-all")
    yield
    for name, (enabled, verbose) in before.items():
        log(name).enabled, log(name).verbose = enabled, verbose


def on() -> list[str]:
    return [name for name in ARTIFACTS if log(name).enabled]


def test_plus_minus_and_commas() -> None:
    set_logs("guards, +graph_breaks,bytecode,-bytecode")
    assert on() == ["graph_breaks", "guards"]
    assert log("graph_breaks").verbose and not log("guards").verbose


def test_switches_by_name() -> None:
    set_logs(guards=True, side_effects=True)
    assert on() == ["guards", "effects"]
    with pytest.raises(ValueError, match="no such artifact: gards"):
        set_logs(gards=True)


def test_all() -> None:
    set_logs("all,-guards")
    assert on() == [name for name in ARTIFACTS if name != "guards"]


def test_unknown_word_warns_once_with_near_matches() -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        set_logs("gaurds,bytecode")
    assert [str(w.message) for w in seen] == [
        "DYNAMO_LOGS: unknown word 'gaurds'; did you mean guards?"
    ]
    assert on() == ["bytecode"]


def test_help_lists_all(capsys: pytest.CaptureFixture[str]) -> None:
    set_logs("help")
    text = capsys.readouterr().err
    assert all(name in text and sentence in text for name, sentence in ARTIFACTS.items())


def test_each_line_has_the_prefix(capsys: pytest.CaptureFixture[str]) -> None:
    set_logs("guards")
    log("guards").emit("one\ntwo", "0/1")
    assert capsys.readouterr().err == "[0/1 guards] one\n[0/1 guards] two\n"


def test_what_a_backend_writes_belongs_to_the_compile(capsys: pytest.CaptureFixture[str]) -> None:
    set_logs("aot_graphs")
    with logs.compiling(logs.Compile("0/1")):
        log("aot_graphs").emit("\none\n")
    log("aot_graphs").emit("two")
    assert capsys.readouterr().err == "[0/1 aot_graphs] one\n[aot_graphs] two\n"


def test_graphs_show_the_users_lines(capsys: pytest.CaptureFixture[str]) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()  # the line
        dynamo.graph_break()
        return y + 1  # the other one

    set_logs("graph_code")
    dynamo.compile(program, backend="eager")(torch.ones(2))
    said = capsys.readouterr().err
    assert "test_logs.py" in said and "in program, code: y = x.sin()  # the line" in said
    assert "in program, code: return y + 1  # the other one" in said and "__resume" not in said


def test_disabled_does_not_make_the_text() -> None:
    log("guards").emit(lambda: pytest.fail("made"))


def test_output_to_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DYNAMO_LOGS_OUT", str(tmp_path / "log"))
    set_logs("guards")
    log("guards").emit("one")
    log("guards").emit("two")
    assert (tmp_path / "log").read_text() == "[guards] one\n[guards] two\n"


def test_every_word_is_written_somewhere() -> None:
    root = Path(logs.__file__).parents[2]
    text = "".join(path.read_text() for part in ("dynamo", "inductor") for path in (root / part).rglob("*.py"))
    assert [name for name in ARTIFACTS if f'log("{name}")' not in text] == []
