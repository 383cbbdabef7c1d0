"""Files of cached traces: what is damaged, of another user, or written by several processes at once."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from dynamo.captures.trace_cache import Place
from tests.captures.processes import run, start
from tests.processes import run_python

PROGRAM = """
def f(x):
    return torch.relu(x) * 2
def run():
    return [pair(f, torch.randn(4, 3))]
"""


def the_file(folder: Path) -> Path:
    (found,) = (folder / "cache" / "capture").glob("??/*.capture")
    return found


@pytest.mark.parametrize("damage", ["half", "byte", "empty", "no digest"])
def test_a_damaged_file_is_not_read(damage: str, tmp_path: Path) -> None:
    run(tmp_path, PROGRAM)
    path = the_file(tmp_path)
    content = path.read_bytes()
    middle = len(content) // 2
    path.write_bytes({
        "half": content[:middle], "empty": b"", "no digest": content[32:],
        "byte": content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1:],
    }[damage])
    outcome = run(tmp_path, PROGRAM)
    assert outcome.reused == 0 and outcome.traced == 1 and not outcome.defects
    assert "is not usable" in outcome.said
    assert run(tmp_path, PROGRAM).reused == 1  # it was written anew


@pytest.mark.skipif(os.geteuid() != 0, reason="only the administrator gives files away")
def test_a_file_of_another_user_is_not_read(tmp_path: Path) -> None:
    run(tmp_path, PROGRAM)
    os.chown(the_file(tmp_path), 12345, 12345)
    outcome = run(tmp_path, PROGRAM)
    assert outcome.reused == 0 and outcome.traced == 1 and not outcome.defects


def test_a_file_that_others_may_write_is_not_read(tmp_path: Path) -> None:
    run(tmp_path, PROGRAM)
    the_file(tmp_path).chmod(0o666)
    outcome = run(tmp_path, PROGRAM)
    assert outcome.reused == 0 and outcome.traced == 1 and not outcome.defects
    assert "another user has written" in outcome.said


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("no folder")
    outcome = run(tmp_path, PROGRAM)
    assert outcome.traced == 1 and not outcome.defects
    assert "can't be written" in outcome.said


def test_a_full_disk(tmp_path: Path) -> None:
    full = """
import pathlib
def write_bytes(self, content):
    raise OSError(28, "No space left on device")
pathlib.Path.write_bytes = write_bytes
"""
    outcome = run(tmp_path, PROGRAM + full)
    assert outcome.traced == 1 and not outcome.defects
    assert "it is not cached, [Errno 28] No space left on device" in outcome.said
    assert not [*(tmp_path / "cache").glob("**/*.capture")]


def test_a_forked_process_keeps_and_finds(tmp_path: Path) -> None:
    forks = """
import os
def g(x):
    return torch.tanh(x) * 3
def run():
    first = pair(f, torch.randn(4, 3))
    child = os.fork()
    if child == 0:
        try:
            equal = all(torch.equal(*pair(function, torch.randn(4, 3))) for function in (f, g))
        finally:
            os._exit(0 if equal else 1)
    return [first, (os.waitpid(child, 0)[1], 0)]
"""
    outcome = run(tmp_path, PROGRAM + forks)
    assert outcome.traced == 1 and not outcome.defects
    both = (PROGRAM + forks).replace("first = pair", "pair(g, torch.randn(4, 3)); first = pair")
    assert run(tmp_path, both).reused == 2  # that of g is the child's


def test_artifacts_carry_traces(tmp_path: Path) -> None:
    saves = """
def run():
    made = pair(f, torch.randn(4, 3))
    open(FOLDER + "/artifacts", "wb").write(dynamo.save_cache_artifacts()[0])
    return [made]
"""
    loads = """
def run():
    dynamo.load_cache_artifacts(open(FOLDER + "/artifacts", "rb").read())
    return [pair(f, torch.randn(4, 3))]
"""
    for source in (saves, loads):
        program = f"FOLDER = {str(tmp_path)!r}\n{PROGRAM.split('def run')[0].strip()}\n"
        outcome = run(tmp_path, program + source)
        assert not outcome.defects
        shutil.rmtree(tmp_path / "cache")
    assert outcome.reused == 1, outcome.said


def test_eight_processes_fill_one_folder(tmp_path: Path) -> None:
    waiting = [start(tmp_path, PROGRAM) for _ in range(8)]
    for outcome in waiting:
        found = outcome()
        assert found.reused + found.traced == 1 and not found.defects
    assert run(tmp_path, PROGRAM).reused == 1


def test_what_is_not_kept_says_why(tmp_path: Path) -> None:
    source = "M = torch.nn.Identity()\n" + PROGRAM.replace("* 2", "* (2 if id(M) in {id(M): 1} else 3)")
    assert "it is not cached, it knows the id() of a module" in run(tmp_path, source).said


def test_ids_that_are_keys_are_kept(tmp_path: Path) -> None:
    """As `copy.deepcopy` uses them: no number is known."""
    source = PROGRAM.replace("* 2", "* (2 if id(x) in {id(x): 1} else 3)")
    assert [run(tmp_path, source).reused for _ in range(2)] == [0, 1]


@pytest.mark.parametrize("setting", ["default", "on", "off"])
def test_it_is_on_by_default(setting: str, tmp_path: Path) -> None:
    source = """
import torch
import dynamo
x = torch.randn(4, 3)
compiled = dynamo.compile(lambda x: x.sin() + 1)
assert torch.allclose(compiled(x), x.sin() + 1)
print(dynamo.counters["stats"]["captures_reused"])
"""
    program = tmp_path / "program.py"
    program.write_text(source)
    variables = {"on": {"DYNAMO_CAPTURE_CACHE": "1"}, "off": {"DYNAMO_CAPTURE_CACHE": "0"}}.get(setting, {})
    said = [run_python(str(program), without="DYNAMO_", DYNAMO_CACHE_DIR=str(tmp_path / "cache"), DYNAMO_KERNELS="0",
                       **variables).stdout for _ in range(2)]
    assert said == (["0\n", "0\n"] if setting == "off" else ["0\n", "1\n"])


def test_the_program_replaces_parts_of_random(tmp_path: Path) -> None:
    """A name of a file that is drawn from `random` would take what the program has put there."""
    source = """
import random
from unittest import mock
def f(x):
    with mock.patch("random.Random.random") as made:
        made.side_effect = [0.45]
        number = random.gammavariate(1.0, 3.14)
    return x + 1, number
def run():
    return [pair(f, torch.randn(4, 3))]
"""
    first = run(tmp_path, source)
    assert not first.defects and [*(tmp_path / "cache").glob("**/*.capture")]
    second = run(tmp_path, source)
    assert not second.defects and second.reused > 0


def test_a_graph_of_another_device_is_not_kept(tmp_path: Path) -> None:
    source = """
def f(x):
    return x * 2, torch.empty(3, device="meta") + 1
def run():
    return [(one[0], two[0]) for one, two in [pair(f, torch.randn(4, 3))]]
"""
    assert "its graph is not cached: it has a tensor on meta" in run(tmp_path, source).said
    assert run(tmp_path, source).reused == 0


def test_its_setting_turns_it_off(tmp_path: Path) -> None:
    run(tmp_path, PROGRAM, capture_cache=False)
    assert not (tmp_path / "cache" / "capture").exists()


def test_an_option_turns_it_off(tmp_path: Path) -> None:
    said = run(tmp_path, PROGRAM.replace("def run", "compile = dynamo.compile\ndynamo.compile = lambda f: compile("
                                         "f, options={'graph_cache': False})\ndef run")).said
    assert "is not cached: the option graph_cache is False" in said


def test_another_backend_is_not_kept(tmp_path: Path) -> None:
    said = run(tmp_path, PROGRAM.replace("def run", "compile = dynamo.compile\ndynamo.compile = lambda f: compile("
                                         "f, backend=lambda gm, inputs: gm.forward)\ndef run")).said
    assert "is not cached: the backend is <lambda>" in said


def test_a_miss_says_what_differs(tmp_path: Path) -> None:
    helped = PROGRAM.replace("def f", "def helper(x, by=1):\n    return x + by\ndef f").replace("* 2", "+ helper(x)")
    assert "no capture of f (" in run(tmp_path, PROGRAM).said
    assert "the nearest capture differs in: code (it began in line" in run(tmp_path, f"\n{PROGRAM}").said
    said = run(tmp_path, PROGRAM.replace("* 2", "* 3")).said
    assert re.search(r"the nearest capture differs in: code \(line \d+ of .*program.py: return torch.relu\(x\) \* 3\)", said)
    assert "values ('x: Tensor torch.float32 (4, 3)" in run(tmp_path, PROGRAM.replace("(4, 3)", "(4, 5)")).said
    assert "settings ('specialize_int', False there, 'specialize_int', True here)" in run(
        tmp_path, PROGRAM, specialize_int=True).said
    run(tmp_path, helped)
    assert re.search(r"fit: the code of program.helper \(.*program.py:\d+\) has changed", run(
        tmp_path, helped.replace("x + by", "x - by")).said)
    assert "fit: a default or attribute of program.helper (" in run(tmp_path, helped.replace("by=1", "by=2")).said


def test_frames_of_one_key_do_not_drive_each_other_out(tmp_path: Path) -> None:
    """As the layers of a model with a number each, and functions that one function makes."""
    source = """
class Layer(nn.Module):
    def __init__(self, number):
        super().__init__()
        self.number = number
    def forward(self, x):
        y = x * (self.number + 1)
        dynamo.graph_break()
        return torch.tanh(y)
def make(by):
    def f(x):
        return torch.sin(x) * by
    return f
def run():
    x = torch.randn(4, 3)
    return [pair(each, x) for n in range(6) for each in (Layer(n), make(float(n)))]
"""
    first = run(tmp_path, source)
    second = run(tmp_path, source)
    assert second.traced == 0 and second.reused == first.traced + first.reused, second.said
    assert second.said.count("a cached trace does not fit") < 3


@pytest.mark.parametrize("line", [
    "torch.__version__ = '0.1'", "import platform; platform.python_version = lambda: '3.0'",
    "from dynamo.store import versions; versions.own_source = lambda: 'of another version'",
    "import os; os.cpu_count = lambda: 123", "import os; os.listdir = lambda folder: ['other-1.0.dist-info']"])
def test_another_version_is_another_key(line: str, tmp_path: Path) -> None:
    run(tmp_path, PROGRAM)
    assert run(tmp_path, f"{PROGRAM}\n{line}").traced == 1


def test_another_setting_is_another_key(tmp_path: Path) -> None:
    run(tmp_path, PROGRAM)
    assert run(tmp_path, PROGRAM, specialize_int=True).traced == 1


def test_a_nested_tensor_has_a_key(tmp_path: Path) -> None:
    source = """
def f(x):
    return torch.nested.to_padded_tensor(x, 0.0) * 2
def run():
    return [pair(f, torch.nested.nested_tensor([torch.randn(2, 3), torch.randn(4, 3)]))]
"""
    assert not run(tmp_path, source).defects


def test_a_folder_that_has_grown_is_made_small(tmp_path: Path) -> None:
    run(tmp_path, PROGRAM, cache_megabytes=1)
    large = tmp_path / "cache" / "capture" / "aa" / "aaaa.capture"
    large.parent.mkdir(exist_ok=True)
    large.write_bytes(bytes(2 << 20))
    os.utime(large, (0, 0))
    (tmp_path / "cache" / "looked_at").unlink(missing_ok=True)
    run(tmp_path, PROGRAM.replace("* 2", "* 3"), cache_megabytes=1)
    assert not large.exists()


def test_answers_about_gpus_need_a_key_that_knows_them() -> None:
    """What a trace asked before the program used a GPU is not part of its key."""
    result = SimpleNamespace(met=SimpleNamespace(about_gpus="torch.cuda.get_device_name"))
    place = SimpleNamespace(knows_gpus=False, frame=None)
    Place.prepare(place, result, (), ())
    assert place.why_no_draft == "it keeps what torch.cuda.get_device_name gave before the program used a GPU"


def test_the_graph_of_a_step_with_its_optimizer_is_cached(tmp_path: Path) -> None:
    """Its leaves are in the same order in each process, and numbers in the place of operators have texts."""
    source = """
def make():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Linear(8, 4))
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss
    step(torch.ones(2, 8))
    return step

def run():
    compiled, eager = dynamo.compile(make()), make()
    return [(compiled(x), eager(x)) for x in torch.arange(48.0).view(3, 2, 8)]
"""
    first, second = (run(tmp_path, source, kernels=True).said for _ in range(2))
    assert "this graph is not cached" not in first
    assert re.search(r"graph \w+: found", second)


@pytest.mark.parametrize("alias", ["list[torch.Tensor]", "Callable[[typing.Any], bool] | None", "dict[str, list[int | None]]"])
def test_aliases_of_classes_are_no_reason_against_a_cache(alias: str, tmp_path: Path) -> None:
    source = f"""
import typing
from collections.abc import Callable

def f(x):
    return typing.cast({alias}, [x * 2])[0]

def run():
    return [pair(f, torch.ones(3))]
"""
    assert [run(tmp_path, source).reused for _ in range(2)] == [0, 1]
