"""What kernels of a GPU compute anew and what they find in memory, by the bytes that they move."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from test_stacks_on_gpu import lowered
from torch import Tensor

from inductor.ir import interpret
from inductor.ir.graph import ComputedBuffer

ROWS, COLUMNS = 64, 32


@pytest.fixture(autouse=True)
def _on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "_lazy_init", lambda: None)
    monkeypatch.setattr(interpret, "_allocate", lambda layout: torch.empty(
        layout.storage_elements(), dtype=layout.dtype))


def rounding_backward(grad: Tensor, x: Tensor, step: Tensor) -> tuple[Tensor, Tensor]:
    """Each result reads `x` and `grad` itself: masks of them need no memory."""
    q = x / step
    below, above = q < -8, q > 7
    inside = ~(below | above)
    of_step = torch.where(inside, q.round() - q, torch.where(below, -8, 7))
    return grad * inside, (grad * of_step).sum()


def mask_of_others(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    """The second result would read `x` and `y` for it alone."""
    mask = x * 2 < y.exp()
    return torch.where(mask, x, y), torch.where(mask, z, 0.0).sum()


def mask_by_way_of_others(x: Tensor, y: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    """Both read `x`, the second behind other operations."""
    mask = (x * 2).exp() < 3
    return torch.where(mask, z, y), torch.where(mask, x.sin() * 2 + 1, 0.0).sum()


@pytest.mark.parametrize(("program", "shapes", "stored"), [
    (rounding_backward, [(ROWS, COLUMNS), (ROWS, COLUMNS), ()], 0),
    (mask_of_others, [(ROWS, COLUMNS)] * 3, 1),
    (mask_by_way_of_others, [(ROWS, COLUMNS)] * 3, 0),
])  # fmt: skip
def test_masks(program: Callable[..., Any], shapes: list[tuple[int, ...]], stored: int) -> None:
    torch.manual_seed(0)
    given = [torch.randn(shape).abs().bfloat16() + 0.01 for shape in shapes]
    made = lowered(program, given)
    masks = [node for node in made.graph.nodes
             if isinstance(node, ComputedBuffer) and node.layout.dtype is torch.bool]
    assert len(masks) == stored
    for got, want in zip(interpret.interpret_graph(made.graph, given), program(*given), strict=True):
        torch.testing.assert_close(got, want, rtol=2e-2, atol=2e-2)
