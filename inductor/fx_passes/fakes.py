"""Running an operator on the fakes of a graph, and what passes ask of a device."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch._dispatch.python import enable_python_dispatcher

from dynamo.shapes.fake import Fake


def on_gpu(device: torch.device) -> bool:
    """Whether tensors there are computed by Triton kernels, and by a GPU's libraries."""
    return device.type == "cuda"


def any_on_gpu(values: Iterable[Any]) -> bool:
    """Whether there are tensors on a GPU among the inputs of a program."""
    return any(isinstance(value, torch.Tensor) and value.is_cuda for value in values)


def fake_runner(value: Any) -> Callable[..., Any]:
    """A function (operator, *arguments) -> fakes of its results. value: any fake of the graph.

    Autocast is off: a graph compiled under it holds its casts. Gradients are, too: it holds them.
    """

    def run(target: Any, *args: Any, **kwargs: Any) -> Any:
        with torch._C._DisableAutocast(), torch.no_grad():
            if isinstance(value, Fake):
                return value.world.run(target, *args, **kwargs)
            with value.fake_mode, enable_python_dispatcher():
                return target(*args, **kwargs)

    return run
