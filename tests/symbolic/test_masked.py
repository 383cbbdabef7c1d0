"""Functions of `torch.masked` on plain tensors are in the graph."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import masked

import dynamo

DATA, MASK = torch.randn(4, 8), torch.rand(4, 8) > 0.5


@pytest.mark.parametrize("mask", [MASK, None, MASK[:1]])
def test_reductions(mask: Any) -> None:
    def reduce(x: Any) -> Any:
        sums = masked.sum(x, 1, mask=mask) + masked.mean(x, 1, mask=mask)
        norms = masked.norm(x, 2, 1, mask=mask) * masked.var(x, 1, mask=mask)
        return sums, norms, masked.amax(x, 1, mask=mask), masked.argmax(x, 1, mask=mask)

    def normalize(x: Any) -> Any:
        return masked.softmax(x, -1, mask=mask), masked.normalize(x, 2.0, 1, mask=mask)

    for program in (reduce, normalize):
        compiled = dynamo.compile(program, fullgraph=True)
        torch.testing.assert_close(compiled(DATA), program(DATA), equal_nan=True)
    pair = []
    for call in (compiled, normalize):
        x = DATA.clone().requires_grad_()
        call(x)[0].nan_to_num().pow(2).sum().backward()
        pair.append(x.grad)
    torch.testing.assert_close(*pair, equal_nan=True)
