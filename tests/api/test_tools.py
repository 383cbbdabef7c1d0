"""What users run to find out: `summary`, `python -m dynamo.doctor`, `python -m dynamo.bench`, the line of a long compile."""

from __future__ import annotations

import io
import re
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import dynamo
from dynamo import doctor
from dynamo.backends import check
from dynamo.base import progress, terminal
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


def without_rich(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "rich"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "rich", None)


@pytest.fixture(params=["rich", "plain"])
def has_rich(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Rich is installed, and is not. Its terminal is wide, and shows colours."""
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "160")
    for name in ("NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    if request.param == "plain":
        without_rich(monkeypatch)
    else:
        pytest.importorskip("rich")
    return bool(request.param == "rich")


def shown(monkeypatch: pytest.MonkeyPatch, what: Any, terminal: bool = True) -> str:
    """What `show()` writes."""
    out = Terminal() if terminal else io.StringIO()
    with monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", out)
        what.show()
    return out.getvalue()


def test_the_summary_as_tables(monkeypatch: pytest.MonkeyPatch, has_rich: bool) -> None:
    dynamo.reset()
    compiled = dynamo.compile(breaking)
    compiled(torch.ones(3), 2), compiled(torch.ones(4), 2)
    found = dynamo.summary()
    assert shown(monkeypatch, found, terminal=False) == found + "\n"
    text = shown(monkeypatch, found)
    assert ("\x1b[" in text) is has_rich and (text == found + "\n") is not has_rich
    if has_rich:
        words = re.sub(r"\x1b\[[\d;]*m", "", text)
        assert found.head in words and "no part not compiled" in words and "\u2502" in words
        [place] = re.findall(r"test_tools.py:\d+ in breaking", found)[:1]
        assert place in words and "2 recompiles" in words


def test_a_profile_as_a_table(monkeypatch: pytest.MonkeyPatch, has_rich: bool) -> None:
    compiled = dynamo.compile(lambda x: (x.sin() @ x).cumsum(0))
    x = torch.randn(64, 64)
    compiled(x)
    with dynamo.profile() as found:
        compiled(x)
    text = shown(monkeypatch, found)
    assert (text == str(found) + "\n") is not has_rich
    words = re.sub(r"\x1b\[[\d;]*m", "", text)
    assert "GFLOP/s" in words and all(f"{1e3 * row.seconds:.3f}" in words for row in found.rows)
    assert ("\u2588" in words) is has_rich  # the longest share has a bar


def test_a_finding_of_the_doctor(monkeypatch: pytest.MonkeyPatch, has_rich: bool) -> None:
    for finding in (doctor.Finding("cache folder", "it [is] full", "empty it."), doctor.Finding("headers", "none")):
        out = Terminal()
        monkeypatch.setattr(sys, "stdout", out)
        terminal.show(finding)
        words = re.sub(r"\x1b\[[\d;]*m", "", out.getvalue())
        assert finding.what in words and finding.text in words and (finding.advice or "none") in words
        assert ("!" in words) is bool(finding.advice)
        assert (out.getvalue() == f"{finding}\n") is not has_rich


def test_progress_is_a_bar(monkeypatch: pytest.MonkeyPatch, has_rich: bool) -> None:
    out = Terminal()
    monkeypatch.setattr(sys, "stderr", out)
    monkeypatch.setattr(progress, "LONG", 0.01)
    monkeypatch.setattr(progress, "STEP", 0.01)
    with config.patch(progress=True), progress.progress("model.py:3 f", "first [call]"):
        for stage in ("trace", "scheduler"):
            with timed("convert"), timed(stage if stage == "trace" else f"inductor.{stage}"):
                end = time.monotonic() + 5
                while f"{stage} 0 s" not in re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", out.getvalue()) and time.monotonic() < end:
                    time.sleep(0.01)
    words = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", out.getvalue())
    assert "dynamo: compiling model.py:3 f (first [call]) ..." in words
    assert "trace 0 s" in words and "scheduler 0 s" in words and words.rstrip().splitlines()[-1].rstrip().endswith(" s")
    assert ("\u2501" in words or "\u2578" in words) is has_rich and ("[####..]" in words) is not has_rich


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("terminal", "on", "long", "told"), [
    (True, True, True, True), (True, False, True, False), (False, True, True, False), (True, True, False, False)])
def test_progress(monkeypatch: pytest.MonkeyPatch, terminal: bool, on: bool, long: bool, told: bool) -> None:
    without_rich(monkeypatch)
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
    without_rich(monkeypatch)
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


def test_tools_say_where_nothing_was_compiled() -> None:
    with config.patch(disable=True):
        (finding,) = doctor._small_compile()
        assert finding.text == "nothing was compiled" and "DYNAMO_DISABLE" in finding.advice
        assert all("eager was compared with itself" in why for _, why, _ in check.check("eager"))


def test_the_doctor_has_advice(tmp_path: Path) -> None:
    done = run_python("-m", "dynamo.doctor", CXX="/bin/false", DYNAMO_CACHE_DIR=str(tmp_path))
    assert done.returncode == 1 and "/bin/false --version failed" in done.stdout
    assert "What to do: install g++ or clang++" in done.stdout


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
    assert "model.py:3 in f" in last[0] and "/bin/false --version failed" in last[1] and "What to do: install g++ or clang++" in last[2]


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
