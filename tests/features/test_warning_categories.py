"""`warnings.warn` with what is no category of warnings: its error is raised where it is called."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

import dynamo


class Own(UserWarning):
    pass


CATEGORIES: dict[str, Any] = {
    "none": None, "own": Own, "empty text": "", "text": "warning", "zero": 0, "false": False,
    "tuple": (), "class": int, "error": ValueError, "instance": Own(),
}


@pytest.mark.parametrize("name", CATEGORIES)
def test_category(name: str) -> None:
    category = CATEGORIES[name]

    def f(x: torch.Tensor) -> Any:
        y = x + 1
        try:
            warnings.warn("text", category, stacklevel=1)
        except TypeError as error:
            return y.tolist(), type(error).__name__
        return y.tolist(), "warned"

    results = []
    for function in (f, dynamo.compile(f, backend="eager")):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            results.append((function(torch.ones(2)), [one.category for one in told]))
    assert results[1] == results[0]
