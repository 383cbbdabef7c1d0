"""Defects of the backend are errors in its own tests, never a quiet fallback."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import ModuleType

import pytest

from dynamo.base.config import config
from dynamo.base.counters import counters
from inductor.fx_passes import pipeline


@pytest.fixture(autouse=True)
def defects_are_errors() -> Iterator[None]:
    counters["not_compiled"].clear()  # what a test before has provoked
    with config.patch(suppress_errors=False):
        yield


@pytest.fixture
def as_on_gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Takes modules: what they decide by the device they decide as on a GPU, while a CPU computes."""

    def pretend(*modules: ModuleType) -> None:
        for module in modules:
            monkeypatch.setattr(module, "on_gpu", lambda place: True)
        monkeypatch.setattr(pipeline, "compute_in_float32", lambda module: module)  # whatever this processor can

    return pretend
