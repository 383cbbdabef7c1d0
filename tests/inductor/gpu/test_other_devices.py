"""Results on the CPU of graphs for a GPU: no kernel of the GPU's makes them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode

from inductor.config import config
from inductor.driver.from_aten import rewritten
from inductor.ir.graph import ComputedBuffer, ExternKernel
from inductor.lowering.run import lower_graph

sys.path.append(str(Path(__file__).parents[1] / "symbolic"))
from for_all_sizes import capture


def counted(p: torch.Tensor) -> Any:
    """The first step of an optimizer, whose counters stay on the CPU."""
    step = torch.tensor(0.0) + 1
    return step, p * (1 - 0.9 ** step.double()).float()


def shown(p: torch.Tensor) -> Any:
    step = torch.tensor(0.0) + 1
    return step.view(1), step.expand(3), step.double(), p + step


def twice(p: torch.Tensor) -> Any:
    number = torch.tensor(3)
    return number, number, p * number


def whole(p: torch.Tensor) -> Any:
    return torch.full((4,), 2.0), torch.arange(4), p * 2


@pytest.mark.parametrize("program", [counted, shown, twice, whole])
def test_results_on_the_cpu(program: Callable[..., Any]) -> None:
    with FakeTensorMode():
        module = capture(program, (torch.empty(8, 8, device="cuda"),), "real")
    places = [value.meta["val"].device.type for value in module.graph.output_node().args[0]]
    with config.patch(gpu="sm_90"):
        graph = lower_graph(rewritten(module)).graph
    nodes: dict[str, Any] = {node.name: node for node in graph.nodes}
    assert len(graph.outputs) == len(places) and "cpu" in places
    for output, place in zip(graph.outputs, places, strict=True):
        node = nodes[output.buffer]  # its own memory at each call, so no constant
        assert node.layout.device.type == place
        assert isinstance(node, ComputedBuffer if place == "cuda" else ExternKernel), node
        assert not getattr(node, "target", None) or not node.target.is_view, node
    assert len({output.buffer for output in graph.outputs}) == len(places)
