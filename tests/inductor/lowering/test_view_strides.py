"""Which reshapes of a strided tensor are views, against torch."""

from __future__ import annotations

import random

import pytest
import torch

import dynamo
from inductor.ir.graph import Layout
from inductor.lowering.views import _is_view
from tests.seeds import drawn


def parts_of(total: int, numbers: random.Random) -> list[int]:
    """Random sizes with this product."""
    sizes = []
    while total > 1:
        part = numbers.choice([n for n in range(2, total + 1) if total % n == 0])
        sizes.append(part)
        total //= part
    for _ in range(numbers.randrange(3)):
        sizes.insert(numbers.randrange(len(sizes) + 1), 1)
    return sizes


@pytest.mark.draws
@pytest.mark.parametrize("part", range(3))
def test_views_are_torchs(part: int) -> None:
    for seed in drawn(range(100 * part, 100 * part + 100)):
        check_views_are_torchs(seed)


def check_views_are_torchs(seed: int) -> None:
    numbers = random.Random(seed)
    total = numbers.choice([1, 2, 6, 12, 24])
    dims = parts_of(total, numbers)
    tensor = torch.empty([d + numbers.choice([0, 0, 1]) for d in dims])
    tensor = tensor[tuple(slice(0, d) for d in dims)]
    if dims:
        tensor = tensor.permute(numbers.sample(range(len(dims)), len(dims)))
    if dims and numbers.random() < 0.2:
        tensor = tensor.unsqueeze(0).expand(2, *tensor.shape)
    new = parts_of(tensor.numel(), numbers)
    try:
        stride, possible = tensor.view(new).stride(), True
    except RuntimeError:
        stride, possible = torch.empty(new).stride(), False
    device = torch.device("cpu")
    old = Layout(device, torch.float32, tuple(tensor.shape), tensor.stride())
    assert _is_view(old, Layout(device, torch.float32, tuple(new), stride)) == possible


def test_a_pass_writes_reshapes() -> None:
    """Those of what is put into memory later, and can't be views of it."""
    aten = torch.ops.aten
    written = []

    def one_reshape(graph: torch.fx.Graph) -> None:
        for node in graph.nodes:
            if node.target is aten._unsafe_view.default:
                (copy, shape), node.target = node.args, aten.reshape.default
                node.args = (copy.args[0], shape)
                written.append(node)

    def program(p: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        rows = torch.cat([p, p]).view(2, p.shape[0], -1)
        return torch.cat([part.reshape(8, -1) @ w for part in rows.split(4, 1)])

    p, w = torch.randn(8, 8), torch.randn(8, 8)
    options = {"post_grad_custom_pre_pass": one_reshape}
    compiled = dynamo.compile(program, fullgraph=True, options=options)
    torch.testing.assert_close(compiled(p, w), program(p, w))
    assert written
