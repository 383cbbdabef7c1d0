"""`x[mask] = row` in training: compiled, with eager's values, gradients and errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import dynamo
from dynamo.testing import assert_compiled

# The sizes of what is written, of the mask, of the row or rows.
CASES = {
    "a row": ((2, 3, 4), (2, 3), (4,)),
    "a row of one": ((2, 3, 4), (2, 3), (1, 4)),
    "one number for each row": ((2, 3, 4), (2, 3), (1,)),
    "one number": ((2, 3), (2, 3), ()),
    "a mask of whole matrices": ((2, 3, 4), (2,), (1, 3, 1)),
    "as many rows as places": ((2, 3, 4), (2, 3), (3, 4)),
    "as many numbers as places": ((2, 3), (2, 3), (3,)),
    "a number for each place": ((2, 3, 4), (2, 3), (3, 1)),
}


def written(x: Tensor, mask: Tensor, row: Tensor) -> Tensor:
    y = x * 2
    y[mask] = row * 3
    return y.sin() * y


def added(x: Tensor, mask: Tensor, row: Tensor) -> Tensor:
    y = x.clone()
    part = y[0]
    y[mask] = row
    return part.cos() + y.exp().sum(0)


def outcome(f: Callable[..., Tensor], tensors: tuple[Tensor, ...]) -> list[Any]:
    x, mask, row = (t.clone().requires_grad_(t.is_floating_point()) for t in tensors)
    result = f(x, mask, row)
    result.square().sum().backward()
    return [result, x.grad, row.grad]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("program", [written, added])
@pytest.mark.parametrize("name", CASES)
def test_like_eager(name: str, program: Any, dynamic: bool) -> None:
    size, of_mask, of_row = CASES[name]
    mask = torch.zeros(of_mask, dtype=torch.bool)
    mask.view(-1)[-3:] = True
    tensors = torch.randn(size), mask, torch.randn(of_row)
    dynamo.reset()
    compiled = dynamo.compile(program, dynamic=dynamic)
    for chosen in (mask, ~mask, mask.flip(0)):
        if len(of_row) == 1 + len(size) - len(of_mask) and of_row[0] not in (1, chosen.sum()):
            continue
        given = tensors[0], chosen, tensors[2]
        torch.testing.assert_close(outcome(compiled, given), outcome(program, given))
    assert_compiled()


def test_errors_are_eagers() -> None:
    x, mask = torch.randn(2, 3, 4), torch.ones(2, 3, dtype=torch.bool)
    rows = torch.randn(3, 4)
    for wrong in ((x, mask, torch.randn(3)), (x, mask, torch.randn(1, 2, 4)), (x, mask, rows),
                  (x, ~mask, rows), (x, mask, rows[:0]), (x, mask[:, :2], torch.randn(4))):
        texts = []
        for call in (written, dynamo.compile(written)):
            with pytest.raises((RuntimeError, IndexError)) as caught:
                outcome(call, wrong)
            texts.append((caught.type, str(caught.value)))
        assert texts[0] == texts[1]
