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
from inductor.operators.device_numbers import NUMBERS_ON

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


def moved(p: torch.Tensor, n: torch.Tensor, m: torch.Tensor) -> Any:
    def there(x: torch.Tensor, dtype: torch.dtype) -> Any:
        return torch.ops.aten._to_copy.default(x, device=p.device, dtype=dtype)

    return p * there(n, n.dtype) + there(n * 2, torch.float16), p / there(m, torch.float64), there(m, m.dtype)


def test_numbers_that_are_moved() -> None:
    """By one copy, but for what the program gets: that has memory of its own."""
    with FakeTensorMode():
        given = torch.empty(8, 8, device="cuda"), torch.tensor(2.0), torch.tensor(3)
        module = rewritten(capture(moved, given, "real"))
    (copy,) = module.graph.find_nodes(op="call_function", target=NUMBERS_ON)
    assert len(copy.args[0]) == 2
    copies = module.graph.find_nodes(op="call_function", target=torch.ops.aten._to_copy.default)
    across = [node for node in copies if node.args[0].meta["val"].device.type == "cpu"]
    assert len(across) == 1 and module.graph.output_node() in across[0].users
    dtypes = {node.meta["val"].dtype for node in copies if node not in across}
    assert dtypes >= {torch.float16, torch.float64}


def test_a_number_that_is_returned_has_memory_of_its_own() -> None:
    """Also behind a view; those of one copy lie side by side."""
    def program(p: torch.Tensor, n: torch.Tensor, m: torch.Tensor) -> Any:
        there = torch.ops.aten._to_copy.default(n, device=p.device, dtype=n.dtype)
        return p * there, there.detach(), p * m

    with FakeTensorMode():
        given = torch.empty(8, 8, device="cuda"), torch.tensor(2.0), torch.tensor(3)
        module = rewritten(capture(program, given, "real"))
    (copy,) = module.graph.find_nodes(op="call_function", target=NUMBERS_ON)
    number, other = module.graph.find_nodes(op="placeholder")[1:]
    assert list(copy.args[0]) == [other] and copy not in number.users
