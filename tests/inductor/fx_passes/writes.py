"""What tests of writes in place share: layouts of an input, and the functional graph of a program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx

import dynamo
from dynamo.aot.capture import capture_forward

LAYOUTS: dict[str, Callable[[], Tensor]] = {
    "dense": lambda: torch.arange(24.0).reshape(6, 4),
    "turned": lambda: torch.arange(24.0).reshape(4, 6).t(),
    "part": lambda: torch.arange(72.0).reshape(9, 8)[2:8, 3:7],
}


def functional_graph(program: Callable[..., Any], *rest: Tensor) -> tuple[fx.GraphModule, list[str]]:
    """The graph of a program of a dense input, and the names of its inputs."""
    graphs: list[fx.GraphModule] = []
    names: list[str] = []

    def backend(gm: fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        graphs.append(capture_forward(gm, inputs, epilogue_in_graph=True).module)
        names.extend(node.name.removeprefix("l_") for node in gm.graph.nodes if node.op == "placeholder")
        return gm.forward

    dynamo.compile(program, backend=backend, fullgraph=True)(LAYOUTS["dense"](), *rest)
    return graphs[0], names
