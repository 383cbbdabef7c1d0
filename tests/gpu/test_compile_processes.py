"""Kernels come from processes beside this one, and none of them fails there."""

from __future__ import annotations

import pytest
import torch

import dynamo
from inductor import metrics
from inductor.runtime import compile_jobs, triton_launch

pytestmark = pytest.mark.gpu


def program(x):
    """Kernels that share nothing."""
    found = []
    for width in (1021, 1013, 1009, 997, 991, 983):
        part = x[:, :width]
        found += [part.softmax(-1).sum(0), part.cumsum(1), part.sin().amax(1)]
    return found


def test_kernels_come_from_other_processes(monkeypatch, tmp_path) -> None:
    if compile_jobs.processor_count() < compile_jobs.FEWEST_CPUS:
        pytest.skip("so few processors compile in threads")
    monkeypatch.setenv("DYNAMO_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "triton"))
    asked, here = [], []
    by_processes = triton_launch.by_processes

    def noted(launchers, device):
        left = by_processes(launchers, device)
        asked.extend(launchers)
        here.extend(one for one in left if not one.scratch)
        return left

    monkeypatch.setattr(triton_launch, "by_processes", noted)
    dynamo.reset()
    x = torch.randn(300, 1024, device="cuda")
    failed = metrics.snapshot()["not_by_processes"]
    found = dynamo.compile(program)(x)
    for one, other in zip(found, program(x), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-3)
    assert metrics.snapshot()["not_by_processes"] == failed
    assert len(asked) >= compile_jobs.FEWEST and not here
    assert sum(one.made is not None for one in asked) > 0
