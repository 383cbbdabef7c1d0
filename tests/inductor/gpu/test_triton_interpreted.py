"""Printed kernels in Triton's interpreter, which must be chosen before triton is imported."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy
import pytest

triton = pytest.importorskip("triton", reason="triton is not installed here")
numpy_version = tuple(map(int, numpy.__version__.split(".")[:2]))
if numpy_version >= (2, 4) and triton.__version__.startswith("3.6"):
    pytest.skip(
        "triton 3.6's interpreter takes arrays for numbers, which NumPy 2.4 refuses",
        allow_module_level=True,
    )
HERE = Path(__file__).parent


@pytest.mark.parametrize("name", [
    "interpreted_cases.py", "interpreted_programs.py", "interpreted_symbolic.py", "interpreted_templates.py", "interpreted_template_weights.py",
    "interpreted_symbolic_templates.py", "interpreted_attention.py", "interpreted_depthwise.py", "interpreted_dropout.py",
    "interpreted_flex.py", "interpreted_few_rows.py", "interpreted_columns.py", "interpreted_pairs.py", "interpreted_products.py",
    "interpreted_infinities.py", "interpreted_lists.py", "interpreted_routing.py", "interpreted_topk.py", "interpreted_long_topk.py", "interpreted_scans.py",
    "interpreted_sorts.py", "interpreted_looked_up.py", "interpreted_pads.py", "interpreted_small_gemms.py", "interpreted_grouped.py",
    "interpreted_windows.py", "interpreted_results.py", "interpreted_quotients.py",
    "../../gpu/user_kernels.py"])
def test_in_the_interpreter(name: str) -> None:
    """The file in a process of its own; TRITON_SEEDS=from,to for other random kernels."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-W", "ignore", "-p", "no:cacheprovider", "-m", "gpu or not gpu",
         str(HERE / name)],
        env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True, timeout=600,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
