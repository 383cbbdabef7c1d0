"""What fuzzers share: programs are numbers here, some of which differ, crash, or differ only beside others."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.fuzzing import Fuzzer, Options

DIFFERS, CRASHES, RAISES, SKIPPED, TIED = 13, 17, 22, 24, 11
TIES: dict[int, str] = {}


def check(number: int, backend: str) -> str:
    TIES.update({number: "tie: of rounding"} if number in (TIED, DIFFERS) else {})
    if number == CRASHES:
        os.kill(os.getpid(), signal.SIGKILL)
    if number == RAISES:
        raise ValueError(number)
    return "a difference" if number in (DIFFERS, 3) else ""


def check_together(numbers: Sequence[int], options: Options) -> str | None:
    if CRASHES in numbers:
        check(CRASHES, options.backend)
    TIES.update({TIED: "tie: of rounding"} if TIED in numbers else {})
    if 10 in numbers and len(numbers) > 2:
        return None
    return "together" if {28, DIFFERS} & {*numbers} else ""


def taken() -> dict[int, str]:
    ties = dict(TIES)
    TIES.clear()
    return ties


def fuzzer(together: bool) -> Fuzzer[int]:
    size = 4 if together else 1
    return Fuzzer(
        None, "eager", lambda seed, options: None if seed == SKIPPED else seed, check,
        lambda number: [number - 10] if number > 10 else [], modules=(),
        groups=lambda programs, options: [programs[n : n + size] for n in range(0, len(programs), size)],
        check_group=check_together, ties=taken,
    )  # fmt: skip


@pytest.mark.parametrize("processes", [1, 3])
@pytest.mark.parametrize("together", [False, True])
def test_differences_and_crashes_are_told(
    together: bool, processes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = f"fuzz --seed 10 --count 20 --processes {processes} --resume {tmp_path / 'done'}"
    monkeypatch.setattr("sys.argv", command.split())
    assert fuzzer(together).main() == 1
    told = capsys.readouterr().out
    wrong = {DIFFERS, CRASHES} | ({RAISES} if not together else set())
    assert f"=== seed {DIFFERS}: a difference\n3\n" in told
    assert f"=== seed {CRASHES}: the process ended with status -9" in told
    assert "19 programs from seed 10" in told and ", 1 not run" in told
    assert [line for line in told.splitlines() if "tie, seed" in line] == [f"tie, seed {TIED}: tie: of rounding"]
    assert ": 1 tie\n" in told
    if together and processes == 1:
        assert "differ together, and none alone: together" in told
    seeds = {int(seed) for seed in told.split("seeds that differ:")[1].split()}
    assert wrong <= seeds <= wrong | {25, 26, 27, 28, 29}
    assert fuzzer(together).main() == 1
    assert "0 programs from seed 10" in (again := capsys.readouterr().out) and "19 programs before" in again
