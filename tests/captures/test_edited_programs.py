"""A trace is kept for the program that was traced: each program of `edited.py` in another version is traced anew, or
gives what eager gives; in the same version it is found in a process with other addresses and other hashes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.captures.edited import PROGRAMS
from tests.captures.versions import Row, all_rows, rows_of_new_process

# Programs of which nothing is kept, or not all.
UNKEPT = 45


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Row]]:
    """Of the first version, the second one, and of the first again in a new process with other addresses and hashes."""
    folder: Path = tmp_path_factory.mktemp("programs")
    return [all_rows(folder, 0), all_rows(folder, 1), rows_of_new_process(folder, 0)]


def test_results_are_those_of_eager(rows: list[dict[str, Row]]) -> None:
    """In one test: workers that shared them would all run the programs."""
    wrong = [(name, row) for run in rows for name, row in run.items()
             if row.difference or "kept traces" in row.defects]
    assert not wrong and all(len(run) == len(PROGRAMS) for run in rows), wrong


def test_most_are_found_again(rows: list[dict[str, Row]]) -> None:
    found = [name for name, row in rows[2].items() if row.reused]
    assert len(found) >= len(PROGRAMS) - UNKEPT, sorted({*PROGRAMS} - {*found})


def test_changes_are_seen(rows: list[dict[str, Row]]) -> None:
    """Fewer are found of the other version: the frames before a break that hold, and what has not changed."""
    reused = sum(row.reused for row in rows[1].values())
    assert reused < sum(row.reused for row in rows[2].values()) / 2
