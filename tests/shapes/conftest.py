"""A defect of the compiler fails a test here; it is not run in eager."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import dynamo


@pytest.fixture(autouse=True)
def errors_are_shown() -> Iterator[None]:
    with dynamo.config.patch(suppress_errors=False):
        yield
