"""The log of "How does torch.compile work?"'s example, whole: bytecode, the break, guards.

The text is that of Python 3.11 (other versions have other bytecode). UPDATE_GOLDEN=1 writes it anew.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest

from tests.processes import run_python

GOLDEN = Path(__file__).with_name("log_of_a_small_program.txt")
PROGRAM = """\
import torch
import dynamo

def foo(a: torch.Tensor, b: torch.Tensor):
    c = a - b
    if c < 0:
        c = -c
    else:
        c = c * 2
    return c

foo = dynamo.compile(foo, backend="eager")
print(foo(torch.tensor(1.0), torch.tensor(2.0)))
"""


def log_of(folder: Path) -> str:
    program = folder / "toy.py"
    program.write_text(PROGRAM)
    done = run_python(str(program), quiet=True, DYNAMO_LOGS="+bytecode,graph_breaks,guards")
    assert done.returncode == 0 and done.stdout == "tensor(1.)\n", done.stderr
    text = re.sub(r"0x[0-9a-f]+", "0x..", done.stderr.replace(str(program), "toy.py"))
    return re.sub(r"<<module 'torch' from '[^>]*>", "<<module 'torch' ..>", text)


@pytest.mark.skipif(sys.version_info[:2] != (3, 11), reason="bytecode of Python 3.11")
def test_the_whole_log(tmp_path: Path) -> None:
    found = log_of(tmp_path)
    if os.environ.get("UPDATE_GOLDEN"):
        GOLDEN.write_text(found)
    assert found == GOLDEN.read_text()


def test_what_the_log_tells_in_any_version(tmp_path: Path) -> None:
    found = log_of(tmp_path)
    resumed = f"__resume_{7 if sys.version_info < (3, 14) else 6}_foo"  # 3.14 has a NOT_TAKEN at the branch
    parts = ["code of foo", "toy.py:6 in foo", "if c < 0:", "a branch depends on the values in a tensor",
             "new code of foo", resumed, "metadata(a) == Tensor([], torch.float32, cpu, ())",
             f"code of {resumed}"]
    places = [found.index(part) for part in parts[:5]]
    assert places == sorted(places)
    assert all(part in found for part in parts)
