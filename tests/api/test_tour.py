"""docs/tour.md: the files and names exist, and the program prints the lines that are shown."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.processes import run_python

ROOT = Path(__file__).parents[2]
TOUR = (ROOT / "docs" / "tour.md").read_text()
CONTRIBUTING = (ROOT / "docs" / "contributing.md").read_text()
PLACES = sorted(set(re.findall(r"`([\w./]+\.(?:py|c|cpp))(?:: ([\w.]+))?`", TOUR + CONTRIBUTING)))
LINES = re.findall(r"^    (\[0/0 \w+\].*)$", TOUR, re.M)


def names_of(path: Path) -> set[str]:
    """What a module defines or imports, also inside of its classes (`Class.method`) and functions."""
    found: set[str] = set()

    def visit(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                found.add(prefix + child.name)
                visit(child, f"{child.name}." if isinstance(child, ast.ClassDef) else "")
            elif isinstance(child, ast.ImportFrom):
                found.update(alias.asname or alias.name for alias in child.names)
            elif isinstance(child, ast.Assign | ast.AnnAssign):
                targets = child.targets if isinstance(child, ast.Assign) else [child.target]
                found.update(prefix + t.id for t in targets if isinstance(t, ast.Name))
            else:
                visit(child, prefix)

    visit(ast.parse(path.read_text()), "")
    return found


@pytest.mark.parametrize(("file", "name"), PLACES)
def test_place_exists(file: str, name: str) -> None:
    path = ROOT / file
    assert path.exists(), file
    assert not name or name in names_of(path), f"{name} is not in {file}"


def run(program: str, tmp_path: Path, logs: str = "") -> tuple[str, str]:
    (tmp_path / "program.py").write_text(program)
    done = run_python("program.py", folder=tmp_path, quiet=True, DYNAMO_LOGS=logs)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def without_places(line: str) -> str:
    """The line of a log; of an instruction, what it is."""
    return re.sub(r"^(\[\S+ bytecode\]) +\d+ +\d+", r"\1", line)


def test_the_program_prints_what_is_shown(tmp_path: Path) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", TOUR, re.S)
    (logs,) = re.findall(r"DYNAMO_LOGS=(\S+)", TOUR)
    said = {without_places(line) for line in run(program, tmp_path, logs)[1].splitlines()}
    missing = [line for line in LINES if without_places(line) not in said]
    assert len(LINES) > 15 and not missing, missing


def stages(column: int) -> list[tuple[str, str]]:
    """(file, function) of the stages of a graph, in the order of the tour's table."""
    rows = [row.split("|") for row in re.findall(r"^\| [a-z].*`inductor/.*\|$", TOUR, re.M)]
    return [place for row in rows for place in re.findall(r"`([\w/]+\.py): (\w+)`", row[column])]


SEEN = """
import sys
import {modules}
stages, order = {stages}, []
def see(frame, event, arg):
    if event == "call":
        for file, name in stages:
            if frame.f_code.co_name == name and frame.f_code.co_filename.endswith(file):
                order.append((file, name))
sys.setprofile(see)
"""


def test_a_graph_goes_through_the_stages_in_order(tmp_path: Path) -> None:
    table = stages(2)
    assert 6 <= len(table) <= 8
    (program,) = re.findall(r"```python\n(.*?)```", TOUR, re.S)
    head = SEEN.format(stages=table, modules=", ".join(file[:-3].replace("/", ".") for file, _ in table))
    end = "\nsys.setprofile(None)\nprint(order)\n"
    out = run(program.replace("import dynamo\n", f"import dynamo\n{head}", 1) + end, tmp_path)[0]
    assert ast.literal_eval(out.splitlines()[-1]) == table


def test_the_rule_is_used(tmp_path: Path) -> None:
    (rule,) = re.findall(r"```python\n(.*?)```", CONTRIBUTING, re.S)
    use = """
import torch
import dynamo
from dynamo.symbolic.core.table import RULES

assert RULES[len][-1].handler is length_of_list
RULES[len].insert(0, RULES[len].pop())
f = dynamo.compile(lambda x: x + len([x, x, x]), backend="eager", fullgraph=True)
print(f(torch.ones(1)))
"""
    assert run(rule + use, tmp_path)[0] == "tensor([4.])\n"
