"""Another process that compiles graphs into the cache, ahead of the program."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import dynamo
from dynamo.base.config import config
from inductor import metrics
from inductor.config import config as inductor_config
from inductor.driver import ahead
from inductor.driver.known_results import BACKGROUND_SECONDS, settings_now

LATER = {"background": True}
SECONDS = 200.0


@pytest.fixture(autouse=True)
def clean() -> None:
    dynamo.reset()


@contextlib.contextmanager
def elsewhere(folder: Path) -> Iterator[None]:
    with config.patch(cache_dir=str(folder), background_processes=1), inductor_config.patch(graph_cache=True):
        yield


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 3)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = self.last(torch.tanh(self.first(x)))
        return torch.nn.functional.cross_entropy(logits, y), logits


def f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.relu(x + y) * 2


def test_another_process_fills_the_cache(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Model()
    x, y = torch.randn(4, 8), torch.randint(0, 3, (4,))
    before = metrics.snapshot()["graphs_reused"]
    with elsewhere(tmp_path):
        call = dynamo.compile(model, options=LATER)
        call(x, y)[0].backward()
        assert dynamo.background.wait(SECONDS)
        model.zero_grad()
        call(x, y)[0].backward()
    assert metrics.snapshot()["graphs_reused"] - before == 2  # forward and backward
    found = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    model(x, y)[0].backward()
    torch.testing.assert_close(found, [parameter.grad for parameter in model.parameters()])


def test_a_process_that_is_killed_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    answered = ahead._Process._answer_of

    def killed(self: Any, popen: subprocess.Popen[bytes], request: bytes) -> str:
        popen.kill()
        popen.wait()
        return answered(self, popen, request)

    monkeypatch.setattr(ahead._Process, "_answer_of", killed)
    x = torch.randn(5)
    with elsewhere(tmp_path):
        g = dynamo.compile(f, options=LATER)
        assert torch.equal(g(x, x), f(x, x))
        assert dynamo.background.wait(SECONDS)
        assert torch.equal(g(x, x), f(x, x))
    [reason] = dynamo.counters["not_compiled"]
    assert "has ended" in reason


def test_a_compile_in_the_background_is_found_by_another_one(tmp_path: Path) -> None:
    x = torch.randn(5)
    with elsewhere(tmp_path):
        later = dynamo.compile(f, options={"background": True})
        later(x, x)
        assert dynamo.background.wait(SECONDS)
        before = metrics.snapshot()["graphs_reused"]
        dynamo.reset()
        assert torch.equal(dynamo.compile(f)(x, x), f(x, x))
    assert metrics.snapshot()["graphs_reused"] - before == 1


def test_little_is_measured_in_the_background() -> None:
    def limit(**options: Any) -> Any:
        return settings_now(None, options, True).get("measure_seconds")

    assert limit() == BACKGROUND_SECONDS < inductor_config.measure_seconds
    with inductor_config.patch(measure_seconds=0.1):
        assert limit() == 0.1
    assert limit(measure_seconds=2.0) == 2.0
    assert limit(library_kernels="measure") is None
    assert settings_now(None, {}, False).get("measure_seconds") is None
