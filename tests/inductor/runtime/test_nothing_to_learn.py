"""Graphs with parameters whose results need no gradient are compiled as inference is."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import dynamo
from inductor.driver import from_aten

aten = torch.ops.aten


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("program", ["no grad inside", "detached"])
@pytest.mark.every_combination
def test_convolutions_get_their_layout(program: str, dynamic: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3))
    seen: list[Any] = []
    compile_aten = from_aten.compile_aten

    def noting(module: Any, fakes: Any) -> Any:
        seen.extend(module.graph.find_nodes(op="call_function", target=aten.convolution.default))
        return compile_aten(module, fakes)

    monkeypatch.setattr(from_aten, "compile_aten", noting)

    @dynamo.compile(fullgraph=True, dynamic=dynamic, options={"graph_cache": False, "freezing": False})
    def run(x: torch.Tensor) -> torch.Tensor:
        if program == "detached":
            return model(x).detach()
        with torch.no_grad():
            return model(x)

    for size in (16, 20):
        x = torch.randn(2, 3, size, size)
        found = run(x)
        assert not found.requires_grad
        torch.testing.assert_close(found, model(x).detach(), rtol=1e-4, atol=1e-4)
        with torch.no_grad():
            model[0].weight.mul_(1.5)
    assert seen and all(node.args[0].meta["val"].is_contiguous(memory_format=torch.channels_last) for node in seen)


def test_no_weight_is_frozen() -> None:
    """A write that counts as no version, into a part that no check looks at, is seen all the same."""
    model = nn.Linear(300, 256)

    @dynamo.compile(fullgraph=True)
    def run(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            return model(x)

    x = torch.ones(64, 300)
    run(x)
    for place in range(0, 300, 7):
        model.weight.data[place % 256, place] += 100.0
        torch.testing.assert_close(run(x), model(x).detach(), rtol=1e-4, atol=1e-4)
