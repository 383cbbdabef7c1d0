"""Recordings on a real GPU: nothing that a program can see differs from eager."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

import dynamo
from inductor import metrics

sys.path.append(str(Path(__file__).parents[1] / "runtime"))
from recorded_programs import ON_GPU  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


@pytest.mark.parametrize("program", ON_GPU, ids=lambda program: program.__name__)
def test_program(program: Callable[[str], None]) -> None:
    dynamo.reset()
    torch.manual_seed(0)
    before = metrics.snapshot()["cuda_graphs_given_up"]
    program("cuda")
    fails = program.__name__.startswith("failures")
    assert (metrics.snapshot()["cuda_graphs_given_up"] == before) != fails
    dynamo.reset()
