"""README.md and docs/ do what they say: their snippets run, the names and files in them exist."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

import dynamo
import inductor.config
from benchmarks import front_page
from benchmarks.meaning.table import Row, markdown
from dynamo.base.logs import ARTIFACTS
from tests import versions
from tests.processes import run_python

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
TEXTS = {page.name: page.read_text() for page in PAGES}
ALL = "\n".join(TEXTS.values())
FENCED = {name: found for name, page in TEXTS.items()
          if (found := re.findall(r"```python\n(.*?)```", page, re.S))}  # fmt: skip
NO_KNOBS = {"DYNAMO_LOGS", "DYNAMO_LOGS_OUT", "DYNAMO_TRACE", "DYNAMO_PROCESSOR", "DYNAMO_BUILD_KERNELS"}
KNOBS = {**dynamo.config._knobs, **inductor.config.config._knobs}


def run(text: str, tmp_path: Path, **variables: str) -> tuple[str, str]:
    """A program in a file and a process of its own: what it prints and what it says."""
    file = tmp_path / "model.py"
    file.write_text(text)
    done = run_python("model.py", folder=tmp_path, quiet=True, **variables)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def test_the_readmes_program_prints_what_stands_there(tmp_path: Path) -> None:
    (program,) = FENCED["README.md"]
    (shown,) = re.findall(r"```text\n(.*?)```", TEXTS["README.md"], re.S)

    def without_numbers(text: str) -> str:
        return re.sub(r"\d+ of \d+ libraries", "", re.sub(r"\d+\.\d+", "0.0", text))

    assert without_numbers(run(program, tmp_path)[0]) == without_numbers(shown)


def test_the_figures_of_the_readme_are_those_of_the_results() -> None:
    text = TEXTS["README.md"]
    assert front_page.put(text) == text
    assert front_page.PICTURE.read_text() == front_page.picture()
    lines = text.splitlines()
    assert len(lines) < 150 and max(map(len, lines)) < 120


def test_the_docs_say_that_each_pair_of_versions_was_run() -> None:
    rows = TEXTS["install.md"].splitlines()
    assert not versions.missing(rows)
    assert versions.missing([row for row in rows if "| 3.12.1 | 2.14" not in row]) == ["3.12 with torch 2.14"]


def test_the_table_of_meaning_is_that_of_its_rows() -> None:
    record = json.loads((ROOT / "docs/results/meaning.json").read_text())
    rows = [Row(**row) for row in record["rows"]]
    assert (ROOT / "docs/results/meaning.md").read_text() == markdown(rows, record["backend"], record["machine"])


def test_commands_of_the_docs_exist() -> None:
    """Options of our own programs, and targets of make."""
    commands = re.findall(r"python -m ((?:benchmarks|dynamo|tests)[\w.]*)([^`\n#]*)", ALL)
    assert len(commands) > 10
    for module, words in commands:
        path = ROOT / module.replace(".", "/")
        sources = sorted(path.glob("*.py")) if path.is_dir() else [path.with_suffix(".py")]
        text = "".join(source.read_text() for source in sources)
        assert text, module
        for option in re.findall(r"(?<!\S)\[?(--[a-z-]+)", words):
            assert f'"{option}"' in text, (module, option)
    targets = set(re.findall(r"`make (?:\w+=\S+ )?([\w-]+)`", ALL))
    makefile = (ROOT / "Makefile").read_text()
    assert targets and all(f"\n{target}:" in makefile for target in targets)


def test_the_break_that_the_docs_read_slowly(tmp_path: Path) -> None:
    (program,) = FENCED["logs.md"]
    out, said = run(program, tmp_path, DYNAMO_LOGS="graph_breaks")
    assert out.splitlines()[0] == "tensor([2., 2., 2.])" and "data_dependent_branch" in out
    shown = re.findall(r"^    (\[0/0 graph_breaks\].*)", TEXTS["logs.md"], re.M)
    assert len(shown) == 4
    for here, there in zip(said.splitlines(), shown, strict=True):
        here = here.replace(f"{tmp_path}/", "").split("  #")[0]
        assert re.sub(r":\d+ in", ": in", here) == re.sub(r":\d+ in", ": in", there)


def test_the_program_of_lazy_tensors(tmp_path: Path) -> None:
    (program,) = FENCED["lazy.md"]
    loss, metrics, ended = run(program, tmp_path)[0].splitlines()
    assert loss.startswith("tensor(") and "traces=5, compiles=1, hits=4" in metrics
    assert "model.py" in ended


TOOLS_START = """
import torch, dynamo
from dynamo import graphs
torch.set_grad_enabled(False)
model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(),
                            torch.nn.Flatten(), torch.nn.Linear(288, 8)).eval()
x, y = torch.randn(2, 3, 8, 8), torch.randn(2, 3, 8, 8)
my_operator = torch.nn.functional.relu
pattern, replacement = (dynamo.export(f, torch.ones(2))[0] for f in
                        (lambda x: torch.tanh(x), lambda x: torch.sigmoid(x)))
"""


def test_the_programs_on_graph_tools(tmp_path: Path) -> None:
    program = "\n".join([TOOLS_START, *FENCED["graphs.md"], "print((fast(x) - model(x)).abs().max())"])
    lines = run(program, tmp_path)[0].splitlines()
    assert lines[0].startswith("machine: ") and any("total" in line for line in lines)
    assert float(lines[-1].removeprefix("tensor(").removesuffix(")")) < 0.1
    assert (tmp_path / "model.html").exists() and (tmp_path / "model.svg").exists()


def test_every_program_of_the_docs_is_run() -> None:
    assert FENCED.keys() == {
        "README.md", "background.md", "contributing.md", "lazy.md", "logs.md", "packages.md",
        "shipping.md", "graphs.md", "subclasses.md", "tour.md", "distributed.md",
    }  # fmt: skip


def test_the_program_of_subclasses(tmp_path: Path) -> None:
    program = "\n".join(FENCED["subclasses.md"])
    check = "print(type(model.weight.grad).__name__, layer.weight.grad is None)"
    assert run(f"{program}\n{check}", tmp_path)[0].split() == ["TwoTensor", "False"]


def test_the_programs_of_distributed(tmp_path: Path) -> None:
    check = "print(all(p.grad is not None for p in model.parameters()), dynamo.counters['graph_break'].total())"
    assert run("\n".join([*FENCED["distributed.md"], check]), tmp_path)[0].split() == ["True", "0"]


def test_the_program_of_background_compiles(tmp_path: Path) -> None:
    (program,) = FENCED["background.md"]
    check = "print(torch.allclose(fast(torch.ones(2, 4)), model(torch.ones(2, 4))), dynamo.background.pending())"
    assert run(f"{program}\n{check}", tmp_path)[0].split() == ["True", "0"]


def test_the_program_of_files(tmp_path: Path) -> None:
    (program,) = FENCED["shipping.md"]
    assert run(program, tmp_path)[0].strip() == "torch.Size([2, 8])"
    assert (tmp_path / "model.compiled").exists()


def test_the_program_of_packages(tmp_path: Path) -> None:
    (program,) = FENCED["packages.md"]
    assert run(program, tmp_path)[0].strip() == "torch.Size([2, 8])"
    files = {"libmodel.so", "weights.bin", "model.h", "model.json", "package.sum", "README.md", "CMakeLists.txt"}
    assert {path.name for path in (tmp_path / "classifier").iterdir()} == files
    assert all(f"`{name}`" in TEXTS["packages.md"] for name in files)


def test_the_recompile_that_the_docs_read_slowly(capfd: pytest.CaptureFixture[str]) -> None:
    dynamo.set_logs("recompiles")
    try:
        f = dynamo.compile(lambda x: x * 2, backend="eager")
        f(torch.ones(4)), f(torch.ones(5))
    finally:
        dynamo.set_logs("-recompiles")
    said = re.sub(r"\S+:\d+", "model.py:0", capfd.readouterr().err).replace("<lambda>", "f")
    shown = re.search(r"\[0/1 recompiles\].*\n.*", TEXTS["logs.md"])
    assert shown is not None
    wanted = " ".join(re.sub(r"model.py:\d+", "model.py:0", shown[0]).split())
    assert re.sub(r"\[\d+/1", "[0/1", said).strip() == wanted


def test_declared_sizes() -> None:
    lines = re.search(r"( +batch = dynamo.Dim.*\n)( +dynamo.compile.*\n)", TEXTS["dynamic_shapes.md"])
    assert lines is not None
    scope = {"dynamo": dynamo, "f": lambda x, y: x + y}
    exec(lines[1].strip(), scope)
    compiled = eval(lines[2].strip().replace("compile(f, ", "compile(f, backend='eager', "), scope)
    for size in (2, 3, 64):
        assert compiled(torch.ones(size), torch.ones(size)).shape == (size,)
    with pytest.raises(dynamo.exc.ConstraintViolation):
        compiled(torch.ones(65), torch.ones(65))


def test_log_words_exist() -> None:
    words = re.findall(r"DYNAMO_LOGS=([\w,+-]+)", ALL)
    words += re.findall(r"[Ll]ogs? `(\w+)`", ALL)
    table = re.findall(r"^\| `(\w+)` \|", TEXTS["logs.md"], re.M)
    assert len(words) > 8 and len(table) > 8
    names = {name for word in [*words, *table] for name in word.split(",")}
    assert names <= {*ARTIFACTS, "help"}


def test_settings_exist() -> None:
    settings = set(re.findall(r"config\.(\w+)", ALL))
    variables = set(re.findall(r"\b(DYNAMO_\w+)", ALL)) - NO_KNOBS
    known = (dynamo.config, inductor.config)
    missing = {name for name in settings if not any(hasattr(one, name) for one in known)}
    assert not missing and len(settings) > 5
    assert variables <= {name for knob in KNOBS.values() for name in knob.env}


def test_names_exist() -> None:
    modules = {path.stem for path in (ROOT / "dynamo").iterdir()}
    for name in set(re.findall(r"`dynamo\.(\w+)", ALL)) - modules:
        assert hasattr(dynamo, name), name
    relatives = re.search(r"`dynamo.disable`(.*?)and their relatives", TEXTS["torch_compile.md"], re.S)
    assert relatives is not None
    for name in re.findall(r"`(\w+)`", relatives[1]):
        assert hasattr(dynamo, name), name


def test_files_exist() -> None:
    paths = set(re.findall(r"`([\w./]+(?:\.(?:py|cpp|md)|/))`", ALL))
    ours = [*(ROOT / "dynamo").rglob("*"), *(ROOT / "inductor").rglob("*")]
    known = [f"{path.relative_to(ROOT)}{'/' * path.is_dir()}" for path in ours]
    assert len(paths) > 20
    assert [path for path in sorted(paths) if not (ROOT / path).exists()
            and not any(name.endswith(f"/{path}") for name in known)] == []
    links = {target for text in TEXTS.values() for target in re.findall(r"\]\(([\w.]+)\)", text)}
    assert links and all((ROOT / "docs" / link).exists() for link in links)
