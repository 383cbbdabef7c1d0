"""Defects of the backend are errors in its own tests, never a quiet fallback."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dynamo.base.config import config


@pytest.fixture(autouse=True)
def defects_are_errors() -> Iterator[None]:
    with config.patch(suppress_errors=False):
        yield
