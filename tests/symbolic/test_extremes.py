"""`min` and `max` of a tensor of no dimension and a number give one of the two objects, as in eager."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import dynamo
from dynamo.base.errors import Unsupported


@pytest.mark.parametrize("value", [0.2, 0.9, float("nan")])
@pytest.mark.parametrize("name", ["min", "max"])
@pytest.mark.parametrize("first", [True, False])
def test_the_winner_itself(name: str, first: bool, value: float) -> None:
    extreme = {"min": min, "max": max}[name]

    def program(x: torch.Tensor, others: torch.Tensor) -> tuple[Any, bool, torch.Tensor]:
        found = extreme(x, 0.5) if first else extreme(0.5, x)
        is_tensor = isinstance(found, torch.Tensor)
        if is_tensor:
            found.mul_(2)  # x itself is written
        return found, is_tensor, others + x

    results, inputs = [], []
    for call in (dynamo.compile(program), program):
        x = torch.tensor(value)
        results.append(call(x, torch.ones(3)))
        assert (results[-1][0] is x) == results[-1][1]
        inputs.append(x)
    (found, found_tensor, rest), (wanted, wanted_tensor, other) = results
    assert found_tensor == wanted_tensor and type(found) is type(wanted)
    torch.testing.assert_close([found, rest, inputs[0]], [wanted, other, inputs[1]], equal_nan=True)


def test_no_whole_graph() -> None:
    """Which object it is depends on the value."""
    with pytest.raises(Unsupported, match="depends on the values"):
        dynamo.compile(lambda x: max(x, 0.5) + 1, fullgraph=True)(torch.tensor(1.0))
