"""Compiled programs behave as eager ones: kept seeds of found bugs, a fresh sample, and hypothesis.

The long campaign is `python -m tests.fuzz --count 10000`.
"""

from __future__ import annotations

import pytest

from tests.fuzz.__main__ import check
from tests.fuzz.program import DrawChooser, SeedChooser, generate
from tests.fuzz.wide import generate_wide
from tests.seeds import TEST_SEED, some

# Seeds that once showed a difference.
FOUND: tuple[int, ...] = (25, 30, 1090, 2430, 13659, 14096, 14378)
FOUND_WIDE: tuple[int, ...] = (8, 12, 1088, 1218, 790319, 1060228, 2241451, 2000505, 5003181, 5093497, 5152259)


@pytest.mark.parametrize("seed", FOUND)
def test_found_seed(seed: int) -> None:
    program = generate(SeedChooser(seed))
    assert check(program, "eager") == "", program.source()


@pytest.mark.parametrize("seed", (*FOUND_WIDE, *some(range(2000, 2008), 4)))
def test_wide_seed(seed: int) -> None:
    program = generate_wide(SeedChooser(seed))
    assert check(program, "eager") == "", program.source()


@pytest.mark.parametrize("first", some(range(0, 60, 10), 2))
def test_sample(first: int) -> None:
    for seed in range(first, first + 10):
        program = generate(SeedChooser(seed))
        assert check(program, "eager") == "", f"seed {seed}\n{program.source()}"


@pytest.mark.long
def test_drawn() -> None:
    """Programs of the same grammar, drawn and shrunk by hypothesis. Its import and what it reads of our sources take
    seconds in each worker, so that it is not seen when tests are collected."""
    from hypothesis import HealthCheck, Phase, given, settings
    from hypothesis import strategies as st

    @settings(max_examples=20, deadline=None, derandomize=not TEST_SEED, database=None,
              phases=(Phase.generate, Phase.shrink), suppress_health_check=list(HealthCheck))
    @given(st.data())
    def drawn(data: st.DataObject) -> None:
        program = generate(DrawChooser(data.draw))
        assert check(program, "eager") == "", program.source()

    drawn()
