"""DYNAMO_LOGS: grammar, help, unknown words, output."""

from __future__ import annotations

import re
import subprocess
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import dynamo
from dynamo.base import logs
from dynamo.base.logs import ARTIFACTS, log, set_logs
from tests.processes import run_python


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


WORDS_OF_TORCH = """dynamo aot inductor dynamic graph_breaks recompiles recompiles_verbose guards verbose_guards graph graph_code
    graph_sizes bytecode side_effects trace_source trace_call trace_bytecode graph_code_verbose sym_node trace_shape_events
    aot_graphs aot_joint_graph aot_graphs_effects pre_grad_graphs post_grad_graphs ir_pre_fusion ir_post_fusion schedule fusion
    loop_ordering loop_tiling compute_dependencies output_code kernel_code perf_hints cudagraphs cudagraph_static_inputs
    benchmarking autotuning inductor_metrics overlap node_runtime_estimation cache async_compile distributed""".split()


@pytest.mark.parametrize("word", WORDS_OF_TORCH)
def test_words_of_torch_are_answered(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        set_logs(word)
    said = capsys.readouterr().err
    if word in ARTIFACTS or word == "side_effects":
        assert said == "" and len(on()) == 1
    elif word == "distributed":
        assert said.count("\n") == 1 and "TORCH_LOGS=distributed" in said and not on()
    else:
        assert said.count("\n") == 1 and f"{word!r} is shown by {on()[0]!r}" in said and len(on()) == 1


def train(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (x.sin() @ w).tanh()


def test_each_line_has_its_compile(capsys: pytest.CaptureFixture[str]) -> None:
    set_logs("all")
    call = dynamo.compile(train)
    for rows in (2, 3):
        call(torch.randn(rows, 4), torch.randn(4, 4, requires_grad=True)).sum().backward()
    said = capsys.readouterr().err.splitlines()
    wrong = [line for line in said if not re.match(r"\[0/[01]( backward)? \w+\] ?", line)]
    assert said and not wrong, wrong[:5]
    assert any(line.startswith("[0/1 backward aot_graphs]") for line in said)


def test_output_code_begins_with_kernels(capsys: pytest.CaptureFixture[str]) -> None:
    set_logs("output_code")
    dynamo.compile(train)(torch.randn(2, 4), torch.randn(4, 4))
    said = capsys.readouterr().err.splitlines()
    assert "// kernel0: sin" in said[0] and "return (x.sin() @ w).tanh()" in said[1], said[:3]
    places = [next(i for i, line in enumerate(said) if part in line)
              for part in ("// kernel0", "// the wrapper", "// the prelude", "typedef signed char")]
    assert places == sorted(places)


def test_the_debug_folder_keeps_all(tmp_path: Path) -> None:
    with dynamo.config.patch(debug_dir=str(tmp_path)):
        for _ in range(2):
            dynamo.reset()
            call = dynamo.compile(train)
            call(torch.randn(2, 400), torch.randn(400, 4, requires_grad=True)).sum().backward()
    folders = sorted(path.name for path in tmp_path.iterdir())
    assert folders == ["0_0_train", "0_0_train.2", "0_0_train_backward", "0_0_train_backward.2"]
    files = {path.name for path in (tmp_path / "0_0_train").iterdir()}
    assert {"graph.py", "ir.txt", "kernels.cpp", "kernels.txt", "wrapper.py", "guards.txt", "bytecode.txt"} <= files
    assert {"ir.txt", "kernels.cpp"} <= {path.name for path in (tmp_path / "0_0_train_backward").iterdir()}
    done = run_python(str(tmp_path / "0_0_train" / "graph.py"))
    assert done.stdout.startswith("tensor("), done.stderr
    built = subprocess.run(["g++", "-fsyntax-only", "-fopenmp", "-w", str(tmp_path / "0_0_train" / "kernels.cpp")], check=False)
    assert built.returncode == 0
