"""What users run to find out: `summary`, `python -m dynamo.doctor`, `python -m dynamo.bench`, the line of a long compile."""

from __future__ import annotations

import io
import re
import sys
import time
from pathlib import Path

import pytest
import torch

import dynamo
import inductor.config
from dynamo import doctor
from dynamo.base import progress
from dynamo.base.config import config
from dynamo.base.counters import timed
from dynamo.bench import table_of
from tests.processes import run_python


def breaking(x: torch.Tensor, n: int) -> torch.Tensor:
    y = x.sin() * n
    if y.sum() > 0:
        y = y + 1
    return y.relu()


def test_summary() -> None:
    dynamo.reset()
    compiled = dynamo.compile(breaking)
    for rows in (4, 5):
        compiled(torch.ones(rows), 2)
    text = dynamo.summary()
    assert len(text.splitlines()) <= 10
    assert re.match(r"dynamo: 1 function compiled to \d graphs with \d+ operations, in [\d.]+ s", text)
    assert "graph break" in text and "if y.sum() > 0" not in text and "test_tools.py:" in text and "torch.where" in text
    assert "recompile" in text and "shape of x was [4], now it is [5]" in text
    assert re.search(r"trace [\d.]+ s, backend [\d.]+ s, .*; cache: \d+ of \d+ libraries found", text)
    dynamo.reset()
    assert "0 functions" in dynamo.summary() and "no graph break" in dynamo.summary()


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("terminal", "on", "long", "told"), [
    (True, True, True, True), (True, False, True, False), (False, True, True, False), (True, True, False, False)])
def test_progress(monkeypatch: pytest.MonkeyPatch, terminal: bool, on: bool, long: bool, told: bool) -> None:
    out = Terminal() if terminal else io.StringIO()
    monkeypatch.setattr(sys, "stderr", out)
    monkeypatch.setattr(progress, "LONG", 0.02 if long else 30.0)
    with config.patch(progress=on), progress.progress("model.py:3 f", "first call"):
        end = time.monotonic() + 5
        while told and not out.getvalue() and time.monotonic() < end:
            time.sleep(0.01)
        time.sleep(0.05)
    assert bool(out.getvalue()) is told
    if told:
        *states, last = out.getvalue().split("\r\x1b[K")[1:]
        begin = r"dynamo: compiling model.py:3 f \(first call\) \.\.\."
        assert re.fullmatch(rf"{begin} \d+\.\d s\n", last)
        assert states and all(re.fullmatch(rf"{begin} \[\.{{6}}\] \d+ s", state) for state in states)


def test_progress_names_the_stage(monkeypatch: pytest.MonkeyPatch) -> None:
    out = Terminal()
    monkeypatch.setattr(sys, "stderr", out)
    monkeypatch.setattr(progress, "LONG", 0.01)
    monkeypatch.setattr(progress, "STEP", 0.01)
    with config.patch(progress=True), progress.progress("model.py:3 f", "first call"):
        for stage, shown in (("trace", "[#.....] trace"), ("inductor.scheduler", "[####..] scheduler")):
            with timed("convert"), timed(stage):
                end = time.monotonic() + 5
                while shown not in out.getvalue() and time.monotonic() < end:
                    time.sleep(0.01)
            assert shown in out.getvalue()


def test_a_debug_folder_makes_libraries_that_a_debugger_reads(tmp_path: Path) -> None:
    x = torch.randn(8)
    with config.patch(cache_dir=str(tmp_path / "cache"), debug_dir=str(tmp_path / "debug")):
        assert torch.allclose(dynamo.compile(lambda x: x.sin() * 2)(x), x.sin() * 2)
    [library] = (tmp_path / "cache" / "library").glob("*/*.so")
    content = library.read_bytes()
    assert b".debug_info" in content and library.with_suffix(".cpp").is_file()
    assert str(library.with_suffix(".cpp")).encode() in content


def test_the_doctor_finds_all_parts(tmp_path: Path) -> None:
    with config.patch(cache_dir=str(tmp_path)):
        found = {finding.what: finding for finding in doctor.examine()}
    for what in ("versions", "C++ compiler", "headers", "OpenMP", "instruction set", "threads", "GPU", "Triton", "cache folder"):
        assert what in found
    assert "GFLOP/s" in found["MKL or BLAS (mm)"].text
    assert "convert" in found["two operations"].text and "empty cache" in found["two operations"].text
    assert not found["C++ compiler"].advice and not found["cache folder"].advice


def test_the_doctor_has_advice(tmp_path: Path) -> None:
    done = run_python("-m", "dynamo.doctor", CXX="/bin/false", DYNAMO_CACHE_DIR=str(tmp_path))
    assert done.returncode == 1 and "/bin/false --version failed" in done.stdout
    assert "What to do: install g++" in done.stdout


SCRIPT = '''
import sys, torch
torch.manual_seed(0)
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(8, 8)
    def forward(self, x):
        return self.inner(x).relu().square()
net = Net()
for _ in range(int(sys.argv[1])):
    loss = net(torch.randn(4, 8)).sum()
    loss.backward()
print("loss", round(loss.item(), 4))
'''


def test_bench_runs_a_script_twice(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    done = run_python("-m", "dynamo.bench", str(script), "8", DYNAMO_CACHE_DIR=str(tmp_path / "cache"))
    assert done.returncode == 0, done.stderr
    losses = re.findall(r"loss ([\d.]+)", done.stdout)
    assert len(losses) == 2 and losses[0] == losses[1]
    assert "Net: 8 calls" in done.stdout and re.search(r"call \(median\) +[\d.]+ ms +[\d.]+ ms +[\d.]+", done.stdout)
    assert "inner" not in done.stdout.replace("inner =", "") and "whole script" in done.stdout


def test_bench_tells_of_a_script_that_fails(tmp_path: Path) -> None:
    script = tmp_path / "wrong.py"
    script.write_text("raise SystemExit(3)")
    done = run_python("-m", "dynamo.bench", str(script))
    assert done.returncode == 3 and "the eager run ended with 3" in done.stderr
    nothing = {"seconds": 1.0, "calls": {}}
    assert "no nn.Module was called" in table_of(nothing, nothing)


PROGRAM = '''
import torch, dynamo
def f(x):
    return (x + 1).relu()
print(dynamo.compile(f)(torch.ones(3)))
'''


def test_no_compiler(tmp_path: Path) -> None:
    program = tmp_path / "model.py"
    program.write_text(PROGRAM)
    done = run_python(str(program), CXX="/bin/false", DYNAMO_CACHE_DIR=str(tmp_path / "cache"))
    assert done.returncode == 1 and done.stderr.count("Traceback") == 1, done.stderr
    last = done.stderr.strip().splitlines()[-3:]
    assert "model.py:3 in f" in last[0] and "/bin/false --version failed" in last[1] and "What to do: install g++" in last[2]


def test_a_warm_cache_needs_no_compiler(tmp_path: Path) -> None:
    program = tmp_path / "model.py"
    program.write_text(PROGRAM)
    cache = str(tmp_path / "cache")
    assert "2., 2., 2." in run_python(str(program), DYNAMO_CACHE_DIR=cache).stdout
    for variables in ({"CXX": "/bin/false"}, {"PATH": "/nonexistent"}):
        done = run_python(str(program), DYNAMO_CACHE_DIR=cache, **variables)
        assert "2., 2., 2." in done.stdout, done.stderr


def test_classes_out_of_range_are_told_in_the_words_of_eager() -> None:
    def loss(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(x, target)

    x, target = torch.randn(2, 4), torch.tensor([0, 9])
    with pytest.raises(IndexError) as eager:
        loss(x, target)
    with pytest.raises(IndexError) as compiled:
        dynamo.compile(loss)(x, target)
    assert str(compiled.value) == str(eager.value)


def test_an_operator_without_fake_kernel_is_one_sentence() -> None:
    @torch.library.custom_op("tools::nofake", mutates_args=())
    def nofake(x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    with pytest.raises(dynamo.exc.Unsupported) as error:
        dynamo.compile(lambda x: nofake(x) + 1, fullgraph=True)(torch.ones(2))
    text = str(error.value)
    assert "tools.nofake.default: it has no fake kernel. [DB0023]" in text and len(text.splitlines()) == 5
    assert "register_fake" in text and "docs.google" not in text


def test_an_operator_of_a_library_without_fake_kernel_is_one_sentence() -> None:
    library = torch.library.Library("tools_library", "FRAGMENT")
    library.define("nofake(Tensor x) -> Tensor")
    library.impl("nofake", torch.clone, "CPU")
    operator = torch.ops.tools_library.nofake
    with pytest.raises(dynamo.exc.Unsupported) as error:
        dynamo.compile(lambda x: operator(x) + 1, fullgraph=True)(torch.ones(2))
    text = str(error.value)
    assert "tools_library.nofake.default: it has no fake kernel. [DB0023]" in text and len(text.splitlines()) == 5
    assert torch.equal(dynamo.compile(lambda x: operator(x) + 1)(torch.ones(2)), torch.full((2,), 2.0))


def test_knobs_are_few() -> None:
    assert len(dynamo.config.list_options()) + len(inductor.config.list_options()) <= 40
