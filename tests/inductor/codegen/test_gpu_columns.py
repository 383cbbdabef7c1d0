"""Softmax along another axis than the last one, on a GPU that need not be here: what its kernels
would only write for each other is computed again."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from gpu_choices import DEVICE, capture

from inductor.config import config
from inductor.ir.graph import Layout
from inductor.lowering import reductions
from inductor.lowering.run import lower_graph
from inductor.scheduler.run import schedule_graph


@pytest.fixture
def on_gpu(monkeypatch):
    asked = reductions.is_column_on_gpu
    monkeypatch.setattr(
        reductions, "is_column_on_gpu", lambda layout, axis: asked(replace(layout, device=DEVICE), axis))


@pytest.mark.parametrize(("size", "axis", "kernels"), [
    ((21, 4096), 0, 2),  # a program holds a column
    ((8, 150, 4096), 1, 2),  # or keeps a running maximum
    ((8, 512, 100), 1, 3),  # columns are split over programs
    ((512, 100), 1, 1),
])  # fmt: skip
def test_kernels_of_softmax(size, axis, kernels, on_gpu) -> None:
    with config.patch(gpu="sm_90"):
        graph = lower_graph(capture(lambda x: x.softmax(axis), [torch.empty(size)], mode="fake")).graph
        made = list(schedule_graph(replace(graph, device=DEVICE), 8).kernels())
    assert len(made) == kernels
    stored = {op.buffer for kernel in made for stage in kernel.stages for op in stage.stores()}
    kept = {local.name for kernel in made for local in kernel.locals}
    assert len(stored - kept) == (3 if kernels > 1 else 1)  # of columns two statistics


@pytest.mark.parametrize(("size", "stride", "axis", "device", "is_one"), [
    ((8, 21, 64), (1344, 64, 1), 1, "cuda", True), ((8, 21, 64), (1344, 64, 1), 2, "cuda", False),
    ((8, 21, 64), (1344, 1, 21), 1, "cuda", False), ((8, 21, 1), (21, 1, 1), 1, "cuda", False),
    ((8, 21, 64), (1344, 64, 1), 1, "cpu", False), ((8, 21, 1), (21, 1, 1), 0, "cuda", True),
])  # fmt: skip
def test_what_is_a_column(size, stride, axis, device, is_one) -> None:
    layout = Layout(torch.device(device), torch.float32, size, stride)
    assert reductions.is_column_on_gpu(layout, axis) is is_one
