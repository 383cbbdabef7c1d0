"""Kernels of these tests are built anew, in a cache of their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import dynamo
from dynamo.base.config import config
from inductor.fx_passes import checks


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    dynamo.reset()
    with config.patch(cache_dir=str(tmp_path_factory.getbasetemp() / "fx_passes")):
        yield


@pytest.fixture(autouse=True)
def checked_fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "is_on", True)
