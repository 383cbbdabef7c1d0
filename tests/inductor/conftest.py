"""Defects of the backend are errors in its own tests, never a quiet fallback."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dynamo.base.config import config
from dynamo.base.counters import counters


@pytest.fixture(autouse=True)
def defects_are_errors() -> Iterator[None]:
    counters["not_compiled"].clear()  # what a test before has provoked
    with config.patch(suppress_errors=False):
        yield
