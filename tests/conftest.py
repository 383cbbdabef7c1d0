"""What holds for all tests."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="module")
def collections_look_at_new_objects(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test that collects garbage does not walk what the tests before it have left: in a long run that is a second
    for each collection."""
    if getattr(request.module, "gc", None) is not gc:
        yield
        return
    gc.freeze()
    yield
    gc.unfreeze()
