"""Gradients of bags of embeddings, as they are computed on a GPU; a CPU computes them here."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dynamo.aot import embedding_bags

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedding_bags, "on_gpu", lambda x: True)


def bags(mode: int, padding: int, dtype: torch.dtype) -> dict[str, Any]:
    """Five bags, one of them empty."""
    weight, indices = torch.randn(7, 6).to(dtype), torch.tensor([3, 1, 3, 0, 6, 2, 2, 3, 5])
    offsets, bag_of = torch.tensor([0, 2, 2, 5, 8]), torch.tensor([0, 0, 2, 2, 2, 3, 3, 3, 4])
    weights = torch.rand(9).to(dtype) if mode == 0 else None
    found = aten._embedding_bag(weight, indices, offsets, False, mode, False, weights, False, padding)
    grad = torch.randn_like(found[0])
    return dict(weight=weight, indices=indices, offsets=offsets, bag_of=bag_of, size=found[2], greatest=found[3],
                weights=weights, grad=grad)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("padding", [-1, 3])
@pytest.mark.parametrize("mode", [0, 1])
@pytest.mark.every_combination
def test_the_table(mode: int, padding: int, dtype: torch.dtype) -> None:
    b = bags(mode, padding, dtype)
    args = (b["grad"], b["indices"], b["offsets"], b["bag_of"], b["size"], b["greatest"], 7, False, mode, False, b["weights"], padding)
    found, wanted = embedding_bags.embedding_bag_backward(*args), aten._embedding_bag_backward(*args)
    assert found.dtype is wanted.dtype
    torch.testing.assert_close(found, wanted)


@pytest.mark.parametrize("padding", [-1, 3])
def test_weights_within_bags(padding: int) -> None:
    b = bags(0, padding, torch.float32)
    args = (b["grad"], b["weight"], b["indices"], b["offsets"], b["bag_of"], 0, padding)
    torch.testing.assert_close(embedding_bags.embedding_bag_weights_backward(*args), aten._embedding_bag_per_sample_weights_backward(*args))


@pytest.mark.parametrize(("mode", "sparse", "frequency"), [(2, False, False), (0, True, False), (0, False, True)])
def test_others_are_left(mode: int, sparse: bool, frequency: bool) -> None:
    """The greatest of each bag, sparse gradients, and those divided by how often a row is read."""
    b = bags(1, -1, torch.float32)
    args = (b["grad"], b["indices"], b["offsets"], b["bag_of"], b["size"], b["greatest"], 7, frequency, mode, sparse, None, -1)
    assert embedding_bags.embedding_bag_backward(*args) is NotImplemented
