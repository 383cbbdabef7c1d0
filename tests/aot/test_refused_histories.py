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


def view_of_what_requires_grad(x):
    with torch.no_grad():
        row = x[-1]
    return row.sin(), x * 2


def inference_tensor(x):
    with torch.inference_mode():
        inside = torch.zeros(2, 2).sin()
    return inside.mul_(x.sum().detach())


def computed():
    return plain_leaf() * 1


def plain_leaf():
    return torch.randn(2, 3, requires_grad=True)


def leaf_that_is_a_view():
    return torch.randn(2, 1).expand(2, 3).requires_grad_()


PROGRAMS = [view_made_without_grad, part_of_what_is_written, view_of_what_requires_grad, inference_tensor]


@pytest.mark.parametrize("program", PROGRAMS)
def test_as_eager(program) -> None:
    with config.patch(suppress_errors=False):
        compiled = dynamo.compile(program)
        for _ in range(2):
            for make in (computed, plain_leaf, leaf_that_is_a_view):
                found = []
                for function in (program, compiled):
                    try:
                        found.append([out.requires_grad for out in function(make())])
                    except RuntimeError as error:
                        found.append(str(error)[:30])
                assert found[0] == found[1]
