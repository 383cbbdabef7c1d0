"""What the tests of lazy tensors share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from dynamo import lazy


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """No test sees traces of another one."""
    lazy.reset()
    yield
    lazy.reset()
