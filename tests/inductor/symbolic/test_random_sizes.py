"""Random programs at many sizes; more of them: `python random_sizes.py 0 1000`."""

from __future__ import annotations

import pytest
from random_sizes import run

from tests.parametrize import few


@pytest.mark.parametrize("seed", few(range(6), 3))
def test_equal_eager_at_all_sizes(seed: int) -> None:
    run(seed)
