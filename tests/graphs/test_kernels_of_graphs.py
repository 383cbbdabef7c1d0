"""Colours by kernel: the compiled graph says which kernel computes each operation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import fx

import dynamo
from dynamo import graphs

pytestmark = pytest.mark.filterwarnings("error::FutureWarning")
X = torch.randn(8, 16, generator=torch.Generator().manual_seed(0))


def graph_of(f: Any, *args: Any) -> fx.GraphModule:
    with torch.no_grad():
        return dynamo.export(f, *args)[0]


def normed(x: torch.Tensor, w: torch.Tensor) -> dict[str, torch.Tensor]:
    y = (x.exp() + 1).softmax(-1)
    z = y @ w
    return {"a": z.relu().T, "b": y}


def names(graph: fx.GraphModule, *args: Any) -> dict[str, str]:
    return {node.name: name for node, name in graphs.kernels_of(graph, *args).items()}


def test_operations_of_one_kernel_share_a_name() -> None:
    w = torch.randn(16, 4)
    graph = graph_of(normed, X, w)
    found = names(graph, X, w)
    assert found["exp"] == found["add"] == found["softmax"] != found["relu"]
    assert found["relu"].startswith("kernel")
    assert "mm" in found["matmul"] or found["matmul"] == found["relu"]  # a product with its epilogue
    assert found.get("T", found["relu"]) == found["relu"]  # a view has no kernel of its own
    assert graph(X, w)["a"].shape == (4, 8)  # the graph is as it was


def test_arguments_stay_as_they_are() -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x * 2

    graph, given = graph_of(f, X.clone()), X.clone()
    assert set(names(graph, given).values()) == {"kernel0"}
    assert torch.equal(given, X)


def test_weights_are_part_of_the_graph() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.GELU(), torch.nn.LayerNorm(8))
    found = names(graph_of(model.eval(), X), X)
    assert found["gelu"] == found["layer_norm"]


def test_drawn_by_kernel(tmp_path: Path) -> None:
    w = torch.randn(16, 4)
    graph = graph_of(normed, X, w)
    text = graphs.draw(graph, tmp_path / "g.svg", args=(X, w)).read_text()
    assert ">kernel0</text>" in text and text.count('fill="#ffffff"') >= 2  # placeholders are white
    with pytest.raises(TypeError, match="not both"):
        graphs.draw(graph, tmp_path / "g.svg", label=lambda node: "", args=(X, w))
