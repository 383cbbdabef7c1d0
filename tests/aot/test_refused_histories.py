"""Programs whose tensors autograd refuses to follow, or to let be written: eager's own error, or none."""

from __future__ import annotations

import pytest
import torch

import dynamo
from dynamo.base.config import config


def view_made_without_grad(x):
    with torch.no_grad():
        view = x.view(-1)[1:].neg_()
    return view.sigmoid()


def part_of_what_is_written(x):
    part = x.flatten().chunk(2, 0)[-1]
    x.mul_(2)
    return (part,)


def inference_tensor(x):
    with torch.inference_mode():
        inside = torch.zeros(2, 2).sin()
    return inside.mul_(x.sum().detach())


@pytest.mark.parametrize("program", [view_made_without_grad, part_of_what_is_written, inference_tensor])
def test_as_eager(program) -> None:
    with config.patch(suppress_errors=False):
        compiled = dynamo.compile(program)
        for _ in range(2):
            leaf = torch.randn(2, 3)
            found = []
            for function in (program, compiled):
                x = leaf.clone().requires_grad_() * 1
                try:
                    found.append([type(out) for out in function(x)])
                except RuntimeError as error:
                    found.append(str(error)[:30])
            assert found[0] == found[1]
