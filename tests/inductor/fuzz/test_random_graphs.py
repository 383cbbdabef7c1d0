"""Random tensor programs: seeds that once differed, and some more."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from dynamo.base.config import config
from inductor.driver.compile_fx import compile_fx

sys.path.insert(0, str(Path(__file__).parent))
from random_graphs import Program, difference, traced  # noqa: E402

from tests.seeds import some

# reductions over one element that were taken for pointwise loops
FOUND = [1019, 1161, 1234, 1466, 1517, 1558]


@pytest.mark.parametrize("seed", [*FOUND, *some(range(20), 6)])
def test_program_equals_eager(seed: int, tmp_path_factory: Any) -> None:
    with config.patch(cache_dir=str(tmp_path_factory.getbasetemp() / "cache")):
        program = Program(seed, 20)
        compiled = compile_fx(traced(program), program.inputs(seed))
        assert difference(program, compiled, seed + 1) == ""
