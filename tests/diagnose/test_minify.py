"""Seeded defects end in scripts of at most five operations, which run alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import dynamo
from dynamo.base.config import config
from dynamo.diagnose.graphs import operations
from dynamo.diagnose.minify import recheck
from inductor.lowering.registry import LOWERINGS
from tests.common import messages, new_cache
from tests.diagnose.defects import DEFECTS, Defect, longer, operations_in
from tests.processes import run_python

IN_GRAPHS = [seeded for seeded in DEFECTS if seeded.stage != "capture"]


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path) -> Any:
    with new_cache(tmp_path / "cache"), config.patch(debug_dir=str(tmp_path / "debug")):
        yield
    dynamo.reset()


def scripts(folder: Path) -> list[Path]:
    return sorted((folder / "debug").glob("repro_*/repro.py"))


# Each is named in test_verify.py; how a graph becomes small hangs little on what is wrong in it.
@pytest.mark.parametrize(
    "seeded", [pytest.param(seeded, marks=pytest.mark.long if number % 3 else ())
               for number, seeded in enumerate(IN_GRAPHS)], ids=lambda seeded: seeded.name)
def test_defects_end_in_small_scripts(seeded: Defect, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    seeded.patch(monkeypatch)
    with config.patch(repro="accuracy"), messages() as told:
        dynamo.compile(longer(seeded))(*seeded.inputs())
    found = scripts(tmp_path)
    assert len(found) == 1, told
    text = found[0].read_text()
    assert 1 <= operations_in(text) <= 5, text
    assert str(found[0]) in told[0] and "What to do" in told[0]


def deep(x: torch.Tensor) -> torch.Tensor:
    for _ in range(6):
        x = (x.sin() + 1).relu()
    y = x - 1
    for _ in range(6):
        y = (y.cos() * 2).tanh()
    return y


def failing(call: Any, *args: Any, **kwargs: Any) -> Any:
    raise KeyError("seeded")


def test_a_crash_ends_in_a_script_of_one_operation(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(LOWERINGS, torch.ops.aten.sub.Tensor, failing)
    with config.patch(repro="crash"), pytest.warns(UserWarning, match="the inductor backend failed"), messages() as told:
        dynamo.compile(deep)(torch.randn(4))
    text = scripts(tmp_path)[0].read_text()
    assert operations_in(text) == 1 and "- 1" in text, text
    assert "KeyError" in told[0] and "y = x - 1" in told[0]


@pytest.mark.parametrize("name", ["dynamo_minifier_backend", "dynamo_accuracy_minifier_backend"])
def test_backends_by_name(name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    wrong = LOWERINGS[torch.ops.aten.add.Tensor] if "accuracy" in name else failing
    monkeypatch.setitem(LOWERINGS, torch.ops.aten.sub.Tensor, wrong)
    with config.patch(suppress_errors=True):
        try:
            dynamo.compile(deep, backend=name)(torch.randn(4))
        except dynamo.exc.BackendError:
            assert "accuracy" not in name
    assert operations_in(scripts(tmp_path)[0].read_text()) == 1


def test_what_is_right_writes_nothing(tmp_path: Path) -> None:
    x = torch.randn(4, requires_grad=True)
    for kind in ("crash", "accuracy"):
        with config.patch(repro=kind):
            assert torch.allclose(dynamo.compile(deep)(x), deep(x), atol=1e-5)
    assert not scripts(tmp_path)


def test_the_script_runs_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(LOWERINGS, torch.ops.aten.sub.Tensor, LOWERINGS[torch.ops.aten.add.Tensor])
    with config.patch(repro="accuracy"):
        dynamo.compile(deep)(torch.randn(400))
    script = scripts(tmp_path)[0]
    done = run_python(str(script), folder=tmp_path, DYNAMO_CACHE_DIR=str(tmp_path / "other"))
    assert done.returncode == 0 and "does what the graph does" in done.stdout, done.stderr  # it knows no defect
    code = f"import sys; sys.argv=['repro']; from torch import ops; from inductor.lowering.registry import LOWERINGS\n" \
           f"import inductor.driver.compile_fx\nLOWERINGS[ops.aten.sub.Tensor] = LOWERINGS[ops.aten.add.Tensor]\n" \
           f"exec(compile(open({str(script)!r}).read(), {str(script)!r}, 'exec'))"
    done = run_python("-c", code, folder=tmp_path, DYNAMO_CACHE_DIR=str(tmp_path / "third"))
    assert done.returncode == 1 and "values differ" in done.stdout, done.stderr


def test_an_unknown_kind_is_named() -> None:
    assert operations(torch.fx.symbolic_trace(deep))
    with config.patch(repro="speed"), pytest.raises(dynamo.exc.BackendError, match="crash or accuracy"):
        dynamo.compile(deep)(torch.randn(4))


PROGRAM = '''
import torch, dynamo
import helpers
OFFSET = 1

def swapped(target):
    return torch.sigmoid if helpers.ON and OFFSET and target is torch.tanh else target

@dynamo.register_backend
def mine(gm, inputs):
    for node in gm.graph.nodes:
        node.target = swapped(node.target)
    gm.recompile()
    return gm

def f(x):
    return torch.tanh(x + 1).exp()

for backend in ("mine", mine, helpers.other, lambda gm, inputs: mine(gm, inputs)):
    dynamo.reset()
    dynamo.compile(f, backend=backend)(torch.randn(4))
'''
HELPERS = '''
import torch
ON = True
def other(gm, inputs):
    for node in gm.graph.nodes:
        if node.target is torch.tanh:
            node.target = torch.sigmoid
    gm.recompile()
    return gm
'''


def test_backends_of_the_program_are_in_the_script(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "helpers.py").write_text(HELPERS)
    done = run_python("program.py", folder=tmp_path, DYNAMO_REPRO="accuracy", DYNAMO_DEBUG_DIR=str(tmp_path / "debug"))
    assert done.returncode == 0, done.stderr
    codes = []
    for script in sorted(scripts(tmp_path), key=lambda path: path.stat().st_mtime_ns):
        done = run_python(str(script), folder=tmp_path / "debug")
        codes.append((done.returncode, (done.stdout + done.stderr).strip().splitlines()[-1]))
    assert [code for code, _ in codes] == [1, 1, 1, 1], codes
    assert [text for _, text in codes[:3]] == ["differs"] * 3
    assert codes[3][1].startswith("The backend"), codes  # a lambda: named, with what to do


def test_a_graph_that_raises_itself_is_not_right(capsys: pytest.CaptureFixture[str]) -> None:
    class Raises(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
            return (x.view(7),)

    with pytest.raises(SystemExit) as found:
        recheck(Raises(), [torch.ones(4)], "eager", {}, True)
    assert found.value.code == 2 and "nothing was compared" in capsys.readouterr().out
