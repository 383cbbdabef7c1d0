"""Training as research code writes it: results and weights after five steps, against eager in float64."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import dynamo
from tests.models.compare import check
from tests.models.programs import PROGRAMS


@pytest.fixture(autouse=True)
def errors_are_shown() -> Iterator[None]:
    with dynamo.config.patch(suppress_errors=False):
        yield


def but_second_derivatives(lines: list[str]) -> list[str]:
    """Without what is reported of parts whose gradients the program differentiates: they run again."""
    return [line for line in lines if "second derivative runs as captured" not in line]


@pytest.mark.parametrize("name", ["DeepQ", "GradientPenalty"])
def test_parts(name: str) -> None:
    told, outcome = check(PROGRAMS[name], part=dynamo.compile)
    assert but_second_derivatives(told) == []
    assert bool(told) == (name == "GradientPenalty")
    assert outcome.graphs == 2


@pytest.mark.long
@pytest.mark.parametrize("how", ["whole", "part"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_all(name: str, how: str) -> None:
    told, outcome = check(PROGRAMS[name], **{how: dynamo.compile})
    assert (but_second_derivatives(told) if how == "part" else told) == []
    assert outcome.graphs > 0 or (name, how) == ("LearnToLearn", "part")  # a twin inside of torch.func runs as it is
