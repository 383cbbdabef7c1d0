"""`python -m tests.diagnose.table`: what `verify` and the minifier say of each seeded defect.

A row: the operator that is wrong, the one that `verify` names and the operations of the smallest
script beside those of the graph. The command ends with 1 where one is not as it should be.
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path

import pytest

import dynamo
from dynamo.base.config import config
from tests.common import messages, new_cache
from tests.diagnose.defects import DEFECTS, Defect, longer, operations_in

MOST = 5  # operations of a script
TITLE = ("| defect | stage | wrong operator | `verify` names | in line | operations of the script | "
         "of the graph |\n| --- | --- | --- | --- | --- | ---: | ---: |")  # fmt: skip


def named(seeded: Defect) -> tuple[bool, str, str]:
    """Whether `verify` is right, the operator and the text of the line."""
    found = dynamo.verify(seeded.program, *seeded.inputs())
    right = not found.ok and found.operator in seeded.operators and seeded.text in found.line
    right = right and found.culprit is not None and found.culprit.stage == seeded.stage
    return right, found.operator, found.line.split("\n")[-1].strip()


def script_of(seeded: Defect, folder: Path) -> tuple[int, int] | None:
    """Operations of the script and of the graph; None where no script is written."""
    with config.patch(repro="accuracy", debug_dir=str(folder)), messages() as told:
        dynamo.compile(longer(seeded))(*seeded.inputs())
    scripts = sorted(folder.glob("repro_*/repro.py"))
    if len(scripts) != 1:
        return None
    whole = re.search(r"with \d+ of (\d+) operation", told[0])
    assert whole is not None, told
    return operations_in(scripts[0].read_text()), int(whole[1])


def row_of(seeded: Defect) -> tuple[bool, str]:
    with (tempfile.TemporaryDirectory() as name, new_cache(Path(name) / "cache"),
          pytest.MonkeyPatch.context() as patch):
        seeded.patch(patch)
        right, operator, line = named(seeded)
        dynamo.reset()
        small = script_of(seeded, Path(name) / "debug")
        dynamo.reset()
    if small is None:  # what was captured is what scripts begin with
        right, counts = right and seeded.stage == "capture", ("none", "")
    else:
        right, counts = right and 1 <= small[0] <= MOST, (str(small[0]), str(small[1]))
    cells = (seeded.name, seeded.stage, seeded.operators[0], operator, f"`{line}`", *counts)
    return right, f"| {' | '.join(cells)} |"


def main() -> int:
    """Prints the table; 1 where a row is not as it should be."""
    print(TITLE, flush=True)
    wrong = []
    for seeded in DEFECTS:
        right, row = row_of(seeded)
        print(row, flush=True)
        wrong += [] if right else [seeded.name]
    print(f"\n{len(DEFECTS)} defects, not as they should be: {', '.join(wrong) or 'none'}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
