"""Random programs at many sizes; more of them: `python random_sizes.py 0 1000`."""

from __future__ import annotations

import pytest
from random_sizes import run

from tests.seeds import some


@pytest.mark.parametrize("seed", some(range(6), 3))
def test_equal_eager_at_all_sizes(seed: int) -> None:
    run(seed)
