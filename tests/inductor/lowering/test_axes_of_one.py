"""Gradients of normalisations whose batch, groups or rows are one: which axis is a reduced one?"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import dynamo

CASES = [
    ("groups", (1, 4), lambda x, w: F.group_norm(x, 2, w, w)),
    ("groups", (1, 4, 3), lambda x, w: F.group_norm(x, 2, w, w)),
    ("one group", (1, 4, 3), lambda x, w: F.group_norm(x, 1, w, w)),
    ("batch", (3, 4, 1), lambda x, w: F.group_norm(x, 2, w, w)),
    ("instances", (1, 4, 3), lambda x, w: F.instance_norm(x, None, None, w, w)),
    ("rows", (1, 4), lambda x, w: F.layer_norm(x, (4,), w, w)),
    ("all", (1, 4), lambda x, w: F.layer_norm(x, (1, 4))),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]} {case[1]}")
def test_gradients(case) -> None:
    _, size, program = case
    x, w = torch.randn(size, dtype=torch.float64), torch.rand(4, dtype=torch.float64)
    found = []
    for function in (program, dynamo.compile(program)):
        mine = [x.clone().requires_grad_(), w.clone().requires_grad_()]
        out = function(*mine)
        (out * torch.arange(1, out.numel() + 1).reshape(size)).sum().backward()
        found.append([out.detach(), *(each.grad for each in mine)])
    for want, got in zip(*found, strict=True):
        if want is not None:
            torch.testing.assert_close(got, want, rtol=1e-7, atol=1e-9)
