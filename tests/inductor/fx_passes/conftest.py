"""Kernels of these tests are built anew, in a cache of their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import dynamo
from dynamo.base.config import config
from inductor.config import config as inductor_config


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    dynamo.reset()
    with config.patch(cache_dir=str(tmp_path_factory.getbasetemp() / "fx_passes")):
        yield


@pytest.fixture(autouse=True)
def checked_fakes() -> Iterator[None]:
    with inductor_config.patch(check_fakes=True):
        yield
