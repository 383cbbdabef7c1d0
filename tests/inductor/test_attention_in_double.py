"""Attention in float64 on the CPU, where a rule of torch takes sums of one kernel for float32."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import dynamo


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("batch", [1, 2])
def test_attention_and_its_gradients(batch: int, dynamic: bool) -> None:
    def attend(q, k, v):
        return F.scaled_dot_product_attention(q, k, v).sin()

    compiled = dynamo.compile(attend, dynamic=dynamic, fullgraph=True)
    for heads in (4, 3):
        given = [torch.randn(batch, heads, 9, 8, dtype=torch.float64) for _ in range(3)]
        outcomes = []
        for call in (attend, compiled):
            leaves = [tensor.clone().requires_grad_() for tensor in given]
            result = call(*leaves)
            result.square().sum().backward()
            outcomes.append((result.detach(), *(leaf.grad for leaf in leaves)))
        torch.testing.assert_close(outcomes[1], outcomes[0])
