"""Windows of large images stay out of kernels of rows on a GPU."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from inductor.scheduler.run import schedule_graph

sys.path.append(str(Path(__file__).parents[1] / "lowering"))
from test_gpu_training import lowered


@pytest.mark.parametrize("images, together", [(1, True), (64, False)])
def test_a_norm_behind_a_depthwise_convolution(images: int, together: bool) -> None:
    """A program of a few rows would read the weights of all channels for each of them."""
    def program(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        y = F.conv2d(x, weight, None, 1, 1, 1, 32)
        return F.layer_norm(y.permute(0, 2, 3, 1), (32,))

    x = torch.empty(images, 32, 32, 32, device="meta").to(memory_format=torch.channels_last)
    made = lowered(program, [x, torch.empty(32, 1, 3, 3, device="meta")])
    targets = [kernel.origins.targets for kernel in schedule_graph(made.graph, 8).kernels()]
    (norm,) = [each for each in targets if "aten.native_layer_norm.default" in each]
    assert ("aten.convolution.default" in norm) == together
