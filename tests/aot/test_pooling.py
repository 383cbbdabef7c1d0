"""Places of a max pooling go through one byte each on a GPU, and come back as they were."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import dynamo
from dynamo import aot
from dynamo.aot import api, min_cut, pooling
from dynamo.aot.boxed import run_as_it_is
from dynamo.aot.decompositions import default_decompositions
from tests.aot.test_memory import partitions  # noqa: F401

CASES = [
    {"kernel_size": 2}, {"kernel_size": 3, "stride": 2, "padding": 1}, {"kernel_size": 3, "stride": 1, "dilation": 2},
    {"kernel_size": (2, 3), "stride": (1, 2), "padding": (0, 1), "dilation": (3, 2), "ceil_mode": True},
    {"kernel_size": 3, "stride": 2, "ceil_mode": True}, {"kernel_size": (11, 12), "padding": 4}, {"kernel_size": 5, "stride": (3, 7)},
]  # fmt: skip


@pytest.fixture
def anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rule of a GPU on this machine."""
    fuses = min_cut._fuses
    monkeypatch.setattr(api, "reads_places", lambda node: True)
    monkeypatch.setattr(min_cut, "_fuses", lambda node: node.target is pooling._BACKWARD or fuses(node))


def simplified(gm: torch.fx.GraphModule, examples: list[Any]) -> Callable[..., Any]:
    """Decomposed and cut in two, without kernels."""

    def run(module: torch.fx.GraphModule, fakes: list[Any]) -> Callable[..., Any]:
        return run_as_it_is(module)

    return aot.compile_training(gm, examples, run, run, decompositions=default_decompositions())


@pytest.mark.usefixtures("anywhere")
@pytest.mark.parametrize("last", [False, True], ids=["contiguous", "channels last"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradients(case: dict[str, Any], last: bool, partitions: Callable[[], int]) -> None:  # noqa: F811
    def pool(x: torch.Tensor) -> torch.Tensor:
        return F.max_pool2d(x.relu(), **case)

    torch.manual_seed(0)
    x = torch.randn(2, 5, 29, 31).round(decimals=1)  # equal elements among them
    x = x.to(memory_format=torch.channels_last) if last else x
    one, two = (x.clone().requires_grad_() for _ in range(2))
    found, wanted = dynamo.compile(pool, backend=simplified)(one), pool(two)
    assert torch.equal(found, wanted)
    grad = torch.randn_like(wanted)
    found.backward(grad)
    wanted.backward(grad)
    assert one.grad is not None and two.grad is not None
    torch.testing.assert_close(one.grad, two.grad)
    assert one.grad.stride() == two.grad.stride()
    large = case["kernel_size"] == (11, 12)
    places = wanted.numel() * (8 if large else 1)
    assert partitions() == x.numel() * 4 + places


def test_only_on_a_gpu_and_for_backward_alone() -> None:
    graph = torch.fx.Graph()
    x = graph.placeholder("x")
    pool = graph.call_function(pooling._POOL, (x, [2, 2]))
    places = graph.call_function(lambda: None, (pool, 1))
    node = graph.call_function(pooling._BACKWARD, (x, x, [2, 2], [2, 2], [0, 0], [1, 1], False, places))
    node.meta["val"] = torch.empty(2, device="meta")
    assert pooling.reads_places(node)
    node.meta["val"] = torch.empty(2)
    assert not pooling.reads_places(node)
    node.meta["val"] = torch.empty(2, device="meta")
    graph.call_function(torch.neg, (places,))
    assert not pooling.reads_places(node)
