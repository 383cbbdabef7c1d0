"""A trace is kept for the program that was traced: each program of `edited.py` in another version is traced anew, or
gives what eager gives; in the same version it is found in a process with other addresses and other hashes."""

from __future__ import annotations

from pathlib import Path

from tests.captures.edited import PROGRAMS
from tests.captures.versions import all_rows, rows_of_new_process

# Programs of which nothing is cached, or not all. Seven hold a text with an address.
UNKEPT = 53


def test_changed_programs_are_traced_anew_and_others_are_found(tmp_path: Path) -> None:
    """The first version, the second one, and the first again in a new process with other addresses and hashes. In one
    test: workers that shared them would all run the programs."""
    first, other, again = all_rows(tmp_path, 0), all_rows(tmp_path, 1), rows_of_new_process(tmp_path, 0)
    wrong = [(name, row) for run in (first, other, again) for name, row in run.items()
             if row.difference or "cached traces" in row.defects]
    assert not wrong and all(len(run) == len(PROGRAMS) for run in (first, other, again)), wrong
    found = [name for name, row in again.items() if row.reused]
    assert len(found) >= len(PROGRAMS) - UNKEPT, sorted({*PROGRAMS} - {*found})
    # fewer are found of the other version: the frames before a break that hold, and what has not changed
    assert sum(row.reused for row in other.values()) < sum(row.reused for row in again.values()) / 2
