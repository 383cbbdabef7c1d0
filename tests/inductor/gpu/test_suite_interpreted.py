"""The programs of `benchmarks.gpu_programs` in Triton's interpreter, the programs of a module in a process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.gpu_programs.one import MODULES

pytest.importorskip("triton", reason="triton is not installed here")
SUITE = Path(__file__).with_name("interpreted_suite.py")


@pytest.mark.long
@pytest.mark.parametrize("variant", ["", "templates", "loops"])
@pytest.mark.parametrize("module", MODULES)
def test_in_the_interpreter(module: str, variant: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "ignore", "-p", "no:cacheprovider", "-k", f"{module}-", str(SUITE)],
        env=os.environ | {"TRITON_INTERPRET": "1", "SUITE_VARIANT": variant}, capture_output=True, text=True,
    )
    assert done.returncode in (0, pytest.ExitCode.NO_TESTS_COLLECTED), done.stdout[-8000:] + done.stderr[-2000:]
