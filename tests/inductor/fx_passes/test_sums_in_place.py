"""GEMMs that add to a tensor which nothing wants any more: in its memory, with eager's values."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from inductor.fx_passes import places
from inductor.fx_passes.in_place import write_in_place
from inductor.fx_passes.places import SUMS
from inductor.lowering.registry import LOWERINGS
from tests.inductor.fx_passes.writes import functional_graph

aten = torch.ops.aten
Program = Callable[..., Tensor]


@pytest.fixture(autouse=True)
def on_a_gpu(as_on_gpu: Callable[..., None]) -> None:
    as_on_gpu(places)


def chunks(x: Tensor, w: Tensor) -> Tensor:
    """The gradient of a weight, chunk by chunk, as a loss over a large vocabulary adds it up."""
    total = torch.zeros(4, 4)
    for part in x.split(2):
        torch.addmm(total, part.t(), part @ w, out=total)
    return total


def into_an_argument(x: Tensor, w: Tensor) -> Tensor:
    w.addmm_(x.t(), x)
    return w * 2


def batches(x: Tensor, w: Tensor) -> Tensor:
    total = x[None] * torch.ones(2, 1, 1)
    return total.baddbmm(total.new_ones(2, 6, 3), total.new_ones(2, 3, 4) * w[0, 0], beta=0.5, alpha=2)


def wanted_later(x: Tensor, w: Tensor) -> Tensor:
    total = w.sin()
    return torch.addmm(total, x.t(), x) * total


def of_itself(x: Tensor, w: Tensor) -> Tensor:
    """As Newton's iteration for an orthogonal matrix."""
    y = w.sin()
    return torch.addmm(y, y @ y.t(), y, beta=1.5, alpha=-0.5)


def with_a_bias(x: Tensor, w: Tensor) -> Tensor:
    return torch.addmm(w[0] * 2, x, w)


def wider(x: Tensor, w: Tensor) -> Tensor:
    return torch.addmm(w.sum() + torch.zeros(6, 1), x, w)


IN_PLACE = {chunks: 3, into_an_argument: 1, batches: 1}
APART = [wanted_later, of_itself, with_a_bias, wider]


@pytest.mark.parametrize("program", [*IN_PLACE, *APART], ids=lambda each: each.__name__)
def test_values(program: Program) -> None:
    w = torch.randn(4, 4)
    module, names = functional_graph(program, w.clone())
    write_in_place(module, LOWERINGS.__contains__)
    found = sum(node.target in SUMS.values() for node in module.graph.nodes)
    assert found == IN_PLACE.get(program, 0)
    given = {"x": torch.arange(24.0).reshape(6, 4) / 24, "w": w}
    mine = {name: value.clone() for name, value in given.items()}
    wanted = program(given["x"], given["w"])
    results = module(*[mine[name] for name in names])
    found_result = results[0] if isinstance(results, (tuple, list)) else results
    torch.testing.assert_close(found_result, wanted)
    torch.testing.assert_close(mine["w"], given["w"])
