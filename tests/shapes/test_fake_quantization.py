"""Fake quantization by channels has no meta kernel of torch's; it stays in the graph."""

from __future__ import annotations

import pytest
import torch

import dynamo


@pytest.mark.parametrize("transposed", [False, True])
def test_by_channels(transposed: bool) -> None:
    def function(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        zeros = torch.zeros_like(scale, dtype=torch.int32)
        return torch.fake_quantize_per_channel_affine(x * 2, scale, zeros, 0, -8, 7) + 1

    x = torch.linspace(-2, 2, 12).view(3, 4)
    x = (x.t().contiguous().t() if transposed else x).requires_grad_()
    scale = torch.tensor([0.1, 0.3, 0.5])
    compiled = dynamo.compile(function, fullgraph=True)
    results = [call(x, scale) for call in (function, compiled)]
    gradients = [torch.autograd.grad(result.sum(), x)[0] for result in results]
    assert torch.equal(*results) and results[0].stride() == results[1].stride()
    assert torch.equal(*gradients) and gradients[0].unique().numel() == 2
