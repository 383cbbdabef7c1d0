"""Norms by statistics of the batch alone (instance norms), in half precision, forward and backward."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import dynamo


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.every_combination
def test_instance_norms(dtype: torch.dtype, affine: bool, backend: str) -> None:
    eager = nn.InstanceNorm2d(4, affine=affine)
    if affine:
        nn.init.normal_(eager.weight)
    exact, eager = copy.deepcopy(eager).double(), eager.to(dtype)
    ours = copy.deepcopy(eager)
    x, y = torch.randn(2, 4, 6, 5).to(dtype), torch.randn(2, 4, 6, 5).to(dtype)
    rows = []
    for module, run in ((exact, exact), (eager, eager), (ours, dynamo.compile(ours, backend=backend, fullgraph=True))):
        kind = torch.float64 if module is exact else dtype
        leaf = x.to(kind).requires_grad_()
        result = run(leaf) * 2
        result.backward(y.to(kind))
        rows.append([result.detach(), leaf.grad, *[each.grad for each in module.parameters()]])
    for true, theirs, found in zip(*rows, strict=True):
        assert found.dtype is theirs.dtype and found.stride() == theirs.stride()
        assert (found - true).abs().max() <= 2 * (theirs - true).abs().max() + 4 * torch.finfo(dtype).eps * true.abs().max()
