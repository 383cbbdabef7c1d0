"""The garbage collector stays still while a graph is compiled, forward and backward."""

from __future__ import annotations

import gc
from typing import Any

import pytest
import torch

import dynamo


def chain(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    for _ in range(10):
        x = torch.softmax(torch.relu(x @ w) * 2, -1)
    return x.sum(0)


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("trains", [False, True], ids=["inference", "training"])
def test_hardly_any_collection_while_graphs_are_compiled(trains: bool, dynamic: bool) -> None:
    dynamo.reset()
    compiled = dynamo.compile(chain, dynamic=dynamic)
    ends: list[str] = []

    def collected(phase: str, info: dict[str, Any]) -> None:
        ends.append(phase)

    before = gc.get_threshold()
    gc.callbacks.append(collected)
    try:
        gc.set_threshold(200, 1000, 1000)
        result = compiled(torch.ones(3, 4), torch.ones(4, 4, requires_grad=trains))
        if trains:
            result.sum().backward()
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(collected)
    assert ends.count("stop") < 15
