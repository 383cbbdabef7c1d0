"""Passes leave fakes behind that say what operators give, whatever the program is."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from inductor.config import config


@pytest.fixture(autouse=True)
def checked_fakes() -> Iterator[None]:
    with config.patch(check_fakes=True):
        yield
