"""Files of kept traces: what is damaged, of another user, or written by several processes at once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.captures.processes import run, start

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


def test_eight_processes_fill_one_folder(tmp_path: Path) -> None:
    waiting = [start(tmp_path, PROGRAM) for _ in range(8)]
    for outcome in waiting:
        found = outcome()
        assert found.reused + found.traced == 1 and not found.defects
    assert run(tmp_path, PROGRAM).reused == 1


def test_what_is_not_kept_says_why(tmp_path: Path) -> None:
    source = PROGRAM.replace("* 2", "* (2 if id(x) else 3)")
    assert "it is not kept, it asks for the id() of an object" in run(tmp_path, source).said


def test_it_is_off_by_default_and_by_its_setting(tmp_path: Path) -> None:
    run(tmp_path, PROGRAM, capture_cache=False)
    assert not (tmp_path / "cache" / "capture").exists()


def test_another_setting_is_another_key(tmp_path: Path) -> None:
    run(tmp_path, PROGRAM)
    assert run(tmp_path, PROGRAM, specialize_int=True).traced == 1
