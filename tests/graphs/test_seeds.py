"""Tests draw the same in each run, whatever ran before; TEST_SEED lets them draw something else, and is said."""

from __future__ import annotations

from pathlib import Path

from tests.processes import run_python

TESTS = '''
import random, numpy as np, pytest, torch
from tests.seeds import drawn, some

AT_IMPORT = random.random(), torch.rand(()).item()

@pytest.fixture(scope="module")
def shared():
    return random.random()

def show(*values):
    print("DREW", random.random(), np.random.rand(), torch.rand(()).item(), AT_IMPORT, drawn([7]), *values)
    assert False

def test_one(shared): show(shared)
def test_two(): show()

@pytest.mark.parametrize("seed", some(range(4), 2))
def test_seed(seed): show(seed)
'''


def drew(folder: Path, *tests: str, seed: str = "") -> tuple[list[str], str]:
    """A line for each test, long ones too, and all that was printed."""
    (folder / "test_draws.py").write_text(TESTS)
    command = ["-q", "-p", "no:cacheprovider", "-p", "tests.conftest", f"--rootdir={folder}", *(tests or ["test_draws.py"])]
    run = run_python("-m", "pytest", *command, bare=True, folder=folder, TEST_SEED=seed)
    return [line for line in run.stdout.splitlines() if line.startswith("DREW")], run.stdout


def test_draws_hang_on_the_name_and_the_seed_of_all(tmp_path: Path) -> None:
    lines, text = drew(tmp_path)
    assert len(lines) == 6 and len({line.split(" (")[0] for line in lines}) == 6
    assert text.count("TEST_SEED=0 draws the same again.") == 6
    assert [line.split()[-1] for line in lines[2:]] == list("0123")
    assert drew(tmp_path, "test_draws.py::test_seed", "test_draws.py::test_two")[0] == [*lines[2:], lines[1]]
    others, text = drew(tmp_path, seed="50")
    assert text.count("TEST_SEED=50 draws the same again.") == 6
    assert not set(others) & set(lines)
    # A few seeds are kept, the long ones are drawn.
    assert [line.split()[-1] for line in others[2:]] == ["0", "51", "2", "53"]
    assert all("[57]" in line for line in others)
