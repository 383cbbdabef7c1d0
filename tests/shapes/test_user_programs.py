"""Programs over changing sizes as users write them: eager's results, and few compiles."""

from __future__ import annotations

import random

import pytest

from tests.shapes.user_programs import CASES, SIZES, check


@pytest.mark.draws
def test_some() -> None:
    for name in random.sample(list(CASES), 4):
        told, graphs = check(name, sizes=SIZES[:6])
        assert told == []
        assert graphs <= CASES[name].graphs


@pytest.mark.long
@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("name", CASES)
def test_all(name: str, dynamic: bool | None) -> None:
    told, graphs = check(name, dynamic)
    assert told == []
    assert graphs <= CASES[name].graphs
